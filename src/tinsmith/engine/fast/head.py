"""The unembedding, its softmax and their backward pass, a few rows of logits at a time.

With l = h Wᵀ (+ adapter), p = softmax(l):  log p(t) = l[t] - log sum exp l;  given g = d loss / d log p(t):
dl = g (onehot(t) - p).  The loss of a row of data is known once all its log-probabilities are; where logits
are still in memory then, the gradient is taken from them at once. The rest (rows longer than a chunk, prompts
several rows share) is computed a second time, if it carries a gradient at all: a masked prompt does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tinsmith.engine.scheduler import Pause, Work

from .adapters import Adapters, Span
from .kernels import MIN_ROWS
from .layout import Segment
from .model import Decoder

LOGITS_AT_ONCE = 2**25  # floats: 128 MiB
_FEW_ROWS = 128  # multiply fastest, as long as that cuts no row of data, which would be computed twice
LOGITS_AT_ONCE_ON_GPU = 2**28
_IN_CACHE = 2**20  # floats

# Given the number of a row of data and its log-probabilities [length, K]: d loss / d logprobs.
Upstream = Callable[[int, Tensor], Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Targets:
    """What one row of data asks about: targets [length, K] at its slots [length]."""

    slots: Tensor
    tokens: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class _Unit:
    """Slots of one run that are worked on together in any company, and what is asked of them."""

    span: Span
    start: int
    stop: int
    pairs: slice
    complete: tuple[int, ...]  # the rows of data that end here


_Part = tuple[_Unit, Tensor]  # a unit, and those of its slots that are worked on


class HeadPass:
    """From final hidden states to the log-probabilities of all targets, and back."""

    def __init__(
        self, decoder: Decoder, segments: Sequence[Segment], spans: Sequence[Span], data: Sequence[Targets]
    ) -> None:
        self._decoder, self._data = decoder, data
        # All (slot, target) pairs by slot, and where those of each row of data went.
        slots = torch.cat([row.slots[:, None].expand_as(row.tokens).flatten() for row in data])
        order = torch.argsort(slots, stable=True)
        self._slots = slots[order]
        self._tokens = torch.cat([row.tokens.flatten() for row in data])[order]
        self._pairs = torch.argsort(order).split_with_sizes([row.tokens.numel() for row in data])
        last_slots = [int(row.slots[-1]) for row in data]
        self._units, self._rows_at_once = [], MIN_ROWS
        for span in spans:
            size = _rows_at_once(decoder, segments, span.rows)
            self._rows_at_once = max(self._rows_at_once, size)
            for start, stop in _pieces(segments, span.rows, size):
                borders = torch.tensor([start, stop], device=slots.device)
                first, end = torch.searchsorted(self._slots, borders).tolist()
                complete = tuple(row for row, last in enumerate(last_slots) if start <= last < stop)
                self._units.append(_Unit(span, start, stop, slice(first, end), complete))

    def run(self, hidden: Tensor, upstream: Upstream) -> Work[Tensor]:
        """Tell ``upstream`` the log-probabilities of each row of data. Returns the gradient of hidden."""
        self._grad_hidden = torch.zeros_like(hidden)
        self._gradient = torch.zeros(len(self._slots), device=hidden.device)
        logprobs = torch.empty_like(self._gradient)
        known = torch.zeros(len(self._slots), dtype=torch.bool, device=hidden.device)
        late: list[_Part] = []
        whole = [(u, torch.arange(u.start, u.stop, device=hidden.device)) for u in self._units]
        for parts in _portions(whole, self._rows_at_once):
            chunk = _Chunk(self._decoder, hidden, parts)
            asked = slice(parts[0][0].pairs.start, parts[-1][0].pairs.stop)
            logprobs[asked] = chunk.logprobs(self._slots[asked], self._tokens[asked])
            now: list[_Part] = []
            for unit, _ in parts:
                for row in unit.complete:
                    pairs, shape = self._pairs[row], self._data[row].tokens.shape
                    self._gradient[pairs] = upstream(row, logprobs[pairs].view(shape)).flatten()
                    known[pairs] = True
                waiting = self._slots_of(unit, ~known)
                late.append((unit, waiting))
                active = self._slots_of(unit, self._gradient != 0)
                now.append((unit, active[~torch.isin(active, waiting)]))
            yield Pause.KEEP_TURN
            self._backward(chunk, now)
            yield Pause.KEEP_TURN
        late = [
            (unit, rows[torch.isin(rows, self._slots_of(unit, self._gradient != 0))]) for unit, rows in late
        ]
        for parts in _portions([part for part in late if len(part[1])], self._rows_at_once):
            chunk = _Chunk(self._decoder, hidden, parts)
            chunk.logprobs(self._slots[:0], self._tokens[:0])
            self._backward(chunk, parts)
            yield Pause.KEEP_TURN
        return self._grad_hidden

    def _slots_of(self, unit: _Unit, chosen: Tensor) -> Tensor:
        """The slots, ascending, of a unit's pairs for which ``chosen`` holds."""
        found = torch.zeros(unit.stop - unit.start, dtype=torch.bool, device=chosen.device)
        found[self._slots[unit.pairs][chosen[unit.pairs]] - unit.start] = True
        return found.nonzero()[:, 0] + unit.start

    def _backward(self, chunk: _Chunk, parts: list[_Part]) -> None:
        """The gradient of the given slots of a chunk, and of the adapters there."""
        parts = [part for part in parts if len(part[1])]
        if not parts:
            return
        rows = torch.cat([rows for _, rows in parts])
        pairs = torch.cat([torch.arange(u.pairs.start, u.pairs.stop, device=rows.device) for u, _ in parts])
        pairs = pairs[torch.isin(self._slots[pairs], rows)]
        self._grad_hidden[rows] = chunk.backward(
            parts, self._slots[pairs], self._tokens[pairs], self._gradient[pairs]
        )


class _Chunk:
    """Logits of some slots, and what is made of them in place. The slots ascend."""

    def __init__(self, decoder: Decoder, hidden: Tensor, parts: Sequence[_Part]) -> None:
        self._decoder = decoder
        self._rows = torch.cat([rows for _, rows in parts])
        self._hidden = hidden[self._rows]
        logits, _ = self._adapters(parts).forward(decoder.head, _at_least(self._hidden, MIN_ROWS))
        self._values = logits[: len(self._rows)].float()  # l until `logprobs`, exp(l - max) afterwards

    def logprobs(self, slots: Tensor, tokens: Tensor) -> Tensor:
        """log p(token | slot) for pairs of both. To be called once, before `backward`."""
        rows = torch.searchsorted(self._rows, slots)
        chosen = self._values[rows, tokens]
        peaks = torch.empty(len(self._rows), 1, device=slots.device)
        self._sums = torch.empty_like(peaks)
        for block in _blocks(self._values):
            values = self._values[block]
            peaks[block] = values.amax(1, keepdim=True)
            self._sums[block] = values.sub_(peaks[block]).exp_().sum(1, keepdim=True)
        return chosen - (peaks + self._sums.log())[rows, 0]

    def backward(self, parts: Sequence[_Part], slots: Tensor, tokens: Tensor, gradient: Tensor) -> Tensor:
        """dh for the slots of ``parts``, given d loss / d logprob of pairs. Uses the values up.

        dl = onehot(t) g - p sum(g), the sum being over the pairs of one slot.
        """
        rows = torch.cat([rows for _, rows in parts])
        picked, at = torch.searchsorted(self._rows, rows), torch.searchsorted(rows, slots)
        grad = self._values if len(picked) == len(self._rows) else self._values.index_select(0, picked)
        total = torch.zeros(len(rows), 1, device=rows.device).index_add_(0, at, gradient[:, None])
        grad.mul_(total.neg_().div_(self._sums[picked]))
        grad.index_put_((at, tokens), gradient, accumulate=True)
        hidden = self._hidden[picked]
        adapters, head = self._adapters(parts), self._decoder.head
        grad = _at_least(grad.to(hidden.dtype), MIN_ROWS)
        return adapters.backward(head, hidden, adapters.small(head, hidden), grad)[: len(rows)]

    def _adapters(self, parts: Sequence[_Part]) -> Adapters:
        spans, end = [], 0
        for unit, rows in parts:
            start, end = end, end + len(rows)
            spans.append(Span(slice(start, end), unit.span.weights, unit.span.gradients))
        return Adapters(self._decoder.kernel, spans, self._hidden.dtype)


def _rows_at_once(decoder: Decoder, segments: Sequence[Segment], slots: slice) -> int:
    """How many slots of a run to work on together: it follows from the run's own segments."""
    weight = decoder.head.weight
    if weight.is_cuda:
        return max(MIN_ROWS, LOGITS_AT_ONCE_ON_GPU // len(weight))
    longest = max(s.stop - s.start for s in segments if slots.start <= s.start < slots.stop)
    return max(MIN_ROWS, min(max(longest, _FEW_ROWS), LOGITS_AT_ONCE // len(weight)))


def _pieces(segments: Sequence[Segment], slots: slice, size: int) -> Iterator[tuple[int, int]]:
    """Whole segments of one run as long as they fit; one that is too long by itself is cut."""
    start = stop = slots.start
    for segment in segments:
        if slots.start <= segment.start < slots.stop:
            if stop > start and segment.stop - start > size:
                yield start, stop
                start = stop
            stop = segment.stop
            while stop - start > size:
                yield start, start + size
                start += size
    yield start, stop


def _blocks(values: Tensor) -> Iterator[slice]:
    """Rows few enough to stay in a CPU's cache from one element-wise step to the next."""
    size = len(values) if values.is_cuda else max(1, _IN_CACHE // values.shape[1])
    for start in range(0, len(values), size):
        yield slice(start, start + size)


def _portions(parts: Sequence[_Part], size: int) -> Iterator[list[_Part]]:
    """Neighbouring parts together, up to so many rows."""
    portion: list[_Part] = []
    for part in parts:
        if portion and sum(len(rows) for _, rows in portion) + len(part[1]) > size:
            yield portion
            portion = []
        portion.append(part)
    if portion:
        yield portion


def _at_least(x: Tensor, rows: int) -> Tensor:
    """x, filled up with rows of zeros if it is short."""
    return x if len(x) >= rows else torch.nn.functional.pad(x, (0, 0, 0, rows - len(x)))
