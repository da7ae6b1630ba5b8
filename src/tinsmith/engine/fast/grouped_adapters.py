"""The adapters of many runs on a GPU: a grouped product for all of them together, rather than one for each.

The runs' matrices are stacked, filled up with zeros to one rank. Product g takes the rows of run g and no
others; the formulas are those of `adapters`, the scale s being a part of B.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from tinsmith.engine.lora import LoraPair

from .adapters import Adapters, Part, Span
from .kernels import Kernel
from .model import Linear

_TYPES = (torch.float16, torch.bfloat16)
_ALIGNED = 8  # ranks: the kernels want strides of 16 bytes


def available(like: Tensor) -> bool:
    """Whether torch has a grouped product that pays with such floats, there."""
    return like.is_cuda and like.dtype in _TYPES and hasattr(F, "grouped_mm")


@dataclass(frozen=True, slots=True)
class _Stack:
    """The spans' adapters of a fused layer."""

    a: Tensor  # [spans, ranks of all parts, in]
    parts: tuple[Part, ...]  # b [spans, out, rank], scaled


class GroupedAdapters(Adapters):
    """`Adapters` whose spans lie one after the other, from the first slot on."""

    def __init__(self, kernel: Kernel, spans: Sequence[Span], dtype: torch.dtype) -> None:
        super().__init__(kernel, spans, dtype)
        device = next(iter(spans[0].weights.pairs.values())).a.device
        self._end = spans[-1].rows.stop
        self._ends = torch.tensor([span.rows.stop for span in spans], dtype=torch.int32, device=device)
        scales = torch.tensor([span.weights.scale for span in spans], device=device)
        self._scales = scales[:, None, None]
        self._stacks: dict[tuple[str, ...], _Stack | None] = {}

    def small(self, layer: Linear, x: Tensor) -> list[Tensor]:
        """z of all spans together."""
        stack = self._stack(layer)
        return [] if stack is None else [self._product(x[: self._end], stack.a.transpose(1, 2))]

    def forward(self, layer: Linear, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """y, and z, which the backward pass needs."""
        y, kept = self._kernel.linear(x, layer.weight, layer.bias), self.small(layer, x)
        stack = self._stack(layer)
        if stack is not None:
            for part in stack.parts:
                delta = self._product(kept[0][:, part.ranks], part.b.transpose(1, 2))
                y[: self._end, part.out] += delta
        return y, kept

    def backward(self, layer: Linear, x: Tensor, kept: Sequence[Tensor], grad_y: Tensor) -> Tensor:
        """dx. The adapters' gradients are added to those of their spans."""
        grad_x = self._kernel.linear(grad_y, layer.weight.t())
        stack = self._stack(layer)
        if stack is None:
            return grad_x
        (z,) = kept
        grad_z = torch.empty_like(z)
        for part in stack.parts:
            upstream = grad_y[: self._end, part.out]
            grad_z[:, part.ranks] = self._product(upstream, part.b)
            self._add(part.name, "lora_B", self._product(upstream.t(), z[:, part.ranks]).mul_(self._scales))
        grad_x[: self._end] += self._product(grad_z, stack.a)
        grad_a = self._product(grad_z.t(), x[: self._end])
        for part in stack.parts:
            self._add(part.name, "lora_A", grad_a[:, part.ranks])
        return grad_x

    def _product(self, one: Tensor, other: Tensor) -> Tensor:
        """[slots, m] and [spans, m, n]: [slots, n]; [m, slots] and [slots, n]: [spans, m, n]."""
        product: Tensor = F.grouped_mm(one, other, offs=self._ends)
        return product

    def _add(self, name: str, which: str, gradients: Tensor) -> None:
        """Each span gets memory of its own, so that none keeps the others' as well."""
        owners = [(at, span) for at, span in enumerate(self._spans) if name in span.weights.pairs]
        along = 0 if which == "lora_A" else 1
        found = [gradients[at].narrow(along, 0, span.weights.rank) for at, span in owners]
        own = [torch.empty(each.shape, dtype=torch.float32, device=each.device) for each in found]
        torch._foreach_copy_(own, found)
        for (_, span), each in zip(owners, own, strict=True):
            span.add(f"{name}.{which}", each)

    def _stack(self, layer: Linear) -> _Stack | None:
        if layer.names not in self._stacks:
            self._stacks[layer.names] = self._stacked(layer)
        return self._stacks[layer.names]

    def _stacked(self, layer: Linear) -> _Stack | None:
        rank = max(span.weights.rank for span in self._spans)
        rank = -(-rank // _ALIGNED) * _ALIGNED
        matrices: list[Tensor] = []
        parts: list[Part] = []
        for name, cut in zip(layer.names, layer.cuts, strict=True):
            pairs = [span.weights.pairs.get(name) for span in self._spans]
            if not any(pairs):
                continue
            rows, columns = cut.stop - cut.start, layer.weight.shape[1]
            nothing = LoraPair(self._scales.new_zeros(rank, columns), self._scales.new_zeros(rows, rank))
            filled = [nothing if pair is None else _filled(pair, rank) for pair in pairs]
            matrices.append(torch.stack([pair.a for pair in filled]))
            b = torch.stack([pair.b for pair in filled]) * self._scales
            ranks = slice(rank * len(parts), rank * (len(parts) + 1))
            parts.append(Part(name, cut, ranks, b.to(self._dtype)))
        if not parts:
            return None
        return _Stack(torch.cat(matrices, 1).to(self._dtype), tuple(parts))


def _filled(pair: LoraPair, rank: int) -> LoraPair:
    """The pair with zeros behind it, up to a rank."""
    missing = rank - len(pair.a)
    if not missing:
        return pair
    return LoraPair(F.pad(pair.a, (0, 0, 0, missing)), F.pad(pair.b, (0, missing)))
