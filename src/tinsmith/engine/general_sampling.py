"""Sampling any model transformers can run: a request's samples decode together, one token of each a step."""

from __future__ import annotations

import copy
from functools import partial

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from tinsmith.types import SampleJob, SampleResponse

from .draw import Turn, take
from .feed import Listener
from .prompt_report import PromptReport
from .sampler import Sampler, length_limit
from .scheduler import Pause, Work
from .sequence import Sequence
from .stops import StopRule


def sample(
    sampler: Sampler,
    job: SampleJob,
    *,
    tokens_at_once: int,
    rows_at_once: int,
    listener: Listener | None = None,
) -> Work[SampleResponse]:
    """The work of one (validated) request; the listener hears of its samples after each step.

    Every step is its own no-grad block: others run in between.
    """
    base = sampler.base
    prompt = torch.from_numpy(job.prompt.to_array().astype(np.int64)).to(base.device)
    rule, report = StopRule(base, job.params), PromptReport(base, job, prompt)
    cache, logits = yield from _prefill(sampler, prompt, report, tokens_at_once)
    limit = length_limit(sampler, job)
    sequences = [Sequence(index, rule.watcher(), limit) for index in range(job.num_samples)]
    for first in range(0, len(sequences), rows_at_once):
        group = sequences[first : first + rows_at_once]
        last = first + rows_at_once >= len(sequences)
        of_group = cache if last else copy.deepcopy(cache)
        yield from _decode(sampler, job, group, of_group, logits, listener)
    return report.answer([sequence.finished(job) for sequence in sequences])


def _prefill(
    sampler: Sampler, prompt: Tensor, report: PromptReport, tokens_at_once: int
) -> Work[tuple[DynamicCache, Tensor]]:
    """Read the prompt in pieces. Gives the filled cache and the logits [1, vocabulary] of what comes next."""
    cache = sampler.base.new_cache()
    for start in range(0, len(prompt), tokens_at_once):
        piece = prompt[start : start + tokens_at_once]
        with torch.no_grad():
            hidden = sampler.base.hidden(piece[None], sampler.weights, cache)[0]
            report.read(start, hidden, partial(sampler.base.logits, weights=sampler.weights))
            logits = sampler.base.logits(hidden[-1:], sampler.weights)
        yield Pause.TURN_OVER
    return cache, logits


def _decode(
    sampler: Sampler,
    job: SampleJob,
    sequences: list[Sequence],
    cache: DynamicCache,
    logits: Tensor,
    listener: Listener | None,
) -> Work[None]:
    """Decode until every sequence has ended; ended ones leave the batch."""
    live, logits = sequences, logits.expand(len(sequences), -1)
    cache.batch_repeat_interleave(len(sequences))
    while True:
        with torch.no_grad():
            turns = [Turn(job, sequence.index, len(sequence.tokens)) for sequence in live]
            for sequence, taken in zip(live, take(logits, turns), strict=True):
                sequence.take(taken)
            if listener is not None:
                listener(live)
            kept = [at for at, sequence in enumerate(live) if sequence.stop_reason is None]
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
