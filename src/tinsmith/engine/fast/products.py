"""The frozen layers' products while sampling: few rows at a time, so the weights are laid out to be streamed.

From `least_rows` rows on, a row's result is the same to the bit however many rows are multiplied and whether
the weight is packed or plain; so a sequence does not notice who decodes beside it. This is measured, not
assumed, on the shapes of the model at hand.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .kernels import MIN_ROWS, Kernel
from .model import Decoder, Linear

_FEW = (4, 8, MIN_ROWS)  # candidates for `least_rows`; fewer than 4 are no faster
_COUNTS = (4, 5, 7, 8, 13, 16, 17, 31, 33, 48)
_RANKS = (1, 8, 32, 96)
_PACK_FOR_ROWS = 64


class Products:
    """x Wᵀ + b for the layers of one decoder, and for the small matrices of adapters."""

    def __init__(self, decoder: Decoder, packed_bytes: int) -> None:
        self._kernel = decoder.kernel
        self._packed: dict[tuple[str, ...], Tensor] = {}
        layers = [*decoder.linears, decoder.head]
        self.least_rows = MIN_ROWS
        if _can_pack(decoder) and sum(layer.weight.nbytes for layer in layers) <= packed_bytes:
            packed = {layer.names: _pack(layer.weight) for layer in layers}
            few = next((n for n in _FEW if _alike(decoder, packed, n)), None)
            if few is not None:
                self._packed, self.least_rows = packed, few
        elif _alike(decoder, {}, _FEW[0]):
            self.least_rows = _FEW[0]

    def layer(self, layer: Linear, x: Tensor) -> Tensor:
        """y [n, out] of x [n, in], n at least `least_rows`."""
        return self._kernel.linear(x, self._packed.get(layer.names, layer.weight), layer.bias)

    def small(self, x: Tensor, weight: Tensor) -> Tensor:
        """x weightᵀ, for one of an adapter's matrices."""
        return self._kernel.linear(x, weight)


def _can_pack(decoder: Decoder) -> bool:
    weight = decoder.head.weight
    return (
        decoder.kernel.name == "onednn"
        and weight.device.type == "cpu"
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    )


def _pack(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _PACK_FOR_ROWS)
    return packed


def _alike(decoder: Decoder, packed: dict[tuple[str, ...], Tensor], least: int) -> bool:
    """Whether from `least` rows on nothing but a row itself decides its result, bit by bit."""
    block, kernel = decoder.blocks[0], decoder.kernel
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(decoder.embedding)

    layers = (block.qkv, block.out, block.gate_up, block.down, decoder.head)
    pairs = [(layer.weight, packed.get(layer.names, layer.weight)) for layer in layers]
    for rank in _RANKS:
        for plain in (random(rank, decoder.hidden), random(decoder.intermediate, rank)):
            pairs.append((plain, plain))
    return all(_rows_alike(kernel, random(max(_COUNTS), p.shape[1]), p, used, least) for p, used in pairs)


def _rows_alike(kernel: Kernel, x: Tensor, plain: Tensor, used: Tensor, least: int) -> bool:
    whole = kernel.linear(x, plain)
    return all(torch.equal(kernel.linear(x[-n:], used), whole[-n:]) for n in _COUNTS if n >= least)
