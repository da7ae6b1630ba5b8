"""Endpoints of samplers and of futures."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack

from starlette.responses import Response

from tinsmith.service.futures import Outcome
from tinsmith.service.kinds import BULK_TO_JSON, KINDS
from tinsmith.service.streams import StreamFailed
from tinsmith.types import SampleDelta
from tinsmith.types.polling import JoinSamplingSessionResponse, RetrieveFuturesRequest
from tinsmith.types.replies import CreateSamplingSessionResponse, Empty, FutureResponse, PendingReply
from tinsmith.types.requests import RetrieveFutureRequest
from tinsmith.wire import json, protobuf, sample_events, sse

from .call import Call, reply
from .events import EventStream

_METADATA_FIRST_BYTES = 1 << 20  # larger results are announced by size to clients that ask for that


async def create_sampling_session(call: Call) -> Response:
    """A sampler of a base model or of saved weights."""
    session = call.service.sessions.active(call.owner, call.body.session_id)
    sampler_id = await call.service.samplers.create(session, call.body)
    return reply(CreateSamplingSessionResponse(sampling_session_id=sampler_id))


async def get_sampler(call: Call) -> Response:
    """What a sampler samples from."""
    return reply(await call.service.get_sampler(call.owner, call.path["sampler_id"]))


async def asample(call: Call) -> Response:
    """Accept a sample."""
    request_id, sequence_ids = await call.accepted(call.service.samplers.submit(call.owner, call.body))
    return reply(FutureResponse(request_id=request_id, sample_sequence_ids=sequence_ids))


async def sample_stream(call: Call) -> Response:
    """A sample as server-sent events, told while it is decoded; nothing of it is kept."""
    async with AsyncExitStack() as held:
        deltas = await held.enter_async_context(call.service.samplers.streaming(call.owner, call.body))
        return EventStream(_events(deltas), held.pop_all())


async def _events(deltas: AsyncGenerator[SampleDelta, None]) -> AsyncGenerator[sse.Event, None]:
    try:
        async for delta in deltas:
            for part in delta.sequences:
                yield sample_events.tokens_event(part)
    except StreamFailed as error:
        yield sample_events.failure_event(str(error), error.category)
    else:
        yield sample_events.DONE


async def cancel_future(call: Call) -> Response:
    """Nobody waits for this sample any more."""
    call.service.samplers.cancel(call.owner, call.body.request_id)
    return reply(Empty())


async def retrieve_future(call: Call) -> Response:
    """The result, held for until there is one; 408 says: not yet, ask again."""
    request: RetrieveFutureRequest = call.body
    outcome = await call.service.futures.wait(request.request_id, call.owner, call.service.settings.poll_hold)
    if outcome is None:
        return _pending(call, request.request_id)
    if outcome.error is not None:
        return reply({"error": outcome.error, "category": outcome.category})
    if not KINDS[outcome.kind].bulk_result:
        return Response(outcome.body, media_type=json.CONTENT_TYPE)
    return _bulk(call, outcome, request.allow_metadata_only)


def _pending(call: Call, request_id: str) -> Response:
    where = call.service.queue_state(request_id)
    pending = PendingReply(request_id=request_id, queue_state=where.state, queue_state_reason=where.reason)
    return reply(pending, 408)


def _bulk(call: Call, outcome: Outcome, allow_metadata_only: bool) -> Response:
    if call.accepts_protobuf:
        if allow_metadata_only and len(outcome.body) > _METADATA_FIRST_BYTES:
            return reply({"status": "complete_metadata", "response_payload_size": len(outcome.body)})
        return Response(outcome.body, media_type=protobuf.CONTENT_TYPE)
    result = KINDS[outcome.kind].result.decode(outcome.body)
    return reply(BULK_TO_JSON[outcome.kind](result))


async def retrieve_futures(call: Call) -> Response:
    """Which samples of a sampler have finished; held for until one has."""
    request: RetrieveFuturesRequest = call.body
    await call.service.samplers.get(call.owner, request.target.sampling_session_id)
    hold = call.service.settings.poll_hold
    if request.timeout is not None:
        hold = min(request.timeout, hold)
    return reply(await call.service.completions.poll(call.owner, request, hold))


async def join_sampling_session(call: Call) -> Response:
    """A range of seq ids for one more client of a sampler."""
    sampler = await call.service.samplers.get(call.owner, call.body.sampling_session_id)
    client = await call.service.sampler_clients.join(sampler.sampler_id)
    return reply(JoinSamplingSessionResponse(client_counter=client))
