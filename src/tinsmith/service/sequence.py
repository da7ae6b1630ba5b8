"""A run's operations in the order of their seq ids, whatever order they arrive in."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

_T = TypeVar("_T")


class SequencedQueue(Generic[_T]):
    """Hands out items strictly by seq id.

    A seq id that was used up by a refused request is skipped at once. One that simply never comes
    is waited for, at most ``gap_timeout`` seconds after a later one stands ready; then it is closed.
    """

    def __init__(self, first: int, gap_timeout: float) -> None:
        self._next = first
        self._gap_timeout = gap_timeout
        self._ready: dict[int, _T] = {}
        self._consumed: set[int] = set()
        self._changed = asyncio.Event()
        self._highest = first - 1

    @property
    def waiting(self) -> int:
        """Items that stand in the queue."""
        return len(self._ready)

    @property
    def missing(self) -> int | None:
        """The seq id that later ones wait for, if it has not come."""
        return self._next if self._ready and self._next not in self._ready else None

    def before(self, seq: int) -> list[_T]:
        """Items that stand in the queue with a smaller seq id."""
        return [item for key, item in self._ready.items() if key < seq]

    def is_closed(self, seq: int) -> bool:
        """Whether the turn of this seq id has passed."""
        return seq < self._next or seq in self._consumed

    def assign(self) -> int:
        """The next free seq id, for a client that leaves numbering to us."""
        self._highest += 1
        return self._highest

    def put(self, seq: int, item: _T) -> None:
        """Add an item at its place."""
        if self.is_closed(seq):
            raise ValueError(f"seq id {seq} is closed")
        self._ready[seq] = item
        self._highest = max(self._highest, seq)
        self._changed.set()

    def consume(self, seq: int) -> None:
        """Nothing will ever come under this seq id."""
        if seq >= self._next and seq not in self._ready:
            self._consumed.add(seq)
            self._highest = max(self._highest, seq)
            self._changed.set()

    def drain(self) -> list[_T]:
        """Take out everything that still stands in the queue."""
        items = [self._ready[seq] for seq in sorted(self._ready)]
        self._ready.clear()
        return items

    async def next(self) -> _T:
        """The item whose turn it is."""
        while True:
            while self._next in self._consumed:
                self._consumed.remove(self._next)
                self._next += 1
            if self._next in self._ready:
                self._next += 1
                return self._ready.pop(self._next - 1)
            await self._wait_for_change()

    async def _wait_for_change(self) -> None:
        self._changed.clear()
        later = min((*self._ready, *self._consumed), default=None)
        if not self._ready or later is None:
            await self._changed.wait()
            return
        expected = self._next
        deadline = asyncio.get_running_loop().time() + self._gap_timeout
        while self._next == expected and expected not in self._ready and expected not in self._consumed:
            try:
                async with asyncio.timeout_at(deadline):
                    await self._changed.wait()
                self._changed.clear()
            except TimeoutError:
                self._next = min((*self._ready, *self._consumed))
