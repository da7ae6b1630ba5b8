"""Choosing the next token: temperature, top-k, top-p, random numbers that depend only on their place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tinsmith.types import SamplingParams


@dataclass(frozen=True, slots=True)
class Drawn:
    """One token for each row, and the whole distribution each was drawn from (before top-k and top-p)."""

    tokens: Tensor  # [rows]
    logprobs: Tensor  # [rows, vocabulary]


def draw(logits: Tensor, params: SamplingParams, seed: int, samples: Sequence[int], step: int) -> Drawn:
    """Draw from softmax(logits / temperature); 0 takes the most likely, with logprobs at temperature 1."""
    if params.temperature == 0:
        return Drawn(logits.argmax(dim=1), torch.log_softmax(logits, dim=1))
    spread = (logits - logits.amax(dim=1, keepdim=True)) / params.temperature
    logprobs = torch.log_softmax(spread, dim=1)
    allowed = top_p_filter(top_k_filter(logprobs, params.top_k), params.top_p)
    draws = torch.tensor([uniform(seed, sample, step) for sample in samples], dtype=torch.float64)
    return Drawn(_invert(allowed, draws.to(logits.device)), logprobs)


def uniform(seed: int, sample: int, step: int) -> float:
    """A number in [0, 1) from a counter: sample i's step t gives the same in any batch, at any time."""
    generator = np.random.Generator(np.random.Philox(key=seed, counter=[0, step, sample, 0]))
    return float(generator.random())


def top_k_filter(logprobs: Tensor, top_k: int) -> Tensor:
    """Everything but the k most likely tokens made impossible; -1 keeps all."""
    if top_k == -1 or top_k >= logprobs.shape[1]:
        return logprobs
    values, indices = torch.topk(logprobs, top_k, dim=1)
    return torch.full_like(logprobs, -torch.inf).scatter(1, indices, values)


def top_p_filter(logprobs: Tensor, top_p: float) -> Tensor:
    """The smallest set of most likely tokens that holds at least top_p of what top-k left."""
    if top_p == 1:
        return logprobs
    ordered, indices = torch.sort(torch.softmax(logprobs.double(), dim=1), dim=1, descending=True)
    before = ordered.cumsum(dim=1) - ordered  # 0 for the most likely token, which therefore always stays
    dropped = torch.empty_like(before, dtype=torch.bool).scatter(1, indices, before >= top_p)
    return logprobs.masked_fill(dropped, -torch.inf)


def _invert(logprobs: Tensor, draws: Tensor) -> Tensor:
    """Inverse of the cumulative distribution: the first token where it exceeds the draw."""
    probabilities = logprobs.double().exp()
    cumulative = probabilities.cumsum(dim=1)
    chosen = torch.searchsorted(cumulative, (draws * cumulative[:, -1])[:, None], right=True)[:, 0]
    # Rounding may carry draw * total up to the total itself: then the last possible token is meant.
    last = probabilities.shape[1] - 1 - probabilities.ne(0).flip(1).int().argmax(dim=1)
    return torch.minimum(chosen, last)
