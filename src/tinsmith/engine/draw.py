"""Choosing the next token: temperature, top-k, top-p, random numbers that depend only on their place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from tinsmith.types import SampleJob, SamplingParams

_OF_PROMPT = 1  # purpose of random numbers that are not for a sample's own tokens
_BLOCK = 256  # tokens whose probabilities are added up before one of them is looked for


@dataclass(frozen=True, slots=True)
class Drawn:
    """One token for each row, and the whole distribution each was drawn from (before top-k and top-p)."""

    tokens: Tensor  # [rows]
    logprobs: Tensor  # [rows, vocabulary]


@dataclass(frozen=True, slots=True)
class Turn:
    """Whose token is due: that of step ``step`` of sample ``sample`` of a job."""

    job: SampleJob
    sample: int
    step: int


@dataclass(frozen=True, slots=True)
class Taken:
    """A drawn token, and the k most likely ones (ids, log-probabilities) where they were asked for."""

    token: int
    logprob: float
    top: tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]] | None


def take(logits: Tensor, turns: Sequence[Turn]) -> list[Taken]:
    """One token for each row of logits [rows, vocabulary]; rows under the same rules are drawn together."""
    by_rule: dict[tuple[float, int, float, int], list[int]] = {}
    for at, turn in enumerate(turns):
        params = turn.job.params
        rule = (params.temperature, params.top_k, params.top_p, turn.job.topk_sample_logprobs)
        by_rule.setdefault(rule, []).append(at)
    found: dict[int, Taken] = {}
    for rows in by_rule.values():
        some = logits if len(rows) == len(turns) else logits[torch.tensor(rows, device=logits.device)]
        found.update(zip(rows, _take_alike(some, [turns[at] for at in rows]), strict=True))
    return [found[at] for at in range(len(turns))]


def _take_alike(logits: Tensor, turns: Sequence[Turn]) -> list[Taken]:
    params, k = turns[0].job.params, turns[0].job.topk_sample_logprobs
    drawn = _draw(logits, params, [uniform(turn.job.seed, turn.sample, turn.step) for turn in turns])
    chosen = drawn.logprobs.gather(1, drawn.tokens[:, None])[:, 0].tolist()
    if k:
        top, ids = (t.cpu().numpy() for t in torch.topk(drawn.logprobs, k, dim=1))
    return [
        Taken(token, logprob, (ids[at], top[at]) if k else None)
        for at, (token, logprob) in enumerate(zip(drawn.tokens.tolist(), chosen, strict=True))
    ]


def draw(logits: Tensor, params: SamplingParams, seed: int, samples: Sequence[int], step: int) -> Drawn:
    """Draw from softmax(logits / temperature); 0 takes the most likely, with logprobs at temperature 1."""
    return _draw(logits, params, [uniform(seed, sample, step) for sample in samples])


def draw_alternatives(logprobs: Tensor, job: SampleJob, position: int, count: int) -> Tensor:
    """``count`` independent draws [rows, count] of what could follow each row's prompt position.

    The rows are of ``position`` and those after it. Only the job's temperature and seed are heeded.
    """
    params = SamplingParams(temperature=job.params.temperature)
    steps = range(position, position + len(logprobs))
    draws = ([uniform(job.seed, draw, step, _OF_PROMPT) for step in steps] for draw in range(count))
    return torch.stack([_draw(logprobs, params, each).tokens for each in draws], dim=1)


def _draw(logits: Tensor, params: SamplingParams, draws: Sequence[float]) -> Drawn:
    if params.temperature == 0:
        return Drawn(logits.argmax(dim=1), torch.log_softmax(logits, dim=1))
    if params.temperature != 1:
        logits = (logits - logits.amax(dim=1, keepdim=True)) / params.temperature
    logprobs = torch.log_softmax(logits, dim=1)
    allowed = top_p_filter(top_k_filter(logprobs, params.top_k), params.top_p)
    return Drawn(_invert(allowed, torch.tensor(draws, dtype=torch.float64, device=logits.device)), logprobs)


def uniform(seed: int, sample: int, step: int, purpose: int = 0) -> float:
    """A number in [0, 1) from a counter: sample i's step t gives the same in any batch, at any time."""
    generator = np.random.Generator(np.random.Philox(key=seed, counter=[0, step, sample, purpose]))
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
    """Inverse of the cumulative distribution: the first token where it exceeds the draw.

    First the block of tokens is found in which that happens, then the token: only sums of blocks are taken
    of the whole vocabulary.
    """
    rows, vocabulary = logprobs.shape
    padded = F.pad(logprobs, (0, -vocabulary % _BLOCK), value=-torch.inf) if vocabulary % _BLOCK else logprobs
    probabilities = padded.exp().view(rows, -1, _BLOCK)
    sums = probabilities.sum(2).double()
    ends = sums.cumsum(1)
    aims = draws * ends[:, -1]
    block = _first_above(ends, aims, sums)
    inside = probabilities[torch.arange(rows, device=block.device), block].double()
    before = ends.gather(1, block[:, None]) - sums.gather(1, block[:, None])
    return block * _BLOCK + _first_above(before + inside.cumsum(1), aims, inside)


def _first_above(ends: Tensor, aims: Tensor, weights: Tensor) -> Tensor:
    """The first place whose end exceeds the aim; where rounding leaves none, the last of any weight."""
    first = torch.searchsorted(ends, aims[:, None], right=True)[:, 0]
    last = weights.shape[1] - 1 - weights.ne(0).flip(1).int().argmax(dim=1)
    return torch.minimum(first, last)
