"""A Python loss as the graph a client uploads (format 1), traced by torch.fx."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch.fx.node import Node, _get_qualified_name


def traced(loss: Callable[..., Any], ranks: dict[str, int]) -> dict[str, Any]:
    """What create_custom_loss takes, beside the session and its number."""
    nodes = [
        {
            "op": node.op,
            "name": node.name,
            "target": _target(node),
            "args": [_argument(value) for value in node.args],
            "kwargs": {key: _argument(value) for key, value in node.kwargs.items()},
        }
        for node in torch.fx.symbolic_trace(loss).graph.nodes
    ]
    inputs = [{"name": name, "rank": rank} for name, rank in ranks.items()]
    return {"name": loss.__name__, "inputs": inputs, "graph": {"format": 1, "nodes": nodes}}


def _target(node: Node) -> str:
    if node.op != "call_function":
        return str(node.target)
    name = _get_qualified_name(node.target)
    return name.replace("_operator.", "operator.", 1)


def _argument(value: Any) -> Any:
    if isinstance(value, Node):
        return {"ref": value.name}
    if isinstance(value, tuple):
        return {"tuple": [_argument(each) for each in value]}
    if isinstance(value, list):
        return [_argument(each) for each in value]
    if isinstance(value, dict):
        return {"dict": {key: _argument(each) for key, each in value.items()}}
    if isinstance(value, slice):
        return {"slice": [_argument(each) for each in (value.start, value.stop, value.step)]}
    if value is Ellipsis:
        return {"ellipsis": True}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return value
