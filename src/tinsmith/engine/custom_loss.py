"""Carrying out a custom loss: its graph, node by node, over the log-probabilities and inputs of one datum.

Names in a graph are looked up in the tables below and nowhere else. Before a node is computed the size of its
result is known, and all results of one datum together stay within a budget of elements.
"""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tinsmith.types import ForwardBackwardInput, UserError
from tinsmith.types import custom_loss_operations as named
from tinsmith.types.custom_loss import CustomLoss, CustomLossNode

from .losses import LOSS_FNS, Config, Inputs, LossFn, LossTerms

MOST_ELEMENTS = 2**26  # computed for one datum, all nodes together
_MOST_INT = 2**63
_LARGEST_EXPONENT = 64

Arguments = Sequence[Any]
Bound = Callable[[Arguments], int]


@dataclass(frozen=True, slots=True)
class Operation:
    """What a name means, and at most how many elements come out."""

    function: Callable[..., Any]
    bound: Bound


# -- how many elements come out -------------------------------------------------------------------------


def _tensors(values: Any) -> list[Tensor]:
    if isinstance(values, Tensor):
        return [values]
    if isinstance(values, list | tuple):
        return [tensor for value in values for tensor in _tensors(value)]
    return []


def _broadcast(arguments: Arguments) -> int:
    shapes = [tensor.shape for tensor in _tensors(arguments)]
    shape: torch.Size = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    return math.prod(shape)


def _largest(arguments: Arguments) -> int:
    return max((tensor.numel() for tensor in _tensors(arguments)), default=1)


def _all(arguments: Arguments) -> int:
    return sum(tensor.numel() for tensor in _tensors(arguments))


def _product(arguments: Arguments) -> int:
    """[..., N, K] by [K, M]: as many multiplications as it takes, N * K * M."""
    first, second = _two_tensors(arguments)
    rows, columns = math.prod(first.shape[:-1]), math.prod(second.shape[:-2]) * math.prod(second.shape[-1:])
    return int(rows * columns * max(1, *first.shape[-1:]))


def _range(arguments: Arguments) -> int:
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


def _picked(arguments: Arguments) -> int:
    value, index = arguments
    if not isinstance(value, Tensor):
        return _largest([value])
    parts = index if isinstance(index, tuple) else (index,)
    if any(isinstance(part, list) for part in parts):
        raise TypeError("index with numbers, slices or tensors, not lists")
    by_number = [part for part in _tensors(parts) if part.dtype != torch.bool]
    if not by_number:
        return value.numel()
    if len(by_number) != len(parts):
        raise TypeError("index with tensors of numbers alone, or with none")
    return _broadcast(by_number) * math.prod(value.shape[len(parts) :])


def _flat(arguments: Arguments) -> list[Any]:
    tensor, *sizes = arguments
    return [tensor, *(sizes[0] if len(sizes) == 1 and isinstance(sizes[0], list | tuple) else sizes)]


# -- what operators and the rest do ---------------------------------------------------------------------


def _two_tensors(arguments: Arguments) -> tuple[Tensor, Tensor]:
    tensors = _tensors(arguments)
    if len(tensors) != 2:
        raise TypeError("takes two tensors")
    return tensors[0], tensors[1]


def _of_numbers_or_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Python would also add up lists and repeat strings, as often as it is told to."""

    def guarded(*arguments: Any) -> Any:
        for value in arguments:
            if not isinstance(value, Tensor | bool | int | float):
                raise TypeError(f"takes tensors and numbers, not {type(value).__name__}")
        return function(*arguments)

    return guarded


def _of_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(value: Any) -> Any:
        if not isinstance(value, int | float):
            raise TypeError("takes a number; use the function of torch for tensors")
        return function(value)

    return guarded


def _never_in_place(function: Callable[..., Any]) -> Callable[..., Any]:
    """Some functions would write into their argument if they were told to, by name or by place."""
    signature = inspect.signature(function)

    def guarded(*arguments: Any, **named_arguments: Any) -> Any:
        if signature.bind(*arguments, **named_arguments).arguments.get("inplace"):
            raise ValueError("inplace is not possible; use the result")
        return function(*arguments, **named_arguments)

    return guarded


def _power(base: Any, exponent: Any) -> Any:
    if not _tensors([base, exponent]) and abs(exponent) > _LARGEST_EXPONENT:
        raise ValueError(f"exponents of numbers are at most {_LARGEST_EXPONENT}")
    return operator.pow(base, exponent)


def _arange(start: float, end: float | None = None, *, dtype: torch.dtype | None = None) -> Tensor:
    """In steps of one."""
    return torch.arange(*((start,) if end is None else (start, end)), dtype=dtype)


def _attribute(tensor: Any, name: str) -> Any:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} is an attribute of tensors")
    return _ATTRIBUTES[name](tensor)


def _to(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if not isinstance(dtype, torch.dtype):
        raise TypeError("takes a dtype; where it is computed is the service's affair")
    return tensor.to(dtype)


_ATTRIBUTES: dict[str, Callable[[Tensor], Any]] = {
    "shape": lambda tensor: tensor.shape,
    "ndim": lambda tensor: tensor.ndim,
    "dtype": lambda tensor: tensor.dtype,
    "T": lambda tensor: tensor.T,
}
assert tuple(_ATTRIBUTES) == named.ATTRIBUTES
# What would write into its argument gives a new value here: that is all a graph can see of it.
_OPERATOR_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "iadd": operator.add,
    "isub": operator.sub,
    "imul": operator.mul,
    "itruediv": operator.truediv,
    "pow": _power,
}
_BOUNDS: list[tuple[frozenset[str], Bound]] = [
    (named.ELEMENTWISE, _broadcast),
    (named.FUNCTIONAL, _broadcast),
    (named.SHRINKING | named.LIKE | named.METHODS_ONLY, _largest),
    (named.JOINING, _all),
    (named.PRODUCTS, _product),
    (named.RANGES, _range),
    (frozenset({"expand"}), _expanded),
    (frozenset({"repeat"}), _repeated),
]


def _bound_of(name: str) -> Bound:
    return next(bound for names, bound in _BOUNDS if name in names)


def _functions() -> dict[str, Operation]:
    table = {"getattr": Operation(_attribute, _largest)}
    for name, short in named.NATIVE.items():
        table[name] = Operation(_functional(short), _broadcast)
    for name in named.FUNCTIONS:
        room, _, short = name.rpartition(".")
        if room == "torch":
            table[name] = Operation(getattr(torch, short), _bound_of(short))
        elif room == "torch.nn.functional":
            table[name] = Operation(_functional(short), _broadcast)
        elif room == "math":
            table[name] = Operation(_of_numbers(getattr(math, short)), _largest)
        elif room == "operator":
            function = _OPERATOR_FUNCTIONS.get(short) or getattr(operator, short)
            table[name] = Operation(_of_numbers_or_tensors(function), _broadcast)
    table["torch.arange"] = Operation(_arange, _range)
    table["operator.getitem"] = Operation(operator.getitem, _picked)
    table["operator.matmul"] = Operation(operator.matmul, _product)
    return table


def _functional(name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(torch.nn.functional, name)
    return function if name in named.NATIVE.values() else _never_in_place(function)


def _methods() -> dict[str, Operation]:
    table = {name: Operation(getattr(Tensor, name), _bound_of(name)) for name in named.METHODS}
    table["to"] = Operation(_to, _largest)
    return table


# The names come from the closed lists above, never from a graph.
FUNCTIONS, METHODS = _functions(), _methods()
_DTYPES = {name: getattr(torch, name) for name in named.DTYPES}


# -- carrying it out ------------------------------------------------------------------------------------

_CONSTANTS: dict[str, Callable[[Any], Any]] = {
    "ellipsis": lambda _: Ellipsis,
    "float": float,
    "dtype": _DTYPES.__getitem__,
}


class TracedLoss:
    """A `LossFn` that carries out a graph."""

    def __init__(self, loss: CustomLoss) -> None:
        self._loss = loss

    def __call__(self, logprobs: Tensor, inputs: Inputs, _config: Config) -> LossTerms:
        values: dict[str, Any] = {}
        budget = MOST_ELEMENTS
        for node in self._loss.nodes:
            if node.op == "placeholder":
                values[node.name] = logprobs if node.target == "logprobs" else inputs[node.target]
            elif node.op == "output":
                return self._terms(_resolved(node.args[0], values))
            else:
                budget -= self._carry_out(node, values, budget)
        raise AssertionError("a checked graph ends with its output")

    def _carry_out(self, node: CustomLossNode, values: dict[str, Any], budget: int) -> int:
        """Compute one node; gives how many elements it took of the budget."""
        operation = METHODS[node.target] if node.op == "call_method" else FUNCTIONS[node.target]
        try:
            arguments = _resolved(node.args, values)
            named_arguments = {key: _resolved(value, values) for key, value in node.kwargs.items()}
            taken = operation.bound([*arguments, *named_arguments.values()])
            if taken > budget:
                raise ValueError(f"more than {MOST_ELEMENTS} elements would be computed for one datum")
            values[node.name] = _checked(operation.function(*arguments, **named_arguments))
        except (RuntimeError, TypeError, ValueError, IndexError, ArithmeticError, AttributeError) as error:
            first_line = str(error).partition("\n")[0][:300]
            raise UserError(first_line, field=self._where(node)) from error
        return max(1, taken)

    def _where(self, node: CustomLossNode) -> str:
        return f"custom loss {self._loss.name!r}, node {node.name!r} ({node.target})"

    def _terms(self, result: tuple[Any, dict[str, Any]]) -> LossTerms:
        loss, metrics = result
        for what, value in (("the loss", loss), *metrics.items()):
            if not isinstance(value, Tensor) or value.ndim != 0:
                shape = f"shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
                raise UserError(
                    f"{what} must be a tensor of one number, not {shape}",
                    field=f"custom loss {self._loss.name!r}",
                )
        if not loss.requires_grad:
            raise UserError("does not depend on logprobs", field=f"custom loss {self._loss.name!r}")
        return LossTerms(loss, metrics={key: float(value.detach()) for key, value in metrics.items()})


def _resolved(value: Any, values: Mapping[str, Any]) -> Any:
    """An argument as it was before it was written down."""
    if isinstance(value, list):
        return [_resolved(inner, values) for inner in value]
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "ref":
        return values[inner]
    if kind == "tuple":
        return tuple(_resolved(each, values) for each in inner)
    if kind == "slice":
        return slice(*(_resolved(each, values) for each in inner))
    if kind == "dict":
        return {key: _resolved(each, values) for key, each in inner.items()}
    return _CONSTANTS[kind](inner)


def _checked(value: Any) -> Any:
    if type(value) is int and abs(value) >= _MOST_INT:
        raise ValueError("a number does not fit into 64 bits")
    return value


def loss_function(batch: ForwardBackwardInput) -> LossFn:
    """The formula of a batch: a built-in one, or the graph the service put beside it."""
    return LOSS_FNS[batch.loss_fn] if batch.custom_loss is None else TracedLoss(batch.custom_loss)
