"""The engine as a Ray actor: the service here, the numbers on whichever node has room for them.

The nodes share the data directory and the model folders, by a network file system or by being one machine.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ray
from ray.exceptions import RayTaskError

from tinsmith.engine.host import open_engine
from tinsmith.engine.interface import NOBODY_ELSE, BaseModel, EngineOptions, Tenant
from tinsmith.types import (
    AdamParams,
    ForwardBackwardInput,
    ForwardBackwardOutput,
    LoraConfig,
    SampleDelta,
    SampleJob,
    SampleResponse,
    UserError,
)

_MOST_CALLS_AT_ONCE = 4096


@ray.remote
class _EngineActor:
    """The local engine in a process of Ray's."""

    def __init__(self, base_models: dict[str, BaseModel], options: EngineOptions) -> None:
        self._engine = open_engine(base_models, options)

    async def add_base_model(self, model: BaseModel) -> None:
        self._engine.add_base_model(model)

    async def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        return await getattr(self._engine, method)(*arguments, **named)

    async def stream_sample(self, sampler_id: str, job: SampleJob) -> AsyncGenerator[SampleDelta, None]:
        async with aclosing(self._engine.stream_sample(sampler_id, job)) as deltas:
            async for delta in deltas:
                yield delta


class RayEngine:
    """Implements `Engine` by asking an actor.

    >>> engine = RayEngine(offer(Catalogue(), ["tiny-llama"]), num_cpus=1)  # doctest: +SKIP
    """

    def __init__(
        self,
        base_models: Mapping[str, BaseModel],
        options: EngineOptions | None = None,
        *,
        num_cpus: float = 1,
    ) -> None:
        options = options or EngineOptions()
        num_gpus = 1 if options.device.startswith("cuda") else 0
        self._models = dict(base_models)
        placed = _EngineActor.options(  # type: ignore[attr-defined]
            num_cpus=num_cpus, num_gpus=num_gpus, max_concurrency=_MOST_CALLS_AT_ONCE
        )
        self._actor = placed.remote(self._models, options)

    async def _call(self, method: str, *arguments: Any, **named: Any) -> Any:
        reference = self._actor.call.remote(method, *arguments, **named)
        try:
            return await reference
        except RayTaskError as error:
            raise _cause(error) from None
        finally:
            ray.cancel(reference)  # nothing, unless the caller has given up

    def base_models(self) -> Mapping[str, BaseModel]:
        """Every base model on offer, by public name."""
        return MappingProxyType(self._models)

    def add_base_model(self, model: BaseModel) -> None:
        """Offer one more base model."""
        self._models[model.name] = model
        self._actor.add_base_model.remote(model)  # calls of one caller reach an actor in order

    async def create_adapter(
        self, run_id: str, base_model: str, lora: LoraConfig, tenant: Tenant = NOBODY_ELSE
    ) -> None:
        """A fresh adapter."""
        await self._call("create_adapter", run_id, base_model, lora, tenant)

    async def drop_adapter(self, run_id: str) -> None:
        """Forget an adapter."""
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

    async def open_sampler(
        self,
        sampler_id: str,
        base_model: str,
        folder: Path | None = None,
        run_id: str | None = None,
        tenant: Tenant = NOBODY_ELSE,
    ) -> None:
        """An immutable sampler."""
        named = {"folder": folder, "run_id": run_id, "tenant": tenant}
        await self._call("open_sampler", sampler_id, base_model, **named)

    async def close_sampler(self, sampler_id: str) -> None:
        """Forget a sampler."""
        await self._call("close_sampler", sampler_id)

    async def sample(self, sampler_id: str, job: SampleJob) -> SampleResponse:
        """Sample."""
        response: SampleResponse = await self._call("sample", sampler_id, job)
        return response

    async def stream_sample(self, sampler_id: str, job: SampleJob) -> AsyncGenerator[SampleDelta, None]:
        """Sample, with the tokens as they come."""
        references = self._actor.stream_sample.options(num_returns="streaming").remote(sampler_id, job)
        try:
            async for reference in references:
                yield await reference
        except RayTaskError as error:
            raise _cause(error) from None
        finally:
            ray.cancel(references)

    async def close(self) -> None:
        """Stop the actor."""
        ray.kill(self._actor)


def _cause(error: RayTaskError) -> Exception:
    """The caller's own mistake as it was raised there; anything else as Ray tells it."""
    return error.cause if isinstance(error.cause, UserError) else error
