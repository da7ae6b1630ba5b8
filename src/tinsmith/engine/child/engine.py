"""The engine in a child process, started again whenever it dies."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from tinsmith.engine.interface import BaseModel, EngineLost, EngineOptions
from tinsmith.engine.remote import RemoteEngine
from tinsmith.types import SampleDelta, SampleJob

from .link import Link

log = logging.getLogger(__name__)
_CLOSE_WITHIN = 10.0
_SHORT_LIFE, _LONGEST_PAUSE = 10.0, 5.0  # an engine that dies at once is started ever more slowly


class ChildEngine(RemoteEngine):
    """Implements `Engine` by asking a process. What was under way when it died ends with `EngineLost`.

    ``patience``: seconds without a step after which the process is taken for wedged and killed.
    """

    def __init__(
        self,
        base_models: Mapping[str, BaseModel],
        options: EngineOptions | None = None,
        *,
        patience: float = 600.0,
    ) -> None:
        super().__init__(base_models)
        self._patience = patience
        self._options = options
        self._link = Link()  # it brings torch in while the service gets ready
        self._tending: asyncio.Task[None] | None = None
        self._open = asyncio.Event()

    @property
    def process_id(self) -> int:
        """Of the engine that lives now."""
        return self._link.process.pid

    async def _tend(self) -> None:
        """Speak for one process after the other."""
        pause = 0.1
        while True:
            link = self._link
            reader = await link.open(self._models, self._options)
            self._open.set()
            await link.run(reader, self._patience)
            self._open.clear()  # with what follows in one go: who asks now asks the next one
            if link.ready:  # else it had begun nothing, so nothing is lost and nothing is to blame
                self.generation += 1
            link.give_up(EngineLost("the engine has died; another one is being started"))
            cause = await link.cause()
            log.error("the engine (process %d) %s; starting it again", link.process.pid, cause)
            short_lived = time.monotonic() - link.started_at < _SHORT_LIFE
            pause = min(2 * pause, _LONGEST_PAUSE) if short_lived else 0.1
            await asyncio.sleep(pause)
            self._link = Link()

    async def _alive(self) -> Link:
        if self._tending is None:
            self._tending = asyncio.get_running_loop().create_task(self._tend(), name="engine process")
            self._tending.add_done_callback(self._hear_of_end)
        await self._open.wait()
        return self._link

    def _hear_of_end(self, tending: asyncio.Task[None]) -> None:
        """Nobody shall wait for a process that nobody speaks for."""
        self._link.dead = True
        self._open.set()
        if not tending.cancelled() and (error := tending.exception()) is not None:
            log.error("the engine process cannot be kept", exc_info=error)
            self._link.give_up(EngineLost(f"the engine process cannot be kept: {error}"))

    async def _call(self, method: str, *arguments: Any) -> Any:
        return await (await self._alive()).call(method, *arguments)

    def add_base_model(self, model: BaseModel) -> None:
        """Offer one more base model, to this process and those to come."""
        self._models[model.name] = model
        self._link.offer(model)

    async def stream_sample(self, sampler_id: str, job: SampleJob) -> AsyncGenerator[SampleDelta, None]:
        """Sample, with the tokens as they come."""
        async with aclosing((await self._alive()).stream("stream_sample", sampler_id, job)) as deltas:
            async for delta in deltas:
                yield delta

    async def close(self) -> None:
        """End the process for good."""
        if self._tending is not None:
            self._tending.cancel()
            await asyncio.gather(self._tending, return_exceptions=True)
        self._link.dead = False  # it may still hear that it shall close
        await self._link.close(_CLOSE_WITHIN)
