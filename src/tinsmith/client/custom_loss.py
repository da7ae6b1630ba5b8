"""A loss computed on the client's side: its gradient goes to the service as the weights of a cross-entropy.

With C(lp) the user's loss of the target log-probabilities lp, and w = -dC/dlp held fixed, the loss
sum(-lp * w) has at this point the same gradient with respect to the model as C has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tinsmith.types import Datum, ForwardBackwardOutput, ModelInput, TensorData

if TYPE_CHECKING:
    import torch

    CustomLoss = Callable[[list[Datum], list[torch.Tensor]], tuple[torch.Tensor, dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Surrogate:
    """What to send back, and what the user's loss said."""

    data: list[Datum]
    loss: float
    metrics: dict[str, float]


def require_torch() -> Any:
    """torch, or how to get it."""
    try:
        import torch
    except ImportError as error:
        raise ImportError("forward_backward_custom needs torch: pip install torch") from error
    return torch


def forward_data(data: Sequence[Datum]) -> list[Datum]:
    """The datums as a cross-entropy reads them: its own columns, and zero weights where none are given."""
    return [_as_cross_entropy(datum, datum.loss_fn_inputs.get("weights")) for datum in data]


def check_targets(data: Sequence[Datum]) -> None:
    """Every datum needs target tokens: their log-probabilities are what the loss is a function of."""
    for at, datum in enumerate(data):
        if "target_tokens" not in datum.loss_fn_inputs:
            raise ValueError(f"data[{at}].loss_fn_inputs['target_tokens']: missing; a custom loss needs it")


def surrogate(data: list[Datum], output: ForwardBackwardOutput, loss_fn: CustomLoss) -> Surrogate:
    """Run the user's loss and turn its gradient into weights. Takes as long as the user's loss does."""
    torch = require_torch()
    logprobs = [_leaf(torch, datum, at, output) for at, datum in enumerate(data)]
    loss, metrics = loss_fn(data, logprobs)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise ValueError("the custom loss must return (a tensor of one number, a dict of metrics)")
    if not loss.requires_grad:
        raise ValueError("the custom loss does not depend on the logprobs it was given")
    loss.backward()
    if all(leaf.grad is None for leaf in logprobs):
        raise ValueError("the custom loss does not depend on the logprobs it was given")
    weighted = [
        _as_cross_entropy(datum, _weights(torch, leaf, at))
        for at, (datum, leaf) in enumerate(zip(data, logprobs, strict=True))
    ]
    return Surrogate(
        weighted, float(loss.detach()), {key: as_float(value) for key, value in (metrics or {}).items()}
    )


def as_float(value: Any) -> float:
    """A metric as a number, also when it still carries a gradient."""
    return float(value.detach() if hasattr(value, "detach") else value)


def merge(output: ForwardBackwardOutput, done: Surrogate) -> ForwardBackwardOutput:
    """The backward's result, reporting the user's loss; the surrogate's own goes under another name."""
    metrics = dict(output.metrics)
    if "loss:sum" in metrics:
        metrics["surrogate_loss:sum"] = metrics.pop("loss:sum")
    metrics |= done.metrics
    metrics["loss:sum"] = done.loss
    return ForwardBackwardOutput(output.loss_fn_output_type, output.loss_fn_outputs, metrics)


def harmless() -> Datum:
    """A forward pass of this touches nothing; it uses up a seq id."""
    return Datum(ModelInput.from_ints([0]), {"target_tokens": [0], "weights": [0.0]})


def _as_cross_entropy(datum: Datum, weights: TensorData | None) -> Datum:
    targets = datum.loss_fn_inputs["target_tokens"]
    if weights is None:
        weights = TensorData.from_numpy(np.zeros(_shape(targets), dtype=np.float32))
    return Datum(datum.model_input, {"target_tokens": targets, "weights": weights})


def _leaf(torch: Any, datum: Datum, at: int, output: ForwardBackwardOutput) -> Any:
    values = output.loss_fn_outputs[at]["logprobs"].to_numpy()
    shape = _shape(datum.loss_fn_inputs["target_tokens"])
    return torch.tensor(values.reshape(shape), dtype=torch.float32, requires_grad=True)


def _weights(torch: Any, leaf: Any, at: int) -> TensorData:
    grad = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad  # a datum the loss does not use
    if not torch.isfinite(grad).all():
        raise ValueError(f"the custom loss has a gradient that is not finite for data[{at}]")
    return TensorData.from_torch(-grad)


def _shape(tensor: TensorData) -> list[int]:
    return tensor.shape if tensor.shape is not None else [int(tensor.data.size)]
