"""AdamW as in torch.optim.AdamW: parameters chosen anew at every step, a state that can be saved."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from tinsmith.types import AdamParams, UserError


@dataclass(eq=False)
class AdamState:
    """Steps taken and both moments by tensor name; no moments before the first step."""

    step: int = 0
    exp_avg: dict[str, Tensor] = field(default_factory=dict)
    exp_avg_sq: dict[str, Tensor] = field(default_factory=dict)

    def copy(self, device: torch.device | None = None) -> AdamState:
        """A copy, on another device if one is named."""
        return AdamState(self.step, _copied(self.exp_avg, device), _copied(self.exp_avg_sq, device))


def _copied(tensors: Mapping[str, Tensor], device: torch.device | None) -> dict[str, Tensor]:
    return {name: tensor.to(device or tensor.device, copy=True) for name, tensor in tensors.items()}


def gradient_norm(gradients: Mapping[str, Tensor]) -> float:
    """The global L2 norm, summed in one order whatever order the gradients were found or restored in."""
    return float(get_total_norm([gradients[name].contiguous() for name in sorted(gradients)]))


@torch.no_grad()
def adamw_step(
    tensors: Mapping[str, Tensor], gradients: Mapping[str, Tensor], state: AdamState, params: AdamParams
) -> float:
    """One step in place. Returns the gradient's norm before clipping.

    g *= min(1, grad_clip_norm / (|g| + 1e-6))      if grad_clip_norm > 0, over all tensors together
    p *= 1 - lr * weight_decay
    m  = beta1 * m + (1 - beta1) * g;               v = beta2 * v + (1 - beta2) * g^2
    p -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
    """
    norm = gradient_norm(gradients)
    if not math.isfinite(norm):
        raise UserError("the accumulated gradient is too large for float32; load a checkpoint to go on")
    clip = min(1.0, params.grad_clip_norm / (norm + 1e-6)) if params.grad_clip_norm > 0 else 1.0
    if not state.exp_avg:
        state.exp_avg = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
        state.exp_avg_sq = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    state.step += 1
    step_size = params.learning_rate / (1 - params.beta1**state.step)
    root_correction = math.sqrt(1 - params.beta2**state.step)
    for name, tensor in tensors.items():
        gradient = gradients[name] if clip == 1.0 else gradients[name] * clip
        mean, square = state.exp_avg[name], state.exp_avg_sq[name]
        tensor.mul_(1 - params.learning_rate * params.weight_decay)
        mean.lerp_(gradient, 1 - params.beta1)
        square.mul_(params.beta2).addcmul_(gradient, gradient, value=1 - params.beta2)
        tensor.addcdiv_(mean, (square.sqrt() / root_correction).add_(params.eps), value=-step_size)
    return norm
