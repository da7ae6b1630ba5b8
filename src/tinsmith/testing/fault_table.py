"""Which request meets which fault: a table of rules, and the ASGI layer that goes by it."""

from __future__ import annotations

import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase

from starlette.types import ASGIApp, Receive, Scope, Send

from .exchange import API, Exchange, read_whole
from .faults import Fault

Choice = Callable[[int], Fault | None]  # the fault of a rule's nth request, counted from 1


@dataclass(slots=True)
class _Rule:
    route: str
    choose: Choice
    seen: int = 0


class Faults:
    """What goes wrong, and when. Empty at first: then everything works.

    >>> from tinsmith.testing import Drop, Faults, Status
    >>> faults = Faults()
    >>> faults.on("asample", Status(503), Drop())  # the next request fails, the one after it is dropped
    >>> faults.on("retrieve_future", Drop("after"), at=[3])  # the third from now on
    >>> faults.on("*", Status(500), rate=0.05, seed=7)  # one in twenty of all, always the same ones
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: list[_Rule] = []
        self._waiting: list[deque[Fault]] = []
        self.requests: Counter[str] = Counter()
        self.played: list[tuple[str, Fault]] = []
        self.url = ""  # of the service they belong to

    def on(
        self,
        route: str,
        *faults: Fault,
        at: Collection[int] | None = None,
        rate: float | None = None,
        seed: int = 0,
    ) -> None:
        """Add a rule for a route, as in ``asample`` or ``sessions/*``; the first rule with a fault wins.

        Without more said, the next requests meet one fault each, in this order. With ``at``, the requests
        of these numbers meet the faults in turn; with ``rate``, that share of all requests meets one of
        them, chosen by ``seed`` and the request's number alone.
        """
        if not faults:
            raise ValueError("faults: name at least one, as in faults.on('asample', Status(503))")
        if at is not None and rate is not None:
            raise ValueError("at and rate: give one of them, not both")
        if rate is not None and not 0 <= rate <= 1:
            raise ValueError(f"rate: {rate} is not a share between 0 and 1")
        if at is not None and min(at, default=1) < 1:
            raise ValueError("at: requests are counted from 1")
        with self._lock:
            self._rules.append(_Rule(route, self._choice(faults, at, rate, f"{seed} {route}")))

    def _choice(
        self, faults: tuple[Fault, ...], at: Collection[int] | None, rate: float | None, seed: str
    ) -> Choice:
        if rate is not None:
            return lambda number: _drawn(faults, rate, f"{seed} {number}")
        if at is not None:
            turns = {number: faults[turn % len(faults)] for turn, number in enumerate(sorted(at))}
            return turns.get
        waiting = deque(faults)
        self._waiting.append(waiting)
        return lambda _: waiting.popleft() if waiting else None

    def clear(self) -> None:
        """Forget all rules and counts; everything works again."""
        with self._lock:
            self._rules.clear()
            self._waiting.clear()
            self.requests.clear()
            self.played.clear()

    @property
    def left(self) -> int:
        """Faults given for the next requests that no request has met yet."""
        with self._lock:
            return sum(len(waiting) for waiting in self._waiting)

    def choose(self, route: str) -> Fault | None:
        """The fault of the request that came just now."""
        with self._lock:
            self.requests[route] += 1
            for rule in self._rules:
                if fnmatchcase(route, rule.route):
                    rule.seen += 1
                    if (fault := rule.choose(rule.seen)) is not None:
                        self.played.append((route, fault))
                        return fault
            return None


class Misbehaving:
    """An app that does what the table says, and otherwise what it always did."""

    def __init__(self, app: ASGIApp, faults: Faults) -> None:
        self._app, self._faults = app, faults

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        fault = self._faults.choose(scope["path"].removeprefix(API))
        if fault is None:
            await self._app(scope, receive, send)
            return
        body = await read_whole(receive)
        if body is not None:
            await fault.play(Exchange(self._app, scope, receive, send, body))


def _drawn(faults: tuple[Fault, ...], rate: float, seed: str) -> Fault | None:
    chance = random.Random(seed)
    return chance.choice(faults) if chance.random() < rate else None
