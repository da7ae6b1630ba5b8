"""An engine that is somewhere else: every method becomes a call by name, of plain values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tinsmith.types import (
    AdamParams,
    ForwardBackwardInput,
    ForwardBackwardOutput,
    LoraConfig,
    SampleJob,
    SampleResponse,
)

from .interface import NOBODY_ELSE, BaseModel, EngineLost, Tenant


class RemoteEngine(ABC):
    """Implements `Engine` but for the way there: calls, streams, and the end."""

    def __init__(self, base_models: Mapping[str, BaseModel]) -> None:
        self._models = dict(base_models)
        self.generation = 0

    @abstractmethod
    async def _call(self, method: str, *arguments: Any) -> Any:
        """The result of a method of the engine there; `EngineLost` if it died meanwhile."""

    def base_models(self) -> Mapping[str, BaseModel]:
        """Every base model on offer, by public name."""
        return MappingProxyType(self._models)

    async def create_adapter(
        self, run_id: str, base_model: str, lora: LoraConfig, tenant: Tenant = NOBODY_ELSE
    ) -> None:
        """A fresh adapter."""
        await self._call("create_adapter", run_id, base_model, lora, tenant)

    async def drop_adapter(self, run_id: str) -> None:
        """Forget an adapter; an engine that died has forgotten it."""
        with suppress(EngineLost):
            await self._call("drop_adapter", run_id)

    async def forward_backward(
        self, run_id: str, batch: ForwardBackwardInput, backward: bool
    ) -> ForwardBackwardOutput:
        """The summed loss, and with ``backward`` its gradient."""
        output: ForwardBackwardOutput = await self._call("forward_backward", run_id, batch, backward)
        return output

    async def optim_step(self, run_id: str, params: AdamParams) -> dict[str, float]:
        """Apply the accumulated gradient."""
        metrics: dict[str, float] = await self._call("optim_step", run_id, params)
        return metrics

    async def save_adapter(self, run_id: str, folder: Path, optimizer: bool) -> None:
        """Write an adapter."""
        await self._call("save_adapter", run_id, folder, optimizer)

    async def load_adapter(self, run_id: str, folder: Path, optimizer: bool) -> None:
        """Read an adapter."""
        await self._call("load_adapter", run_id, folder, optimizer)

    async def save_state(self, run_id: str, folder: Path) -> None:
        """Write all there is of a run."""
        await self._call("save_state", run_id, folder)

    async def load_state(
        self,
        run_id: str,
        base_model: str,
        lora: LoraConfig,
        folder: Path,
        tenant: Tenant = NOBODY_ELSE,
    ) -> None:
        """Bring a run back."""
        await self._call("load_state", run_id, base_model, lora, folder, tenant)

    async def adapter_bytes(self, run_id: str) -> int:
        """Memory a run takes."""
        size: int = await self._call("adapter_bytes", run_id)
        return size

    async def open_sampler(
        self,
        sampler_id: str,
        base_model: str,
        folder: Path | None = None,
        run_id: str | None = None,
        tenant: Tenant = NOBODY_ELSE,
    ) -> None:
        """An immutable sampler."""
        await self._call("open_sampler", sampler_id, base_model, folder, run_id, tenant)

    async def close_sampler(self, sampler_id: str) -> None:
        """Forget a sampler; an engine that died has forgotten it."""
        with suppress(EngineLost):
            await self._call("close_sampler", sampler_id)

    async def sample(self, sampler_id: str, job: SampleJob) -> SampleResponse:
        """Sample."""
        response: SampleResponse = await self._call("sample", sampler_id, job)
        return response
