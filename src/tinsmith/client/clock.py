"""Time and chance as one object, so that tests can hold both."""

from __future__ import annotations

import asyncio
import random
import time


class Clock:
    """The real clock."""

    def now(self) -> float:
        """Seconds on a clock that never goes back."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait without blocking the loop."""
        await asyncio.sleep(seconds)

    def chance(self) -> float:
        """A number in [0, 1)."""
        return random.random()


CLOCK = Clock()
