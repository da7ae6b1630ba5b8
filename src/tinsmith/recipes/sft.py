"""Supervised fine-tuning: show the model examples until it answers like them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import tinsmith


@dataclass(frozen=True, slots=True)
class Step:
    """What one optimizer step saw."""

    number: int
    loss: float  # mean over the answer's tokens
    tokens: int


def train(
    client: tinsmith.TrainingClient,
    data: Sequence[tinsmith.Datum],
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    seed: int = 0,
) -> Iterator[Step]:
    """One optimizer step a batch, the learning rate falling linearly to zero.

    Each batch is sent before the one before it has been answered, so the service never waits for us.
    """
    batches = list(_batches(data, epochs, batch_size, seed))
    in_flight = None
    for number, batch in enumerate(batches, start=1):
        rate = learning_rate * (1 - (number - 1) / len(batches))
        submitted = (
            number,
            batch,
            client.forward_backward(batch, "cross_entropy"),
            client.optim_step(tinsmith.AdamParams(learning_rate=rate)),
        )
        if in_flight is not None:
            yield _finish(*in_flight)
        in_flight = submitted
    if in_flight is not None:
        yield _finish(*in_flight)


def _batches(
    data: Sequence[tinsmith.Datum], epochs: int, batch_size: int, seed: int
) -> Iterator[list[tinsmith.Datum]]:
    order = random.Random(seed)
    for _ in range(epochs):
        shuffled = order.sample(list(data), len(data))
        for start in range(0, len(shuffled), batch_size):
            yield shuffled[start : start + batch_size]


def _finish(
    number: int,
    batch: list[tinsmith.Datum],
    loss: tinsmith.APIFuture[tinsmith.ForwardBackwardOutput],
    step: tinsmith.APIFuture[tinsmith.OptimStepResponse],
) -> Step:
    total = loss.result().metrics["loss:sum"]
    step.result()
    weight = sum(float(datum.loss_fn_inputs["weights"].data.sum()) for datum in batch)
    return Step(number, total / weight, sum(datum.model_input.length for datum in batch))
