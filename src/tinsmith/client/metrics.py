"""The results of the chunks of one call, made into the result of the call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tinsmith.types import ForwardBackwardOutput

Values = Sequence[float]
Weights = Sequence[int]


def combine(results: Sequence[ForwardBackwardOutput]) -> ForwardBackwardOutput:
    """Outputs one after the other, metrics reduced; the first chunk names the type."""
    return ForwardBackwardOutput(
        results[0].loss_fn_output_type,
        [output for result in results for output in result.loss_fn_outputs],
        reduce_metrics(
            [result.metrics for result in results], [len(result.loss_fn_outputs) for result in results]
        ),
    )


def reduce_metrics(metrics: Sequence[Mapping[str, float]], weights: Weights) -> dict[str, float]:
    """Each metric by the reduction its name ends in, as the official client does it.

    The first chunk's keys count; one missing in any other chunk is dropped, as is an unknown
    reduction. Unlike there, a key that is not ``name:reduction`` is passed on from the first chunk.

    >>> reduce_metrics([{"loss:sum": 1.0}, {"loss:sum": 2.0}], [1, 1])
    {'loss:sum': 3.0}
    """
    reduced: dict[str, float] = {}
    for key, first in metrics[0].items():
        if key.count(":") != 1:
            reduced[key] = first
        elif all(key in chunk for chunk in metrics):
            values = [chunk[key] for chunk in metrics]
            reduced |= _reduce(key, values, weights)
    return reduced


def _reduce(key: str, values: Values, weights: Weights) -> dict[str, float]:
    reduction = key.partition(":")[2]
    if reduction == "unique":
        return {key if at == 0 else f"{key}_{at}": value for at, value in enumerate(values)}
    if reduction in _REDUCTIONS:
        return {key: _REDUCTIONS[reduction](values, weights)}
    return {}


def _mean(values: Values, weights: Weights) -> float:
    total = sum(weights)
    if total == 0:  # no outputs anywhere: every chunk counts the same
        return sum(values) / len(values)
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / total


def _slack(values: Values, weights: Weights) -> float:
    return max(values) - _mean(values, weights)


def _hash_unordered(values: Values, weights: Weights) -> float:
    return hash(tuple(sorted(int(value) for value in values)))


def _hash2(values: Values, weights: Weights) -> float:
    return sum(int(value) for value in values) % 2**64


_REDUCTIONS: dict[str, Callable[[Values, Weights], float]] = {
    "mean": _mean,
    "sum": lambda values, weights: sum(values),
    "min": lambda values, weights: min(values),
    "max": lambda values, weights: max(values),
    "slack": _slack,
    "hash_unordered": _hash_unordered,
    "hash2": _hash2,
}
