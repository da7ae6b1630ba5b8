"""Continuous batching: every step gives each running sequence of each request on a base model its next token.

Requests join and leave between steps. A step also reads as much of new prompts as its token budget allows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from tinsmith.types import SampleJob, SampleResponse

from .base import LoadedBase
from .draw import Turn, take
from .fast.captured_pass import CapturedPass
from .fast.kv_memory import KvMemory, Stretch
from .fast.model import Decoder
from .fast.products import Products
from .fast.sampler_adapters import ReadyAdapter
from .fast.sampler_pass import SamplerPass, Span
from .feed import Listener
from .interface import Tenant
from .places import Place, Places
from .prefixes import Prefixes
from .prompt_report import PromptReport
from .sampler import Sampler, length_limit
from .scheduler import Work
from .sequence import Sequence as Sample
from .shares import Shares
from .stops import StopRule


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Bounds of one step and of what is kept between requests."""

    prompt_tokens: int  # read in one step when nothing else is to do
    prompt_tokens_beside: int  # read in one step that decodes as well, which waits for them
    prefix_tokens: int  # of prompts kept for requests that begin alike
    packed_bytes: int  # of weights laid out a second time, for products of few rows
    cache_step: int  # positions: the capacities of sequences
    captured: bool  # decode by programs that a GPU can record


@dataclass(eq=False)
class _Running:
    """A sample under way and where its keys and values lie."""

    sample: Sample
    place: Place


@dataclass(eq=False)
class _Request:
    """One request: first its prompt is read, then its samples run, so many at a time."""

    job: SampleJob
    tenant: Tenant
    adapter: ReadyAdapter | None
    prompt: Tensor
    report: PromptReport
    samples: list[Sample]
    rows_at_once: int
    place: Place | None = None  # while the prompt is read
    read: int = 0
    cache_hit: int = 0
    stretch: Stretch | None = None  # the prompt, once read
    first_logits: Tensor | None = None  # [1, vocabulary], of what follows the prompt
    running: list[_Running] = field(default_factory=list)
    waiting: deque[Sample] = field(default_factory=deque)

    @property
    def done(self) -> bool:
        return self.stretch is not None and not self.running and not self.waiting


@dataclass(frozen=True, slots=True)
class _Part:
    """A request's share of a step: the token of a running sample, or a stretch of its prompt."""

    request: _Request
    span: Span
    running: _Running | None

    @property
    def gives_logits(self) -> bool:
        """Whether a token is drawn after the last row."""
        span = self.span
        return span.decoding or span.start + len(span.tokens) == len(self.request.prompt)


class Batch:
    """All requests on one base model. Work that samples yields the batch: "advance me with everybody"."""

    def __init__(self, base: LoadedBase, decoder: Decoder, shares: Shares, limits: BatchLimits) -> None:
        self._base, self._decoder, self._shares, self._limits = base, decoder, shares, limits
        make = CapturedPass if limits.captured else SamplerPass
        self._places, self._memory = Places(limits.cache_step), KvMemory(decoder)
        self._pass = make(decoder, Products(decoder, limits.packed_bytes), self._memory, self._places)
        self._prefixes: Prefixes[Stretch] = Prefixes(limits.prefix_tokens)
        self._adapters: WeakKeyDictionary[Sampler, ReadyAdapter] = WeakKeyDictionary()
        self._requests: list[_Request] = []

    def sample(
        self, sampler: Sampler, job: SampleJob, rows_at_once: int, listener: Listener | None = None
    ) -> Work[SampleResponse]:
        """The work of one (validated) request; the listener hears of its samples after each step."""
        request = self._join(sampler, job, rows_at_once)
        try:
            while not request.done:
                yield self
                if listener is not None:
                    listener(request.samples)
        finally:
            self._leave(request)
        answers = [sample.finished(job) for sample in request.samples]
        return request.report.answer(answers, request.cache_hit)

    def forget(self, sampler: Sampler) -> None:
        """A sampler was closed: nobody new will begin like its prompts."""
        if sampler in self._adapters:
            self._prefixes.forget(self._adapters[sampler])
            self._pass.forget(self._adapters[sampler])

    def sequences(self) -> int:
        """How many sequences hold memory."""
        return self._places.taken()

    @torch.no_grad()
    def step(self) -> None:
        """One pass through the model for everybody whose tenant is not ahead of the others."""
        parts = self._plan()
        if parts:
            self._compute(parts)
        for request in self._requests:
            self._start_samples(request)

    # -- joining and leaving ----------------------------------------------------------------------------

    def _join(self, sampler: Sampler, job: SampleJob, rows_at_once: int) -> _Request:
        tokens = job.prompt.to_array().astype(np.int64)
        prompt, rule = torch.from_numpy(tokens).to(self._base.device), StopRule(self._base, job.params)
        limit = length_limit(sampler, job)
        samples = [Sample(index, rule.watcher(), limit) for index in range(job.num_samples)]
        report = PromptReport(self._base, job, prompt)
        request = _Request(job, sampler.tenant, self._ready(sampler), prompt, report, samples, rows_at_once)
        request.waiting.extend(samples)
        common, stretch = self._prefixes.longest(request.adapter, tokens)
        # The last token is read in any case, for what follows it; so is whatever is asked about.
        request.cache_hit = request.read = max(0, min(common, len(tokens) - 1, report.first))
        request.place = self._places.take(len(tokens))
        self._memory.begin(request.place, stretch, request.read)
        self._requests.append(request)
        return request

    def _ready(self, sampler: Sampler) -> ReadyAdapter | None:
        if sampler.weights is None:
            return None
        if sampler not in self._adapters:
            self._adapters[sampler] = ReadyAdapter(self._decoder, sampler.weights)
        return self._adapters[sampler]

    def _leave(self, request: _Request) -> None:
        self._requests.remove(request)
        for running in request.running:
            self._free(running.place)
        if request.place is not None:
            self._free(request.place)

    def _free(self, place: Place) -> None:
        self._memory.move(self._places.leave(place))

    # -- a step -----------------------------------------------------------------------------------------

    def _plan(self) -> list[_Part]:
        """Who computes what, those with the same adapter side by side."""
        requests = self._entitled()
        decoding = [
            _Part(request, self._decode_span(request, running), running)
            for request in requests
            for running in request.running
        ]
        limits = self._limits
        budget = limits.prompt_tokens_beside if decoding else limits.prompt_tokens
        parts = [*decoding, *self._prompt_parts(requests, budget)]
        for part in parts:
            self._shares.count(part.request.tenant, len(part.span.tokens))
        return sorted(parts, key=lambda part: id(part.span.adapter))

    def _entitled(self) -> list[_Request]:
        """Requests of tenants who are not ahead, those who had least first; among a tenant's, in order."""
        tenants = {request.tenant.name for request in self._requests}
        entitled = {name: self._shares.had(name) for name in tenants if self._shares.may_join(name)}
        theirs = [request for request in self._requests if request.tenant.name in entitled]
        return sorted(theirs, key=lambda request: entitled[request.tenant.name])

    def _decode_span(self, request: _Request, running: _Running) -> Span:
        position = len(request.prompt) + len(running.sample.tokens) - 1
        self._memory.move(self._places.grow(running.place, position + 1))
        return Span(running.sample.tokens[-1:], position, running.place, request.adapter, True)

    def _prompt_parts(self, requests: list[_Request], budget: int) -> Iterator[_Part]:
        for request in requests:
            if request.place is not None and budget > 0:
                tokens = request.prompt[request.read : request.read + budget].tolist()
                budget -= len(tokens)
                span = Span(tokens, request.read, request.place, request.adapter, False)
                yield _Part(request, span, None)

    def _compute(self, parts: Sequence[_Part]) -> None:
        hidden = self._pass.run([part.span for part in parts])
        end, last_rows = 0, []
        for part in parts:
            start, end = end, end + len(part.span.tokens)
            if part.running is None:
                self._read(part, hidden[start:end])
            if part.gives_logits:
                last_rows.append(end - 1)
        ending = [part for part in parts if part.gives_logits]
        if not ending:
            return
        rows = hidden[torch.tensor(last_rows, device=hidden.device)]
        logits = self._pass.logits(rows, ((part.request.adapter, 1) for part in ending))
        running = [(part.request, part.running) for part in ending if part.running is not None]
        if len(running) < len(ending):
            decoding = torch.tensor([part.running is not None for part in ending], device=logits.device)
            for at, part in enumerate(ending):
                if part.running is None:
                    self._prompt_is_read(part.request, logits[at : at + 1].clone())
            logits = logits[decoding]
        if running:
            self._take(logits, running)

    def _read(self, part: _Part, hidden: Tensor) -> None:
        request, span = part.request, part.span
        request.read = span.start + len(span.tokens)
        request.report.read(span.start, hidden, partial(self._logits_of, request.adapter))

    def _logits_of(self, adapter: ReadyAdapter | None, hidden: Tensor) -> Tensor:
        return self._pass.logits(hidden, [(adapter, len(hidden))])

    def _prompt_is_read(self, request: _Request, logits: Tensor) -> None:
        assert request.place is not None
        request.first_logits = logits
        request.stretch = self._memory.read(request.place, len(request.prompt))
        self._prefixes.keep(request.adapter, request.prompt.cpu().numpy(), request.stretch)
        self._free(request.place)
        request.place = None

    def _start_samples(self, request: _Request) -> None:
        """As many as may run at once: each gets a copy of the prompt's memory, and its first token."""
        if request.stretch is None or request.first_logits is None:
            return
        room = request.rows_at_once - len(request.running)
        started = []
        for _ in range(min(room, len(request.waiting))):
            place = self._places.take(len(request.prompt) + 1)
            self._memory.begin(place, request.stretch, len(request.prompt))
            started.append(_Running(request.waiting.popleft(), place))
        if started:
            request.running += started
            self._take(request.first_logits.expand(len(started), -1), [(request, each) for each in started])

    def _take(self, logits: Tensor, running: Sequence[tuple[_Request, _Running]]) -> None:
        """Give each its next token; those for whom it was the last leave."""
        turns = [Turn(r.job, each.sample.index, len(each.sample.tokens)) for r, each in running]
        for (request, each), taken in zip(running, take(logits, turns), strict=True):
            each.sample.take(taken)
            if each.sample.stop_reason is not None:
                request.running.remove(each)
                self._free(each.place)
