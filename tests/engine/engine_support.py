"""Short ways to say what the engine's tests say often."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
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


def reference_logprobs(folder: Path, ids: list[int]) -> np.ndarray:
    """What transformers says of ids[1:]."""
    with torch.no_grad():
        logits = reference_model(folder)(torch.tensor([ids[:-1]])).logits[0]
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0].numpy()


def merged_gradients(
    folder: Path, weights: Mapping[str, torch.Tensor], data: Sequence[Datum], scale: float
) -> dict[str, torch.Tensor]:
    """Autograd through W + scale * B A put in the place of W, in the precision of the weights given."""
    model = reference_model(folder).to(next(iter(weights.values())).dtype)
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in weights.items()}
    layers = {name.rpartition(".")[0] for name in leaves}
    frozen = dict(model.named_parameters(remove_duplicate=False))
    merged = {
        f"{layer}.weight": frozen[f"{layer}.weight"].detach()
        + scale * leaves[f"{layer}.lora_B"] @ leaves[f"{layer}.lora_A"]
        for layer in layers
    }
    loss = torch.zeros(())
    for datum in data:
        ids = torch.tensor([datum.model_input.to_ints()])
        # Tied or not, only the output side changes.
        out = torch.func.functional_call(model, {**frozen, **merged}, (ids,), tie_weights=False)
        targets = datum.loss_fn_inputs["target_tokens"].to_torch()
        logprobs = torch.log_softmax(out.logits[0], -1).gather(1, targets[:, None])[:, 0]
        loss = loss - (logprobs * datum.loss_fn_inputs["weights"].to_torch()).sum()
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


def gradient_error(
    found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]
) -> dict[str, float]:
    """By tensor, the length of the difference as a share of the gradient's own, which must not be zero."""
    assert found.keys() == expected.keys()
    norm = torch.linalg.vector_norm
    assert all(norm(right) > 0 for right in expected.values())
    return {name: float(norm(found[name] - right) / norm(right)) for name, right in expected.items()}
