"""The training pass: a batch in micro-batches, its loss and gradient, and the adapter they belong to."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from tinsmith.types import (
    AdamParams,
    Datum,
    ForwardBackwardInput,
    ForwardBackwardOutput,
    LoraConfig,
    LossFnOutput,
    TensorData,
    UserError,
)
from tinsmith.types.losses import batch_spec
from tinsmith.types.validation import batch_config

from .adamw import AdamState, adamw_step, gradient_norm
from .base import LoadedBase
from .custom_loss import loss_function
from .fast.adapters import Gradients
from .fast.layout import Group, micro_batches
from .fast.model import Decoder
from .fast.packed import RunRows, packed_pass
from .interface import NOBODY_ELSE, BaseModel, Tenant
from .lora import LoraWeights
from .losses import LossFn, LossTerms, loss_metrics, output_type
from .padded import padded_batches, padded_pass
from .scheduler import Pause, Work
from .shares import Shares


@dataclass(frozen=True, slots=True)
class TrainLimits:
    """Bounds of one training pass: how long it keeps others waiting, how much memory it takes."""

    tokens: int
    bytes_to_keep: int


@dataclass(eq=False)
class TrainingAdapter:
    """What belongs to one run: weights, optimizer state, and the gradient accumulated since the last step."""

    base: LoadedBase
    model: BaseModel
    config: LoraConfig
    weights: LoraWeights
    optimizer: AdamState = field(default_factory=AdamState)
    gradients: Gradients | None = None
    tenant: Tenant = NOBODY_ELSE

    def accumulate(self, gradients: Gradients) -> None:
        """Add the gradient of a call that has succeeded as a whole."""
        if self.gradients is None:
            self.gradients = gradients
        else:
            self.gradients = {name: mine + gradients[name] for name, mine in self.gradients.items()}

    def step(self, params: AdamParams) -> dict[str, float]:
        """Apply the accumulated gradient and clear it.

        Without one nothing moves and the step is not counted, as torch does for parameters whose grad is
        None: an optim_step queued behind a failed forward_backward must not move weights by stale moments.
        """
        norm = 0.0
        if self.gradients is not None:
            norm = adamw_step(self.weights.tensors(), self.gradients, self.optimizer, params)
            self.gradients = None
        return {"unclipped_grad_l2:mean": norm, "learning_rate:mean": params.learning_rate}


@dataclass(frozen=True, slots=True)
class _Row:
    """The targets of one datum and what else its loss needs, each [N] or [N, K]."""

    targets: Tensor
    inputs: dict[str, Tensor]


class TrainingCall:
    """One (validated) call, done portion by portion. Its adapter changes at the very end."""

    def __init__(
        self, adapter: TrainingAdapter, batch: ForwardBackwardInput, *, backward: bool, tokens_at_once: int
    ) -> None:
        self.adapter, self.backward = adapter, backward
        self.tokens = [datum.model_input.to_array().astype(np.int64) for datum in batch.data]
        self._lengths = [len(row) for row in self.tokens]
        self._rows = [_as_row(datum, batch, adapter.base.device) for datum in batch.data]
        self.targets = [_columns(row.targets) for row in self._rows]
        self._loss_fn, self._formula, self._config = batch.loss_fn, loss_function(batch), batch_config(batch)
        self._outputs: dict[int, LossFnOutput] = {}
        self._terms: dict[int, LossTerms] = {}
        self._total: Gradients = {}
        self._error: UserError | None = None
        self.portions: list[list[Group]] = []
        if adapter.base.decoder is not None:
            self.portions = micro_batches(self.tokens, tokens_at_once)

    def loss(self, row: int, logprobs: Tensor) -> Tensor:
        """Note the loss of one datum. Returns its gradient by the log-probabilities [N, K].

        An error is kept for `check`: a pass may be shared with the calls of other runs, which go on.
        """
        mine = self._rows[row]
        shaped = logprobs.reshape(mine.targets.shape)
        try:
            term, gradient = _loss(self._formula, mine.inputs, shaped, self._config, f"data[{row}]")
        except UserError as error:
            self._error = self._error or error
            return torch.zeros_like(logprobs)
        self._outputs[row], self._terms[row] = _output(shaped, term), term
        return _columns(gradient)

    def next_slots(self) -> int:
        """How many tokens the next portion computes."""
        return sum(group.slots(self._lengths) for group in self.portions[0])

    def add(self, gradients: Gradients) -> None:
        """Sum the gradients of the portions."""
        for name, gradient in gradients.items():
            self._total[name] = self._total[name] + gradient if name in self._total else gradient

    def check(self) -> None:
        """Raise what was wrong with the data of a portion."""
        if self._error is not None:
            raise self._error

    def finish(self) -> ForwardBackwardOutput:
        """The answer, once all portions are done."""
        self.check()
        if self.backward:
            _check_finite(self._total)
            self.adapter.accumulate(self._total)
        order = range(len(self._rows))
        return ForwardBackwardOutput(
            output_type(self._loss_fn),
            [self._outputs[i] for i in order],
            loss_metrics([self._terms[i] for i in order]),
        )


def train(
    call: TrainingCall, ready: list[TrainingCall], shares: Shares, limits: TrainLimits
) -> Work[ForwardBackwardOutput]:
    """The work of one call. Passes with room to spare take portions of other ``ready`` calls along."""
    base = call.adapter.base
    if base.decoder is None:
        return (yield from _train_padded(call, limits))
    ready.append(call)
    try:
        yield Pause.TURN_OVER  # calls that wait behind this one make themselves known
        while call.portions:
            calls = _taken_along(call, ready, shares, limits.tokens)
            for each in calls:
                shares.count(each.adapter.tenant, each.next_slots())
            yield from _packed(base.decoder, calls, limits)
            call.check()
            yield Pause.TURN_OVER
        return call.finish()
    finally:
        ready.remove(call)


def _taken_along(
    call: TrainingCall, ready: list[TrainingCall], shares: Shares, slots_at_once: int
) -> list[TrainingCall]:
    """The call and those others whose next portions still fit and are not ahead, first come first served."""
    taken, room = [call], slots_at_once - call.next_slots()
    for other in ready:
        if other is call or not other.portions or other.backward != call.backward:
            continue
        if other.adapter.base is not call.adapter.base or not shares.may_join(other.adapter.tenant.name):
            continue
        if other.next_slots() <= room:
            taken.append(other)
            room -= other.next_slots()
    return taken


def _packed(decoder: Decoder, calls: list[TrainingCall], limits: TrainLimits) -> Work[None]:
    """One pass over the next portion of every call."""
    runs = [RunRows(call.adapter.weights, call.tokens, call.targets, call.portions[0]) for call in calls]
    gradients = yield from packed_pass(
        decoder,
        runs,
        lambda run, row, logprobs: calls[run].loss(row, logprobs),
        backward=calls[0].backward,
        bytes_to_keep=limits.bytes_to_keep,
    )
    for call, mine in zip(calls, gradients, strict=True):
        call.add(mine)
        del call.portions[0]


def _train_padded(call: TrainingCall, limits: TrainLimits) -> Work[ForwardBackwardOutput]:
    """The same in the general way."""
    base, weights = call.adapter.base, call.adapter.weights
    for rows in padded_batches(call.tokens, limits.tokens):
        gradients = yield from padded_pass(
            base, weights, call.tokens, call.targets, rows, call.loss, backward=call.backward
        )
        call.check()
        call.add(gradients)
        yield Pause.TURN_OVER
    return call.finish()


def _loss(
    formula: LossFn, inputs: dict[str, Tensor], logprobs: Tensor, config: dict[str, float], where: str
) -> tuple[LossTerms, Tensor]:
    """The loss of one datum and its gradient by the log-probabilities."""
    with torch.enable_grad():
        leaf = logprobs.detach().requires_grad_()
        term = formula(leaf, inputs, config)
        (gradient,) = torch.autograd.grad(term.elementwise.sum(), leaf)
    if not (torch.isfinite(term.elementwise).all() and torch.isfinite(gradient).all()):
        raise UserError("the loss is not finite; check the magnitudes in loss_fn_inputs", field=where)
    ratio, active, clipped = (
        t.detach() if t is not None else None for t in (term.ratio, term.active, term.clipped)
    )
    return LossTerms(term.elementwise.detach(), ratio, active, clipped, term.metrics), gradient


def _output(logprobs: Tensor, term: LossTerms) -> LossFnOutput:
    output = {"logprobs": TensorData.from_torch(logprobs)}
    if term.elementwise.shape == logprobs.shape:  # a custom loss gives one number a datum
        output["elementwise_loss"] = TensorData.from_torch(term.elementwise)
    return output


def _as_row(datum: Datum, batch: ForwardBackwardInput, device: torch.device) -> _Row:
    spec = batch_spec(batch)
    used = [key for key in spec.required + spec.optional if key in datum.loss_fn_inputs]
    tensors = {key: datum.loss_fn_inputs[key].to_torch().to(device) for key in used}
    if batch.custom_loss is not None:  # which may read the targets too, and numbers that are whole
        return _Row(tensors["target_tokens"], tensors)
    targets = tensors.pop("target_tokens")
    return _Row(targets, {key: tensor.float() for key, tensor in tensors.items()})


def _columns(tensor: Tensor) -> Tensor:
    return tensor if tensor.ndim == 2 else tensor[:, None]


def _check_finite(gradients: Gradients) -> None:
    if not np.isfinite(gradient_norm(gradients)):
        raise UserError(
            "the gradient is too large for float32; check the magnitudes in loss_fn_inputs", field="data"
        )
