"""Who gets in: keys and tokens, pages in a browser, and where nobody may listen without a key."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sqlite3
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from security_support import Live, live, make_keys

from tinsmith.service.keys import Keys, hash_key
from tinsmith.store import DATABASE_FILE, Database

OPERATORS = "tml-the-operators-own-long-key"


def _status(service: Live, credential: str | None, header: str = "X-API-Key") -> int:
    headers = {} if credential is None else {header.encode(): credential.encode("latin-1")}
    return service.tenant(None).http.get("sessions", headers=headers).status_code


def _encoded(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def test_only_a_whole_right_key_opens(tmp_path: Path) -> None:
    alice, bob = make_keys(tmp_path / "data", "alice", "bob")
    with live(tmp_path / "data", api_key=OPERATORS) as service:
        for right in (alice, OPERATORS):
            assert _status(service, right) == 200
            assert _status(service, f"Bearer {right}", "Authorization") == 200
        wrong = ["", "tml-", alice[:-1], alice + "x", alice.upper(), f"{alice},{bob}", f"{alice} {bob}"]
        wrong += [alice[:10] + bob[10:], hash_key(alice), f"Bearer {alice}", "null", "*", "' OR 1=1 --"]
        wrong += ["tml-" + "x" * 10**4, "tml-\xff\xfe", "eyJ" + "a" * 8000]
        for credential in wrong:
            assert _status(service, credential) == 401, credential
        for credential in (None, f"Basic {alice}", alice):
            assert _status(service, credential, "Authorization") == 401
        assert _status(service, alice, "Cookie") == 401
        tenant = service.tenant(None).http
        assert tenant.get("sessions", params={"api_key": alice}).status_code == 401, "nor in an address"


def test_forged_tokens_open_nothing(tmp_path: Path) -> None:
    alice_key, _ = make_keys(tmp_path / "data", "alice", "bob")
    with live(tmp_path / "data") as service:
        alice = service.tenant(alice_key)
        jwt = alice.post("auth/token")["jwt"]
        header, payload, signature = jwt.split(".")
        claims = json.loads(base64.urlsafe_b64decode(payload + "=="))
        assert 0 < claims["exp"] - time.time() <= 900
        assert _status(service, jwt) == 200
        none = _encoded({"alg": "none", "typ": "JWT"})
        path = service.service.signer.sign_path("/api/v1/x", 60)
        forged = [
            f"{header}.{_encoded(claims | {'sub': 'bob'})}.{signature}",
            f"{header}.{_encoded(claims | {'key_id': 2})}.{signature}",
            f"{header}.{_encoded(claims | {'exp': 2**40})}.{signature}",
            f"{none}.{payload}.",
            f"{none}.{payload}.{signature}",
            f"{header}.{payload}.{path.rpartition('=')[2]}",  # signed by the same secret, for something else
            f"{header}.{payload}",
            f"{header}.{payload}.{signature}.{signature}",
            jwt + "=",
            jwt.swapcase(),
        ]
        for token in forged:
            assert _status(service, token) == 401, token
        again = service.tenant(jwt).post("auth/token")["jwt"]
        assert json.loads(base64.urlsafe_b64decode(again.split(".")[1] + "=="))["exp"] <= claims["exp"]
        assert alice.http.delete("auth/apikey/me").status_code == 200
        assert [_status(service, each) for each in (jwt, again, alice_key)] == [401] * 3


def test_a_token_of_the_operators_key_ends_with_that_key(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with live(data, api_key=OPERATORS) as service:
        jwt = service.tenant(OPERATORS).post("auth/token")["jwt"]
        assert _status(service, jwt) == 200
    with live(data, api_key=f"{OPERATORS}-new") as service:
        assert _status(service, jwt) == 401
        session = service.tenant(f"{OPERATORS}-new").session()
        load = {"session_id": session, "model_seq_id": 0, "path": "tinker://x/weights/y"}
        http = service.tenant(f"{OPERATORS}-new").http
        assert http.post("load_weights", json=load | {"weights_access_token": jwt}).status_code == 403
    make_keys(data, "alice")
    with live(data) as service:
        assert _status(service, jwt) == 401, "the operator has no key any more"


def test_keys_are_kept_as_hashes_among_private_files(tmp_path: Path) -> None:
    data = tmp_path / "made" / "data"
    with live(data) as service:
        (key,) = make_keys(data, "alice", note="laptop", email="a@example.org")
        assert _status(service, key) == 200
    assert key.startswith("tml-") and len(key) > 40
    for file in data.rglob("*"):
        if file.is_file():
            assert key.encode() not in file.read_bytes(), file
            assert key.removeprefix("tml-").encode() not in file.read_bytes(), file
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    assert stat.S_IMODE((data / "secret").stat().st_mode) == 0o600


def test_the_audit_log_cannot_be_rewritten(tmp_path: Path) -> None:
    (key,) = make_keys(tmp_path / "data", "alice")
    with sqlite3.connect(tmp_path / "data" / DATABASE_FILE) as database:
        for change in ("UPDATE audit SET owner = 'mallory'", "DELETE FROM audit"):
            with pytest.raises(sqlite3.IntegrityError, match="only ever added to"):
                database.execute(change)
    database.close()
    with live(tmp_path / "data") as service:
        events = [entry["event"] for entry in service.tenant(key).http.get("audit").json()["entries"]]
        assert events == ["api_key_created"]


def test_too_many_sessions_are_429_and_the_quota_is_the_owners(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    database = Database.in_folder(data)
    keys = Keys(database, data)
    alice, bob = (asyncio.run(keys.create(name, limits={"active_sessions": 2})) for name in ("alice", "bob"))
    database.close()
    with live(data) as service:
        tenant = service.tenant(alice)
        first, _ = tenant.session(), tenant.session()
        refused = tenant.http.post("create_session", json={})
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "30")
        assert "active_sessions: 2 sessions of yours" in refused.json()["detail"]
        assert service.tenant(bob).session()
        tenant.post(f"sessions/{first}/finish", reason={"type": "success"})
        assert tenant.session()
    with live(data) as service:
        assert service.tenant(alice).http.post("create_session", json={}).status_code == 429, "counted again"


PAGES: dict[str, tuple[dict[str, str], int]] = {
    "a program": ({}, 200),
    "this service's own page": ({"Origin": "http://{here}", "Sec-Fetch-Site": "same-origin"}, 200),
    "typed into the address bar": ({"Sec-Fetch-Site": "none"}, 200),
    "another page": ({"Origin": "https://evil.example"}, 403),
    "another page, of this machine": ({"Origin": "http://127.0.0.1:1"}, 403),
    "a page that hides": ({"Origin": "null"}, 403),
    "a picture of another page": ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
    "a frame of a sister page": ({"Sec-Fetch-Site": "same-site"}, 403),
    "a name that was rebound": ({"Host": "evil.example"}, 403),
    "a name that was rebound, with the port": ({"Host": "evil.example:8600"}, 403),
    "a name that only begins like ours": ({"Host": "127.0.0.1.evil.example"}, 403),
    "this machine by its name": ({"Host": "localhost"}, 200),
}


@pytest.fixture(scope="module")
def open_door(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A service that asks for no key, as on a laptop."""
    with live(tmp_path_factory.mktemp("laptop") / "data") as service:
        yield service


@pytest.mark.parametrize("page", PAGES)
def test_without_a_key_pages_are_kept_out(open_door: Live, page: str) -> None:
    headers, status = PAGES[page]
    here = "{}:{}".format(*open_door.address)
    headers = {name: value.format(here=here) for name, value in headers.items()}
    http = open_door.tenant(None).http
    for method, path in (("GET", "sessions"), ("POST", "create_session"), ("GET", "healthz")):
        answer = http.request(method, path, headers=headers, json={} if method == "POST" else None)
        assert answer.status_code == status, answer.text
        assert "access-control-allow-origin" not in answer.headers
    preflight = http.request("OPTIONS", "create_session", headers=headers)
    assert preflight.status_code in (403, 405)


def test_a_service_for_other_machines_needs_a_good_key() -> None:
    """In the function that decides it: the command itself is tried in tests/cli."""
    import click

    from tinsmith.cli.serve import _refuse_open_door
    from tinsmith.service import Settings

    def refused(**settings: Any) -> bool:
        try:
            _refuse_open_door(Settings(data_dir=Path(os.devnull) / "none", **settings))
        except click.ClickException:
            return True
        return False

    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org", ""):
        assert refused(host=host)
        assert refused(host=host, api_key="tml-short")
        assert not refused(host=host, api_key=OPERATORS)
    for host in ("127.0.0.1", "localhost", "::1", "127.9.9.9"):
        assert not refused(host=host)
