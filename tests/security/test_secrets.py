"""Keys and tokens are in no log, no error, no repr, no pickle and no report, on either side."""

from __future__ import annotations

import json
import logging
import pickle
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import httpx
import pytest
from security_support import live, make_keys

import tinsmith
from tinsmith.client.config import ClientConfig
from tinsmith.client.telemetry import Telemetry
from tinsmith.service import Settings
from tinsmith.testing import ServiceProcess

SECRET = "tml-this-must-never-be-seen-anywhere"
PASSWORD = "hunter2-hunter2"


def _texts(value: object) -> list[str]:
    return [repr(value), str(value), f"{value}"]


def test_no_repr_shows_a_secret() -> None:
    config = ClientConfig.resolve(
        base_url=f"http://user:{PASSWORD}@127.0.0.1:1",
        api_key=SECRET,
        headers={"Authorization": f"Bearer {SECRET}"},
        environ={"CLOUDFLARE_ACCESS_CLIENT_SECRET": SECRET},
    )
    shown = _texts(config) + _texts(Settings(api_key=SECRET)) + [config.place]
    shown.append(Settings(api_key=SECRET).model_dump_json())
    assert not [text for text in shown if SECRET in text or PASSWORD in text]


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500])
def test_no_error_of_the_client_carries_the_key(status: int, caplog: pytest.LogCaptureFixture) -> None:
    """Not in its words, its notes, its attributes nor its pickle, whatever the service says."""
    caplog.set_level(logging.DEBUG)
    with (
        _redirecting(status, None) as (url, _),
        tinsmith.ServiceClient(base_url=url, api_key=SECRET, max_retries=0) as service,
        pytest.raises(tinsmith.TinkerError) as raised,
    ):
        service.get_server_capabilities()
    error: BaseException | None = raised.value
    while error is not None:
        shown = [*_texts(error), repr(vars(error)), *getattr(error, "__notes__", [])]
        assert not [text for text in shown if SECRET in text]
        error = error.__cause__ or error.__context__
    assert SECRET.encode() not in pickle.dumps(raised.value)
    assert SECRET not in caplog.text


@contextmanager
def _redirecting(status: int, location: str | None) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A server that answers everything so; and the headers of those who came."""
    seen: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            seen.append({name.lower(): value for name, value in self.headers.items()})
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(status)
            if location is not None:
                self.send_header("Location", location)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        do_GET = do_POST = answer

        def log_message(self, *_: object) -> None:
            """Quietly."""

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", seen
        finally:
            server.shutdown()


def test_a_redirection_does_not_take_the_key_elsewhere() -> None:
    """A service, or whoever poses as one, may name any host; it gets nothing that says who asks."""
    with (
        _redirecting(404, None) as (elsewhere, strangers),
        _redirecting(307, f"{elsewhere}/x") as (url, friends),
        tinsmith.ServiceClient(
            base_url=url, api_key=SECRET, default_headers={"X-Proxy": PASSWORD}, max_retries=0
        ) as service,
        pytest.raises(tinsmith.TinkerError),
    ):
        service.get_server_capabilities()
    assert friends[0]["x-api-key"] == SECRET and friends[0]["x-proxy"] == PASSWORD
    assert strangers
    assert SECRET not in json.dumps(strangers) and PASSWORD not in json.dumps(strangers)


def test_telemetry_tells_kinds_of_errors_and_not_their_words() -> None:
    telemetry = Telemetry(enabled=True)
    telemetry.error(RuntimeError(f"could not log in with {SECRET}"))
    telemetry.error(ValueError(SECRET))
    assert telemetry._queue and SECRET not in str(list(telemetry._queue))


def test_a_handle_and_a_pickled_sampler_hold_no_key(tmp_path: Path) -> None:
    (key,) = make_keys(tmp_path / "data", "alice")
    with (
        live(tmp_path / "data") as running,
        tinsmith.ServiceClient(base_url=running.url, api_key=key) as service,
    ):
        sampler = service.create_sampling_client(base_model="tiny-llama").result()
        packed = pickle.dumps(sampler)
        for content in (packed, sampler.get_sampler_handle().encode(), repr(sampler).encode()):
            assert key.encode() not in content
            assert key.removeprefix("tml-").encode() not in content


def test_nothing_the_service_prints_or_answers_holds_a_key(tmp_path: Path) -> None:
    """A real `tinsmith serve`, at its most talkative, asked in every wrong way."""
    alice, bob = make_keys(tmp_path / "data", "alice", "bob")
    running = ServiceProcess(tmp_path / "data", options=["--api-key", SECRET])
    with running, httpx.Client(timeout=60) as http:
        http.base_url = httpx.URL(f"{running.url}/api/v1/")
        jwt = http.post("auth/token", json={}, headers={"X-API-Key": alice}).json()["jwt"]
        event = {"events": [{"error": f"login with {alice} failed"}]}
        answers = [
            http.post("telemetry", json=event, headers={"X-API-Key": alice}),
            http.get("sessions", headers={"X-API-Key": SECRET + "x"}),
            http.get("sessions", headers={"X-API-Key": jwt + "x"}),
            http.get("sessions", headers={"X-API-Key": alice}, params={"key": bob}),
            http.get(f"sessions/{bob}", headers={"X-API-Key": alice}),
            http.post("create_session", content=b"\xff", headers={"X-API-Key": alice}),
            http.post("create_session", json={"x": 1}, headers={"X-API-Key": alice}),
            http.get("auth/apikey/me", headers={"X-API-Key": alice}),
            http.get("audit", headers={"X-API-Key": alice}),
            http.get("audit?owner=*", headers={"X-API-Key": SECRET}),
            http.get(f"{running.url}/metrics", headers={"X-API-Key": SECRET}),
            http.get("nowhere", headers={"X-API-Key": alice}),
        ]
    for text in [running.output, *(answer.text + str(answer.headers) for answer in answers)]:
        for secret in (alice, jwt, SECRET):
            assert secret not in text
    kept = b"".join(path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file())
    for secret in (alice, bob, jwt, SECRET):
        assert secret.encode() not in kept
