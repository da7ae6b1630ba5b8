"""The same attention, all segments in one call of the flash kernels: on a GPU, in 16-bit floats.

A segment's keys are its prefix and its own slots. Where there are prefixes the keys are laid out anew, each
segment's side by side; a prefix that many rows share is read from its one place and its gradients are summed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from .layout import Segment

_TYPES = (torch.float16, torch.bfloat16)


def available(like: Tensor, head_dim: int) -> bool:
    """Whether torch has the kernels and they do with such floats, there, and heads of this size."""
    known = find_spec("torch.nn.attention.varlen") is not None
    return known and like.is_cuda and like.dtype in _TYPES and head_dim % 8 == 0 and head_dim <= 256


class FlashAttention:
    """One layout's segments, made ready for the kernels once and used in every block."""

    def __init__(self, segments: Sequence[Segment], device: torch.device) -> None:
        lengths = [s.stop - s.start for s in segments]
        seen = [s.prefix.stop - s.prefix.start + n for s, n in zip(segments, lengths, strict=True)]
        self._queries, self._keys = Ends(lengths, device), Ends(seen, device)
        self._places: Tensor | None = None  # which slot each key is; None where keys lie as the slots do
        if seen != lengths:
            stretches = [stretch for s in segments for stretch in (s.prefix, slice(s.start, s.stop))]
            self._places = torch.cat([torch.arange(at.start, at.stop) for at in stretches]).to(device)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
        """What every query head reads: [slots, kv_heads, group, head_dim]; arguments as in `attention`."""
        with torch.no_grad():
            return self._attend(*self._laid_out(q, k, v), window).view(q.permute(1, 0, 2, 3).shape)

    def backward(
        self, grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, window: int | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k and v, shaped as they are."""
        leaves = [t.detach().requires_grad_() for t in self._laid_out(q, k, v)]
        with torch.enable_grad():
            out = self._attend(leaves[0], leaves[1], leaves[2], window)
        grad_q, grad_k, grad_v = torch.autograd.grad(out, leaves, grad_out.reshape(out.shape))
        kv, slots, group, dim = q.shape
        grad_q = grad_q.view(slots, kv, group, dim).transpose(0, 1)
        return grad_q, self._summed(grad_k, slots), self._summed(grad_v, slots)

    def _laid_out(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        queries = q.transpose(0, 1).flatten(1, 2)
        k, v = k.transpose(0, 1), v.transpose(0, 1)
        if self._places is not None:
            k, v = k.index_select(0, self._places), v.index_select(0, self._places)
        return queries, k, v

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
        return attend(q, k, v, self._queries, self._keys, window)

    def _summed(self, grad: Tensor, slots: int) -> Tensor:
        """The transpose of laying keys out, in an order that is always the same."""
        if self._places is not None:
            whole = grad.new_zeros(slots, *grad.shape[1:])
            grad = whole.index_put_((self._places,), grad, accumulate=True)
        return grad.transpose(0, 1)


@cache
def _kernel() -> Callable[..., Any]:
    """torch's own; older versions group query heads without being told to."""
    from torch.nn.attention.varlen import varlen_attn

    grouped = "enable_gqa" in inspect.signature(varlen_attn).parameters
    return partial(varlen_attn, enable_gqa=True) if grouped else varlen_attn


class Ends:
    """Where segments end that lie one after the other."""

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        self.longest = max(lengths)
        self.ends = torch.tensor([0, *lengths]).cumsum(0).to(device, torch.int32)


def attend(
    q: Tensor, k: Tensor, v: Tensor, queries: Ends, keys: Ends, window: int | None, scale: float = 1.0
) -> Tensor:
    """What queries [n, heads, head_dim] read of keys and values [m, kv_heads, head_dim], segment by segment.

    The last query of a segment sees all of its keys, the one before it all but one, and so on.
    """
    out: Tensor = _kernel()(
        q, k, v, queries.ends, keys.ends, queries.longest, keys.longest,
        scale=scale, window_size=(-1 if window is None else window - 1, 0),
    )  # fmt: skip
    return out
