"""Short ways to say what the engine's tests say often."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from tinsmith.engine.interface import BaseModel
from tinsmith.engine.local import Limits, LocalEngine
from tinsmith.types import (
    AdamParams,
    Datum,
    ForwardBackwardInput,
    LoraConfig,
    ModelInput,
    SampleJob,
    SamplingParams,
)

T = TypeVar("T")
VOCABULARY = 512


def with_engine(
    models: Mapping[str, BaseModel], body: Callable[[LocalEngine], Awaitable[T]], **limits: Any
) -> T:
    """Run a test's body against an engine of its own."""

    async def main() -> T:
        engine = LocalEngine(models, limits=Limits(**{"threads": 1, **limits}))
        try:
            return await body(engine)
        finally:
            await engine.close()

    return asyncio.run(main())


async def until(condition: Callable[[], object]) -> None:
    """Let other work run until something has become true; pytest's timeout bounds a failure."""
    while not condition():
        await asyncio.sleep(0)


def tokens(length: int, seed: int) -> list[int]:
    """Ordinary (not special) token ids."""
    return np.random.default_rng(seed).integers(3, VOCABULARY, length).tolist()


def sft_datum(length: int, seed: int, weights: list[float] | None = None) -> Datum:
    ids = tokens(length + 1, seed)
    weights = weights or [1.0] * length
    return Datum(ModelInput.from_ints(ids[:-1]), {"target_tokens": ids[1:], "weights": weights})


def cross_entropy(*data: Datum) -> ForwardBackwardInput:
    return ForwardBackwardInput(list(data), "cross_entropy")


def job(prompt: list[int], *, n: int = 1, seed: int = 0, **options: Any) -> SampleJob:
    """A sample job; what is not an option of the job is one of the sampling parameters."""
    of_job = {key: options.pop(key) for key in list(options) if key in SampleJob.__slots__}
    return SampleJob(ModelInput.from_ints(prompt), SamplingParams(**options), n, seed=seed, **of_job)


async def train_a_little(engine: LocalEngine, run: str, steps: int = 3, seed: int = 50) -> None:
    """Move an adapter away from its start, where B = 0 hides mistakes."""
    for step in range(steps):
        await engine.forward_backward(run, cross_entropy(sft_datum(12, seed + step)), True)
        await engine.optim_step(run, AdamParams(learning_rate=0.02))


async def trained_run(engine: LocalEngine, run: str, model: str, **lora: Any) -> None:
    await engine.create_adapter(run, model, LoraConfig(**{"rank": 4, "seed": 1, **lora}))
    await train_a_little(engine, run)


async def logprobs_of(engine: LocalEngine, run: str, ids: list[int]) -> np.ndarray:
    """What the trainer says of ids[1:]."""
    datum = Datum(
        ModelInput.from_ints(ids[:-1]), {"target_tokens": ids[1:], "weights": [0.0] * (len(ids) - 1)}
    )
    output = await engine.forward_backward(run, cross_entropy(datum), False)
    return output.loss_fn_outputs[0]["logprobs"].to_numpy()


def weights_of(engine: LocalEngine, run: str) -> dict[str, torch.Tensor]:
    """A copy of a run's tensors."""
    return engine._adapters[run].weights.copy().tensors()


def gradients_of(engine: LocalEngine, run: str) -> dict[str, torch.Tensor] | None:
    return engine._adapters[run].gradients


def same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def reference_model(folder: Path) -> Any:
    """The model as transformers runs it."""
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
