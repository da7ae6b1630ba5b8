"""Keys and values of the sequences under way: two tensors for every shelf, which grow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from tinsmith.engine.places import Move, Place

from .model import Decoder

_MOST_SPARE = 64  # rows a shelf grows by that nobody asked for yet


@dataclass(eq=False, slots=True)
class Shelf:
    """Keys and values [layers, rows, kv_heads, capacity, head_dim]."""

    k: Tensor
    v: Tensor


@dataclass(frozen=True, eq=False, slots=True)
class Stretch:
    """Keys and values [layers, kv_heads, length, head_dim] of a prompt, kept for whoever begins like it."""

    k: Tensor
    v: Tensor


class KvMemory:
    """The shelves of one decoder. What a sequence has not written holds zeros, not what another left there:
    what is masked must be finite.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._layers, self._heads, self._head_dim = len(decoder.blocks), decoder.kv_heads, decoder.head_dim
        self._like = decoder.embedding
        self._shelves: dict[int, Shelf] = {}

    def shelf(self, capacity: int, rows: int) -> Shelf:
        """The shelf of this capacity, with room for so many rows."""
        shelf = self._shelves.get(capacity)
        if shelf is None:
            shelf = self._shelves[capacity] = Shelf(self._zeros(rows, capacity), self._zeros(rows, capacity))
        have = shelf.k.shape[1]
        if have < rows:
            k, v = (self._zeros(max(rows, have + min(have, _MOST_SPARE)), capacity) for _ in "kv")
            k[:, :have], v[:, :have] = shelf.k, shelf.v
            shelf.k, shelf.v = k, v
        return shelf

    def move(self, moves: Iterable[Move]) -> None:
        """Follow the bookkeeping."""
        for move in moves:
            source = self.shelf(move.from_capacity, move.from_row + 1)
            target = self.shelf(move.to_capacity, move.to_row + 1)
            for into, out_of in ((target.k, source.k), (target.v, source.v)):
                into[:, move.to_row, :, : move.length] = out_of[:, move.from_row, :, : move.length]
                into[:, move.to_row, :, move.length :] = 0

    def read(self, place: Place, length: int) -> Stretch:
        """A copy of the first positions of a sequence."""
        shelf = self.shelf(place.capacity, place.row + 1)
        k, v = (t[:, place.row, :, :length].clone() for t in (shelf.k, shelf.v))
        return Stretch(k, v)

    def begin(self, place: Place, stretch: Stretch | None, length: int) -> None:
        """Begin a sequence with the first positions of a stretch."""
        shelf = self.shelf(place.capacity, place.row + 1)
        if stretch is not None:
            shelf.k[:, place.row, :, :length] = stretch.k[:, :, :length]
            shelf.v[:, place.row, :, :length] = stretch.v[:, :, :length]
        for memory in (shelf.k, shelf.v):
            memory[:, place.row, :, length:] = 0

    def _zeros(self, rows: int, capacity: int) -> Tensor:
        shape = (self._layers, rows, self._heads, capacity, self._head_dim)
        return torch.zeros(shape, dtype=self._like.dtype, device=self._like.device)
