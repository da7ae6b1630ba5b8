"""Endpoints of samplers and of futures."""

from __future__ import annotations

from starlette.responses import Response

from tinsmith.service.futures import Outcome
from tinsmith.service.kinds import BULK_TO_JSON, KINDS
from tinsmith.types.requests import RetrieveFutureRequest
from tinsmith.wire import json, protobuf

from .call import Call, reply

_METADATA_FIRST_BYTES = 1 << 20  # larger results are announced by size to clients that ask for that


async def create_sampling_session(call: Call) -> Response:
    """A sampler of a base model or of saved weights."""
    session = call.service.sessions.active(call.owner, call.body.session_id)
    sampler_id = await call.service.samplers.create(session, call.body)
    return reply({"sampling_session_id": sampler_id, "type": "create_sampling_session"})


async def get_sampler(call: Call) -> Response:
    """What a sampler samples from."""
    return reply(await call.service.get_sampler(call.owner, call.path["sampler_id"]))


async def asample(call: Call) -> Response:
    """Accept a sample."""
    request_id, sequence_ids = await call.service.samplers.submit(call.owner, call.body)
    return reply({"request_id": request_id, "sample_sequence_ids": sequence_ids})


async def cancel_future(call: Call) -> Response:
    """Nobody waits for this sample any more."""
    call.service.samplers.cancel(call.owner, call.body.request_id)
    return reply({})


async def retrieve_future(call: Call) -> Response:
    """The result, held for until there is one; 408 says: not yet, ask again."""
    request: RetrieveFutureRequest = call.body
    outcome = await call.service.futures.wait(request.request_id, call.owner, call.service.settings.poll_hold)
    if outcome is None:
        return reply({"request_id": request.request_id, "queue_state": "active"}, 408)
    if outcome.error is not None:
        return reply({"error": outcome.error, "category": outcome.category})
    if not KINDS[outcome.kind].bulk_result:
        return Response(outcome.body, media_type=json.CONTENT_TYPE)
    return _bulk(call, outcome, request.allow_metadata_only)


def _bulk(call: Call, outcome: Outcome, allow_metadata_only: bool) -> Response:
    if call.accepts_protobuf:
        if allow_metadata_only and len(outcome.body) > _METADATA_FIRST_BYTES:
            return reply({"status": "complete_metadata", "response_payload_size": len(outcome.body)})
        return Response(outcome.body, media_type=protobuf.CONTENT_TYPE)
    result = KINDS[outcome.kind].result.decode(outcome.body)
    return reply(BULK_TO_JSON[outcome.kind](result))
