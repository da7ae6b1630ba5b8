"""What a caller must send for each loss: one row a loss. The formulas are in `engine.losses`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .errors import UserError

if TYPE_CHECKING:
    from .training import ForwardBackwardInput

_RL_INPUTS = ("target_tokens", "logprobs", "advantages")
_CLIPS = ("clip_low_threshold", "clip_high_threshold")


@dataclass(frozen=True, slots=True)
class LossSpec:
    """Inputs and configuration one loss accepts."""

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    config: Mapping[str, float] = field(default_factory=dict)  # key -> default


def _clips(low: float, high: float) -> dict[str, float]:
    """Bounds on the probability ratio itself, not epsilons; a tensor among the inputs takes their place."""
    return dict(zip(_CLIPS, (low, high), strict=True))


LOSSES: dict[str, LossSpec] = {
    "cross_entropy": LossSpec(required=("target_tokens", "weights")),
    "importance_sampling": LossSpec(required=_RL_INPUTS),
    "ppo": LossSpec(required=_RL_INPUTS, optional=_CLIPS, config=_clips(0.8, 1.2)),
    "cispo": LossSpec(required=_RL_INPUTS, optional=_CLIPS, config=_clips(0.0, 4.0)),
    # The published example uses 0.05; the default is our choice.
    "dro": LossSpec(required=_RL_INPUTS, config={"beta": 0.05}),
    # The GSPO paper's bounds; the default is our choice.
    "gspo": LossSpec(
        required=(*_RL_INPUTS, "sequence_ratio_mask"), optional=_CLIPS, config=_clips(1 - 3e-4, 1 + 4e-4)
    ),
}

# Losses whose targets may be [N, K]: K candidates at each position.
MANY_TARGETS = frozenset({"cross_entropy", "custom"})

# Names clients know that this service cannot compute, and why.
REFUSED_LOSSES: dict[str, str] = {
    "stable_reinforce": "its formula is not public; use importance_sampling, ppo or cispo",
    "custom": "name one that create_custom_loss made, in loss_fn_config['loss_id']",
}


def batch_spec(batch: ForwardBackwardInput) -> LossSpec:
    """What the datums of a batch must hold."""
    if batch.custom_loss is not None:
        return LossSpec(required=("target_tokens", *batch.custom_loss.input_names))
    return loss_spec(batch.loss_fn)


def loss_spec(name: str) -> LossSpec:
    """The row of a loss, or an error that lists the names there are."""
    if name in REFUSED_LOSSES:
        raise UserError(f"{name} is not available: {REFUSED_LOSSES[name]}", field="loss_fn")
    if name not in LOSSES:
        raise UserError(f"{name!r} is not a loss; use one of {', '.join(LOSSES)}", field="loss_fn")
    return LOSSES[name]
