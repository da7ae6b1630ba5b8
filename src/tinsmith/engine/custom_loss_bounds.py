"""At most how many elements come out of an operation of a custom loss, told from its arguments alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tinsmith.types import custom_loss_operations as named

Arguments = Sequence[Any]
Bound = Callable[[Arguments], int]


def tensors_in(values: Any) -> list[Tensor]:
    """The tensors among values, and in lists among them."""
    if isinstance(values, Tensor):
        return [values]
    if isinstance(values, list | tuple):
        return [tensor for value in values for tensor in tensors_in(value)]
    return []


def broadcast(arguments: Arguments) -> int:
    """As many as the arguments have together, after broadcasting."""
    shapes = [tensor.shape for tensor in tensors_in(arguments)]
    shape: torch.Size = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    return math.prod(shape)


def largest(arguments: Arguments) -> int:
    """As many as the largest argument has."""
    return max((tensor.numel() for tensor in tensors_in(arguments)), default=1)


def _all(arguments: Arguments) -> int:
    return sum(tensor.numel() for tensor in tensors_in(arguments))


def product(arguments: Arguments) -> int:
    """[..., N, K] by [K, M]: as many multiplications as it takes, N * K * M."""
    first, second = _two_tensors(arguments)
    rows, columns = math.prod(first.shape[:-1]), math.prod(second.shape[:-2]) * math.prod(second.shape[-1:])
    return int(rows * columns * max(1, *first.shape[-1:]))


def of_range(arguments: Arguments) -> int:
    """From one number to another, in steps of one."""
    return math.ceil(sum(abs(value) for value in arguments if isinstance(value, int | float)))


def _expanded(arguments: Arguments) -> int:
    """To these sizes; -1 keeps the one there is, of at most all elements."""
    tensor, *sizes = _flat(arguments)
    return int(math.prod(abs(size) if size != -1 else 1 for size in sizes) * max(1, _kept(tensor, sizes)))


def _kept(tensor: Tensor, sizes: list[int]) -> int:
    offset = len(sizes) - tensor.ndim
    kept = (at - offset for at, size in enumerate(sizes) if size == -1 and at >= offset)
    return math.prod(tensor.shape[at] for at in kept)


def _repeated(arguments: Arguments) -> int:
    tensor, *times = _flat(arguments)
    return int(tensor.numel() * math.prod(times))


def picked(arguments: Arguments) -> int:
    """What an index picks; refuses the kinds of index of which it cannot be told."""
    value, index = arguments
    if not isinstance(value, Tensor):
        return largest([value])
    parts = index if isinstance(index, tuple) else (index,)
    if any(isinstance(part, list) for part in parts):
        raise TypeError("index with numbers, slices or tensors, not lists")
    by_number = [part for part in tensors_in(parts) if part.dtype != torch.bool]
    if not by_number:
        return value.numel()
    if len(by_number) != len(parts):
        raise TypeError("index with tensors of numbers alone, or with none")
    return broadcast(by_number) * math.prod(value.shape[len(parts) :])


def _flat(arguments: Arguments) -> list[Any]:
    tensor, *sizes = arguments
    return [tensor, *(sizes[0] if len(sizes) == 1 and isinstance(sizes[0], list | tuple) else sizes)]


def _two_tensors(arguments: Arguments) -> tuple[Tensor, Tensor]:
    tensors = tensors_in(arguments)
    if len(tensors) != 2:
        raise TypeError("takes two tensors")
    return tensors[0], tensors[1]


_BOUNDS: list[tuple[frozenset[str], Bound]] = [
    (named.ELEMENTWISE, broadcast),
    (named.FUNCTIONAL, broadcast),
    (named.SHRINKING | named.LIKE | named.METHODS_ONLY, largest),
    (named.JOINING, _all),
    (named.PRODUCTS, product),
    (named.RANGES, of_range),
    (frozenset({"expand"}), _expanded),
    (frozenset({"repeat"}), _repeated),
]


def bound_of(name: str) -> Bound:
    """The bound of a function or method of torch."""
    return next(bound for names, bound in _BOUNDS if name in names)
