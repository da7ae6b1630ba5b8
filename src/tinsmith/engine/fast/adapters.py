"""Linear layers with the adapters of several runs: one base product over all slots, a small one for each run.

z = x Aᵀ;   y = x Wᵀ + bias + s z Bᵀ;        given dy:  dz = s dy B;   dx = dy W + dz A
                                                        dA = dzᵀ x;    dB = s dyᵀ z;    W stays as it is
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tinsmith.engine.lora import LoraWeights

from .kernels import Kernel
from .model import Linear

Gradients = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Part:
    """The adapter of one of the fused layers: where its output and its share of z lie."""

    name: str
    out: slice
    ranks: slice
    b: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """The slots of one run, its adapter, and where that one's gradients are summed."""

    rows: slice
    weights: LoraWeights
    gradients: Gradients

    def add(self, name: str, gradient: Tensor) -> None:
        """Add to the gradient of one tensor."""
        mine = self.gradients.get(name)
        self.gradients[name] = gradient.float() if mine is None else mine + gradient


@dataclass(frozen=True, slots=True)
class _Share:
    """A span's adapters of a fused layer; their A matrices share the input, so they are one matrix."""

    span: Span
    a: Tensor
    parts: tuple[Part, ...]


class Adapters:
    """The adapters of one pass, each of which sees the slots of its spans and nothing else."""

    def __init__(self, kernel: Kernel, spans: Sequence[Span], dtype: torch.dtype) -> None:
        self._kernel, self._spans, self._dtype = kernel, spans, dtype
        self._found: dict[tuple[str, ...], list[_Share]] = {}

    def small(self, layer: Linear, x: Tensor) -> list[Tensor]:
        """z of every share."""
        return [self._kernel.linear(x[share.span.rows], share.a) for share in self._shares(layer)]

    def forward(self, layer: Linear, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """y, and every share's z, which the backward pass needs."""
        y, kept = self._kernel.linear(x, layer.weight, layer.bias), self.small(layer, x)
        with self._kernel.products():
            for share, z in zip(self._shares(layer), kept, strict=True):
                for part in share.parts:
                    into = y[share.span.rows, part.out]
                    into.addmm_(z[:, part.ranks], part.b.t(), alpha=share.span.weights.scale)
        return y, kept

    def backward(self, layer: Linear, x: Tensor, kept: Sequence[Tensor], grad_y: Tensor) -> Tensor:
        """dx. The adapters' gradients are added to those of their spans."""
        grad_x = self._kernel.linear(grad_y, layer.weight.t())
        with self._kernel.products():
            for share, z in zip(self._shares(layer), kept, strict=True):
                self._add_gradients(share, x, z, grad_y, grad_x)
        return grad_x

    def _add_gradients(self, share: _Share, x: Tensor, z: Tensor, grad_y: Tensor, grad_x: Tensor) -> None:
        rows, scale = share.span.rows, share.span.weights.scale
        grad_z = torch.empty_like(z)
        for part in share.parts:
            upstream = grad_y[rows, part.out]
            grad_z[:, part.ranks] = (upstream @ part.b).mul_(scale)
            share.span.add(f"{part.name}.lora_B", (upstream.t() @ z[:, part.ranks]).mul_(scale))
        grad_x[rows].addmm_(grad_z, share.a)
        grad_a = grad_z.t() @ x[rows]
        for part in share.parts:
            share.span.add(f"{part.name}.lora_A", grad_a[part.ranks])

    def _shares(self, layer: Linear) -> list[_Share]:
        if layer.names not in self._found:
            found = (_share(span, layer, self._dtype) for span in self._spans)
            self._found[layer.names] = [share for share in found if share is not None]
        return self._found[layer.names]


def _share(span: Span, layer: Linear, dtype: torch.dtype) -> _Share | None:
    matrices, parts, end = [], [], 0
    for name, cut in zip(layer.names, layer.cuts, strict=True):
        if name in span.weights.pairs and span.rows.start < span.rows.stop:
            pair = span.weights.pairs[name]
            matrices.append(pair.a)
            parts.append(Part(name, cut, slice(end, end + len(pair.a)), pair.b.to(dtype)))
            end += len(pair.a)
    if not parts:
        return None
    a = matrices[0] if len(matrices) == 1 else torch.cat(matrices)
    return _Share(span, a.to(dtype), tuple(parts))
