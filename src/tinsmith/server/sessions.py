"""Endpoints of the service itself and of sessions."""

from __future__ import annotations

from starlette.responses import Response

from tinsmith.types import CreateSessionRequest, GetSessionResponse, ListSessionsResponse
from tinsmith.types.requests import FinishSessionRequest, SessionHeartbeatRequest

from .call import Call, reply


async def healthz(call: Call) -> Response:
    """The process answers."""
    return reply({"status": "ok"})


async def client_config(call: Call) -> Response:
    """How official clients should use this service."""
    return reply(
        {
            "parallel_fwdbwd_chunks": True,  # operations are ordered by seq id, not by arrival
            "proto_compress_fwdbwd": False,  # on one machine compression costs more than it saves
            "proto_write_fwdbwd": True,  # the next two: clients of 0.19 to 0.24 use protobuf if told so
            "fwd_via_fwdbwd": True,
            "create_model_via_load_weights": True,
        }
    )


async def dynamic_config(call: Call) -> Response:
    """What clients ask for again and again."""
    return reply({"refresh_interval_sec": 300, "sample_cancel_enabled": True})


async def capabilities(call: Call) -> Response:
    """The base models on offer."""
    return reply(call.service.base_models.capabilities())


async def telemetry(call: Call) -> Response:
    """Accepted and dropped: clients hold back errors until this answers, and some put their keys in it."""
    return reply({"status": "accepted"})


async def create_session(call: Call) -> Response:
    """Open a session."""
    request: CreateSessionRequest = call.body
    session = await call.service.sessions.create(call.owner, request)
    return reply({"session_id": session.session_id, "type": "create_session"})


async def heartbeat(call: Call) -> Response:
    """The client is still there."""
    request: SessionHeartbeatRequest = call.body
    await call.service.sessions.heartbeat(call.owner, request.session_id)
    return reply({"type": "session_heartbeat"})


async def finish(call: Call) -> Response:
    """The client is done. Saying so twice is fine."""
    request: FinishSessionRequest = call.body
    session = await call.service.sessions.find(call.owner, call.path["session_id"])
    if session.status == "active":
        detail = {"reason": request.reason.type, "detail": request.detail}
        await call.service.end_session(session, "client_finished", detail)
    return reply({})


async def list_sessions(call: Call) -> Response:
    """Session ids, newest first."""
    limit, offset = call.integer("limit", 20, 0, 1000), call.integer("offset", 0, 0, 2**31)
    return reply(ListSessionsResponse(sessions=await call.service.sessions.page(call.owner, limit, offset)))


async def get_session(call: Call) -> Response:
    """What a session holds."""
    session = await call.service.sessions.find(call.owner, call.path["session_id"])
    return reply(
        GetSessionResponse(
            training_run_ids=await call.service.runs.ids_of_session(session.session_id),
            sampler_ids=await call.service.samplers.ids_of_session(session.session_id),
            user_metadata=session.user_metadata,
            display_name=session.display_name,
        )
    )
