"""What can go wrong with a request, as values. Each says whether the service carries the request out."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Literal, Protocol

from .exchange import Answer, Exchange

JSON = "application/json"


class Fault(Protocol):
    """One way to misbehave."""

    async def play(self, exchange: Exchange) -> None:
        """Do it."""
        ...


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """A hint when to try again: milliseconds, seconds, or a date ``value`` seconds from the answer on.

    >>> RetryAfter("ms", 250).header()
    ('retry-after-ms', '250')
    """

    form: Literal["ms", "seconds", "date"]
    value: float

    def header(self) -> tuple[str, str]:
        """As a header, now."""
        if self.form == "date":
            return "retry-after", formatdate(time.time() + self.value, usegmt=True)
        return "retry-after-ms" if self.form == "ms" else "retry-after", f"{self.value:g}"


@dataclass(frozen=True, slots=True)
class Status:
    """An error status; the request is not carried out. ``body=b""`` is an answer with no word of why."""

    status: int
    detail: str = "asked to fail"
    retry_after: RetryAfter | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    content_type: str = JSON

    async def play(self, exchange: Exchange) -> None:
        """Answer with it."""
        headers = {"content-type": self.content_type, **self.headers}
        if self.retry_after is not None:
            name, value = self.retry_after.header()
            headers[name] = value
        body = json.dumps({"detail": self.detail}).encode() if self.body is None else self.body
        await exchange.answer(Answer(self.status, body, headers))


@dataclass(frozen=True, slots=True)
class Drop:
    """The connection breaks, before the service heard of the request or after it carried it out."""

    when: Literal["before", "after"] = "before"

    async def play(self, exchange: Exchange) -> None:
        """Cut it."""
        if self.when == "after":
            await exchange.forward()
        await exchange.drop()


@dataclass(frozen=True, slots=True)
class Truncate:
    """The request is carried out, but the answer breaks off after ``share`` of its body."""

    share: float = 0.5

    async def play(self, exchange: Exchange) -> None:
        """Send a part, then cut the connection."""
        answer = await exchange.forward()
        await exchange.begin(answer)
        await exchange.more(answer.body[: int(len(answer.body) * self.share)])
        await exchange.drop()


@dataclass(frozen=True, slots=True)
class Slow:
    """The request is carried out; its answer starts late, or trickles in ``pieces``, or both."""

    before: float = 0.0  # seconds
    pieces: int = 1
    between: float = 0.0  # seconds

    async def play(self, exchange: Exchange) -> None:
        """Take time."""
        answer = await exchange.forward()
        await asyncio.sleep(self.before)
        await exchange.begin(answer)
        size = max(1, -(-len(answer.body) // self.pieces))
        for start in range(0, len(answer.body), size):
            await exchange.more(answer.body[start : start + size])
            await asyncio.sleep(self.between)
        await exchange.more(b"", last=True)


@dataclass(frozen=True, slots=True)
class Garbled:
    """The request is carried out, but something in between answers in its place, with status 200."""

    body: bytes = b"<html>this is a proxy</html>"
    content_type: str = "text/html"

    async def play(self, exchange: Exchange) -> None:
        """Answer with it."""
        await exchange.forward()
        await exchange.answer(Answer(200, self.body, {"content-type": self.content_type}))


@dataclass(frozen=True, slots=True)
class Pending:
    """A poll for a result is told to wait, as a 408 or as a ``try_again``, with a queue state if given."""

    form: Literal["408", "try_again"] = "408"
    queue_state: Literal["active", "paused_capacity", "paused_rate_limit"] | None = None
    reason: str | None = None

    async def play(self, exchange: Exchange) -> None:
        """Answer without looking for the result."""
        said: dict[str, str | None] = {}
        if self.queue_state is not None:
            said = {"queue_state": self.queue_state, "queue_state_reason": self.reason}
        if self.form == "try_again":
            said |= {"type": "try_again", "request_id": json.loads(exchange.body).get("request_id")}
        answer = Answer(408 if self.form == "408" else 200, json.dumps(said).encode(), {"content-type": JSON})
        await exchange.answer(answer)


@dataclass(frozen=True, slots=True)
class Failed:
    """A poll for a result hears that the operation failed; ``category`` says whose fault it was."""

    category: str = "server"
    error: str = "asked to fail"

    async def play(self, exchange: Exchange) -> None:
        """Answer without looking for the result."""
        body = json.dumps({"error": self.error, "category": self.category}).encode()
        await exchange.answer(Answer(200, body, {"content-type": JSON}))


@dataclass(slots=True)
class Late:
    """The answer is kept back until ``others`` requests that met this same fault were answered before it.

    Give one of them to several requests, and their results come out of order.
    """

    others: int = 1
    patience: float = 10.0  # seconds; nobody waits for requests that never come
    _answered: int = 0
    _more: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def play(self, exchange: Exchange) -> None:
        """The first waits for the others; they do not wait."""
        answer = await exchange.forward()
        async with self._more:
            first, self.others, wanted = self.others > 0, 0, self.others
            if first:
                await self._wait_for(wanted)
        await exchange.answer(answer)
        async with self._more:
            self._answered += 1
            self._more.notify_all()

    async def _wait_for(self, wanted: int) -> None:
        try:
            async with asyncio.timeout(self.patience):
                await self._more.wait_for(lambda: self._answered >= wanted)
        except TimeoutError:
            return
