"""The losses, one pure function each: log-probabilities in, loss per token out. All are plain sums.

For one datum: lp = log p(target_tokens) under the weights being trained, q = loss_fn_inputs["logprobs"] under
those that sampled, A = advantages, w = weights, r = exp(lp - q). Where A is 0 a position takes no part in a
ratio, whatever q says there (masked prompts carry q = 0).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tinsmith.types.losses import LOSSES

Inputs = Mapping[str, Tensor]
Config = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class LossTerms:
    """The loss of one datum by token; for ratio losses also r, where it counts and where it was clipped."""

    elementwise: Tensor
    ratio: Tensor | None = None
    active: Tensor | None = None
    clipped: Tensor | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)  # its own: ``name:sum`` or ``name:mean``


LossFn = Callable[[Tensor, Inputs, Config], LossTerms]


def cross_entropy(lp: Tensor, inputs: Inputs, _config: Config) -> LossTerms:
    """sum -w * lp; targets [N], or [N, K] for soft targets: sum_t sum_k -w[t,k] * lp[t,k]."""
    return LossTerms(-inputs["weights"] * lp)


def importance_sampling(lp: Tensor, inputs: Inputs, _config: Config) -> LossTerms:
    """sum -r * A; the gradient flows through r."""
    ratio, active = _ratio(lp, inputs)
    return LossTerms(-ratio * inputs["advantages"], ratio, active)


def ppo(lp: Tensor, inputs: Inputs, config: Config) -> LossTerms:
    """sum -min(r * A, clamp(r, low, high) * A)."""
    ratio, active = _ratio(lp, inputs)
    return _clipped_surrogate(ratio, active, inputs, config)


def cispo(lp: Tensor, inputs: Inputs, config: Config) -> LossTerms:
    """sum -stopgrad(clamp(r, low, high)) * lp * A; a clipped token keeps its gradient."""
    ratio, active = _ratio(lp, inputs)
    low, high = _bounds(lp, inputs, config)
    weight = torch.clamp(ratio.detach(), low, high)
    outside = active & ((ratio < low) | (ratio > high))
    return LossTerms(-weight * lp * inputs["advantages"], ratio, active, outside)


def dro(lp: Tensor, inputs: Inputs, config: Config) -> LossTerms:
    """sum -(lp * A - beta/2 * (lp - q)^2); the quadratic term counts at every position."""
    ratio, active = _ratio(lp, inputs)
    penalty = 0.5 * config["beta"] * (lp - inputs["logprobs"]) ** 2
    return LossTerms(penalty - lp * inputs["advantages"], ratio, active)


def gspo(lp: Tensor, inputs: Inputs, config: Config) -> LossTerms:
    """sum -min(s * A, clamp(s, low, high) * A), the ratio being the whole sequence's (GSPO-token).

    m = mean over sequence_ratio_mask of (stopgrad(lp) - q);  s = exp(m + lp - stopgrad(lp)):
    every token has the value exp(m) and its own gradient.
    """
    counted = inputs["sequence_ratio_mask"] != 0
    difference = torch.where(counted, lp.detach() - inputs["logprobs"], 0.0)
    mean = difference.sum() / counted.sum().clamp(min=1)
    active = inputs["advantages"] != 0
    ratio = torch.exp(torch.where(active, mean + lp - lp.detach(), 0.0))
    return _clipped_surrogate(ratio, active, inputs, config)


LOSS_FNS: dict[str, LossFn] = {
    "cross_entropy": cross_entropy,
    "importance_sampling": importance_sampling,
    "ppo": ppo,
    "cispo": cispo,
    "dro": dro,
    "gspo": gspo,
}
assert LOSS_FNS.keys() == LOSSES.keys(), "the table in tinsmith.types.losses and these functions must agree"


def _ratio(lp: Tensor, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """r, and where it counts. Masked before exp: inf * 0 would be NaN, in the gradient too."""
    active = inputs["advantages"] != 0
    return torch.exp(torch.where(active, lp - inputs["logprobs"], 0.0)), active


def _bounds(lp: Tensor, inputs: Inputs, config: Config) -> tuple[Tensor, Tensor]:
    """Clip bounds token by token: the tensor where one is given, else the scalar."""
    low, high = (
        inputs[key] if key in inputs else torch.full_like(lp, config[key], requires_grad=False)
        for key in ("clip_low_threshold", "clip_high_threshold")
    )
    return low, high


def _clipped_surrogate(ratio: Tensor, active: Tensor, inputs: Inputs, config: Config) -> LossTerms:
    advantages = inputs["advantages"]
    low, high = _bounds(ratio, inputs, config)
    plain, clamped = ratio * advantages, torch.clamp(ratio, low, high) * advantages
    return LossTerms(-torch.minimum(plain, clamped), ratio, active, active & (clamped < plain))


def loss_metrics(terms: Sequence[LossTerms]) -> dict[str, float]:
    """Metrics of a call; each reduction combines exactly over the chunks a client may cut a batch into."""
    metrics = {"loss:sum": sum(float(term.elementwise.detach().double().sum()) for term in terms)}
    ratios = [
        (term.ratio, term.active) for term in terms if term.ratio is not None and term.active is not None
    ]
    if ratios:
        counted = torch.cat([ratio.detach()[active] for ratio, active in ratios])
        metrics["active_tokens:sum"] = float(counted.numel())
        metrics["ratio:min"] = float(counted.min()) if counted.numel() else 1.0
        metrics["ratio:max"] = float(counted.max()) if counted.numel() else 1.0
    clipped = [term.clipped for term in terms if term.clipped is not None]
    if clipped:
        metrics["clipped_tokens:sum"] = float(sum(int(where.sum()) for where in clipped))
    for key in sorted({key for term in terms for key in term.metrics}):
        total = sum(term.metrics[key] for term in terms)
        metrics[key] = total / len(terms) if key.endswith(":mean") else total
    return metrics


def output_type(loss_fn: str) -> str:
    """``CrossEntropyLossReturn`` and the like."""
    return "".join(part.capitalize() for part in loss_fn.split("_")) + "LossReturn"
