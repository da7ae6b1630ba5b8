"""A loss its user traced into a graph of operations, and what such a graph may look like."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from .base import Reply, Request
from .custom_loss_operations import (
    ATTRIBUTES,
    CONSTANT_KINDS,
    DTYPES,
    FUNCTIONS,
    KEYWORDS,
    METHODS,
    SPECIAL_FLOATS,
)
from .errors import UserError

_UINT31 = 2**31 - 1
MOST_NODES = 1000
MOST_INPUTS = 16
_MOST_ELEMENTS = 2**24  # computed for one datum, all nodes together,
_ELEMENTS_A_POSITION = 2**14  # and for each of its positions: a step of many short datums is bounded too
_MOST_VALUES = 256  # in the arguments of one node
_DEEPEST = 8
_INPUT_NAME = re.compile(r"[a-z_][a-z0-9_]{0,63}")
_METRIC = re.compile(r"custom/[a-z0-9_./-]{1,64}:(sum|mean)")


class CustomLossInput(Request):
    """One parameter of the loss: a scalar (rank 0), [N] or [N, K]."""

    name: str
    rank: Literal[0, 1, 2]


class CustomLossNode(Request):
    """One operation; its arguments refer to earlier nodes by name."""

    op: Literal["placeholder", "get_attr", "call_function", "call_method", "call_module", "output"]
    name: str = Field(min_length=1, max_length=256)
    target: str = Field(max_length=256)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}


class CustomLossGraph(Request):
    """The operations in the order they are carried out."""

    format: Literal[1] = 1
    nodes: list[CustomLossNode] = Field(max_length=MOST_NODES)


class CreateCustomLossRequest(Request):
    """Makes a loss that batches of this session can name."""

    session_id: str
    custom_loss_seq_id: int = Field(ge=0, le=_UINT31)
    name: str = Field(max_length=256)
    inputs: list[CustomLossInput] = Field(min_length=1, max_length=MOST_INPUTS)
    graph: CustomLossGraph
    type: Literal["create_custom_loss"] = "create_custom_loss"


class CreateCustomLossResponse(Reply):
    """What to call the loss by."""

    loss_id: str
    type: Literal["create_custom_loss"] = "create_custom_loss"


@dataclass(frozen=True, slots=True)
class CustomLoss:
    """A loss that was checked: what the engine carries out, datum by datum."""

    name: str
    inputs: tuple[CustomLossInput, ...]  # the log-probabilities first
    nodes: tuple[CustomLossNode, ...]

    @property
    def input_names(self) -> tuple[str, ...]:
        """The loss_fn_inputs it reads."""
        return tuple(each.name for each in self.inputs[1:])


def custom_loss_budget(positions: int) -> int:
    """How many elements a loss may compute for a datum of so many positions."""
    return min(_MOST_ELEMENTS, _ELEMENTS_A_POSITION * max(1, positions))


def checked_loss(request: CreateCustomLossRequest) -> CustomLoss:
    """The loss, or an error that names the node and what is wrong with it."""
    _check_inputs(request.inputs)
    nodes = request.graph.nodes
    _check_frame(request.inputs, nodes)
    known: set[str] = set()
    for at, node in enumerate(nodes):
        where = f"graph.nodes[{at}] ({node.name})"
        _CHECKS[node.op](node, where)
        for value in _values(node, where):
            _check_value(value, known, where)
        if node.name in known:
            raise UserError("the name is taken by an earlier node", field=where)
        known.add(node.name)
    _check_output(nodes[-1], f"graph.nodes[{len(nodes) - 1}] (output)")
    return CustomLoss(request.name, tuple(request.inputs), tuple(nodes))


def _check_inputs(inputs: list[CustomLossInput]) -> None:
    if inputs[0].name != "logprobs" or inputs[0].rank == 0:
        raise UserError("the first input is logprobs, of rank 1 or 2", field="inputs[0]")
    seen: set[str] = set()
    for at, each in enumerate(inputs):
        if not _INPUT_NAME.fullmatch(each.name) or each.name in seen:
            raise UserError(
                f"{each.name[:80]!r}: use lower-case names, each once", field=f"inputs[{at}].name"
            )
        seen.add(each.name)


def _check_frame(inputs: list[CustomLossInput], nodes: list[CustomLossNode]) -> None:
    """Parameters first, in order; one output, last."""
    begins = [node.target for node in nodes if node.op == "placeholder"]
    if begins != [each.name for each in inputs] or any(
        node.op != "placeholder" for node in nodes[: len(inputs)]
    ):
        raise UserError("the graph must begin with a placeholder for each input, in order", field="graph")
    outputs = [at for at, node in enumerate(nodes) if node.op == "output"]
    if outputs != [len(nodes) - 1]:
        raise UserError("the graph must end with its one output", field="graph")


def _check_function(node: CustomLossNode, where: str) -> None:
    if node.target not in FUNCTIONS:
        raise UserError(f"{node.target!r} is not among the functions a loss may call", field=where)
    if node.target == "getattr" and (len(node.args) != 2 or node.args[1] not in ATTRIBUTES):
        raise UserError(f"only {', '.join(ATTRIBUTES)} of a tensor may be asked for", field=where)


def _check_method(node: CustomLossNode, where: str) -> None:
    if node.target not in METHODS:
        raise UserError(f"{node.target!r} is not among the methods a loss may call", field=where)


def _check_nothing(node: CustomLossNode, where: str) -> None:
    """Arguments are checked for all alike."""


def _check_placeholder(node: CustomLossNode, where: str) -> None:
    if node.args or node.kwargs:
        raise UserError("a parameter has no default", field=where)


def _refuse(node: CustomLossNode, where: str) -> None:
    raise UserError(
        f"{node.op} is not possible: a loss has neither modules nor tensors of its own; make them inputs",
        field=where,
    )


_CHECKS = {
    "placeholder": _check_placeholder,
    "call_function": _check_function,
    "call_method": _check_method,
    "get_attr": _refuse,
    "call_module": _refuse,
    "output": _check_nothing,
}


def _values(node: CustomLossNode, where: str) -> Iterator[Any]:
    """Every value in a node's arguments; too many, or nested too deep, are refused."""
    for key in node.kwargs:
        if key not in KEYWORDS:
            raise UserError(f"{key[:80]!r} is not among the keywords a loss may use", field=where)
    level: list[Any] = [*node.args, *node.kwargs.values()]
    count = 0
    for _ in range(_DEEPEST):
        count += len(level)
        if count > _MOST_VALUES:
            raise UserError(f"more than {_MOST_VALUES} values in its arguments", field=where)
        yield from level
        level = [inner for value in level for inner in _inside(value)]
        if not level:
            return
    raise UserError(f"its arguments are nested more than {_DEEPEST} deep", field=where)


def _inside(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    if isinstance(value, dict) and len(value) == 1:
        ((kind, inner),) = value.items()
        if kind in ("tuple", "slice") and isinstance(inner, list):
            return inner
        if kind == "dict" and isinstance(inner, dict):
            return list(inner.values())
    return []


def _check_value(value: Any, known: set[str], where: str) -> None:
    if value is None or isinstance(value, bool | int | float | str | list):
        if type(value) is int and not -(2**63) <= value < 2**63:
            raise UserError(f"{str(value)[:40]} does not fit into 64 bits", field=where)
        return
    if not isinstance(value, dict) or len(value) != 1:
        raise UserError(f"{str(value)[:80]} is no argument in format 1", field=where)
    ((kind, inner),) = value.items()
    if kind == "ref":
        if not isinstance(inner, str) or inner not in known:
            raise UserError(f"it refers to {str(inner)[:80]!r}, which is no earlier node", field=where)
        return
    right = {
        "tuple": isinstance(inner, list),
        "dict": isinstance(inner, dict),
        "slice": isinstance(inner, list) and len(inner) == 3,
        "ellipsis": inner is True,
        "float": inner in SPECIAL_FLOATS if isinstance(inner, str) else False,
        "dtype": inner in DTYPES if isinstance(inner, str) else False,
    }
    if kind not in right:
        raise UserError(
            f"{str(kind)[:80]!r} arguments are not possible; use {', '.join(CONSTANT_KINDS)}", field=where
        )
    if not right[kind]:
        raise UserError(f"{str(inner)[:80]} is no {kind}", field=where)


def _check_output(node: CustomLossNode, where: str) -> None:
    """(loss, {metric: tensor}), all of them results of earlier nodes."""
    result = node.args[0] if len(node.args) == 1 else None
    pair = result.get("tuple") if isinstance(result, dict) else result
    if not isinstance(pair, list) or len(pair) != 2 or not _is_reference(pair[0]):
        raise UserError("the loss must return (loss, metrics)", field=where)
    metrics = pair[1].get("dict") if isinstance(pair[1], dict) else None
    if not isinstance(metrics, dict):
        raise UserError("the metrics must be a dict", field=where)
    for key, value in metrics.items():
        if not _METRIC.fullmatch(key):
            raise UserError(f"metric {key[:80]!r}: use custom/<name>:sum or custom/<name>:mean", field=where)
        if not _is_reference(value):
            raise UserError(f"metric {key[:80]!r} must be a tensor", field=where)


def _is_reference(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"ref"}
