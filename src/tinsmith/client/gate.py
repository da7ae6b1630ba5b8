"""What bounds the work in flight: bytes, and the door samples go through."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from .clock import CLOCK, Clock
from .config import ClientConfig

_log = logging.getLogger("tinsmith")

MAX_SUBMITS = 400
SHORTEST_PAUSE = 1.0


class BytesBudget:
    """Admits work while any of the budget is left, so one piece larger than all of it still gets through."""

    def __init__(self, total: int) -> None:
        self._left = total
        self._freed = asyncio.Condition()

    @asynccontextmanager
    async def hold(self, size: int) -> AsyncIterator[None]:
        """Take a share for as long as the block runs."""
        async with self._freed:
            await self._freed.wait_for(lambda: self._left >= 0)
            self._left -= size
        try:
            yield
        finally:
            self._left += size
            async with self._freed:
                self._freed.notify_all()


class SampleGate:
    """Lets at most 400 sample submits through at a time, and none while the service has asked for a pause.

    All clients of one service and one key share a gate: the limit they run into is the same.
    """

    def __init__(self, clock: Clock = CLOCK, slots: int = MAX_SUBMITS) -> None:
        self._clock = clock
        self._slots = asyncio.Semaphore(slots)
        self._opens_at = 0.0

    def pause(self, hint: float | None) -> None:
        """Close for what the service hinted at, at least a second. A longer pause under way stays."""
        seconds = max(SHORTEST_PAUSE, hint or 0.0)
        if self._clock.now() + seconds > self._opens_at:
            self._opens_at = self._clock.now() + seconds
            _log.debug("the service asked for a pause: no samples are submitted for %.1f s", seconds)

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """One submit's passage."""
        await self._open()
        async with self._slots:
            await self._open()  # it may have closed while we queued for the slot
            yield

    async def _open(self) -> None:
        while (wait := self._opens_at - self._clock.now()) > 0:
            await self._clock.sleep(wait * (1 + 0.1 * self._clock.chance()))  # not all at the same instant


_gates: WeakValueDictionary[tuple[int, str | None, bytes], SampleGate] = WeakValueDictionary()


def gate_for(config: ClientConfig) -> SampleGate:
    """The gate of a service and a key, in this process. Call it on the background loop."""
    key = (os.getpid(), config.base_url, hashlib.sha256((config.api_key or "").encode()).digest())
    gate = _gates.get(key)
    if gate is None:
        gate = _gates[key] = SampleGate()
    return gate
