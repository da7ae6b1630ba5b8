"""What the service may ask of an engine. Everything else in this room is free to change.

One adapter belongs to one run. Calls for one adapter arrive one at a time, in order; calls for different
adapters, and samples, arrive at any moment. Arguments are plain values, so an engine may sit in
this process, in a child process or on a cluster.

A method raises `UserError` when the caller's values are wrong (the message names the field) and
leaves everything as it was, `EngineLost` when the engine died before it was done. Any other exception is
the engine's own fault.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tinsmith.types import (
    AdamParams,
    ForwardBackwardInput,
    ForwardBackwardOutput,
    LoraConfig,
    SampleDelta,
    SampleJob,
    SampleResponse,
)


@dataclass(frozen=True, slots=True)
class BaseModel:
    """One base model an engine can train and sample."""

    name: str
    folder: Path
    arch: str
    vocab_size: int
    max_context_length: int


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What an engine computes on, and how."""

    device: str = "auto"  # auto: a GPU where there is one | cpu | cuda | cuda:1
    dtype: str = "auto"  # of the base model. auto: float32 on a CPU, bfloat16 on a GPU
    lora_alpha: float = 32.0  # for every rank; an adapter's share of the output is alpha / rank


@dataclass(frozen=True, slots=True)
class Tenant:
    """On whose account something is computed. Tenants share an engine's time by their weights."""

    name: str = ""
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.weight > 0:
            raise ValueError(f"weight: {self.weight} is not above 0")


NOBODY_ELSE = Tenant()  # where there is only one


class EngineLost(RuntimeError):
    """The engine died with all it held; another one is starting. Asking again, from the start, is right."""


class Engine(Protocol):
    """The numbers: adapters, losses, optimizer steps, samples."""

    @property
    def generation(self) -> int:
        """Counts the deaths of engines that had begun to work; adapters and samplers of an earlier
        generation are gone. `EngineLost` without a change of it says that nothing had been begun."""
        ...

    def base_models(self) -> Mapping[str, BaseModel]:
        """Every base model on offer, aliases included, by public name. Weights load on first use."""
        ...

    def add_base_model(self, model: BaseModel) -> None:
        """Offer one more base model."""
        ...

    async def create_adapter(
        self, run_id: str, base_model: str, lora: LoraConfig, tenant: Tenant = NOBODY_ELSE
    ) -> None:
        """A fresh adapter: its weights follow from ``lora.seed`` alone, which is always set.

        Whatever is done for it is on the tenant's account.
        """
        ...

    async def drop_adapter(self, run_id: str) -> None:
        """Forget an adapter. Unknown ids are fine."""
        ...

    async def forward_backward(
        self, run_id: str, batch: ForwardBackwardInput, backward: bool
    ) -> ForwardBackwardOutput:
        """The summed loss of a batch; with ``backward``, its gradient joins the accumulated one."""
        ...

    async def optim_step(self, run_id: str, params: AdamParams) -> dict[str, float]:
        """Apply the accumulated gradient and clear it. Returns metrics named ``name:reduction``."""
        ...

    async def save_adapter(self, run_id: str, folder: Path, optimizer: bool) -> None:
        """Write PEFT files (and the optimizer's state) into an existing empty folder."""
        ...

    async def load_adapter(self, run_id: str, folder: Path, optimizer: bool) -> None:
        """Replace weights by those in a folder; the optimizer by its saved state, or by a fresh one."""
        ...

    async def save_state(self, run_id: str, folder: Path) -> None:
        """Write all of a run (weights, optimizer, accumulated gradient) into an existing empty folder.

        It is the state at the moment of the call: later calls may be made while it is still being written.
        """
        ...

    async def load_state(
        self,
        run_id: str,
        base_model: str,
        lora: LoraConfig,
        folder: Path,
        tenant: Tenant = NOBODY_ELSE,
    ) -> None:
        """Bring a run back, to the bit as it was when `save_state` was called."""
        ...

    async def adapter_bytes(self, run_id: str) -> int:
        """Memory a run takes between a forward_backward and an optim_step."""
        ...

    async def open_sampler(
        self,
        sampler_id: str,
        base_model: str,
        folder: Path | None = None,
        run_id: str | None = None,
        tenant: Tenant = NOBODY_ELSE,
    ) -> None:
        """An immutable sampler: of a saved folder, of a copy of a run's weights now, or of the bare base.

        Samples are on the tenant's account.
        """
        ...

    async def close_sampler(self, sampler_id: str) -> None:
        """Forget a sampler. Unknown ids are fine."""
        ...

    async def sample(self, sampler_id: str, job: SampleJob) -> SampleResponse:
        """Sample. Cancelling the task stops decoding within one step."""
        ...

    def stream_sample(self, sampler_id: str, job: SampleJob) -> AsyncGenerator[SampleDelta, None]:
        """Sample, and hand out tokens as they are decoded; the last delta carries what `sample` returns.

        A reader slower than decoding gets fewer, longer deltas. Closing the generator, or cancelling the
        task that waits for it, stops decoding within one step. Errors are those of `sample`.
        """
        ...

    async def close(self) -> None:
        """Stop working and free everything."""
        ...
