"""Bodies on their way in: bounded in size, unfolded too, in patience, and for each owner together."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from starlette.requests import ClientDisconnect, Request

from tinsmith.service.quotas import TooMuchWaiting
from tinsmith.wire import compression

MOST_CONTROL_BYTES = 4 * 2**20  # of a body that is no batch and no sample
_MOST_AT_ONCE = 4  # of the largest bodies: what one owner may have on its way in
_PATIENCE = 30.0  # seconds a body may take, and so many more as it has bytes at the slowest speed:
_BYTES_PER_SECOND = 16 * 2**10


class TooLarge(Exception):
    """The body is larger than this service accepts."""


class TooSlow(Exception):
    """The body does not arrive."""


class Taking:
    """The bytes of one request, counted until it has been answered."""

    def __init__(self, intake: Intake, owner: str) -> None:
        self.limit = intake.limit
        self._intake = intake
        self._owner = owner
        self._bytes = 0

    def count(self, size: int) -> None:
        """So many more bytes have come, or will be unfolded."""
        held, most = self._intake.held[self._owner], _MOST_AT_ONCE * self.limit
        if held + size > most:
            raise TooMuchWaiting(f"body: {held} bytes of yours are on their way in and {most} may be")
        self._intake.held[self._owner] += size
        self._bytes += size

    def end(self) -> None:
        """The request was answered."""
        self._intake.held[self._owner] -= self._bytes
        if not self._intake.held[self._owner]:
            del self._intake.held[self._owner]


class Intake:
    """What every owner has on its way in."""

    def __init__(self, limit: int) -> None:
        self.limit = limit  # of one body, unfolded
        self.held: Counter[str] = Counter()

    @contextmanager
    def of(self, owner: str) -> Iterator[Taking]:
        """One request of an owner."""
        taking = Taking(self, owner)
        try:
            yield taking
        finally:
            taking.end()


class Incoming(Protocol):
    """A call, as far as its body is concerned."""

    http: Request
    taking: Taking


async def read_body(call: Incoming, limit: int | None = None) -> bytes:
    """The plain body, bounded while it streams in and while it unfolds, and in how long it takes."""
    limit = call.taking.limit if limit is None else min(limit, call.taking.limit)
    chunks, size = [], 0
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_PATIENCE) as deadline:
            began = loop.time()
            async for chunk in call.http.stream():
                size += len(chunk)
                if size > limit:
                    raise TooLarge(f"body: larger than {limit} bytes; send less in one request")
                call.taking.count(len(chunk))
                chunks.append(chunk)
                deadline.reschedule(began + _PATIENCE + size / _BYTES_PER_SECOND)
    except TimeoutError:
        raise TooSlow(f"body: {size} bytes came in too slowly; send it again") from None
    except ClientDisconnect:
        raise TooSlow("body: the connection broke before it had come") from None
    encoding = call.http.headers.get("content-encoding", "identity")
    plain = compression.decompress(b"".join(chunks), encoding, limit)
    call.taking.count(max(0, len(plain) - size))
    return plain
