"""Adapters while sampling: laid out once for a sampler, added to the rows of its own sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tinsmith.engine.lora import LoraWeights

from .model import Decoder, Linear
from .products import Products


@dataclass(frozen=True, slots=True)
class _Pair:
    """delta = (x Aᵀ) Bᵀ: of a fused layer, A stacked, B side by side along the diagonal, scaled already."""

    a: Tensor
    b: Tensor


class ReadyAdapter:
    """An adapter's matrices, one pair for every fused layer it changes."""

    def __init__(self, decoder: Decoder, weights: LoraWeights) -> None:
        blocks = decoder.blocks
        inside = [layer for b in blocks for layer in (b.qkv, b.out, b.gate_up, b.down)]
        pairs = {layer.names: _fused(layer, weights) for layer in [*inside, decoder.head]}
        self._pairs = {names: pair for names, pair in pairs.items() if pair is not None}

    def pair(self, layer: Linear) -> _Pair | None:
        """What this adapter adds to a layer."""
        return self._pairs.get(layer.names)


Group = tuple[ReadyAdapter, slice]  # an adapter and the rows it owns


def project(products: Products, layer: Linear, x: Tensor, groups: Sequence[Group]) -> Tensor:
    """y [n, out]: the base product once over all rows, the adapters' on their own rows."""
    y = products.layer(layer, x)
    for adapter, rows in groups:
        pair = adapter.pair(layer)
        if pair is not None:
            # Few rows borrow their neighbours' to be as many as exactness asks for; those are not used.
            start = max(0, min(rows.start, len(x) - products.least_rows))
            stop = max(rows.stop, start + products.least_rows)
            delta = products.small(products.small(x[start:stop], pair.a), pair.b)
            y[rows] += delta[rows.start - start : rows.stop - start]
    return y


def _fused(layer: Linear, weights: LoraWeights) -> _Pair | None:
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
    return _Pair(a, b)
