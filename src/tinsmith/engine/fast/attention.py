"""Causal attention over packed segments, forward and backward: no row sees another row's tokens.

Per segment, key-value head and piece of queries, with the queries of one token's heads side by side:

    P = softmax(q kᵀ + mask);   o = P v                                        (q carries the scale already)
    dv = Pᵀ do;   dP = do vᵀ;   dS = P * (dP - sum(dP * P));   dq = dS k;   dk = dSᵀ q

P is computed again in the backward pass rather than kept. Every product's shape follows from its segment
alone, so a segment's numbers are the same to the bit in whatever company it is computed.

q is [kv_heads, slots, group, head_dim]; k and v are [kv_heads, slots, head_dim].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from .layout import Segment

QUERIES_AT_ONCE = (
    128  # of one piece: smaller pieces skip more of the masked half, larger ones multiply faster
)
QUERIES_AT_ONCE_ON_GPU = 1024


@dataclass(frozen=True, slots=True)
class _Piece:
    """Queries of a segment, and the keys they may see: a stretch of the prefix, then one of the segment."""

    queries: slice
    prefix: slice
    own: slice
    window: int | None

    def gather(self, x: Tensor) -> Tensor:
        """The seen rows of keys or values [kv_heads, slots, head_dim]."""
        own = x[:, self.own]
        return own if self.prefix.start == self.prefix.stop else torch.cat([x[:, self.prefix], own], 1)

    def scatter_add(self, grad: Tensor, part: Tensor) -> None:
        """The transpose of `gather`."""
        seen = self.prefix.stop - self.prefix.start
        if seen:
            grad[:, self.prefix] += part[:, :seen]
        grad[:, self.own] += part[:, seen:]


@dataclass(frozen=True, slots=True)
class PlainAttention:
    """A layout's segments, piece by piece: on any machine, in any type of floats."""

    segments: Sequence[Segment]

    def forward(self, q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
        """What every query head reads."""
        return attend(q, k, v, self.segments, window)

    def backward(
        self, grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, window: int | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k and v."""
        return attend_backward(grad_out, q, k, v, self.segments, window)


def attend(q: Tensor, k: Tensor, v: Tensor, segments: Sequence[Segment], window: int | None) -> Tensor:
    """What every query head reads: [slots, kv_heads, group, head_dim]."""
    out = q.new_empty(q.shape[1], q.shape[0], q.shape[2], q.shape[3])
    for piece in _pieces(q, segments, window):
        mixed = torch.bmm(_probabilities(q, k, piece), piece.gather(v))
        out[piece.queries] = mixed.view(q[:, piece.queries].shape).transpose(0, 1)
    return out


def attend_backward(
    grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, segments: Sequence[Segment], window: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, shaped as they are."""
    grad_q, grad_k, grad_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for piece in _pieces(q, segments, window):
        p = _probabilities(q, k, piece)
        queries = q[:, piece.queries].flatten(1, 2)
        upstream = grad_out[piece.queries].transpose(0, 1).flatten(1, 2)
        piece.scatter_add(grad_v, torch.bmm(p.transpose(1, 2), upstream))
        grad_p = torch.bmm(upstream, piece.gather(v).transpose(1, 2))
        grad_s = torch._softmax_backward_data(grad_p, p, -1, p.dtype)
        grad_q[:, piece.queries] = torch.bmm(grad_s, piece.gather(k)).view(q[:, piece.queries].shape)
        piece.scatter_add(grad_k, torch.bmm(grad_s.transpose(1, 2), queries))
    return grad_q, grad_k, grad_v


def _probabilities(q: Tensor, k: Tensor, piece: _Piece) -> Tensor:
    """P [kv_heads, queries * group, keys]."""
    queries = q[:, piece.queries]
    heads, length, group, _ = queries.shape
    scores = torch.bmm(queries.flatten(1, 2), piece.gather(k).transpose(1, 2))
    keys = scores.shape[2]
    masked = keys if piece.window is not None else length  # columns that are not seen by all queries
    by_query = scores.view(heads, length, group, keys)[..., keys - masked :]
    by_query += _mask(length, masked, piece.window, q.dtype, q.device)[:, None]
    return torch.softmax(scores, -1)


@lru_cache(maxsize=64)
def _mask(length: int, keys: int, window: int | None, dtype: torch.dtype, device: torch.device) -> Tensor:
    """0 where query i, which is key number keys - length + i, sees key j; -inf elsewhere."""
    query = torch.arange(keys - length, keys, device=device)[:, None]
    key = torch.arange(keys, device=device)
    seen = key <= query
    if window is not None:
        seen &= key > query - window
    return torch.where(seen, 0.0, -torch.inf).to(dtype)


def _pieces(q: Tensor, segments: Sequence[Segment], window: int | None) -> Iterator[_Piece]:
    at_once = QUERIES_AT_ONCE_ON_GPU if q.is_cuda else QUERIES_AT_ONCE
    for segment in segments:
        before = segment.prefix.stop - segment.prefix.start
        for start in range(segment.start, segment.stop, at_once):
            stop = min(start + at_once, segment.stop)
            hidden = 0  # keys at the beginning that even the first query no longer sees
            if window is not None:
                hidden = max(0, before + start - segment.start + 1 - window)
            of_prefix = min(hidden, before)
            yield _Piece(
                slice(start, stop),
                slice(segment.prefix.start + of_prefix, segment.prefix.stop),
                slice(segment.start + hidden - of_prefix, stop),
                window if window is not None and before + stop - segment.start > window else None,
            )
