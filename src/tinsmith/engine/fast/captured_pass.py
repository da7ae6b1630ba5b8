"""Sampling where telling the machine what to do takes longer than doing it: on a GPU steps are recorded.

A step of decoding is hundreds of small kernels. As long as shapes and places in memory are the same, they
can be recorded as a graph and launched all at once. So the rows of one shelf are computed as one program: all
rows up to a round number, decoding or not, with the adapters side by side in memory that stays where it is.
The program's inputs are a few numbers for each row. Prompts are read as they always are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from tinsmith.engine.places import Places

from .flash import Ends, attend, available
from .kv_memory import KvMemory, Shelf
from .model import Decoder
from .products import Products
from .sampler_adapters import Grouped, ReadyAdapter, Stacked, StackShape, StepAdapters, power_of_two
from .sampler_pass import OnShelf, Prompts, Rotation, SamplerPass, Span

CAPTURED_STEP = 512  # positions: the capacities of shelves; few shelves are few programs
_MOST_PROGRAMS, _MOST_STACKS = 64, 2
_MOST_ADAPTERS, _MOST_RANKS = 16, 512  # side by side; each is multiplied with every row

_Graph = torch.cuda.CUDAGraph
_Computation = Callable[[Tensor, Rotation], Tensor]


@dataclass(frozen=True, slots=True)
class _Key:
    """What a program is made for."""

    capacity: int
    rows: int
    adapters: StackShape | None


class CapturedPass(SamplerPass):
    """A sampler pass that launches the decoding rows of each shelf at once."""

    def __init__(self, decoder: Decoder, products: Products, memory: KvMemory, places: Places) -> None:
        super().__init__(decoder, products, memory, places)
        self._programs: OrderedDict[_Key, _Program] = OrderedDict()  # the last used is last
        self._stacks: OrderedDict[StackShape, Stacked] = OrderedDict()
        self._anchor = _anchor(decoder.embedding) if decoder.embedding.is_cuda else None

    @torch.no_grad()
    def run(self, spans: Sequence[Span]) -> Tensor:
        """Final hidden states, a row for each token; keys and values go to the memory."""
        adapters = _side_by_side(span.adapter for span in spans if span.decoding)
        by_shelf: dict[int, list[tuple[Span, int]]] = {}
        others: dict[bool, list[tuple[Span, int]]] = {}  # those who decode and have no place; prompts
        count = 0
        for span in spans:
            if span.decoding and (span.adapter is None or span.adapter in adapters):
                by_shelf.setdefault(span.place.capacity, []).append((span, count))
            else:
                others.setdefault(span.decoding, []).append((span, count))
            count += len(span.tokens)
        embedding = self._decoder.embedding
        hidden = embedding.new_empty(count, self._decoder.hidden)
        stack = self._stack(adapters)
        slots = stack.hold(adapters) if stack is not None else {}
        for capacity, here in by_shelf.items():
            found = self._decoded(capacity, stack, [span for span, _ in here], slots)
            places = torch.tensor(
                [[at for _, at in here], [span.place.row for span, _ in here]], device=embedding.device
            )
            hidden[places[0]] = found[places[1]]
        for these in others.values():
            rows = [row for span, at in these for row in range(at, at + len(span.tokens))]
            found = super().run([span for span, _ in these])
            hidden[torch.tensor(rows, device=embedding.device)] = found
        return hidden

    def forget(self, adapter: ReadyAdapter) -> None:
        """Nobody new will come with this adapter."""
        for stack in self._stacks.values():
            stack.forget(adapter)

    def _stack(self, adapters: Sequence[ReadyAdapter]) -> Stacked | None:
        """A stack with room for them; one there is rather than a new one, which would need new programs."""
        if not adapters:
            return None
        needed = StackShape.of(adapters)
        shape = next((each for each in reversed(self._stacks) if each.covers(needed)), needed)
        stack = self._stacks.pop(shape, None) or Stacked(self._decoder, shape)
        self._stacks[shape] = stack
        while len(self._stacks) > _MOST_STACKS:
            gone, _ = self._stacks.popitem(last=False)
            self._programs = OrderedDict((k, p) for k, p in self._programs.items() if k.adapters != gone)
        return stack

    def _decoded(
        self, capacity: int, stack: Stacked | None, spans: Sequence[Span], slots: dict[ReadyAdapter, int]
    ) -> Tensor:
        """Final hidden states of all rows of a shelf; those of these spans are valid."""
        rows = _round(max(self._places.count(capacity), self._products.least_rows))
        key = _Key(capacity, rows, None if stack is None else stack.shape)
        shelf = self._memory.shelf(capacity, rows + 1)  # and a row for what must not be written anywhere
        for stale in [k for k, p in self._programs.items() if k.capacity == capacity and not p.is_at(shelf)]:
            del self._programs[stale]
        program = self._programs.pop(key, None)  # one that fails does not come back
        if program is None:
            compute = self._computation(shelf, capacity, rows, stack)
            program = _Program(self._decoder, rows, compute, shelf, self._anchor)
        found = program.run(self._numbers(program, spans, slots))
        self._programs[key] = program
        while len(self._programs) > _MOST_PROGRAMS:
            self._programs.popitem(last=False)
        return found

    def _computation(self, shelf: Shelf, capacity: int, rows: int, stack: Stacked | None) -> _Computation:
        """Final hidden states of all rows, given a program's numbers."""
        decoder = self._decoder
        no_prompts = self._prompts([])
        every = torch.arange(rows, device=decoder.embedding.device)
        heads = capacity * torch.arange(decoder.kv_heads, device=decoder.embedding.device)

        def compute(numbers: Tensor, rotation: Rotation) -> Tensor:
            tokens, lengths, writes, owners = numbers
            adapters: StepAdapters = Grouped(self._products, ())
            if stack is not None:
                adapters = stack.owned_by(owners)
            on = OnShelf(
                shelf=shelf,
                count=rows,
                written=every,
                slots=(writes[:, None] + heads).flatten(),
                queries=every,
                decoding=every,
                outputs=every,
                masks=self._shelf_masks(lengths, capacity),
            )
            x = F.embedding(tokens, decoder.embedding)
            return self._blocks(x, rotation, [on], no_prompts, adapters)

        return compute

    def _numbers(self, program: _Program, spans: Sequence[Span], slots: dict[ReadyAdapter, int]) -> Tensor:
        """For every row its token, its length with it, where it is written, and whose adapter it has.

        Rows that do not decode see one key of their own and are written to the row that nobody reads.
        """
        rows = program.rows
        row_size = self._decoder.kv_heads * (spans[0].place.capacity)
        tokens, lengths, writes, owners = [0] * rows, [1] * rows, [rows * row_size] * rows, [-1] * rows
        for span in spans:
            row = span.place.row
            tokens[row], lengths[row] = span.tokens[0], span.start + 1
            writes[row] = row * row_size + span.start
            if span.adapter is not None:
                owners[row] = slots[span.adapter]
        return torch.tensor([tokens, lengths, writes, owners])

    def _prompts(self, spans: Sequence[Span]) -> Prompts:
        read = [span for span in spans if not span.decoding]
        if read and len(read) == len(spans) and available(self._decoder.embedding, self._decoder.head_dim):
            return _FlashPrompts(self._decoder, self._memory, spans)
        return super()._prompts(spans)


class _FlashPrompts:
    """All prompts of a step in one call of the flash kernels; no decoding rows beside them."""

    def __init__(self, decoder: Decoder, memory: KvMemory, spans: Sequence[Span]) -> None:
        self._scale = decoder.scale
        lengths = [len(span.tokens) for span in spans]
        self._seen = [span.start + length for span, length in zip(spans, lengths, strict=True)]
        device = decoder.embedding.device
        self._queries, self._keys = Ends(lengths, device), Ends(self._seen, device)
        self._rows = sum(lengths)
        self._places = [
            (memory.shelf(span.place.capacity, span.place.row + 1), span.place.row) for span in spans
        ]

    def read(self, layer: int, window: int | None, q: Tensor, mixed: Tensor) -> None:
        """Keys and values are laid side by side first."""
        places = list(zip(self._places, self._seen, strict=True))
        k = torch.cat([shelf.k[layer, row, :, :seen].transpose(0, 1) for (shelf, row), seen in places])
        v = torch.cat([shelf.v[layer, row, :, :seen].transpose(0, 1) for (shelf, row), seen in places])
        queries = q[: self._rows].contiguous()
        mixed[: self._rows] = attend(queries, k, v, self._queries, self._keys, window, self._scale)


class _Program:
    """The decoding of one shelf: launched kernel by kernel the first time, recorded the second."""

    def __init__(
        self, decoder: Decoder, rows: int, compute: _Computation, shelf: Shelf, anchor: _Graph | None
    ) -> None:
        self.rows = rows
        self._decoder, self._compute, self._anchor = decoder, compute, anchor
        self._k, self._v = shelf.k, shelf.v  # what was recorded writes here
        like = decoder.embedding
        self._numbers = torch.zeros(4, rows, dtype=torch.int64, device=like.device)
        cos, sin = (like.new_zeros(rows, 1, decoder.head_dim // 2) for _ in range(2))
        self._rotation = cos, sin
        self._hidden: Tensor | None = None
        self._graph: _Graph | None = None

    def is_at(self, shelf: Shelf) -> bool:
        """Whether the shelf is still where it was."""
        return self._k is shelf.k and self._v is shelf.v

    def run(self, numbers: Tensor) -> Tensor:
        """Final hidden states of all rows; the next run overwrites them."""
        self._numbers.copy_(numbers)
        for kept, fresh in zip(self._rotation, self._decoder.rotations(self._numbers[1] - 1), strict=True):
            kept.copy_(fresh[:, None])
        if self._graph is None:
            if self._hidden is None or self._anchor is None:
                self._hidden = self._compute(self._numbers, self._rotation)
                return self._hidden
            graph = _Graph()
            with torch.cuda.graph(graph, self._anchor.pool(), capture_error_mode="thread_local"):
                hidden = self._compute(self._numbers, self._rotation)
            self._graph, self._hidden = graph, hidden
        self._graph.replay()
        assert self._hidden is not None
        return self._hidden


def _anchor(like: Tensor) -> _Graph:
    """A graph that is always there: the memory all graphs share lasts as long as any of them does."""
    graph = _Graph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        like.new_zeros(1)
    return graph


def _side_by_side(adapters: Iterable[ReadyAdapter | None]) -> list[ReadyAdapter]:
    """Those that may stand side by side, small ones first: only finite ones, and there is not much room."""
    chosen: list[ReadyAdapter] = []
    found = {adapter for adapter in adapters if adapter is not None and adapter.finite}
    for adapter in sorted(found, key=lambda adapter: adapter.rank):
        slots = power_of_two(len(chosen) + 1)
        if slots <= _MOST_ADAPTERS and slots * power_of_two(adapter.rank) <= _MOST_RANKS:
            chosen.append(adapter)
    return chosen


def _round(rows: int) -> int:
    """Up to a power of two, or a multiple of 32."""
    return power_of_two(rows) if rows < 32 else -(-rows // 32) * 32
