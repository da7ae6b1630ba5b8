"""A dense decoder as the fast path sees it: its sizes, its blocks' frozen weights, its rotation angles.

`read_decoder` recognises Llama (SmolLM), Mistral, Qwen2 and Qwen3 in a transformers model; for anything else
it says why not, and the general path is used. One block computes, with x the residual stream [n, hidden]:

    h = rms(x) * attention_norm;   q, k, v = h qkvᵀ + qkv_bias, cut by `Decoder.cuts`
    q, k = rope(rms(q) * q_norm), rope(rms(k) * k_norm)          the norms over head_dim, in Qwen3 only
    x = x + softmax(scale q kᵀ, causal, the last `window` keys) v outᵀ + out_bias
    h = rms(x) * mlp_norm;         g, u = h gate_upᵀ;            x = x + (silu(g) * u) downᵀ

Head i of q reads head i // (heads / kv_heads) of k and v. `fuse` lays q/k/v and gate/up out side by side;
the transformers modules keep working as views of the same memory: there is one copy of the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .kernels import Kernel, best_kernel

_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
# Rotations that depend on the position alone, for every position the model allows.
_ROPES = ("default", "linear", "dynamic", "yarn", "llama3")


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """Linear layers that read the same input, fused: y = x weightᵀ + bias; part i fills y[:, cuts[i]]."""

    names: tuple[str, ...]  # the layers' names in the model: where adapters are looked up
    cuts: tuple[slice, ...]
    weight: Tensor  # [out, in]
    bias: Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """The frozen weights of one decoder layer."""

    attention_norm: Tensor
    qkv: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear
    window: int | None  # a query sees this many keys, itself included; None: all before it


@dataclass(frozen=True, eq=False)
class Decoder:
    """A whole model between token ids and logits."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    eps: float
    scale: float
    embedding: Tensor  # [vocabulary, hidden]
    blocks: tuple[Block, ...]
    final_norm: Tensor
    head: Linear
    kernel: Kernel
    _rotary: Any

    @property
    def linears(self) -> list[Linear]:
        """The fused layers of the blocks; the head is not among them."""
        return [layer for b in self.blocks for layer in (b.qkv, b.out, b.gate_up, b.down)]

    def bytes_per_block(self, slots: int) -> int:
        """What the backward pass keeps of one block, without the adapters' small products."""
        qkv = (self.heads + 2 * self.kv_heads) * self.head_dim
        if self.blocks[0].q_norm is not None:  # before the norms and after
            qkv *= 2
        kept = 2 * self.hidden + qkv + self.heads * self.head_dim + 2 * self.intermediate
        return slots * kept * self.embedding.element_size()

    @torch.no_grad()
    def rotations(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [n, head_dim / 2] of the angles at positions [n], in float32.

        The rotated half pairs x[i] with x[i + head_dim / 2]: y1 = x1 cos - x2 sin, y2 = x2 cos + x1 sin.
        They come from the model's own module, so every kind of scaling is right by construction.
        """
        like = torch.empty(0, device=positions.device)
        cos, sin = self._rotary(like, positions[None])
        half = self.head_dim // 2
        return cos[0, :, :half].contiguous(), sin[0, :, :half].contiguous()


def why_not_fast(model: Any) -> str | None:
    """Why a transformers model has to take the general path; None if it need not."""
    config = model.config
    if config.model_type not in _FAMILIES:
        return f"{config.model_type} is not one of {', '.join(_FAMILIES)}"
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}, not silu"
    rope = config.rope_parameters
    if rope["rope_type"] not in _ROPES:
        return f"its rope is {rope['rope_type']}"
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        return "its rope turns a part of each head only"
    return None


@torch.no_grad()
def read_decoder(model: Any) -> Decoder:
    """Read a model of a known family (`why_not_fast`), fusing its layers in place."""
    config, inner = model.config, model.get_decoder()
    names = {module: name for name, module in model.named_modules()}
    weight = inner.embed_tokens.weight
    attention = inner.layers[0].self_attn
    return Decoder(
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=attention.head_dim,
        intermediate=config.intermediate_size,
        eps=config.rms_norm_eps,
        scale=attention.scaling,
        embedding=weight.detach(),
        blocks=tuple(_block(layer, config, index, names) for index, layer in enumerate(inner.layers)),
        final_norm=inner.norm.weight.detach(),
        head=fuse([model.get_output_embeddings()], names),
        kernel=best_kernel(weight.device, weight.dtype),
        _rotary=inner.rotary_emb,
    )


def _block(layer: Any, config: Any, index: int, names: dict[nn.Module, str]) -> Block:
    attention, mlp = layer.self_attn, layer.mlp
    q_norm, k_norm = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
    return Block(
        attention_norm=layer.input_layernorm.weight.detach(),
        qkv=fuse([attention.q_proj, attention.k_proj, attention.v_proj], names),
        q_norm=None if q_norm is None else q_norm.weight.detach(),
        k_norm=None if k_norm is None else k_norm.weight.detach(),
        out=fuse([attention.o_proj], names),
        mlp_norm=layer.post_attention_layernorm.weight.detach(),
        gate_up=fuse([mlp.gate_proj, mlp.up_proj], names),
        down=fuse([mlp.down_proj], names),
        window=_window(config, index),
    )


def _window(config: Any, index: int) -> int | None:
    """The sliding window of a layer; which layers slide is said by ``layer_types`` where there are any."""
    types = getattr(config, "layer_types", None)
    if types is not None and types[index] != "sliding_attention":
        return None
    window: int | None = getattr(config, "sliding_window", None)
    return window


def fuse(layers: list[nn.Linear], names: dict[nn.Module, str]) -> Linear:
    """One weight for several layers; each layer's own weight becomes a view of it."""
    ends = torch.tensor([layer.out_features for layer in layers]).cumsum(0).tolist()
    cuts = tuple(slice(end - layer.out_features, end) for layer, end in zip(layers, ends, strict=True))
    weight, bias = layers[0].weight.detach(), None
    if len(layers) > 1:
        weight = torch.cat([layer.weight for layer in layers])
        for layer, cut in zip(layers, cuts, strict=True):
            layer.weight.data = weight[cut]
    if layers[0].bias is not None:
        bias = torch.cat([layer.bias for layer in layers])
    return Linear(tuple(names[layer] for layer in layers), cuts, weight, bias)
