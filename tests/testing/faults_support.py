"""A clock for tests on which waiting takes no time."""

from __future__ import annotations

import asyncio


class Hurry:
    """Time that passes by sleeping only: every wait is noted and over in a moment."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def now(self) -> float:
        return sum(self.slept)

    async def sleep(self, seconds: float) -> None:
        task = asyncio.current_task()
        if task is not None and task.get_name() in ("heartbeat", "telemetry"):  # not in a hurry
            await asyncio.sleep(seconds)
            return
        self.slept.append(seconds)
        await asyncio.sleep(min(seconds, 0.002))
