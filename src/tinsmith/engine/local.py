"""The engine in this process: one compute thread, many adapters and samplers on shared base models."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import torch

from tinsmith.types import (
    AdamParams,
    ForwardBackwardInput,
    ForwardBackwardOutput,
    LoraConfig,
    NotFound,
    SampleDelta,
    SampleJob,
    SampleResponse,
    UserError,
)
from tinsmith.types.validation import check_adam, check_batch, check_lora, check_sample_job

from .adamw import AdamState
from .base import LoadedBase, UnsupportedModel
from .batch import Batch, BatchLimits
from .fast.captured_pass import CAPTURED_STEP
from .feed import Feed, Listener
from .general_sampling import sample
from .interface import NOBODY_ELSE, BaseModel, Tenant
from .lora import fresh_weights
from .peft_files import SavedAdapter, check_fits, read_adapter, read_state, write_adapter
from .places import PIECE, capacity_for
from .run_state import restored, taken
from .sampler import Sampler, tokens_to_cache
from .scheduler import ComputeThread, Work
from .trainer import TrainingAdapter, TrainingCall, TrainLimits, train

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is done at once: bounds on memory and on how long a step keeps others waiting."""

    max_lora_rank: int = 256
    train_tokens: int = 1536  # of one training pass, padding included
    train_bytes: int = 2**30  # of activations kept for the backward pass; what exceeds it is computed twice
    prefill_tokens: int = 1024  # of prompts, read in one step
    prefill_tokens_beside: int = 256  # of prompts, read in one step that decodes other sequences as well
    sample_rows: int = 64  # samples of one request decoded together
    cache_tokens: int = 65536  # held by all key-value caches; requests beyond wait in line
    prefix_tokens: int = 16384  # of prompts kept for later requests that begin alike
    packed_bytes: int = 4 * 2**30  # of weights of a model laid out a second time, which quickens decoding
    cache_step: int = PIECE  # positions: the memory of a sequence grows in such steps
    captured: bool = False  # decode by programs that a GPU can record, rather than kernel by kernel
    threads: int | None = None  # of torch; None leaves torch's own choice

    @classmethod
    def on(cls, device: torch.device) -> Limits:
        """What suits a device: a GPU is kept busy by large steps only, and half of what is free on it is room
        for activations."""
        if device.type != "cuda":
            return cls()
        free, _ = torch.cuda.mem_get_info(device)
        return cls(
            train_tokens=24576,
            train_bytes=free // 2,
            prefill_tokens=8192,
            prefill_tokens_beside=2048,
            sample_rows=256,
            cache_tokens=262_144,
            prefix_tokens=65_536,
            cache_step=CAPTURED_STEP,
            captured=True,
        )


class LocalEngine:
    """Implements `Engine`. All state is touched by the compute thread only."""

    def __init__(
        self,
        base_models: Mapping[str, BaseModel],
        *,
        lora_alpha: float = 32.0,
        dtype: str = "float32",
        device: str = "cpu",
        limits: Limits | None = None,
    ) -> None:
        if dtype not in DTYPES:
            raise ValueError(f"dtype: {dtype!r} is not one of {', '.join(DTYPES)}")
        self._models = dict(base_models)
        self._alpha, self._dtype, self._device = lora_alpha, DTYPES[dtype], torch.device(device)
        self._limits = limits or Limits.on(self._device)
        self._bases: dict[Path, LoadedBase] = {}
        self._adapters: dict[str, TrainingAdapter] = {}
        self._samplers: dict[str, Sampler] = {}
        self._batches: dict[LoadedBase, Batch] = {}
        self._ready: list[TrainingCall] = []
        self.generation = 0  # it dies with this process
        threads = self._limits.threads
        self._thread = ComputeThread(
            sampling_budget=self._limits.cache_tokens,
            on_start=lambda: None if threads is None else torch.set_num_threads(threads),
        )
        # An engine nobody closed still ends its thread, and before the interpreter takes torch down.
        self._finalizer = weakref.finalize(self, self._thread.stop)

    def base_models(self) -> Mapping[str, BaseModel]:
        """Every base model on offer, by public name."""
        return MappingProxyType(self._models)

    def add_base_model(self, model: BaseModel) -> None:
        """Offer one more base model; a name never comes to mean another one."""
        if self._models.setdefault(model.name, model) != model:
            raise ValueError(f"{model.name!r} is offered already, with another folder or size")

    # -- runs -------------------------------------------------------------------------------------------

    async def create_adapter(
        self, run_id: str, base_model: str, lora: LoraConfig, tenant: Tenant = NOBODY_ELSE
    ) -> None:
        """A fresh adapter whose weights follow from ``lora.seed``."""
        model, limits = self._model(base_model), self._limits
        check_lora(lora, max_rank=limits.max_lora_rank)
        if lora.seed is None:
            raise UserError("is needed: the weights are made from it", field="lora_config.seed")
        seed = lora.seed

        def create() -> None:
            if run_id in self._adapters:
                raise ValueError(f"run {run_id} has an adapter already")
            base = self._base(model)
            linears = base.linears(lora)
            weights = fresh_weights(
                linears, rank=lora.rank, alpha=self._alpha, seed=seed, device=self._device
            )
            self._adapters[run_id] = TrainingAdapter(base, model, lora, weights, tenant=tenant)

        await self._thread.call(create)

    async def drop_adapter(self, run_id: str) -> None:
        """Forget an adapter."""
        await self._thread.call(lambda: self._adapters.pop(run_id, None))

    async def forward_backward(
        self, run_id: str, batch: ForwardBackwardInput, backward: bool
    ) -> ForwardBackwardOutput:
        """The summed loss; with ``backward`` the gradient is added to the run's."""
        tenant = self._tenant(run_id)
        return await self._thread.run(self._train(run_id, batch, backward), "train", tenant=tenant)

    async def optim_step(self, run_id: str, params: AdamParams) -> dict[str, float]:
        """One step of AdamW. Without an accumulated gradient nothing moves (see `TrainingAdapter.step`)."""
        check_adam(params)
        return await self._thread.call(lambda: self._adapter(run_id).step(params))

    async def save_adapter(self, run_id: str, folder: Path, optimizer: bool) -> None:
        """Write the run as it is now; the writing itself does not hold up the compute thread."""

        def snapshot() -> tuple[SavedAdapter, str]:
            adapter, cpu = self._adapter(run_id), torch.device("cpu")
            state = adapter.optimizer.copy(cpu) if optimizer else None
            return SavedAdapter(adapter.weights.copy(cpu), state), adapter.model.name

        saved, base_name = await self._thread.call(snapshot)
        await asyncio.to_thread(write_adapter, folder, saved, base_name)

    async def load_adapter(self, run_id: str, folder: Path, optimizer: bool) -> None:
        """Replace weights and optimizer state; nothing changes unless all of it fits."""
        saved = await asyncio.to_thread(read_adapter, folder, optimizer)

        def install() -> None:
            adapter = self._adapter(run_id)
            if saved.weights.rank != adapter.config.rank:
                raise UserError(
                    f"the saved adapter has rank {saved.weights.rank}, the run {adapter.config.rank}",
                    field="path",
                )
            check_fits(saved, adapter.base.linears(adapter.config), every_layer=True)
            adapter.weights = saved.weights.copy(self._device)
            adapter.optimizer = saved.optimizer.copy(self._device) if saved.optimizer else AdamState()
            adapter.gradients = None

        await self._thread.call(install)

    async def save_state(self, run_id: str, folder: Path) -> None:
        """Write the run with its accumulated gradient; only the copying holds up the compute thread."""

        def snapshot() -> tuple[SavedAdapter, str]:
            adapter = self._adapter(run_id)
            return taken(adapter), adapter.model.name

        saved, base_name = await self._thread.call(snapshot)
        await asyncio.to_thread(write_adapter, folder, saved, base_name)

    async def load_state(
        self,
        run_id: str,
        base_model: str,
        lora: LoraConfig,
        folder: Path,
        tenant: Tenant = NOBODY_ELSE,
    ) -> None:
        """Bring a run back as `save_state` found it."""
        model = self._model(base_model)
        saved = await asyncio.to_thread(read_state, folder)

        def install() -> None:
            base = self._base(model)
            check_fits(saved, base.linears(lora), every_layer=True)
            self._adapters[run_id] = restored(base, model, lora, saved, self._device, tenant)

        await self._thread.call(install)

    async def adapter_bytes(self, run_id: str) -> int:
        """Weights, two moments and a gradient of the same size."""
        tensors = (await self._thread.call(lambda: self._adapter(run_id))).weights.tensors().values()
        return 4 * sum(tensor.nbytes for tensor in tensors)

    async def beat(self) -> None:
        """Returns once the compute thread gets to it, which is after the step it is at."""
        await self._thread.call(lambda: None)

    # -- samplers ---------------------------------------------------------------------------------------

    async def open_sampler(
        self,
        sampler_id: str,
        base_model: str,
        folder: Path | None = None,
        run_id: str | None = None,
        tenant: Tenant = NOBODY_ELSE,
    ) -> None:
        """A sampler of a saved folder, of a copy of a run's weights, or of the bare base."""
        if folder is not None and run_id is not None:
            raise ValueError("a sampler is of a folder or of a run, not of both")
        model = self._model(base_model)
        saved = None if folder is None else await asyncio.to_thread(read_adapter, folder, False)

        def open_() -> None:
            if sampler_id in self._samplers:
                raise ValueError(f"sampler {sampler_id} is open already")
            base, weights = self._base(model), None
            if saved is not None:
                check_fits(saved, base.all_linears(), every_layer=False)
                weights = saved.weights.copy(self._device)
            elif run_id is not None:
                adapter = self._adapter(run_id)
                if adapter.base is not base:
                    raise UserError(
                        f"the run trains {adapter.model.name}, not {model.name}", field="base_model"
                    )
                weights = adapter.weights.copy()
            self._samplers[sampler_id] = Sampler(base, model, weights, tenant)

        await self._thread.call(open_)

    async def close_sampler(self, sampler_id: str) -> None:
        """Forget a sampler; requests it is working on still finish."""

        def close() -> None:
            sampler = self._samplers.pop(sampler_id, None)
            if sampler is not None and sampler.base in self._batches:
                self._batches[sampler.base].forget(sampler)

        await self._thread.call(close)

    async def sample(self, sampler_id: str, job: SampleJob) -> SampleResponse:
        """Sample. Cancelling the task stops decoding before the next step."""
        return await self._sample(sampler_id, job)

    async def stream_sample(self, sampler_id: str, job: SampleJob) -> AsyncGenerator[SampleDelta, None]:
        """Sample, with the tokens as they come; the last delta has the response."""
        feed = Feed()
        sampling = asyncio.create_task(self._sample(sampler_id, job, feed.tell))
        sampling.add_done_callback(lambda _: feed.end())
        try:
            while not sampling.done():
                await feed.news()
                if not sampling.done():
                    yield SampleDelta(feed.take())
            yield SampleDelta(feed.take(), sampling.result())
        finally:
            sampling.cancel()

    async def _sample(
        self, sampler_id: str, job: SampleJob, listener: Listener | None = None
    ) -> SampleResponse:
        sampler, limits = self._sampler(sampler_id), self._limits
        model = sampler.model
        check_sample_job(job, vocab_size=model.vocab_size, max_context_length=model.max_context_length)
        each = capacity_for(tokens_to_cache(sampler, job), limits.cache_step)
        rows = max(1, min(limits.sample_rows, limits.cache_tokens // each))
        cost = each * min(rows, job.num_samples)
        work = self._decode(sampler, job, rows, listener)
        return await self._thread.run(work, "sample", cost=cost, tenant=sampler.tenant)

    async def close(self) -> None:
        """Stop after the current step; whoever still waits hears `EngineStopped`."""
        await asyncio.to_thread(self._finalizer)
        self._adapters.clear()
        self._samplers.clear()
        self._batches.clear()
        self._bases.clear()

    # -- in the compute thread --------------------------------------------------------------------------

    def _train(self, run_id: str, batch: ForwardBackwardInput, backward: bool) -> Work[ForwardBackwardOutput]:
        adapter = self._adapter(run_id)
        model = adapter.model
        check_batch(
            batch,
            vocab_size=model.vocab_size,
            max_context_length=model.max_context_length,
            backward=backward,
        )
        limits = TrainLimits(self._limits.train_tokens, self._limits.train_bytes)
        call = TrainingCall(adapter, batch, backward=backward, tokens_at_once=limits.tokens)
        return (yield from train(call, self._ready, self._thread.shares("train"), limits))

    def _decode(
        self, sampler: Sampler, job: SampleJob, rows: int, listener: Listener | None
    ) -> Work[SampleResponse]:
        limits, base = self._limits, sampler.base
        if base.decoder is None:
            tokens = limits.prefill_tokens
            return (
                yield from sample(sampler, job, tokens_at_once=tokens, rows_at_once=rows, listener=listener)
            )
        if base not in self._batches:
            of_batch = BatchLimits(
                prompt_tokens=limits.prefill_tokens,
                prompt_tokens_beside=min(limits.prefill_tokens, limits.prefill_tokens_beside),
                prefix_tokens=limits.prefix_tokens,
                packed_bytes=limits.packed_bytes,
                cache_step=limits.cache_step,
                captured=limits.captured,
            )
            self._batches[base] = Batch(base, base.decoder, self._thread.shares("sample"), of_batch)
        return (yield from self._batches[base].sample(sampler, job, rows, listener))

    def _sampler(self, sampler_id: str) -> Sampler:
        self._thread.check_running()
        if sampler_id not in self._samplers:
            raise NotFound(f"no sampler {sampler_id!r}", field="sampling_session_id")
        return self._samplers[sampler_id]

    def _tenant(self, run_id: str) -> Tenant:
        adapter = self._adapters.get(run_id)
        return NOBODY_ELSE if adapter is None else adapter.tenant

    def _adapter(self, run_id: str) -> TrainingAdapter:
        if run_id not in self._adapters:
            raise NotFound(f"no adapter of a run {run_id!r}", field="model_id")
        return self._adapters[run_id]

    def _model(self, name: str) -> BaseModel:
        if name not in self._models:
            raise NotFound(
                f"{name!r} is not offered; use one of {', '.join(self._models)}", field="base_model"
            )
        return self._models[name]

    def _base(self, model: BaseModel) -> LoadedBase:
        """The loaded weights; names of one folder share them."""
        folder = model.folder.resolve()
        if folder not in self._bases:
            self._bases[folder] = LoadedBase(folder, self._dtype, self._device)
        base = self._bases[folder]
        if model.vocab_size > base.vocab_size:
            raise UnsupportedModel(
                f"{model.name}: {base.vocab_size} tokens in the weights, {model.vocab_size} declared"
            )
        return base
