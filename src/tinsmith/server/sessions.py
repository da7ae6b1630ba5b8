"""Endpoints of the service itself and of sessions."""

from __future__ import annotations

from starlette.responses import FileResponse, Response

from tinsmith.types import CreateSessionRequest, GetSessionResponse, ListSessionsResponse
from tinsmith.types.replies import (
    ClientConfigResponse,
    CreateSessionResponse,
    DynamicConfigResponse,
    Empty,
    HealthResponse,
    HeartbeatResponse,
    TelemetryResponse,
)
from tinsmith.types.requests import FinishSessionRequest, SessionHeartbeatRequest
from tinsmith.types.session import TraceExportResponse

from .call import Call, reply


async def healthz(call: Call) -> Response:
    """The process answers."""
    return reply(HealthResponse())


async def client_config(call: Call) -> Response:
    """How official clients should use this service."""
    return reply(ClientConfigResponse(**call.service.settings.client.once()))


async def dynamic_config(call: Call) -> Response:
    """What clients ask for again and again."""
    return reply(DynamicConfigResponse(**call.service.settings.client.again()))


async def capabilities(call: Call) -> Response:
    """The base models on offer."""
    return reply(call.service.base_models.capabilities())


async def telemetry(call: Call) -> Response:
    """Accepted and dropped: clients hold back errors until this answers, and some put their keys in it."""
    return reply(TelemetryResponse())


async def create_session(call: Call) -> Response:
    """Open a session."""
    request: CreateSessionRequest = call.body
    call.service.quotas.check_sessions(call.owner, call.service.sessions.active_count(call.owner))
    session = await call.service.sessions.create(call.owner, request)
    return reply(CreateSessionResponse(session_id=session.session_id))


async def heartbeat(call: Call) -> Response:
    """The client is still there."""
    request: SessionHeartbeatRequest = call.body
    await call.service.sessions.heartbeat(call.owner, request.session_id)
    return reply(HeartbeatResponse())


async def finish(call: Call) -> Response:
    """The client is done. Saying so twice is fine."""
    request: FinishSessionRequest = call.body
    session = await call.service.sessions.find(call.owner, call.path["session_id"])
    if session.status == "active":
        detail = {"reason": request.reason.type, "detail": request.detail}
        await call.service.end_session(session, "client_finished", detail)
    return reply(Empty())


async def list_sessions(call: Call) -> Response:
    """Session ids, newest first."""
    page = await call.service.sessions.page(call.owner, call.query.limit, call.query.offset)
    return reply(ListSessionsResponse(sessions=page))


async def get_session(call: Call) -> Response:
    """What a session holds."""
    session = await call.service.sessions.find(call.owner, call.path["session_id"])
    return reply(
        GetSessionResponse(
            training_run_ids=await call.service.run_listing.ids_of_session(session.session_id),
            sampler_ids=await call.service.samplers.ids_of_session(session.session_id),
            user_metadata=session.user_metadata,
            display_name=session.display_name,
        )
    )


async def search(call: Call) -> Response:
    """Sessions that match."""
    return reply(await call.service.session_search.find(call.owner, call.body))


async def assign_project(call: Call) -> Response:
    """Move a session into a project."""
    await call.service.sessions.assign_project(call.owner, call.path["session_id"], call.body.project_id)
    return reply(Empty())


async def trace_export(call: Call) -> Response:
    """Build the session's trace, or say where it lies."""
    session = await call.service.sessions.find(call.owner, call.path["session_id"])
    progress = await call.service.traces.export(session)
    url = None
    if progress.status == "ready":
        path = _trace_path(session.session_id)
        url = call.url(call.service.signer.sign_path(path, call.service.settings.url_ttl))
    return reply(TraceExportResponse(status=progress.status, url=url, error=progress.error))


async def download_trace(call: Call) -> Response:
    """A trace, for whoever has its signed address."""
    session_id = call.path["session_id"]
    call.service.signer.check_path(_trace_path(session_id), call.query.expires, call.query.signature)
    file = call.service.traces.file(session_id)
    return FileResponse(file, media_type="application/json", filename=f"{session_id}.json")


def _trace_path(session_id: str) -> str:
    return f"/api/v1/downloads/traces/{session_id}"
