"""Keys and tokens, whose things are whose, the audit log, and what was used."""

from __future__ import annotations

import asyncio
import base64
import json
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from server_support import TOKENS, Api, Serve, make_key

from tinsmith.service.prices import Price


def _as(key: str) -> dict[str, dict[str, str]]:
    return {"headers": {"X-API-Key": key}}


async def _status(api: Api, key: str) -> int:
    return (await api.http.get("sessions", **_as(key))).status_code


def test_a_key_is_asked_for_once_there_is_one_and_a_revoked_one_opens_nothing(
    serve: Serve, tmp_path: Path
) -> None:
    async def main() -> None:
        async with serve() as api:
            assert await _status(api, "tml-any") == 200
            key = await asyncio.to_thread(make_key, tmp_path / "data", "alice", email="a@example.org")
            other = await asyncio.to_thread(make_key, tmp_path / "data", "phone", owner="alice", note="2nd")
            assert await _status(api, "tml-any") == 401
            me = (await api.http.get("auth/apikey/me", **_as(key))).json()
            assert me["name"] == "alice"
            assert me["details"]["user_details"]["email"] == "a@example.org"
            assert (await api.http.delete("auth/apikey/me", **_as(key))).status_code == 200
            assert [await _status(api, one) for one in (key, other)] == [401, 200]
            await api.http.delete("auth/apikey/me", **_as(other))
            assert [await _status(api, one) for one in (key, other, "tml-any")] == [401, 401, 401]
        kept = (tmp_path / "data" / "tinsmith.sqlite").read_bytes()
        assert key.encode() not in kept

    asyncio.run(main())


def test_the_operators_key_stands_for_the_local_user_and_cannot_end_itself(
    serve: Serve, tmp_path: Path
) -> None:
    alice = make_key(tmp_path / "data", "alice")

    async def main() -> None:
        async with serve(api_key="tml-operator") as api:
            api.http.headers["X-API-Key"] = "tml-operator"
            session = await api.session()
            assert (await api.http.get("auth/apikey/me")).json()["key_id"] == 0
            assert (await api.http.delete("auth/apikey/me")).status_code == 400
            assert (await api.http.get(f"sessions/{session}", **_as(alice))).status_code == 404

    asyncio.run(main())


def _claims(jwt: str) -> dict[str, Any]:
    payload = jwt.split(".")[1]
    return json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))


def test_a_token_stands_for_its_key_until_it_expires_or_the_key_is_revoked(
    serve: Serve, tmp_path: Path
) -> None:
    key = make_key(tmp_path / "data", "alice", email="a@example.org")

    async def main() -> None:
        async with serve(token_ttl=600) as api:
            jwt = (await api.http.post("auth/token", json={}, **_as(key))).json()["jwt"]
            claims = _claims(jwt)
            assert (claims["sub"], claims["email"]) == ("alice", "a@example.org")
            assert claims["exp"] - claims["iat"] == 600
            assert await _status(api, jwt) == 200
            again = (await api.http.post("auth/token", json={}, **_as(jwt))).json()["jwt"]
            assert _claims(again)["exp"] <= claims["exp"]
            header, payload, signature = jwt.split(".")
            forged = base64.urlsafe_b64encode(json.dumps(claims | {"sub": "bob"}).encode()).decode()
            unsigned = base64.urlsafe_b64encode(b'{"alg":"none"}').decode().rstrip("=")
            for wrong in (
                f"{header}.{forged}.{signature}",
                f"{unsigned}.{payload}.",
                jwt[:-3],
                "eyJ",
                "eyJ..",
            ):
                refused = await api.http.get("sessions", **_as(wrong))
                assert refused.status_code == 401
                assert 'error="invalid_token"' in refused.headers["WWW-Authenticate"]
        async with serve() as api:  # the secret is kept
            assert await _status(api, jwt) == 200
            await api.http.delete("auth/apikey/me", **_as(key))
            assert await _status(api, jwt) == 401

    asyncio.run(main())
    assert stat.S_IMODE((tmp_path / "data" / "secret").stat().st_mode) == 0o600


def test_what_is_somebody_elses_is_not_found_everywhere(serve: Serve, tmp_path: Path) -> None:
    alice, bob = make_key(tmp_path / "data", "alice"), make_key(tmp_path / "data", "bob")

    async def main() -> None:
        async with serve() as api:
            api.http.headers["X-API-Key"] = alice
            session = await api.session()
            run = await api.run(session)
            path = (await api.do("save_weights", model_id=run, path="mine", seq_id=1))["path"]
            sampler = await api.do(
                "save_weights_for_sampler", model_id=run, sampling_session_seq_id=0, seq_id=2
            )
            sampler_id = sampler["sampling_session_id"]
            api.http.headers["X-API-Key"] = bob
            prompt = {"chunks": [{"tokens": TOKENS}]}
            checkpoint = f"training_runs/{run}/checkpoints/weights/mine"
            calls: list[tuple[str, str, Any]] = [
                ("GET", f"sessions/{session}", None),
                ("GET", f"sessions/{session}/trace_export", None),
                ("PUT", f"sessions/{session}/project", {"project_id": "x"}),
                ("POST", f"sessions/{session}/finish", {"reason": {"type": "success"}}),
                ("POST", "session_heartbeat", {"session_id": session}),
                ("GET", f"training_runs/{run}", None),
                ("GET", f"training_runs/{run}/checkpoints", None),
                ("POST", "get_info", {"model_id": run}),
                ("POST", "optim_step", {"model_id": run, "seq_id": 3, "adam_params": {}}),
                ("POST", "unload_model", {"model_id": run}),
                ("POST", "weights_info", {"tinker_path": path}),
                ("POST", "load_weights", {"path": path, "session_id": session, "model_seq_id": 1}),
                ("DELETE", checkpoint, None),
                ("POST", f"{checkpoint}/publish", None),
                ("PUT", f"{checkpoint}/ttl", {"ttl_seconds": 60}),
                ("GET", f"samplers/{sampler_id}", None),
                ("POST", "join_sampling_session", {"sampling_session_id": sampler_id}),
                ("POST", "retrieve_futures", {"target": {"sampling_session_id": sampler_id}}),
                ("POST", "retrieve_future", {"request_id": f"{run}:1"}),
                (
                    "POST",
                    "asample",
                    {"prompt": prompt, "sampling_params": {}, "sampling_session_id": sampler_id, "seq_id": 0},
                ),
            ]
            for method, address, body in calls:
                response = await api.http.request(method, address, json=body)
                assert response.status_code == 404, (method, address, response.text)
            for listing in ("sessions", "training_runs", "checkpoints", "audit?event_type=checkpoints"):
                listed = (await api.http.get(listing)).json()
                assert [value for value in listed.values() if isinstance(value, list)] == [[]], listing
            owner = {"type": "user", "owner_urns": ["alice"]}
            assert await api.post("sessions/search", owner=owner) == {"sessions": []}

    asyncio.run(main())


def test_the_audit_log_tells_what_became_of_a_checkpoint(serve: Serve) -> None:
    async def main() -> None:
        async with serve() as api:
            session = await api.session()
            run = await api.run(session)
            path = (await api.do("save_weights", model_id=run, path="told", seq_id=1))["path"]
            await api.do("load_weights", model_id=run, path=path, seq_id=2)
            checkpoint = f"training_runs/{run}/checkpoints/weights/told"
            await api.http.post(f"{checkpoint}/publish")
            await api.http.delete(f"{checkpoint}/publish")
            await api.http.put(f"{checkpoint}/ttl", json={"ttl_seconds": None})
            await api.http.delete(checkpoint)
            await api.post(f"sessions/{session}/finish", reason={"type": "success"})
        async with serve() as api:
            entries = (await api.http.get("audit", params={"event_type": "checkpoints"})).json()["entries"]
            assert [entry["event"] for entry in entries] == [
                "checkpoint_created",
                "checkpoint_read",
                "checkpoint_published",
                "checkpoint_unpublished",
                "checkpoint_ttl_set",
                "checkpoint_deleted",
            ]
            assert all(entry["tinker_path"] == path and entry["model_id"] == run for entry in entries)
            assert entries[1]["purpose"] == "load_weights"
            assert all(entry["event_details"]["actor"] == "local" for entry in entries)
            everything = (await api.http.get("audit")).json()["entries"]
            events = [entry["event"] for entry in everything]
            assert events[:2] == ["session_created", "training_run_created"]
            assert set(events[-2:]) == {"session_client_finished", "training_run_ended"}
            assert (await api.http.get("audit", params={"day": "2020-01-01"})).json() == {"entries": []}
            for query in ({"day": "yesterday"}, {"event_type": "gossip"}):
                assert (await api.http.get("audit", params=query)).status_code == 400

    asyncio.run(main())


def _window(hours: int = 1) -> dict[str, str]:
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    return {
        "starting_on": (hour - timedelta(hours=hours)).isoformat(),
        "ending_before": (hour + timedelta(hours=2)).isoformat(),
    }


async def _usage(api: Api) -> dict[str, float]:
    """Quantity by kind, over all hours of the window."""
    answer = (await api.http.get("billing/usage/events", params=_window())).json()
    sums: dict[str, float] = {}
    for event in answer["data"]:
        info = event["event_info"]
        kind = info["type"] + ("_cached" if info.get("cached") else "")
        amount = next(info[key] for key in ("token_count", "count", "gigabyte_hours") if key in info)
        sums[kind] = sums.get(kind, 0) + amount
    return sums


async def _some_work(api: Api) -> str:
    run = await api.run(await api.session())
    await api.loss(run, 1)
    await api.loss(run, 2, "forward")
    await api.do("save_weights", model_id=run, path="kept", seq_id=3)
    sampler = await api.do("save_weights_for_sampler", model_id=run, sampling_session_seq_id=0, seq_id=4)
    await api.do(
        "asample",
        prompt={"chunks": [{"tokens": TOKENS}]},
        sampling_params={"max_tokens": 5, "stop": []},
        num_samples=2,
        sampling_session_id=sampler["sampling_session_id"],
        seq_id=0,
    )
    return run


def test_usage_is_counted_exactly_and_survives_a_restart_that_repeats_the_work(serve: Serve) -> None:
    async def main() -> None:
        async with serve(housekeeping_interval=3600) as api:
            run = await _some_work(api)
            counted = await _usage(api)
            prefilled = counted.pop("sampling_prefill") + counted.pop("sampling_prefill_cached", 0)
            assert prefilled == len(TOKENS)
            assert counted.pop("storage") > 0
            assert counted == {"training": 2 * (len(TOKENS) - 1), "sampling_sample": 10, "checkpoint": 1}
            await api.loss(run, 5)
        async with serve() as api:
            await api.loss(run, 6)  # after everything before it was repeated
            assert (await _usage(api))["training"] == 4 * (len(TOKENS) - 1)

    asyncio.run(main())


def test_costs_are_there_where_prices_are_and_only_there(serve: Serve) -> None:
    async def main() -> None:
        prices = {"*": Price(training=2.0)}
        async with serve(prices=prices, price_gigabyte_month=3.0) as api:
            run = await _some_work(api)
            answer = (await api.http.get("billing/usage/events", params=_window())).json()
            costs = {event["event_info"]["type"]: event for event in answer["data"]}
            training = costs["training"]
            tokens = training["event_info"]["token_count"]
            assert training["estimated_cost_usd"] == pytest.approx(2.0 * tokens / 1e6)
            assert costs["storage"]["estimated_cost_usd"] > 0
            assert "estimated_cost_usd" not in costs["sampling_sample"]
            assert training["session_id"] == run.partition(":")[0]
            (stored,) = (await api.http.get("billing/usage/checkpoints/current")).json()["data"]
            assert stored["checkpoint_count"] == 1
            assert stored["estimated_monthly_cost_usd"] == pytest.approx(3.0 * stored["size_bytes"] / 1e9)
            await api.http.delete(f"training_runs/{run}/checkpoints/weights/kept")
            for project in ({}, {"project_id": "default"}):
                now = await api.http.get("billing/usage/checkpoints/current", params=project)
                assert now.json()["data"] == []

    asyncio.run(main())


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"starting_on": "2026-01-01T00:30:00Z"}, "starting_on"),
        ({"starting_on": "2026-01-01T00:00:00"}, "starting_on"),
        ({"starting_on": None}, "starting_on"),
        ({"starting_on": "2020-01-01T00:00:00Z"}, "ending_before"),
        ({"ending_before": "2020-01-01T00:00:00Z"}, "ending_before"),
        ({"starting_on": "9998-01-01T00:00:00Z", "ending_before": "9998-01-02T00:00:00Z"}, "starting_on"),
        ({"ending_before": "9999-12-31T23:00:00-05:00"}, "ending_before"),
    ],
)
def test_a_window_of_usage_must_be_whole_hours_and_two_weeks_at_most(
    serve: Serve, change: dict[str, str | None], field: str
) -> None:
    async def main() -> None:
        async with serve() as api:
            query = {name: value for name, value in (_window() | change).items() if value is not None}
            refused = await api.http.get("billing/usage/events", params=query)
            assert refused.status_code == 400
            assert field in refused.json()["detail"]

    asyncio.run(main())
