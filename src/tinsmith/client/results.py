"""What the result of each kind of operation looks like on the wire, and how an answer to a poll is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from tinsmith.types import (
    ForwardBackwardOutput,
    LoadWeightsResponse,
    OptimStepResponse,
    SampleResponse,
    SaveWeightsResponse,
    UserError,
)
from tinsmith.types.transfer import SaveWeightsExternalResponse
from tinsmith.wire import json as wire_json
from tinsmith.wire import protobuf as wire_protobuf

from .errors import RequestFailedError, RetrieveError
from .replies import CreateModelResult, LossMade, SnapshotResult
from .transport import Response

_T = TypeVar("_T")
_M = TypeVar("_M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Kind(Generic[_T]):
    """One kind of operation: its name on the wire and the readers of its result."""

    name: str
    from_json: Callable[[Any], _T]
    from_protobuf: Callable[[bytes], _T] | None = None


def _model(name: str, model: type[_M]) -> Kind[_M]:
    return Kind(name, lambda value: wire_json.parse_model(model, value))


CREATE_MODEL = _model("CreateModel", CreateModelResult)
OPTIM_STEP = _model("OptimStep", OptimStepResponse)
SAVE_WEIGHTS = _model("SaveWeights", SaveWeightsResponse)
LOAD_WEIGHTS = _model("LoadWeights", LoadWeightsResponse)
SAVE_EXTERNAL = _model("SaveWeightsExternal", SaveWeightsExternalResponse)
CREATE_LOSS = _model("CreateCustomLoss", LossMade)
UNLOAD: Kind[None] = Kind("UnloadModel", lambda value: None)
SNAPSHOT = _model("SaveWeightsForSampler", SnapshotResult)
FORWARD: Kind[ForwardBackwardOutput] = Kind(
    "Forward", wire_json.forward_backward_output_from_json, wire_protobuf.decode_forward_backward_output
)
FORWARD_BACKWARD: Kind[ForwardBackwardOutput] = Kind(
    "ForwardBackward",
    wire_json.forward_backward_output_from_json,
    wire_protobuf.decode_forward_backward_output,
)
SAMPLE: Kind[SampleResponse] = Kind(
    "Sample", wire_json.sample_response_from_json, wire_protobuf.decode_sample_response
)


@dataclass(frozen=True, slots=True)
class Pending:
    """Not ready yet, and what holds it up."""

    queue_state: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Large:
    """Ready, and of this many bytes: ask again for the whole."""

    size: int


@dataclass(frozen=True, slots=True)
class Ready(Generic[_T]):
    """The result."""

    value: _T


def read_reply(response: Response, kind: Kind[_T], request_id: str) -> Pending | Large | Ready[_T]:
    """Read an answer to a poll; a failed operation raises RequestFailedError."""
    try:
        if kind.from_protobuf is not None and response.content_type == wire_protobuf.CONTENT_TYPE:
            return Ready(kind.from_protobuf(response.body))
        value = wire_json.loads(response.body)
        if isinstance(value, dict):
            if value.get("type") == "try_again":
                return pending_of(value)
            if value.get("status") == "complete_metadata":
                return Large(int(value.get("response_payload_size") or 0))
            if value.get("error") is not None:
                raise _failure(value, kind, request_id)
        return Ready(kind.from_json(value))
    except UserError as error:
        raise RetrieveError(
            f"the result of {kind.name} cannot be read: {error} [request {request_id}]", request_id
        ) from error


def pending_of(body: object) -> Pending:
    """The state in a 408's or a try_again's body; anything else says nothing."""
    fields = body if isinstance(body, dict) else {}
    state, reason = fields.get("queue_state"), fields.get("queue_state_reason")
    return Pending(state if isinstance(state, str) else None, reason if isinstance(reason, str) else None)


def _failure(value: dict[str, Any], kind: Kind[Any], request_id: str) -> RequestFailedError:
    message = f"{kind.name} failed: {value['error']} [request {request_id}]"
    return RequestFailedError(message, request_id, str(value.get("category")))
