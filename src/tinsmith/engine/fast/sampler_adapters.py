"""Adapters while sampling: laid out once for a sampler, added to the rows of its own sequences."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from tinsmith.engine.lora import LoraWeights

from .model import Decoder, Linear
from .products import Products


@dataclass(frozen=True, slots=True)
class Pair:
    """delta = (x Aᵀ) Bᵀ: of a fused layer, A stacked, B side by side along the diagonal, scaled already."""

    a: Tensor
    b: Tensor


class ReadyAdapter:
    """An adapter's matrices, one pair for every fused layer it changes."""

    def __init__(self, decoder: Decoder, weights: LoraWeights) -> None:
        inside = decoder.linears
        pairs = {layer.names: _fused(layer, weights) for layer in [*inside, decoder.head]}
        self._pairs = {names: pair for names, pair in pairs.items() if pair is not None}
        self.rank = weights.rank
        self.layers = frozenset(layer.names for layer in inside if layer.names in self._pairs)

    @cached_property
    def finite(self) -> bool:
        """Whether nothing in it is infinite or not a number."""
        matrices = [matrix for pair in self._pairs.values() for matrix in (pair.a, pair.b)]
        return bool(torch.stack([matrix.isfinite().all() for matrix in matrices]).all())

    def pair(self, layer: Linear) -> Pair | None:
        """What this adapter adds to a layer."""
        return self._pairs.get(layer.names)


class StepAdapters(Protocol):
    """The adapters of the rows of one step."""

    def add(self, layer: Linear, x: Tensor, y: Tensor) -> None:
        """Add what they change to y [n, out], a layer's product with x [n, in]."""
        ...


class Grouped:
    """Rows of one adapter stand together, and each adapter is multiplied with its own rows."""

    def __init__(self, products: Products, owned: Iterable[tuple[ReadyAdapter | None, int]]) -> None:
        """Who owns the first so many rows, who the next."""
        self._products = products
        self._groups: list[tuple[ReadyAdapter, slice]] = []
        end = 0
        for adapter, count in owned:
            start, end = end, end + count
            if adapter is None:
                continue
            if self._groups and self._groups[-1][0] is adapter and self._groups[-1][1].stop == start:
                start = self._groups.pop()[1].start
            self._groups.append((adapter, slice(start, end)))

    def add(self, layer: Linear, x: Tensor, y: Tensor) -> None:
        """Few rows borrow their neighbours' to be as many as exactness asks for; those are not used."""
        products = self._products
        for adapter, rows in self._groups:
            pair = adapter.pair(layer)
            if pair is not None:
                start = max(0, min(rows.start, len(x) - products.least_rows))
                stop = max(rows.stop, start + products.least_rows)
                delta = products.small(products.small(x[start:stop], pair.a), pair.b)
                y[rows] += delta[rows.start - start : rows.stop - start]


@dataclass(frozen=True, slots=True)
class StackShape:
    """How much room adapters take side by side, rounded up so that few shapes are needed."""

    slots: int
    rank: int
    layers: frozenset[tuple[str, ...]]  # those that any adapter changes

    @classmethod
    def of(cls, adapters: Collection[ReadyAdapter]) -> StackShape:
        """Room for all of these."""
        return cls(
            slots=power_of_two(len(adapters)),
            rank=power_of_two(max(adapter.rank for adapter in adapters)),
            layers=frozenset().union(*(adapter.layers for adapter in adapters)),
        )

    def covers(self, other: StackShape) -> bool:
        """Whether there is room for what has room in the other."""
        return self.slots >= other.slots and self.rank >= other.rank and self.layers >= other.layers


class Stacked:
    """Adapters side by side, in memory that stays where it is while one takes another's place.

    Every row is multiplied with all of them, and what is not its own is dropped in between. So what they
    hold must be finite.
    """

    def __init__(self, decoder: Decoder, shape: StackShape) -> None:
        self.shape = shape
        self._held: list[ReadyAdapter | None] = [None] * shape.slots
        self._layers = [layer for layer in decoder.linears if layer.names in shape.layers]
        self._pairs: dict[tuple[str, ...], Pair] = {}
        for layer in self._layers:
            out, into = layer.weight.shape
            width = shape.slots * self._width(layer)
            self._pairs[layer.names] = Pair(
                layer.weight.new_zeros(width, into), layer.weight.new_zeros(out, width)
            )

    def hold(self, adapters: Collection[ReadyAdapter]) -> dict[ReadyAdapter, int]:
        """Have these among the adapters; gives the slot of each."""
        free = [slot for slot, held in enumerate(self._held) if held not in adapters]
        for adapter in adapters:
            if adapter not in self._held:
                self._put(free.pop(), adapter)
        return {adapter: self._held.index(adapter) for adapter in adapters}

    def forget(self, adapter: ReadyAdapter) -> None:
        """Its place is free."""
        self._held = [None if held is adapter else held for held in self._held]

    def owned_by(self, owners: Tensor) -> StepAdapters:
        """As the adapters of rows, given the slot of each row's; -1 for none."""
        slots = torch.arange(self.shape.slots, device=owners.device)
        return _Owned(self._pairs, owners[:, None] == slots)

    def _put(self, slot: int, adapter: ReadyAdapter) -> None:
        self._held[slot] = adapter
        for layer in self._layers:
            width, both, pair = self._width(layer), self._pairs[layer.names], adapter.pair(layer)
            a, b = both.a[slot * width : (slot + 1) * width], both.b[:, slot * width : (slot + 1) * width]
            used = 0 if pair is None else len(pair.a)
            if pair is not None:
                a[:used], b[:, :used] = pair.a, pair.b
            a[used:], b[:, used:] = 0, 0

    def _width(self, layer: Linear) -> int:
        return len(layer.names) * self.shape.rank


@dataclass(frozen=True, slots=True)
class _Owned:
    """Stacked adapters, and which [rows, slots] is whose."""

    pairs: dict[tuple[str, ...], Pair]
    own: Tensor

    def add(self, layer: Linear, x: Tensor, y: Tensor) -> None:
        """All adapters' products at once."""
        pair = self.pairs.get(layer.names)
        if pair is not None:
            z = (x @ pair.a.t()).view(*self.own.shape, -1)
            y.addmm_(z.masked_fill(~self.own[:, :, None], 0).flatten(1), pair.b.t())


def power_of_two(least: int) -> int:
    """The first that is not less."""
    return 1 << (least - 1).bit_length()


def _fused(layer: Linear, weights: LoraWeights) -> Pair | None:
    parts = [
        (weights.pairs[n], cut) for n, cut in zip(layer.names, layer.cuts, strict=True) if n in weights.pairs
    ]
    if not parts:
        return None
    like = layer.weight
    a = torch.cat([pair.a for pair, _ in parts]).to(like.dtype)
    b = torch.zeros(like.shape[0], len(a), dtype=like.dtype, device=like.device)
    end = 0
    for pair, cut in parts:
        b[cut, end : end + len(pair.a)] = pair.b * weights.scale
        end += len(pair.a)
    return Pair(a, b)
