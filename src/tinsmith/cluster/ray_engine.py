"""The engine as a Ray actor: the service here, the numbers on whichever node has room for them.

The nodes share the data directory and the model folders, by a network file system or by being one machine.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from tinsmith.engine.host import open_engine
from tinsmith.engine.interface import BaseModel, EngineLost, EngineOptions
from tinsmith.engine.remote import RemoteEngine
from tinsmith.types import SampleDelta, SampleJob, UserError

_MOST_CALLS_AT_ONCE = 4096


@ray.remote
class _EngineActor:
    """The local engine in a process of Ray's."""

    def __init__(self, base_models: dict[str, BaseModel], options: EngineOptions) -> None:
        self._engine = open_engine(base_models, options)

    async def add_base_model(self, model: BaseModel) -> None:
        self._engine.add_base_model(model)

    async def call(self, method: str, *arguments: Any) -> Any:
        return await getattr(self._engine, method)(*arguments)

    async def stream_sample(self, sampler_id: str, job: SampleJob) -> AsyncGenerator[SampleDelta, None]:
        async with aclosing(self._engine.stream_sample(sampler_id, job)) as deltas:
            async for delta in deltas:
                yield delta


class RayEngine(RemoteEngine):
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
        super().__init__(base_models)
        options = options or EngineOptions()
        num_gpus = 1 if options.device.startswith("cuda") else 0
        self._placed = _EngineActor.options(  # type: ignore[attr-defined]
            num_cpus=num_cpus, num_gpus=num_gpus, max_concurrency=_MOST_CALLS_AT_ONCE
        )
        self._options = options
        self._actor = self._placed.remote(self._models, options)

    async def _call(self, method: str, *arguments: Any) -> Any:
        actor = self._actor
        reference = actor.call.remote(method, *arguments)
        try:
            return await reference
        except RayTaskError as error:
            raise _cause(error) from None
        except RayActorError as error:
            raise self._lost(actor) from error
        finally:
            ray.cancel(reference)  # nothing, unless the caller has given up

    def _lost(self, actor: Any) -> EngineLost:
        """Place another actor; of those who hear of one death the first does it."""
        if actor is self._actor:
            self.generation += 1
            self._actor = self._placed.remote(self._models, self._options)
        return EngineLost("the engine's actor has died")

    def add_base_model(self, model: BaseModel) -> None:
        """Offer one more base model."""
        self._models[model.name] = model
        self._actor.add_base_model.remote(model)  # calls of one caller reach an actor in order

    async def stream_sample(self, sampler_id: str, job: SampleJob) -> AsyncGenerator[SampleDelta, None]:
        """Sample, with the tokens as they come."""
        actor = self._actor
        references = actor.stream_sample.options(num_returns="streaming").remote(sampler_id, job)
        try:
            async for reference in references:
                yield await reference
        except RayTaskError as error:
            raise _cause(error) from None
        except RayActorError as error:
            raise self._lost(actor) from error
        finally:
            ray.cancel(references)

    async def close(self) -> None:
        """Stop the actor."""
        ray.kill(self._actor)


def _cause(error: RayTaskError) -> Exception:
    """The caller's own mistake as it was raised there; anything else as Ray tells it."""
    return error.cause if isinstance(error.cause, UserError) else error
