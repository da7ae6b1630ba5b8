"""A custom loss by handle: traced once with torch.fx, checked, and written down as a graph of operations."""

from __future__ import annotations

import functools
import inspect
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tinsmith.types import Datum, UserError
from tinsmith.types.custom_loss import (
    MOST_INPUTS,
    CreateCustomLossRequest,
    CustomLossGraph,
    CustomLossInput,
    CustomLossNode,
    checked_loss,
)
from tinsmith.types.custom_loss_operations import FUNCTIONS

from .custom_loss import as_float, require_torch

if TYPE_CHECKING:
    import torch

# A loss of one datum: (logprobs, *the loss_fn_inputs it reads) -> (scalar, {"custom/name:sum|mean": scalar}).
PerDatumLossFn = Callable[..., "tuple[torch.Tensor, Mapping[str, torch.Tensor]]"]


@dataclass(frozen=True, slots=True)
class LossHandle:
    """A loss made with `ServiceClient.create_custom_loss`; `forward_backward_custom` takes it.

    With a ``loss_id`` it runs on the service; without one, here, from the same traced graph.

    >>> def loss(logprobs, weights):
    ...     total = -(logprobs * weights).sum()
    ...     return total, {"custom/nll:sum": total}
    >>> handle = service.create_custom_loss(loss, {"logprobs": 1, "weights": 1}).result()
    >>> isinstance(handle, LossHandle)
    True
    >>> training.forward_backward_custom([DATUM], handle).result().metrics["custom/nll:sum"] > 0
    True
    """

    name: str
    inputs: tuple[CustomLossInput, ...]  # the log-probabilities first
    session_id: str
    graph: Any = field(repr=False, compare=False)  # torch.fx.GraphModule
    loss_id: str | None = None

    @property
    def input_names(self) -> tuple[str, ...]:
        """The loss_fn_inputs it reads."""
        return tuple(each.name for each in self.inputs[1:])

    @property
    def key(self) -> str:
        """What tells this loss from another: its name and what it reads."""
        return ":".join((self.name, *(f"{each.name}/{each.rank}" for each in self.inputs)))

    def check(self, data: list[Datum], session_id: str) -> None:
        """Refuse data it cannot be used on."""
        if session_id != self.session_id:
            raise ValueError(f"loss_fn: {self.name!r} belongs to another session; create it in this one")
        for at, datum in enumerate(data):
            for name in ("target_tokens", *self.input_names):
                if name not in datum.loss_fn_inputs:
                    raise ValueError(f"data[{at}].loss_fn_inputs[{name!r}]: missing; {self.name} reads it")

    def locally(self, data: list[Datum], logprobs: list[Any]) -> tuple[Any, dict[str, float]]:
        """The loss of a batch: datum by datum, summed; metrics summed or averaged as their names say."""
        losses, metrics = [], []
        for datum, values in zip(data, logprobs, strict=True):
            inputs = [datum.loss_fn_inputs[name].to_torch() for name in self.input_names]
            loss, told = self.graph(values, *inputs)
            losses.append(loss)
            metrics.append({key: as_float(value) for key, value in told.items()})
        torch = require_torch()
        return torch.stack(losses).sum(), _reduced(metrics)


def _reduced(metrics: list[dict[str, float]]) -> dict[str, float]:
    reduced = {}
    for key in metrics[0]:
        values = [each[key] for each in metrics]
        reduced[key] = sum(values) / (len(values) if key.endswith(":mean") else 1)
    return reduced


def trace(
    fn: PerDatumLossFn, input_ranks: Mapping[str, int], session_id: str, seq_id: int
) -> tuple[CreateCustomLossRequest, Any]:
    """The request that makes the loss, and the graph it was traced into; a refusal names what is wrong."""
    inputs = _inputs(fn, input_ranks)
    require_torch()
    import torch.fx

    try:
        module = torch.fx.symbolic_trace(fn)
    except Exception as error:  # whatever the user's own code does with the stand-ins for its tensors
        raise ValueError(
            f"fn: cannot be traced ({error}); use torch operations only, and no `if` or `for` on values"
        ) from error
    request = CreateCustomLossRequest(
        session_id=session_id,
        custom_loss_seq_id=seq_id,
        name=getattr(fn, "__name__", type(fn).__name__)[:256],
        inputs=inputs,
        graph=CustomLossGraph(nodes=[_node(node) for node in module.graph.nodes]),
    )
    try:
        checked_loss(request)
    except UserError as error:
        raise ValueError(f"fn: {error}") from error
    return request, module


def _inputs(fn: PerDatumLossFn, input_ranks: Mapping[str, int]) -> list[CustomLossInput]:
    parameters = inspect.signature(fn).parameters
    for name, parameter in parameters.items():
        if parameter.default is not parameter.empty or parameter.kind not in (
            parameter.POSITIONAL_ONLY,
            parameter.POSITIONAL_OR_KEYWORD,
        ):
            raise ValueError(f"fn: {name} must be a positional parameter without a default")
    if not 0 < len(parameters) <= MOST_INPUTS:
        raise ValueError(f"fn: takes {len(parameters)} parameters; 1 to {MOST_INPUTS} are possible")
    if set(input_ranks) != set(parameters):
        raise ValueError(
            f"input_ranks: must give a rank for each of {', '.join(parameters)}, "
            f"not for {', '.join(input_ranks) or 'none'}"
        )
    for name, rank in input_ranks.items():
        if rank not in (0, 1, 2) or isinstance(rank, bool):
            raise ValueError(f"input_ranks[{name!r}]: {rank!r} is not 0, 1 or 2")
    return [CustomLossInput.model_validate({"name": name, "rank": input_ranks[name]}) for name in parameters]


# ---- the graph in format 1 ----------------------------------------------------------------------------


def _node(node: Any) -> CustomLossNode:
    target = node.target if isinstance(node.target, str) else _function_name(node.target)
    return CustomLossNode(
        op=node.op,
        name=node.name,
        target=target,
        args=[_argument(value) for value in node.args],
        kwargs={key: _argument(value) for key, value in node.kwargs.items()},
    )


def _function_name(function: Any) -> str:
    name = _names_of_functions().get(function)
    if name is None:
        where = f"{getattr(function, '__module__', '')}.{getattr(function, '__name__', function)}"
        raise ValueError(f"fn: calls {where}, which is not among the functions a loss may call")
    return name


@functools.cache
def _names_of_functions() -> dict[Any, str]:
    """The closed list the other way round: what each function is called on the wire."""
    torch = require_torch()
    roots = {"torch": torch, "math": math, "operator": operator}
    named: dict[Any, str] = {getattr: "getattr"}
    for name in sorted(FUNCTIONS - {"getattr"}):
        first, *rest = name.split(".")
        found = functools.reduce(lambda at, part: getattr(at, part, None), rest, roots[first])
        if found is not None:
            named.setdefault(found, name)
    return named


def _argument(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, list):
        return [_argument(each) for each in value]
    if isinstance(value, tuple):
        return {"tuple": [_argument(each) for each in value]}
    if isinstance(value, dict):
        return {"dict": {str(key): _argument(each) for key, each in value.items()}}
    if isinstance(value, slice):
        return {"slice": [_argument(each) for each in (value.start, value.stop, value.step)]}
    if value is Ellipsis:
        return {"ellipsis": True}
    torch = require_torch()
    if isinstance(value, torch.fx.Node):
        return {"ref": value.name}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    raise ValueError(f"fn: an argument of type {type(value).__name__} cannot be written down")
