"""The kit itself: which request meets which fault, and what each fault looks like on the wire."""

from __future__ import annotations

import doctest
import email.utils
import time
from collections.abc import Iterator

import httpx
import pytest

from tinsmith.testing import (
    Drop,
    Failed,
    Fault,
    Faults,
    Garbled,
    Pending,
    RetryAfter,
    Slow,
    Status,
    Truncate,
    fault_table,
    faults,
)
from tinsmith.testing.faulty_service import ThreadServer

BODY = b'{"status":"ok"}'


@pytest.fixture(scope="module")
def echo() -> Iterator[tuple[Faults, str, list[str]]]:
    """A table, the address of an app behind it, and the requests the app was given."""
    table, carried_out = Faults(), []

    async def app(scope, receive, send):
        if scope["type"] == "lifespan":
            for step in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{step}.complete"})
            return
        assert (await receive())["body"] == b"{}"
        carried_out.append(scope["path"])
        fields = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(BODY))]
        await send({"type": "http.response.start", "status": 200, "headers": fields})
        await send({"type": "http.response.body", "body": BODY})

    server = ThreadServer(fault_table.Misbehaving(app, table))
    server.start()
    yield table, server.url, carried_out
    server.stop()


def ask(echo: tuple[Faults, str, list[str]], fault: Fault) -> httpx.Response:
    """One request that meets this fault."""
    table, url, carried_out = echo
    table.clear()
    carried_out.clear()
    table.on("retrieve_future", fault)
    return httpx.post(f"{url}/api/v1/retrieve_future", content=b"{}")


def test_without_rules_nothing_happens(echo: tuple[Faults, str, list[str]]) -> None:
    table, url, _ = echo
    table.clear()
    assert httpx.post(f"{url}/api/v1/asample", content=b"{}").content == BODY
    assert table.requests == {"asample": 1} and not table.played


@pytest.mark.parametrize(
    ("fault", "status", "body", "executed"),
    [
        (Status(503, "busy"), 503, b'{"detail": "busy"}', 0),
        (Status(400, body=b""), 400, b"", 0),
        (Garbled(), 200, b"<html>this is a proxy</html>", 1),
        (Slow(before=0.01, pieces=4), 200, BODY, 1),
        (Failed("user", "no"), 200, b'{"error": "no", "category": "user"}', 0),
        (Pending(), 408, b"{}", 0),
        (Pending("try_again"), 200, b'{"type": "try_again", "request_id": null}', 0),
    ],
)
def test_each_fault_looks_as_it_should(
    echo: tuple[Faults, str, list[str]], fault: Fault, status: int, body: bytes, executed: int
) -> None:
    response = ask(echo, fault)
    assert (response.status_code, response.content, len(echo[2])) == (status, body, executed)


@pytest.mark.parametrize(
    ("fault", "executed"), [(Drop(), 0), (Drop("after"), 1), (Truncate(), 1), (Truncate(0.0), 1)]
)
def test_a_connection_that_breaks_breaks(
    echo: tuple[Faults, str, list[str]], fault: Fault, executed: int
) -> None:
    with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
        ask(echo, fault)
    assert len(echo[2]) == executed


@pytest.mark.parametrize("state", ["active", "paused_capacity", "paused_rate_limit"])
@pytest.mark.parametrize("form", ["408", "try_again"])
def test_a_pending_poll_tells_its_queue_state(echo, form, state) -> None:
    told = ask(echo, Pending(form, state, "because")).json()
    assert told["queue_state"] == state and told["queue_state_reason"] == "because"


def test_hints_come_in_every_form(echo: tuple[Faults, str, list[str]]) -> None:
    assert ask(echo, Status(429, retry_after=RetryAfter("ms", 250))).headers["retry-after-ms"] == "250"
    assert ask(echo, Status(429, retry_after=RetryAfter("seconds", 0.5))).headers["retry-after"] == "0.5"
    date = ask(echo, Status(429, retry_after=RetryAfter("date", 3600))).headers["retry-after"]
    assert 3000 < email.utils.parsedate_to_datetime(date).timestamp() - time.time() < 4000


def test_rules_say_which_request_meets_which_fault() -> None:
    first, second, third = Status(500), Status(501), Status(502)
    table = Faults()
    table.on("a", first, second)
    table.on("a", third, at=[2, 4])
    table.on("b/*", first, rate=1.0)
    assert [table.choose("a") for _ in range(5)] == [first, second, None, third, None]
    assert [table.choose("b/x"), table.choose("c")] == [first, None]
    assert table.left == 0
    assert table.requests == {"a": 5, "b/x": 1, "c": 1}
    assert [route for route, _ in table.played] == ["a", "a", "a", "b/x"]


def test_a_rate_is_a_share_that_a_seed_repeats() -> None:
    def hits(seed: int) -> list[int]:
        table = Faults()
        table.on("*", Status(500), Drop(), rate=0.05, seed=seed)
        return [at for at in range(4000) if table.choose("a") is not None]

    assert hits(1) == hits(1) != hits(2)
    assert 150 < len(hits(1)) < 250


def test_a_rule_that_makes_no_sense_is_refused() -> None:
    table = Faults()
    for wrong in ({"at": [0]}, {"rate": 1.5}, {"at": [1], "rate": 0.5}):
        with pytest.raises(ValueError, match=r"^(at|rate)"):
            table.on("a", Drop(), **wrong)
    with pytest.raises(ValueError, match=r"^faults: name at least one"):
        table.on("a")


@pytest.mark.parametrize("module", [faults, fault_table])
def test_the_examples_in_the_docstrings_run(module) -> None:
    tried = doctest.testmod(module)
    assert tried.attempted and not tried.failed
