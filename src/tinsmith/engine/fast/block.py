"""One decoder block by hand, forward and backward; the formulas of the forward pass are in `model`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from .adapters import Adapters
from .attention import PlainAttention
from .flash import FlashAttention, available
from .layout import Layout
from .model import Block, Decoder


@dataclass(frozen=True, slots=True, eq=False)
class Saved:
    """What the backward pass of a block needs; the rest it computes again, which is cheap."""

    x: Tensor  # the residual stream before the block
    heads: tuple[Tensor, Tensor, Tensor]  # q, k and v as attention reads them
    qkv: Tensor | None  # q and k before norms and rotation, where there are norms
    mixed: Tensor  # what attention gives
    middle: Tensor  # the residual stream between attention and MLP
    gate_up: Tensor
    small: tuple[list[Tensor], ...]  # the adapters' z, layer by layer


class BlockPass:
    """The blocks of one decoder over one layout and one set of adapters."""

    def __init__(self, decoder: Decoder, layout: Layout, adapters: Adapters) -> None:
        self._decoder, self._adapters = decoder, adapters
        self._attention = (
            FlashAttention(layout.segments, decoder.embedding.device)
            if available(decoder.embedding, decoder.head_dim)
            else PlainAttention(layout.segments)
        )
        cos, sin = (t[:, None].to(decoder.embedding.dtype) for t in decoder.rotations(layout.positions))
        self._cos, self._sin = cos, sin

    def forward(self, block: Block, x: Tensor) -> tuple[Tensor, Saved]:
        """The residual stream after the block."""
        decoder, adapters = self._decoder, self._adapters
        qkv, z_qkv = adapters.forward(block.qkv, rms_norm(x, block.attention_norm, decoder.eps))
        heads = self._heads(block, qkv)
        with decoder.kernel.products():
            mixed = self._attention.forward(*heads, block.window).flatten(1)
        middle, z_out = adapters.forward(block.out, mixed)
        middle += x
        gate_up, z_gate_up = adapters.forward(block.gate_up, rms_norm(middle, block.mlp_norm, decoder.eps))
        gate, up = gate_up.chunk(2, 1)
        after, z_down = adapters.forward(block.down, F.silu(gate).mul_(up))
        after += middle
        raw = None if block.q_norm is None else qkv
        return after, Saved(x, heads, raw, mixed, middle, gate_up, (z_qkv, z_out, z_gate_up, z_down))

    def backward(self, block: Block, saved: Saved, grad: Tensor) -> Tensor:
        """The gradient of the residual stream before the block; that after it is overwritten."""
        decoder, adapters = self._decoder, self._adapters
        z_qkv, z_out, z_gate_up, z_down = saved.small
        gate, up = saved.gate_up.chunk(2, 1)
        activated = F.silu(gate)
        grad_active = adapters.backward(block.down, activated * up, z_down, grad)
        # d silu(g) u:  du = d silu(g);  dg = d u silu'(g)
        grad_gate_up = torch.empty_like(saved.gate_up)
        grad_gate, grad_up = grad_gate_up.chunk(2, 1)
        torch.mul(grad_active, activated, out=grad_up)
        torch.ops.aten.silu_backward.grad_input(grad_active.mul_(up), gate, grad_input=grad_gate)
        root = inverse_root(saved.middle, decoder.eps)
        normed = (saved.middle * root).mul_(block.mlp_norm)
        grad_normed = adapters.backward(block.gate_up, normed, z_gate_up, grad_gate_up)
        add_rms_norm_backward(grad, saved.middle, root, block.mlp_norm, grad_normed)

        grad_mixed = adapters.backward(block.out, saved.mixed, z_out, grad)
        grad_qkv = self._attention_backward(block, saved, grad_mixed)
        root = inverse_root(saved.x, decoder.eps)
        normed = (saved.x * root).mul_(block.attention_norm)
        grad_normed = adapters.backward(block.qkv, normed, z_qkv, grad_qkv)
        add_rms_norm_backward(grad, saved.x, root, block.attention_norm, grad_normed)
        return grad

    def _heads(self, block: Block, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v as `attention` wants them: normed, rotated, q scaled."""
        decoder = self._decoder
        raw_q, raw_k, raw_v = self._split(block, qkv)
        if block.q_norm is not None and block.k_norm is not None:
            raw_q = rms_norm(raw_q, block.q_norm, decoder.eps)
            raw_k = rms_norm(raw_k, block.k_norm, decoder.eps)
        kv, group = decoder.kv_heads, decoder.heads // decoder.kv_heads
        q = qkv.new_empty(kv, len(qkv), group, decoder.head_dim)
        k = qkv.new_empty(kv, len(qkv), decoder.head_dim)
        scale = decoder.scale
        by_slot = q.permute(1, 0, 2, 3)
        cos, sin = self._cos[:, None] * scale, self._sin[:, None] * scale
        _rotate(raw_q.view(len(qkv), kv, group, -1), cos, sin, by_slot)
        _rotate(raw_k, self._cos, self._sin, k.transpose(0, 1))
        return q, k, raw_v.transpose(0, 1).contiguous()

    def _attention_backward(self, block: Block, saved: Saved, grad_mixed: Tensor) -> Tensor:
        """The gradient of qkv, given that of what attention gives."""
        decoder, slots = self._decoder, len(grad_mixed)
        kv, group = decoder.kv_heads, decoder.heads // decoder.kv_heads
        upstream = grad_mixed.view(slots, kv, group, decoder.head_dim)
        with decoder.kernel.products():
            grad_q, grad_k, grad_v = self._attention.backward(upstream, *saved.heads, block.window)
        grad_qkv = grad_mixed.new_empty(slots, block.qkv.cuts[-1].stop)
        into_q, into_k, into_v = self._split(block, grad_qkv)
        # A rotation's transpose turns the other way.
        cos, sin = self._cos[:, None] * decoder.scale, self._sin[:, None] * -decoder.scale
        _rotate(grad_q.permute(1, 0, 2, 3), cos, sin, into_q.view(slots, kv, group, -1))
        _rotate(grad_k.transpose(0, 1), self._cos, -self._sin, into_k)
        into_v.copy_(grad_v.transpose(0, 1))
        if saved.qkv is not None and block.q_norm is not None and block.k_norm is not None:
            raw_q, raw_k, _ = self._split(block, saved.qkv)
            into_q.copy_(rms_norm_backward(raw_q, block.q_norm, decoder.eps, into_q))
            into_k.copy_(rms_norm_backward(raw_k, block.k_norm, decoder.eps, into_k))
        return grad_qkv

    def _split(self, block: Block, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v as views [slots, heads of each, head_dim]."""
        q, k, v = (qkv[:, cut].view(len(qkv), -1, self._decoder.head_dim) for cut in block.qkv.cuts)
        return q, k, v


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, the root in float32."""
    return (x * inverse_root(x, eps)).mul_(weight)


def rms_norm_backward(x: Tensor, weight: Tensor, eps: float, grad: Tensor) -> Tensor:
    """dx, given dy."""
    into = torch.zeros_like(x)
    add_rms_norm_backward(into, x, inverse_root(x, eps), weight, grad)
    return into


def add_rms_norm_backward(into: Tensor, x: Tensor, root: Tensor, weight: Tensor, grad: Tensor) -> None:
    """Add dx: with t = weight * dy and r = 1 / sqrt(mean(x^2) + eps), dx = r t - x r^3 mean(t x)."""
    t = grad * weight
    mean = (t * x).mean(-1, keepdim=True, dtype=torch.float32)
    into.addcmul_(t, root).addcmul_(x, (root.float() ** 3 * mean).to(x.dtype), value=-1)


def inverse_root(x: Tensor, eps: float) -> Tensor:
    """1 / sqrt(mean(x^2) + eps), computed in float32."""
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    return norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_().to(x.dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> None:
    """y1 = x1 cos - x2 sin, y2 = x2 cos + x1 sin, with x1 and x2 the halves of the last dimension."""
    x1, x2 = x.chunk(2, -1)
    y1, y2 = out.chunk(2, -1)
    torch.mul(x1, cos, out=y1).addcmul_(x2, sin, value=-1)
    torch.mul(x2, cos, out=y2).addcmul_(x1, sin)
