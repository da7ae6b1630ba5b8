"""Carrying out a custom loss: its graph, node by node, over the log-probabilities and inputs of one datum.

Names in a graph are looked up in the tables below and nowhere else. Before a node is computed the size of its
result is known, and all results of one datum together stay within a budget of elements.
"""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tinsmith.types import ForwardBackwardInput, UserError
from tinsmith.types import custom_loss_operations as named
from tinsmith.types.custom_loss import CustomLoss, CustomLossNode, custom_loss_budget

from .custom_loss_bounds import Bound, bound_of, broadcast, largest, of_range, picked, product, tensors_in
from .losses import LOSS_FNS, Config, Inputs, LossFn, LossTerms

_MOST_INT = 2**63
_LARGEST_EXPONENT = 64


@dataclass(frozen=True, slots=True)
class Operation:
    """What a name means, and at most how many elements come out."""

    function: Callable[..., Any]
    bound: Bound


# -- what operators and the rest do ---------------------------------------------------------------------


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
    if not tensors_in([base, exponent]) and abs(exponent) > _LARGEST_EXPONENT:
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


def _functions() -> dict[str, Operation]:
    table = {"getattr": Operation(_attribute, largest)}
    for name, short in named.NATIVE.items():
        table[name] = Operation(_functional(short), broadcast)
    for name in named.FUNCTIONS:
        room, _, short = name.rpartition(".")
        if room == "torch":
            table[name] = Operation(getattr(torch, short), bound_of(short))
        elif room == "torch.nn.functional":
            table[name] = Operation(_functional(short), broadcast)
        elif room == "math":
            table[name] = Operation(_of_numbers(getattr(math, short)), largest)
        elif room == "operator":
            function = _OPERATOR_FUNCTIONS.get(short) or getattr(operator, short)
            table[name] = Operation(_of_numbers_or_tensors(function), broadcast)
    table["torch.arange"] = Operation(_arange, of_range)
    table["operator.getitem"] = Operation(operator.getitem, picked)
    table["operator.matmul"] = Operation(operator.matmul, product)
    return table


def _functional(name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(torch.nn.functional, name)
    return function if name in named.NATIVE.values() else _never_in_place(function)


def _methods() -> dict[str, Operation]:
    table = {name: Operation(getattr(Tensor, name), bound_of(name)) for name in named.METHODS}
    table["to"] = Operation(_to, largest)
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
        budget = custom_loss_budget(logprobs.numel())
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
                raise ValueError("more elements would be computed than a datum of this length may take")
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
