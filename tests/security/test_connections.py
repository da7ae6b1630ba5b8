"""Whoever holds connections, lets heads and bodies trickle in, or comes in a flood, keeps nobody else out."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from security_support import Live, live, make_keys, read_all

from tinsmith.server import intake

MOST = 8
ASKS = b"GET /api/v1/healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
HEAD = b"POST /api/v1/create_session HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@pytest.fixture(scope="module")
def besieged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Live, str]]:
    """A service that takes few connections and has little patience; and a key."""
    data = tmp_path_factory.mktemp("besieged") / "data"
    (key,) = make_keys(data, "alice")
    with live(data, connections=MOST, head_seconds=0.5, hearing_seconds=0.5) as service:
        yield service, key


def _served(besieged: tuple[Live, str]) -> None:
    service, key = besieged
    head = (
        f"GET /api/v1/sessions HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: {key}\r\nConnection: close\r\n\r\n"
    )
    assert service.raw(head.encode()).startswith(b"HTTP/1.1 200"), "an honest caller is served"


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"P",
        HEAD,
        HEAD + b"X-A: " + b"a" * 1000,
        b"GET /api/v1/healthz HTTP/1.1\r\nHost: x\r\n\r\n" + HEAD,
    ],
    ids=["nothing", "one byte", "half a head", "a slow header", "the next request's head"],
)
def test_a_head_that_does_not_come_is_not_waited_for(besieged: tuple[Live, str], sent: bytes) -> None:
    answer = besieged[0].raw(sent)
    assert b"HTTP/1.1 408" in answer or answer.startswith(b"HTTP/1.1 200")
    _served(besieged)


@pytest.mark.parametrize(
    "head",
    [b"X-A: " + b"a" * 2**20, b"".join(b"X-%d: a\r\n" % at for at in range(10**5))],
    ids=["one large header", "many headers"],
)
def test_a_head_without_end_is_refused(besieged: tuple[Live, str], head: bytes) -> None:
    with socket.create_connection(besieged[0].address, timeout=60) as connection:
        with suppress(ConnectionResetError, BrokenPipeError):  # it does not wait for all of it
            connection.sendall(HEAD + head)
        answer = read_all(connection)
    assert answer == b"" or answer.startswith((b"HTTP/1.1 431", b"HTTP/1.1 400"))
    _served(besieged)


@pytest.mark.parametrize("sent", [b"", HEAD], ids=["silent", "with half a head"])
def test_a_flood_of_connections_keeps_nobody_out(besieged: tuple[Live, str], sent: bytes) -> None:
    """Those that have waited longest without a request make room."""
    with ExitStack() as held:
        for _ in range(5 * MOST):
            connection = held.enter_context(socket.create_connection(besieged[0].address, timeout=60))
            connection.sendall(sent)
        _served(besieged)


def test_a_stranger_cannot_hold_a_connection_with_a_body(besieged: tuple[Live, str]) -> None:
    """He is refused before his body has come, and from then on his connection is one that makes room."""
    with ExitStack() as held:
        for _ in range(3 * MOST):
            connection = held.enter_context(socket.create_connection(besieged[0].address, timeout=60))
            connection.sendall(HEAD + b"Content-Length: 100000000\r\n\r\n{")
            assert b"401" in connection.recv(65536)
            connection.sendall(b" ")
        _served(besieged)


@pytest.mark.parametrize("polls", [1, MOST])
def test_requests_at_work_are_not_thrown_out(tmp_path: Path, polls: int) -> None:
    """A waiting poll is not idle, however many knock; and one request too many does not take its place."""
    (key,) = make_keys(tmp_path / "data", "alice")
    with live(tmp_path / "data", connections=MOST, poll_hold=3.0) as service, ExitStack() as held:
        alice = service.tenant(key)
        sampler = alice.sampler(alice.session())
        alice.http.close()
        poll = b'{"target":{"sampling_session_id":"%s"},"timeout":2}' % sampler.encode()
        head = f"POST /api/v1/retrieve_futures HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: {key}\r\n"
        request = f"{head}Connection: close\r\nContent-Length: {len(poll)}\r\n\r\n".encode() + poll
        waiting = [
            held.enter_context(socket.create_connection(service.address, timeout=60)) for _ in range(polls)
        ]
        for connection in waiting:
            connection.sendall(request)
        for _ in range(4 * MOST):
            held.enter_context(socket.create_connection(service.address, timeout=60))
        if polls == MOST:
            refused = service.raw(request)
            assert refused.startswith(b"HTTP/1.1 503") and b"retry-after: 5" in refused.lower()
        for connection in waiting:
            assert read_all(connection).startswith(b"HTTP/1.1 200")


def test_requests_sent_before_the_answers_are_bounded(besieged: tuple[Live, str]) -> None:
    """Each that waits for its turn takes memory: a caller may have a few."""
    few, many = (count * b"GET /api/v1/healthz HTTP/1.1\r\nHost: x\r\n\r\n" for count in (16, 10_000))
    assert besieged[0].raw(few).count(b"HTTP/1.1 200") == 16
    with socket.create_connection(besieged[0].address, timeout=60) as connection:
        with suppress(ConnectionResetError, BrokenPipeError):
            connection.sendall(many)
        assert read_all(connection).count(b"HTTP/1.1 200") < 10_000
    _served(besieged)


def test_who_does_not_read_the_answers_is_not_waited_for(besieged: tuple[Live, str]) -> None:
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.settimeout(60)
        deaf.connect(besieged[0].address)
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            _ask_on(deaf)
    _served(besieged)


def _ask_on(connection: socket.socket) -> None:
    """First the system's buffers take the answers."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        connection.sendall(b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(0.005)


def test_a_body_that_trickles_is_not_waited_for(
    besieged: tuple[Live, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "_PATIENCE", 0.5)
    key = f"X-API-Key: {besieged[1]}\r\n".encode()
    answer = besieged[0].raw(HEAD + key + b"Content-Length: 1000\r\nConnection: close\r\n\r\n{")
    assert answer.startswith(b"HTTP/1.1 408"), answer
    assert b"too slowly" in answer
    _served(besieged)
