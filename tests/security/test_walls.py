"""Every route is walked with another tenant's ids: what is somebody else's is as if it were not there."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from security_support import TOKENS, Live, Tenant, batch, live, make_keys, sample

from tinsmith.server.routes import API, ROUTES, Route


@dataclass(frozen=True)
class House:
    """The ids of all there is of alice's."""

    session: str
    run: str
    sampler: str
    checkpoint: str = "mine"
    export: str = "out"

    @property
    def path(self) -> str:
        """A checkpoint of hers."""
        return f"tinker://{self.run}/weights/{self.checkpoint}"


ABSENT = str(uuid.UUID(int=0))
NOBODYS = House(ABSENT, f"{ABSENT}:train:0", f"{ABSENT}:sample:0")  # of the same form, and of nobody

# What comes of each route for somebody else: `hidden` is refused word for word like what does not exist,
# `scoped` holds nothing of hers, `sealed` needs a signature.
HIDDEN: dict[tuple[str, str], Any] = {
    ("POST", "session_heartbeat"): lambda h: {"session_id": h.session},
    ("POST", "sessions/{session_id}/finish"): lambda h: {"reason": {"type": "success"}},
    ("PUT", "sessions/{session_id}/project"): lambda h: {"project_id": "stolen"},
    ("GET", "sessions/{session_id}/trace_export"): None,
    ("GET", "sessions/{session_id}"): None,
    ("POST", "create_custom_loss"): lambda h: {
        "session_id": h.session,
        "custom_loss_seq_id": 7,
        "name": "x",
        "inputs": [{"name": "logprobs", "rank": 1}],
        "graph": {"nodes": []},
    },
    ("POST", "create_model"): lambda h: {
        "session_id": h.session,
        "model_seq_id": 7,
        "base_model": "tiny-llama",
    },
    ("POST", "get_info"): lambda h: {"model_id": h.run},
    ("POST", "unload_model"): lambda h: {"model_id": h.run},
    ("POST", "forward"): lambda h: {"forward_input": _input(h), "model_id": h.run, "seq_id": 90},
    ("POST", "forward_backward"): lambda h: batch(h.run, 90),
    ("POST", "optim_step"): lambda h: {"model_id": h.run, "seq_id": 90, "adam_params": {}},
    ("POST", "save_weights"): lambda h: {"model_id": h.run, "seq_id": 90, "path": "x"},
    ("POST", "load_weights"): lambda h: {"model_id": h.run, "seq_id": 90, "path": h.path},
    ("POST", "save_weights_for_sampler"): lambda h: {"model_id": h.run, "seq_id": 90, "path": "x"},
    ("POST", "save_weights_external"): lambda h: {"model_id": h.run, "seq_id": 90, "path": "x"},
    ("POST", "create_sampling_session"): lambda h: {
        "session_id": h.session,
        "sampling_session_seq_id": 7,
        "base_model": "tiny-llama",
    },
    ("POST", "join_sampling_session"): lambda h: {"sampling_session_id": h.sampler},
    ("POST", "asample"): lambda h: sample(h.sampler, 90),
    ("POST", "sample_stream"): lambda h: sample(h.sampler, 90),
    ("GET", "samplers/{sampler_id}"): None,
    ("POST", "retrieve_future"): lambda h: {"request_id": f"{h.run}:1"},
    ("POST", "retrieve_futures"): lambda h: {"target": {"sampling_session_id": h.sampler}},
    ("GET", "training_runs/{run_id}"): None,
    ("GET", "training_runs/{run_id}/checkpoints"): None,
    ("DELETE", "training_runs/{run_id}/checkpoints/{kind}/{name}"): None,
    ("POST", "training_runs/{run_id}/checkpoints/{kind}/{name}/publish"): None,
    ("DELETE", "training_runs/{run_id}/checkpoints/{kind}/{name}/publish"): None,
    ("PUT", "training_runs/{run_id}/checkpoints/{kind}/{name}/ttl"): lambda h: {"ttl_seconds": 1},
    ("GET", "training_runs/{run_id}/checkpoints/{kind}/{name}/archive"): None,
    ("GET", "training_runs/{run_id}/checkpoints/{kind}/{name}/external_weights_urls"): None,
    ("POST", "copy_weights"): lambda h: {"source_path": h.path, "destination_project_id": "stolen"},
    ("POST", "weights_info"): lambda h: {"tinker_path": h.path},
    ("POST", "/oai/api/v1/completions"): lambda h: {"model": h.path, "prompt": "x", "max_tokens": 1},
    ("POST", "/oai/api/v1/chat/completions"): lambda h: {
        "model": h.path,
        "messages": [{"role": "user", "content": "x"}],
    },
}
SCOPED: dict[tuple[str, str], Any] = {
    ("GET", "healthz"): None,
    ("POST", "client/config"): lambda h: {},
    ("POST", "client/dynamic_config"): lambda h: {},
    ("GET", "get_server_capabilities"): None,
    ("POST", "telemetry"): lambda h: {"events": [], "session_id": h.session},
    ("POST", "auth/token"): lambda h: {},
    ("GET", "auth/apikey/me"): None,
    ("DELETE", "auth/apikey/me"): None,  # his own, so it comes last
    ("GET", "audit"): None,
    ("GET", "billing/usage/events"): None,
    ("GET", "billing/usage/checkpoints/current"): None,
    ("POST", "create_session"): lambda h: {"tags": []},
    ("POST", "sessions/search"): lambda h: {
        "session_id": h.session,
        "owner": {"type": "user", "owner_urns": ["alice"]},
    },
    ("GET", "sessions"): None,
    ("POST", "cancel_future"): lambda h: {"request_id": f"{h.sampler}:0"},  # of samples it says nothing
    ("GET", "training_runs"): None,
    ("GET", "checkpoints"): None,
    ("GET", "/oai/api/v1/models"): None,
}
SEALED = {
    ("GET", "downloads/traces/{session_id}"),
    ("GET", "downloads/checkpoints/{run_id}/{kind}/{name}/archive.tar.gz"),
    ("GET", "downloads/checkpoints/{run_id}/{kind}/{name}/files/{file}"),
}
QUERIES = {"billing/usage/events": "?starting_on=2026-01-01T00:00:00Z&ending_before=2026-01-02T00:00:00Z"}


def _input(_house: House) -> Any:
    return batch("", 0)["forward_backward_input"]


def _key(route: Route) -> tuple[str, str]:
    return route.method, route.path if route.prefix == API else route.address


def _address(path: str, house: House) -> str:
    export = "external" in path
    segments = {
        "session_id": house.session,
        "sampler_id": house.sampler,
        "run_id": house.run,
        "kind": "external_weights" if export else "weights",
        "name": house.export if export else house.checkpoint,
        "file": "adapter_model.safetensors",
    }
    return path.format_map(segments) + QUERIES.get(path, "")


def _ask(tenant: Tenant, method: str, path: str, house: House, body: Any) -> httpx.Response:
    address: str | httpx.URL = _address(path, house)
    if path.startswith("/"):
        address = tenant.http.base_url.copy_with(path=path)
    return tenant.http.request(method, address, json=None if body is None else body(house))


def _furnish(alice: Tenant) -> House:
    """One of everything there can be."""
    session = alice.session(project_id="hers", display_name="the secret project")
    run = alice.run(session)
    alice.do("forward_backward", **batch(run, 1))
    alice.do("save_weights", model_id=run, seq_id=2, path="mine")
    alice.do("save_weights_external", model_id=run, seq_id=3, path="out")
    sampler = alice.do("save_weights_for_sampler", model_id=run, seq_id=4, sampling_session_seq_id=0)
    house = House(session, run, sampler["sampling_session_id"])
    alice.do("asample", **sample(house.sampler))
    return house


def _inventory(alice: Tenant, house: House) -> list[Any]:
    """All she can see of her things, except what only ever grows."""
    checkpoints = alice.http.get(f"training_runs/{house.run}/checkpoints").json()
    session = alice.http.get(f"sessions/{house.session}").json()
    found = alice.post("sessions/search")["sessions"]
    key = alice.http.get("auth/apikey/me").status_code
    return [checkpoints, session, found, key, alice.post("get_info", model_id=house.run)]


@pytest.fixture(scope="module")
def street(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Live, Tenant, Tenant, House]]:
    """A service with alice's house on it, and a neighbour."""
    data = tmp_path_factory.mktemp("walls") / "data"
    alice_key, mallory_key = make_keys(data, "alice", "mallory")
    with live(data) as service:
        alice = service.tenant(alice_key)
        yield service, alice, service.tenant(mallory_key), _furnish(alice)


def test_every_route_has_a_case() -> None:
    """A new route must say here what comes of it for somebody else."""
    missing = {_key(route) for route in ROUTES} - HIDDEN.keys() - SCOPED.keys() - SEALED
    assert not missing, f"say in HIDDEN, SCOPED or SEALED what another tenant gets from {sorted(missing)}"
    assert {_key(route) for route in ROUTES if route.open} == SEALED | {("GET", "healthz")}


def test_what_is_somebody_elses_is_as_if_it_were_not_there(
    street: tuple[Live, Tenant, Tenant, House],
) -> None:
    service, alice, mallory, house = street
    before = _inventory(alice, house)
    for (method, path), body in HIDDEN.items():
        if not any(_key(route) == (method, path) for route in ROUTES):
            continue
        hers, nobodys = (_ask(mallory, method, path, of, body) for of in (house, NOBODYS))
        assert hers.status_code == nobodys.status_code == 404, (method, path, hers.text, nobodys.text)
        assert hers.text.replace(house.session, ABSENT) == nobodys.text, (method, path)
        assert hers.headers.keys() == nobodys.headers.keys()
    for key in (None, "tml-wrong"):
        stranger = service.tenant(key)
        for (method, path), body in (HIDDEN | SCOPED).items():
            answer = _ask(stranger, method, path, house, body)
            opened = path == "healthz" or not any(_key(route) == (method, path) for route in ROUTES)
            assert opened or answer.status_code == 401, (method, path, answer.text)
    assert _inventory(alice, house) == before


def test_what_is_for_everybody_holds_nothing_of_hers(street: tuple[Live, Tenant, Tenant, House]) -> None:
    service, alice, _, house = street
    before = _inventory(alice, house)
    (key,) = make_keys(service.service.settings.data_dir, "eve")
    eve = service.tenant(key)
    later = ("DELETE", "auth/apikey/me")
    for method, path in sorted(SCOPED, key=lambda each: each == later):
        answer = _ask(eve, method, path, house, SCOPED[method, path])
        assert answer.status_code == 200, (method, path, answer.text)
        for secret in (house.session, "the secret project", "alice"):
            assert secret not in answer.text, (method, path)
    assert eve.http.get("sessions").status_code == 401, "he has ended his own key, and no other"
    assert _inventory(alice, house) == before
    assert alice.result(f"{house.sampler}:0")["sequences"], "nobody else has cancelled it"


def test_the_audit_log_and_the_metrics_are_not_for_everybody(
    street: tuple[Live, Tenant, Tenant, House],
) -> None:
    service, alice, mallory, house = street
    for owner in ("alice", "*"):
        answer = mallory.http.get("audit", params={"owner": owner})
        assert answer.status_code == 403
        assert house.session not in answer.text
    assert mallory.http.get(f"{service.url}/metrics").status_code == 403
    entries = alice.http.get("audit").json()["entries"]
    assert {"session_created", "training_run_created", "checkpoint_created"} <= {e["event"] for e in entries}
    assert not [entry for entry in entries if "mallory" in str(entry)], (
        "he left no trace, having done nothing"
    )


def test_downloads_open_to_their_own_address_only(street: tuple[Live, Tenant, Tenant, House]) -> None:
    service, alice, mallory, house = street
    own = mallory.run(mallory.session())
    saved = mallory.do("save_weights_external", model_id=own, seq_id=1, path="out")["path"]
    _, _, run, kind, name = saved.split("/")
    signed = mallory.http.get(f"training_runs/{run}/checkpoints/{kind}/{name}/external_weights_urls")
    url = signed.json()["urls"]["adapter_model.safetensors"]
    assert mallory.http.get(url).status_code == 200
    query = url.partition("?")[2]
    forms = [
        query,
        re.sub(r"expires=\d+", "expires=99999999999", query),
        "expires=1&signature=",
        "",
        query[:-2],
    ]
    for _, path in SEALED:
        for form in forms:
            answer = mallory.http.get(f"{_address(path, house)}?{form}")
            assert answer.status_code in (400, 403), (path, form, answer.text)
    hers = alice.http.get(f"training_runs/{house.run}/checkpoints/external_weights/out/external_weights_urls")
    assert service.tenant(None).http.get(hers.json()["urls"]["adapter_config.json"]).status_code == 200


def test_a_published_checkpoint_opens_nothing_else_of_its_run(tmp_path: Path) -> None:
    alice_key, mallory_key = make_keys(tmp_path / "data", "alice", "mallory")
    with live(tmp_path / "data") as service:
        alice, mallory = service.tenant(alice_key), service.tenant(mallory_key)
        house = _furnish(alice)
        other = alice.do("save_weights", model_id=house.run, seq_id=5, path="other")["path"]
        address = f"training_runs/{house.run}/checkpoints/weights/mine"
        assert alice.http.post(f"{address}/publish").status_code == 200
        assert mallory.post("weights_info", tinker_path=house.path)["base_model"] == "tiny-llama"
        session = mallory.session()
        loaded = mallory.do("load_weights", session_id=session, model_seq_id=0, path=house.path)
        assert loaded["model_id"] == f"{session}:train:0"
        for method, path, body in [
            ("GET", f"training_runs/{house.run}", None),
            ("GET", f"training_runs/{house.run}/checkpoints", None),
            ("GET", f"sessions/{house.session}", None),
            ("DELETE", address, None),
            ("PUT", f"{address}/ttl", {"ttl_seconds": 60}),
            ("DELETE", f"{address}/publish", None),
            ("POST", "weights_info", {"tinker_path": other}),
            ("POST", "get_info", {"model_id": house.run}),
        ]:
            assert mallory.http.request(method, path, json=body).status_code == 404, (method, path)
        assert alice.http.delete(f"{address}/publish").status_code == 200
        assert mallory.http.post("weights_info", json={"tinker_path": house.path}).status_code == 404
        direct = {"prompt": {"chunks": [{"tokens": TOKENS}]}, "sampling_params": {}, "model_path": house.path}
        assert mallory.http.post("asample", json=direct).status_code == 404
