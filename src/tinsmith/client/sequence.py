"""Seq ids in the order of the calls, and submits in the order of the seq ids."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType


class Turn:
    """A range of seq ids, and the right to submit them. Use it as ``async with turn:`` on the loop."""

    def __init__(self, sequence: Sequence, first: int, count: int) -> None:
        self._sequence = sequence
        self.first = first
        self.count = count

    @property
    def ids(self) -> range:
        """The seq ids."""
        return range(self.first, self.first + self.count)

    async def __aenter__(self) -> Turn:
        try:
            await self._sequence.reached(self.first)
        except BaseException:
            self._sequence.passed(self)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._sequence.passed(self)


class Sequence:
    """Counts one run's operations. Ids are taken at call time from any thread; turns come in that order.

    A turn always passes on, however its submit ended: one failure never holds up what comes after.
    """

    def __init__(self, first: int = 1) -> None:
        self._lock = threading.Lock()
        self._next_id = first
        self._at = first  # the id whose turn it is; only the loop touches this and what follows
        self._passed: dict[int, int] = {}
        self._waiting: dict[int, asyncio.Future[None]] = {}

    def take(self, *counts: int) -> list[Turn]:
        """Turns of so many ids each, following on each other without a gap."""
        turns = []
        with self._lock:
            for count in counts:
                turns.append(Turn(self, self._next_id, count))
                self._next_id += count
        return turns

    async def reached(self, seq_id: int) -> None:
        """Wait until all earlier ids have passed."""
        if self._at == seq_id:
            return
        waiter = self._waiting[seq_id] = asyncio.get_running_loop().create_future()
        try:
            await waiter
        finally:
            self._waiting.pop(seq_id, None)

    def passed(self, turn: Turn) -> None:
        """A turn is over, or was given up before it came."""
        self._passed[turn.first] = turn.count
        while (count := self._passed.pop(self._at, None)) is not None:
            self._at += count
        waiter = self._waiting.get(self._at)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
