"""Tiny random models of every fast family, and one packed pass over rows of data."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tinsmith.engine.fast.layout import micro_batches
from tinsmith.engine.fast.model import Decoder
from tinsmith.engine.fast.packed import RunRows, packed_pass
from tinsmith.engine.lora import LoraPair, LoraWeights

VOCABULARY = 128
_SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
    "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512,
}  # fmt: skip
_SCALED: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 2.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
    "llama3": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}  # fmt: skip

FAMILIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (LlamaForCausalLM, LlamaConfig, {}),
    "smollm": (LlamaForCausalLM, LlamaConfig, {"tie_word_embeddings": True, "num_key_value_heads": 6}),
    "llama-bias": (LlamaForCausalLM, LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
    **{
        f"llama-{kind}": (
            LlamaForCausalLM,
            LlamaConfig,
            {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **options}},
        )
        for kind, options in _SCALED.items()
    },
    "mistral": (MistralForCausalLM, MistralConfig, {"sliding_window": None}),
    "mistral-window": (MistralForCausalLM, MistralConfig, {"sliding_window": 24}),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {}),
    "qwen2-window": (
        Qwen2ForCausalLM,
        Qwen2Config,
        {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1},
    ),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {}),
    "qwen3-tied": (Qwen3ForCausalLM, Qwen3Config, {"tie_word_embeddings": True, "head_dim": 32}),
}


def tiny(family: str) -> Any:
    """A random model whose biases and norms are not the neutral ones they are born with."""
    model_type, config_type, options = FAMILIES[family]
    torch.manual_seed(1)
    config = config_type(**{**_SIZES, "initializer_range": 0.2, **options}, attn_implementation="eager")
    model = model_type(config).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            parameter.add_(0.3 * torch.randn(parameter.shape))
    return model


def adapter(model: Any, rank: int, seed: int, layers: Sequence[str] = ("proj", "lm_head")) -> LoraWeights:
    """Random weights, B included, on the linear layers whose names contain one of ``layers``."""
    generator = torch.Generator().manual_seed(seed)
    pairs = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and any(layer in name for layer in layers):
            a = 0.2 * torch.randn(rank, module.in_features, generator=generator)
            pairs[name] = LoraPair(a, 0.2 * torch.randn(module.out_features, rank, generator=generator))
    return LoraWeights(rank, 2.0 * rank, pairs)


def rows(*lengths: int, seed: int = 0, shared: int = 0) -> list[np.ndarray]:
    """Random rows; all begin with the same ``shared`` tokens."""
    rng = np.random.default_rng(seed)
    prefix = rng.integers(0, VOCABULARY, shared)
    return [np.concatenate([prefix, rng.integers(0, VOCABULARY, length - shared)]) for length in lengths]


def masks(tokens: Sequence[np.ndarray], seed: int = 5) -> list[Tensor]:
    """d loss / d logprobs: random, zero for the first third of each row."""
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(len(row), 1, generator=generator) for row in tokens]
    for mask in made:
        mask[: len(mask) // 3] = 0
    return made


def targets(tokens: Sequence[np.ndarray]) -> list[Tensor]:
    """The next token, and a random one after the last."""
    return [torch.from_numpy(np.append(row[1:], int(row.sum()) % VOCABULARY))[:, None] for row in tokens]


class Packed:
    """One pass over all rows of several runs, and everything it gives."""

    def __init__(
        self,
        decoder: Decoder,
        runs: Sequence[tuple[LoraWeights, list[np.ndarray]]],
        *,
        backward: bool = True,
        slots_at_once: int = 10**9,
        bytes_to_keep: int = 10**9,
    ) -> None:
        self.logprobs: list[dict[int, Tensor]] = [{} for _ in runs]
        self.gradients: list[dict[str, Tensor]] = [{} for _ in runs]
        self.slots = 0
        upstream = [masks(tokens) for _, tokens in runs]

        def loss(run: int, row: int, logprobs: Tensor) -> Tensor:
            self.logprobs[run][row] = logprobs.clone()
            return upstream[run][row]

        portions = [micro_batches(tokens, slots_at_once) for _, tokens in runs]
        for step in range(max(map(len, portions))):
            at = [run for run, mine in enumerate(portions) if step < len(mine)]
            given = [RunRows(runs[i][0], runs[i][1], targets(runs[i][1]), portions[i][step]) for i in at]
            numbered = lambda run, row, logprobs, at=at: loss(at[run], row, logprobs)  # noqa: E731
            work = packed_pass(decoder, given, numbered, backward=backward, bytes_to_keep=bytes_to_keep)
            for run, gradients in zip(at, _finished(work), strict=True):
                for name, gradient in gradients.items():
                    self.gradients[run][name] = self.gradients[run].get(name, 0) + gradient
                lengths = [len(row) for row in runs[run][1]]
                self.slots += sum(group.slots(lengths) for group in portions[run][step])


def _finished(work: Any) -> Any:
    while True:
        try:
            next(work)
        except StopIteration as done:
            return done.value


def reference(
    model: Any, weights: LoraWeights, tokens: list[np.ndarray]
) -> tuple[list[Tensor], dict[str, Tensor]]:
    """The same by transformers and autograd, a row at a time, with W + scale * B A in the place of W."""
    leaves = weights.leaves()
    frozen = dict(model.named_parameters(remove_duplicate=False))
    merged = {
        f"{layer}.weight": frozen[f"{layer}.weight"].detach() + weights.scale * pair.b @ pair.a
        for layer, pair in leaves.pairs.items()
    }
    found, loss = [], torch.zeros(())
    for row, target, mask in zip(tokens, targets(tokens), masks(tokens), strict=True):
        ids = (torch.from_numpy(row)[None],)
        # Tied or not, only the output side changes.
        logits = torch.func.functional_call(model, {**frozen, **merged}, ids, tie_weights=False).logits[0]
        found.append(torch.log_softmax(logits, -1).gather(1, target))
        loss = loss + (found[-1] * mask).sum()
    named = leaves.tensors()
    gradients = torch.autograd.grad(loss, list(named.values()))
    return [logprobs.detach() for logprobs in found], dict(zip(named, gradients, strict=True))


def distance(one: Tensor, other: Tensor) -> float:
    """|one - other| / |other|."""
    return float(torch.linalg.vector_norm(one - other) / torch.linalg.vector_norm(other).clamp(min=1e-30))
