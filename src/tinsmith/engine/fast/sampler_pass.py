"""One step of sampling through the decoder: a token each of many sequences, and stretches of new prompts.

All rows go through each layer's product together. Attention goes by what a sequence's own length asks for:

* a decoding sequence's query meets its whole row of its shelf, all rows of a shelf in one batched product;
* a prompt is read in pieces of `PIECE` queries at fixed positions, each against all keys up to its end.

The shapes of both do not depend on neighbours or on how a prompt was cut into steps, so neither do the bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from tinsmith.engine.places import PIECE, Place, Places

from .block import rms_norm
from .kv_memory import KvMemory, Shelf
from .model import Block, Decoder, Linear
from .products import Products
from .sampler_adapters import Grouped, ReadyAdapter, StepAdapters

Rotation = tuple[Tensor, Tensor]  # cos and sin [n, 1, head_dim / 2], of the weights' type


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens at positions start, start + 1, ... of one sequence."""

    tokens: Sequence[int]
    start: int
    place: Place
    adapter: ReadyAdapter | None
    decoding: bool  # one token that was sampled, rather than a part of a prompt


@dataclass(frozen=True, slots=True)
class OnShelf:
    """The rows of a step that lie on one shelf."""

    shelf: Shelf
    count: int  # rows in use, decoding or not
    written: Tensor  # the step's rows that lie here
    slots: Tensor  # where their keys and values go, in the shelf seen as [-1, head_dim]
    queries: Tensor  # for every shelf row the step's row that decodes it; any where none does
    decoding: Tensor  # shelf rows that decode
    outputs: Tensor  # the step's rows of these
    masks: dict[int | None, Tensor]  # by window: [count * kv_heads, 1, capacity]


@dataclass(frozen=True, slots=True)
class _Piece:
    """Queries at positions first + inside of one sequence."""

    shelf: Shelf
    row: int
    first: int
    inside: slice
    rows: slice


class Prompts(Protocol):
    """The stretches of prompts in a step."""

    def read(self, layer: int, window: int | None, q: Tensor, mixed: Tensor) -> None:
        """What their queries read of the memory, into their rows of ``mixed`` [n, heads, head_dim]."""
        ...


class SamplerPass:
    """Steps over the sequences of one decoder."""

    def __init__(self, decoder: Decoder, products: Products, memory: KvMemory, places: Places) -> None:
        self._decoder, self._products, self._memory, self._places = decoder, products, memory, places
        self._windows = {block.window for block in decoder.blocks}

    @torch.no_grad()
    def run(self, spans: Sequence[Span]) -> Tensor:
        """Final hidden states, a row for each token; keys and values go to the memory.

        Spans of one adapter stand together.
        """
        decoder = self._decoder
        tokens = [token for span in spans for token in span.tokens]
        positions = [span.start + i for span in spans for i in range(len(span.tokens))]
        spare = [0] * (self._products.least_rows - len(tokens))
        device = decoder.embedding.device
        x = F.embedding(torch.tensor(tokens + spare, device=device), decoder.embedding)
        cos, sin = decoder.rotations(torch.tensor(positions + spare, device=device))
        rotation = cos[:, None].to(x.dtype), sin[:, None].to(x.dtype)
        adapters = Grouped(self._products, ((span.adapter, len(span.tokens)) for span in spans))
        return self._blocks(x, rotation, self._shelves(spans), self._prompts(spans), adapters)[: len(tokens)]

    @torch.no_grad()
    def logits(self, hidden: Tensor, owned: Iterable[tuple[ReadyAdapter | None, int]]) -> Tensor:
        """float32 logits [n, vocabulary] of final hidden states [n, hidden], and whose they are."""
        rows = len(hidden)
        if rows < self._products.least_rows:
            hidden = F.pad(hidden, (0, 0, 0, self._products.least_rows - rows))
        return self._project(self._decoder.head, hidden, Grouped(self._products, owned))[:rows].float()

    def forget(self, adapter: ReadyAdapter) -> None:
        """Nobody new will come with this adapter."""

    def _project(self, layer: Linear, x: Tensor, adapters: StepAdapters) -> Tensor:
        """y [n, out]: the base product once over all rows, and what the adapters change."""
        y = self._products.layer(layer, x)
        adapters.add(layer, x, y)
        return y

    def _blocks(
        self,
        x: Tensor,
        rotation: Rotation,
        shelves: Sequence[OnShelf],
        prompts: Prompts,
        adapters: StepAdapters,
    ) -> Tensor:
        """All layers and the final norm."""
        decoder = self._decoder
        for layer, block in enumerate(decoder.blocks):
            x = self._block(layer, block, x, rotation, shelves, prompts, adapters)
        return rms_norm(x, decoder.final_norm, decoder.eps)

    def _block(
        self,
        layer: int,
        block: Block,
        x: Tensor,
        rotation: Rotation,
        shelves: Sequence[OnShelf],
        prompts: Prompts,
        adapters: StepAdapters,
    ) -> Tensor:
        decoder = self._decoder
        qkv = self._project(block.qkv, rms_norm(x, block.attention_norm, decoder.eps), adapters)
        q, k, v = self._heads(block, qkv, rotation)
        mixed = q.new_zeros(q.shape)
        for on in shelves:
            on.shelf.k[layer].view(-1, decoder.head_dim).index_copy_(0, on.slots, k[on.written].flatten(0, 1))
            on.shelf.v[layer].view(-1, decoder.head_dim).index_copy_(0, on.slots, v[on.written].flatten(0, 1))
            if len(on.decoding):
                self._decode(layer, block.window, q, on, mixed)
        prompts.read(layer, block.window, q, mixed)
        x = self._project(block.out, mixed.flatten(1), adapters).add_(x)
        gate_up = self._project(block.gate_up, rms_norm(x, block.mlp_norm, decoder.eps), adapters)
        gate, up = gate_up.chunk(2, 1)
        return self._project(block.down, F.silu(gate).mul_(up), adapters).add_(x)

    def _heads(self, block: Block, qkv: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        """q [n, heads, head_dim], k and v [n, kv_heads, head_dim], normed and rotated."""
        decoder = self._decoder
        heads = qkv.view(len(qkv), -1, decoder.head_dim)
        keys = slice(decoder.heads, decoder.heads + decoder.kv_heads)
        v = heads[:, keys.stop :]
        if block.q_norm is None or block.k_norm is None:
            rotated = _rotate(heads[:, : keys.stop], *rotation)
            return rotated[:, : keys.start], rotated[:, keys], v
        q = rms_norm(heads[:, : keys.start], block.q_norm, decoder.eps)
        k = rms_norm(heads[:, keys], block.k_norm, decoder.eps)
        return _rotate(q, *rotation), _rotate(k, *rotation), v

    def _decode(self, layer: int, window: int | None, q: Tensor, on: OnShelf, mixed: Tensor) -> None:
        """softmax(scale q kᵀ + mask) v for every row of a shelf."""
        decoder = self._decoder
        group = decoder.heads // decoder.kv_heads
        queries = q.index_select(0, on.queries).view(on.count * decoder.kv_heads, group, decoder.head_dim)
        k, v = (t[layer, : on.count].flatten(0, 1) for t in (on.shelf.k, on.shelf.v))
        scores = torch.baddbmm(on.masks[window], queries, k.transpose(1, 2), alpha=decoder.scale)
        out = torch.bmm(torch.softmax(scores, -1), v).view(on.count, decoder.heads, decoder.head_dim)
        mixed.index_copy_(0, on.outputs, out.index_select(0, on.decoding))

    def _shelves(self, spans: Sequence[Span]) -> list[OnShelf]:
        """The step's rows by the shelf they lie on."""
        found: dict[int, list[tuple[Span, int]]] = {}
        first = 0
        for span in spans:
            found.setdefault(span.place.capacity, []).append((span, first))
            first += len(span.tokens)
        return [self._on_shelf(capacity, here) for capacity, here in sorted(found.items())]

    def _on_shelf(self, capacity: int, here: Sequence[tuple[Span, int]]) -> OnShelf:
        device, kv = self._decoder.embedding.device, self._decoder.kv_heads
        count = self._places.count(capacity)
        written, lengths, queries = [], [1] * count, [0] * count
        slots: list[int] = []
        decoding, outputs = [], []
        for span, first in here:
            row = span.place.row
            for at in range(len(span.tokens)):
                written.append(first + at)
                slots += range(row * kv * capacity + span.start + at, (row + 1) * kv * capacity, capacity)
            if span.decoding:
                lengths[row], queries[row] = span.start + 1, first
                decoding.append(row)
                outputs.append(first)
        length = torch.tensor(lengths, device=device)
        masks = self._shelf_masks(length, capacity) if decoding else {}
        index = partial(torch.tensor, device=device, dtype=torch.int64)
        return OnShelf(
            shelf=self._memory.shelf(capacity, count),
            count=count,
            written=index(written),
            slots=index(slots),
            queries=index(queries),
            decoding=index(decoding),
            outputs=index(outputs),
            masks=masks,
        )

    def _shelf_masks(self, length: Tensor, capacity: int) -> dict[int | None, Tensor]:
        return {window: self._shelf_mask(length, capacity, window) for window in self._windows}

    def _shelf_mask(self, length: Tensor, capacity: int, window: int | None) -> Tensor:
        key = torch.arange(capacity, device=length.device)
        seen = key < length[:, None]
        if window is not None:
            seen &= key >= length[:, None] - window
        mask = torch.where(seen, 0.0, -torch.inf).to(self._decoder.embedding.dtype)
        return mask.repeat_interleave(self._decoder.kv_heads, 0)[:, None]

    def _prompts(self, spans: Sequence[Span]) -> Prompts:
        """The stretches of prompts among the spans."""
        return _Pieces(self._decoder, self._memory, spans)


class _Pieces:
    """Prompts read piece by piece, each in the same shape whatever step it falls into."""

    def __init__(self, decoder: Decoder, memory: KvMemory, spans: Sequence[Span]) -> None:
        self._decoder = decoder
        self._pieces: list[_Piece] = []
        row = 0
        for span in spans:
            end = span.start + len(span.tokens)
            start = end if span.decoding else span.start
            while start < end:
                first = start // PIECE * PIECE
                stop = min(end, first + PIECE)
                at = row + start - span.start
                shelf = memory.shelf(span.place.capacity, span.place.row + 1)
                inside, rows = slice(start - first, stop - first), slice(at, at + stop - start)
                self._pieces.append(_Piece(shelf, span.place.row, first, inside, rows))
                start = stop
            row += len(span.tokens)

    def read(self, layer: int, window: int | None, q: Tensor, mixed: Tensor) -> None:
        """softmax(scale q kᵀ + mask) v for every piece; queries that are not there are zeros."""
        for piece in self._pieces:
            self._read(layer, window, q, piece, mixed)

    def _read(self, layer: int, window: int | None, q: Tensor, piece: _Piece, mixed: Tensor) -> None:
        decoder = self._decoder
        kv, group = decoder.kv_heads, decoder.heads // decoder.kv_heads
        queries = q.new_zeros(PIECE, kv, group, decoder.head_dim)
        queries[piece.inside] = q[piece.rows].view(-1, kv, group, decoder.head_dim)
        seen = piece.first + PIECE
        k, v = (t[layer, piece.row, :, :seen] for t in (piece.shelf.k, piece.shelf.v))
        scores = torch.bmm(queries.transpose(0, 1).flatten(1, 2), k.transpose(1, 2)).mul_(decoder.scale)
        mask = _piece_mask(piece.first, window, q.dtype, q.device)
        scores.view(kv, PIECE, group, seen).add_(mask[:, None])
        out = torch.bmm(torch.softmax(scores, -1), v).view(kv, PIECE, group, decoder.head_dim)
        mixed[piece.rows] = out.transpose(0, 1)[piece.inside].flatten(1, 2)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """y1 = x1 cos - x2 sin, y2 = x2 cos + x1 sin, with x1 and x2 the halves of the last dimension."""
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    x1, x2 = x.chunk(2, -1)
    y1, y2 = y.chunk(2, -1)
    torch.mul(x1, cos, out=y1).addcmul_(x2, sin, value=-1)
    torch.mul(x2, cos, out=y2).addcmul_(x1, sin)
    return y


@lru_cache(maxsize=64)
def _piece_mask(first: int, window: int | None, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[PIECE, first + PIECE]: 0 where the query at first + i sees key j, -inf elsewhere."""
    query = torch.arange(first, first + PIECE, device=device)[:, None]
    key = torch.arange(first + PIECE, device=device)
    seen = key <= query
    if window is not None:
        seen &= key > query - window
    return torch.where(seen, 0.0, -torch.inf).to(dtype)
