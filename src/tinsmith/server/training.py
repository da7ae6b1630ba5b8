"""Endpoints of training runs. Each accepts an operation and answers with its future."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from tinsmith.service.access import accept_load
from tinsmith.types import Forbidden, LoadWeightsRequest, UserError
from tinsmith.types.replies import FutureResponse
from tinsmith.wire import json, protobuf
from tinsmith.wire.protobuf import ForwardBackwardCall

from .call import Call, Malformed, reply
from .intake import read_body
from .transfers import weights_reader


def _future(request_id: str, model_id: str) -> Response:
    return reply(FutureResponse(request_id=request_id, model_id=model_id))


async def create_model(call: Call) -> Response:
    """A fresh adapter on a base model."""
    session = call.service.sessions.active(call.owner, call.body.session_id)
    request_id = await call.accepted(call.service.runs.create(session, call.body))
    return _future(request_id, request_id.rpartition(":")[0])


async def create_custom_loss(call: Call) -> Response:
    """A loss that batches of the session can name."""
    session = call.service.sessions.active(call.owner, call.body.session_id)
    request_id = await call.accepted(call.service.custom_losses.create(session, call.body))
    return reply(FutureResponse(request_id=request_id))


async def get_info(call: Call) -> Response:
    """What a run is."""
    return reply(await call.service.get_info(call.owner, call.body.model_id))


async def unload_model(call: Call) -> Response:
    """End a run."""
    model_id: str = call.body.model_id
    return _future(await call.accepted(call.service.runs.unload(call.owner, model_id)), model_id)


async def forward(call: Call) -> Response:
    """A loss without a gradient, in the JSON dialect."""
    return await _batch(call, forward_only=True)


async def forward_backward(call: Call) -> Response:
    """A loss and its gradient (or, with ``forward_only`` in protobuf, no gradient)."""
    return await _batch(call, forward_only=False)


async def _batch(call: Call, *, forward_only: bool) -> Response:
    body = await read_body(call)
    decoded = _decode(call, body, forward_only)
    kind = "forward" if decoded.forward_only else "forward_backward"
    request_id = await call.accepted(
        call.service.runs.submit(call.owner, decoded.model_id, decoded.seq_id, kind, decoded)
    )
    return _future(request_id, decoded.model_id)


def _decode(call: Call, body: bytes, forward_only: bool) -> ForwardBackwardCall:
    """The batch in either dialect. A refused one still uses up its seq id, as its client counts on."""
    try:
        if call.sent_protobuf:
            protobuf.check_size(body)
            return protobuf.decode_forward_backward(body)
        return json.forward_backward_from_json(json.loads_request(body), forward_only=forward_only)
    except UserError as error:
        address = protobuf.peek_address(body) if call.sent_protobuf else json.peek_address(body)
        consume(call, *address)
        raise Malformed(str(error)) from error


def consume(call: Call, model_id: Any, seq_id: Any) -> None:
    """Nothing will come under this seq id any more."""
    if isinstance(model_id, str) and type(seq_id) is int:
        call.service.runs.consume(call.owner, model_id, seq_id)


async def _submit(call: Call, kind: str) -> Response:
    request = call.body
    request_id = await call.accepted(
        call.service.runs.submit(call.owner, request.model_id, request.seq_id, kind, request)
    )
    return _future(request_id, request.model_id)


async def optim_step(call: Call) -> Response:
    """Apply the accumulated gradient."""
    return await _submit(call, "optim_step")


async def save_weights(call: Call) -> Response:
    """Save a checkpoint to resume from."""
    return await _submit(call, "save_weights")


async def load_weights(call: Call) -> Response:
    """Load a checkpoint into a run, or make a run from it."""
    request: LoadWeightsRequest = call.body
    try:
        call.body = accept_load(request, weights_reader(call))
    except Forbidden:
        consume(call, request.model_id, request.seq_id)
        raise
    if request.session_id is None:
        return await _submit(call, "load_weights")
    session = call.service.sessions.active(call.owner, request.session_id)
    request_id = await call.accepted(call.service.runs.create_from_checkpoint(session, call.body))
    return _future(request_id, request_id.rpartition(":")[0])


async def save_weights_for_sampler(call: Call) -> Response:
    """Take a snapshot to sample from."""
    return await _submit(call, "save_weights_for_sampler")


async def save_weights_external(call: Call) -> Response:
    """Save weights to be fetched file by file."""
    return await _submit(call, "save_weights_external")
