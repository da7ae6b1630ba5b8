"""Sampling: the prompt is read once, its samples decode together, one token of each a step."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from tinsmith.types import SampledSequence, SampleJob, SampleResponse, StopReason, TopkLogprobs
from tinsmith.types.sampling import TOPK_EMPTY_LOGPROB

from .base import LoadedBase
from .draw import draw
from .interface import BaseModel
from .lora import LoraWeights
from .prompt_report import PromptReport
from .scheduler import Pause, Work
from .stops import StopRule, StopWatcher


@dataclass(frozen=True, eq=False)
class Sampler:
    """A base model and a copy of an adapter's weights that nobody else holds; no weights: the bare base."""

    base: LoadedBase
    model: BaseModel
    weights: LoraWeights | None


def tokens_to_cache(sampler: Sampler, job: SampleJob) -> int:
    """The most positions one sample of a job can come to hold in the key-value cache."""
    context = sampler.model.max_context_length
    return min(context, job.prompt.length + (job.params.max_tokens or context))


@dataclass(eq=False)
class _Sequence:
    index: int
    watcher: StopWatcher
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    topk: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    stop_reason: StopReason | None = None


def sample(
    sampler: Sampler, job: SampleJob, *, tokens_at_once: int, rows_at_once: int
) -> Work[SampleResponse]:
    """The work of one (validated) request. Every step is its own no-grad block: others run in between."""
    base = sampler.base
    prompt = torch.from_numpy(job.prompt.to_array().astype(np.int64)).to(base.device)
    rule = StopRule(base, job.params)
    report = PromptReport(base, sampler.weights, job, prompt)
    cache, logits = yield from _prefill(sampler, prompt, report, tokens_at_once)
    sequences = [_Sequence(index, rule.watcher()) for index in range(job.num_samples)]
    for first in range(0, len(sequences), rows_at_once):
        group = sequences[first : first + rows_at_once]
        last = first + rows_at_once >= len(sequences)
        yield from _decode(sampler, job, group, cache if last else copy.deepcopy(cache), logits)
    return SampleResponse(
        sequences=[_finished(sequence, job) for sequence in sequences],
        prompt_logprobs_np=report.prompt_logprobs(),
        topk_prompt_logprobs_np=report.topk(),
        target_prompt_logprobs=report.target_logprobs(),
        prompt_alt_tokens=report.alt_tokens(),
    )


def _prefill(
    sampler: Sampler, prompt: Tensor, report: PromptReport, tokens_at_once: int
) -> Work[tuple[DynamicCache, Tensor]]:
    """Read the prompt in pieces. Gives the filled cache and the logits [1, vocabulary] of what comes next."""
    cache = sampler.base.new_cache()
    for start in range(0, len(prompt), tokens_at_once):
        piece = prompt[start : start + tokens_at_once]
        with torch.no_grad():
            hidden = sampler.base.hidden(piece[None], sampler.weights, cache)[0]
            report.read(start, hidden)
            logits = sampler.base.logits(hidden[-1:], sampler.weights)
        yield Pause.TURN_OVER
    return cache, logits


def _decode(
    sampler: Sampler, job: SampleJob, sequences: list[_Sequence], cache: DynamicCache, logits: Tensor
) -> Work[None]:
    """Decode until every sequence has ended; ended ones leave the batch."""
    limit = tokens_to_cache(sampler, job) - job.prompt.length
    live, logits = sequences, logits.expand(len(sequences), -1)
    cache.batch_repeat_interleave(len(sequences))
    for step in range(limit):
        with torch.no_grad():
            kept = _take(logits, job, live, step, last=step == limit - 1)
            if not kept:
                return
            if len(kept) < len(live):
                cache.batch_select_indices(torch.tensor(kept, device=logits.device))
                live = [live[at] for at in kept]
        yield Pause.TURN_OVER
        with torch.no_grad():
            ids = torch.tensor([[sequence.tokens[-1]] for sequence in live], device=logits.device)
            hidden = sampler.base.hidden(ids, sampler.weights, cache)
            logits = sampler.base.logits(hidden[:, -1], sampler.weights)


def _take(logits: Tensor, job: SampleJob, live: list[_Sequence], step: int, *, last: bool) -> list[int]:
    """Give every live sequence its next token. Returns which of them go on."""
    drawn = draw(logits, job.params, job.seed, [sequence.index for sequence in live], step)
    tokens = drawn.tokens.tolist()
    chosen = drawn.logprobs.gather(1, drawn.tokens[:, None])[:, 0].tolist()
    if job.topk_sample_logprobs:
        top, ids = (t.cpu().numpy() for t in torch.topk(drawn.logprobs, job.topk_sample_logprobs, dim=1))
    kept = []
    for at, sequence in enumerate(live):
        sequence.tokens.append(tokens[at])
        sequence.logprobs.append(chosen[at])
        if job.topk_sample_logprobs:
            sequence.topk.append((ids[at], top[at]))
        if sequence.watcher.ends_with(tokens[at]):
            sequence.stop_reason = "stop"
        elif last:
            sequence.stop_reason = "length"
        else:
            kept.append(at)
    return kept


def _finished(sequence: _Sequence, job: SampleJob) -> SampledSequence:
    assert sequence.stop_reason is not None
    return SampledSequence(
        stop_reason=sequence.stop_reason,
        tokens_np=np.array(sequence.tokens, dtype=np.int32),
        logprobs_np=np.array(sequence.logprobs, dtype=np.float32),
        topk_logprobs_np=_topk(sequence) if job.topk_sample_logprobs else None,
        sequence_id=job.sequence_ids[sequence.index] if job.sequence_ids else None,
    )


def _topk(sequence: _Sequence) -> TopkLogprobs:
    ids = np.stack([ids for ids, _ in sequence.topk]).astype(np.int32)
    logprobs = np.stack([logprobs for _, logprobs in sequence.topk])
    # At a tiny temperature all but one token may have probability 0, and -inf does not travel.
    impossible = np.isneginf(logprobs)
    return TopkLogprobs(
        np.where(impossible, 0, ids).astype(np.int32),
        np.where(impossible, TOPK_EMPTY_LOGPROB, logprobs).astype(np.float32),
    )
