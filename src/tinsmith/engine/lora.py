"""Adapters as plain tensors, and the slot through which one of them speaks inside a base model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class LoraPair:
    """What one linear layer gains: y = W x + scale * B (A x)."""

    a: Tensor  # [rank, in]
    b: Tensor  # [out, rank]


@dataclass(frozen=True, slots=True)
class LoraWeights:
    """An adapter: one pair a linear layer, by the layer's name in the base model."""

    rank: int
    alpha: float
    pairs: Mapping[str, LoraPair]

    @property
    def scale(self) -> float:
        """alpha / rank: a constant alpha keeps one learning rate good for every rank."""
        return self.alpha / self.rank

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by name: ``<layer>.lora_A`` and ``<layer>.lora_B``."""
        flat = {}
        for name, pair in self.pairs.items():
            flat[f"{name}.lora_A"], flat[f"{name}.lora_B"] = pair.a, pair.b
        return flat

    def replaced(self, tensors: Mapping[str, Tensor]) -> LoraWeights:
        """The same adapter with other tensors."""
        pairs = {name: LoraPair(tensors[f"{name}.lora_A"], tensors[f"{name}.lora_B"]) for name in self.pairs}
        return LoraWeights(self.rank, self.alpha, pairs)

    def copy(self, device: torch.device | None = None) -> LoraWeights:
        """A copy that later steps of the original do not touch, on another device if one is named."""
        tensors = self.tensors().items()
        return self.replaced({name: t.detach().to(device or t.device, copy=True) for name, t in tensors})

    def leaves(self) -> LoraWeights:
        """The same memory, as leaves gradients can be taken of."""
        return self.replaced({name: t.detach().requires_grad_() for name, t in self.tensors().items()})


def fresh_weights(
    linears: Mapping[str, nn.Linear], *, rank: int, alpha: float, seed: int, device: torch.device
) -> LoraWeights:
    """A ~ U(-1/sqrt(in), 1/sqrt(in)) (kaiming-uniform with a = sqrt 5, as in PEFT), B = 0.

    Each layer draws from a generator of its own, so the same seed gives the same weights whatever
    other layers are trained.
    """
    pairs = {}
    for name, linear in linears.items():
        digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
        bound = linear.in_features**-0.5
        a = (torch.rand(rank, linear.in_features, generator=generator) * 2 - 1) * bound
        pairs[name] = LoraPair(a.to(device), torch.zeros(linear.out_features, rank, device=device))
    return LoraWeights(rank, alpha, pairs)


class AdapterSlot:
    """Where an adapter is plugged into a base model for the time of one pass; empty otherwise."""

    def __init__(self) -> None:
        self._weights: LoraWeights | None = None

    def attach(self, name: str, linear: nn.Linear) -> None:
        """Let the plugged adapter add to this layer's output. Done once, when the base model loads."""

        def add(_module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
            pair = self._weights.pairs.get(name) if self._weights is not None else None
            if pair is None or self._weights is None:
                return None  # the layer's own output stands
            return output + lora_delta(inputs[0], pair, self._weights.scale)

        linear.register_forward_hook(add)

    @contextmanager
    def plugged(self, weights: LoraWeights | None) -> Iterator[None]:
        """Passes in this block go through ``weights``. Never held across a yield to other work."""
        self._weights = weights
        try:
            yield
        finally:
            self._weights = None


def lora_delta(x: Tensor, pair: LoraPair, scale: float) -> Tensor:
    """scale * B (A x), in the precision of x."""
    return F.linear(F.linear(x, pair.a.to(x.dtype)) * scale, pair.b.to(x.dtype))
