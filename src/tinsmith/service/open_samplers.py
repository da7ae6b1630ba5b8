"""Which samplers the engine has open: those in use, and others as long as there is room."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinsmith.engine.interface import Engine
from tinsmith.store import Blobs
from tinsmith.types import NotFound

from .base_models import BaseModels
from .quotas import Quotas
from .settings import Settings


@dataclass(frozen=True, slots=True)
class Sampler:
    """One sampler; ``blob`` is where its weights lie, None for the bare base model."""

    sampler_id: str
    session_id: str
    owner: str
    base_model: str
    model_path: str | None
    blob: str | None
    size_bytes: int
    created_at: float

    def row(self) -> dict[str, Any]:
        """The catalogue's row."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True, eq=False)
class _Open:
    """One that was opened, or is being opened, on one generation of the engine."""

    generation: int
    memory: int
    opening: asyncio.Task[None]  # goes on to its end, though whoever wanted it may leave
    users: int = 0


class OpenSamplers:
    """Opens samplers when they are used; closes the longest unused when all take too much."""

    def __init__(
        self,
        engine: Engine,
        base_models: BaseModels,
        quotas: Quotas,
        blobs: Blobs,
        settings: Settings,
    ) -> None:
        self._engine = engine
        self._base_models = base_models
        self._quotas = quotas
        self._blobs = blobs
        self._budget = settings.sampler_memory
        self._open: OrderedDict[str, _Open] = OrderedDict()  # the last used is last

    def __len__(self) -> int:
        return len(self._open)

    @asynccontextmanager
    async def using(self, sampler: Sampler) -> AsyncIterator[None]:
        """The sampler is open, and stays so, in this block."""
        mine = self._open.get(sampler.sampler_id)
        if mine is None or mine.generation != self._engine.generation:
            mine = self._begin(sampler)
        self._open.move_to_end(sampler.sampler_id)
        mine.users += 1
        try:
            await asyncio.shield(mine.opening)
            yield
        finally:
            mine.users -= 1

    def _begin(self, sampler: Sampler) -> _Open:
        """However many samples arrive at the same time, one opens it."""
        memory = _size(self._folder(sampler))
        opening = asyncio.get_running_loop().create_task(
            self._open_on_engine(sampler), name=f"open sampler {sampler.sampler_id}"
        )
        mine = self._open[sampler.sampler_id] = _Open(self._engine.generation, memory, opening)

        def forget_a_failure(opening: asyncio.Task[None]) -> None:
            failed = opening.cancelled() or opening.exception() is not None
            if failed and self._open.get(sampler.sampler_id) is mine:
                del self._open[sampler.sampler_id]

        opening.add_done_callback(forget_a_failure)
        return mine

    def _folder(self, sampler: Sampler) -> Path | None:
        folder = None if sampler.blob is None else self._blobs.path(sampler.blob)
        if folder is not None and not folder.exists():
            raise NotFound(f"the weights of {sampler.model_path!r} have been deleted", field="model_path")
        return folder

    async def _open_on_engine(self, sampler: Sampler) -> None:
        await self._make_room()
        await self._base_models.get(sampler.base_model)
        folder, tenant = self._folder(sampler), self._quotas.tenant(sampler.owner)
        await self._engine.open_sampler(sampler.sampler_id, sampler.base_model, folder=folder, tenant=tenant)
        self._base_models.mark_loaded(sampler.base_model)

    async def _make_room(self) -> None:
        excess = sum(each.memory for each in self._open.values()) - self._budget
        for sampler_id, each in list(self._open.items()):
            if excess > 0 and each.users == 0 and each.memory and each.opening.done():
                excess -= each.memory
                await self.close(sampler_id)

    async def close(self, sampler_id: str) -> None:
        """Have the engine forget a sampler, if it has it."""
        mine = self._open.pop(sampler_id, None)
        if mine is not None:
            await asyncio.wait([mine.opening])
            await self._engine.close_sampler(sampler_id)

    async def settle(self) -> None:
        """Wait for those that are being opened."""
        if openings := [mine.opening for mine in self._open.values()]:
            await asyncio.wait(openings)


def _size(folder: Path | None) -> int:
    """Memory it takes beside the base model: about its size on disk."""
    return 0 if folder is None else sum(file.stat().st_size for file in folder.iterdir())
