"""The endpoints of what is stored: runs, checkpoints, sessions, samplers, and the account's books."""

from __future__ import annotations

from tinsmith.types import (
    CheckpointsListResponse,
    GetSamplerResponse,
    GetSessionResponse,
    ListSessionsResponse,
    TrainingRun,
    TrainingRunsResponse,
    WeightsInfoResponse,
)
from tinsmith.types.account import (
    AuditLogResponse,
    AuthTokenResponse,
    BillingUsageResponse,
    CheckpointStorageResponse,
)
from tinsmith.types.session import SessionSearchRequest, SessionSearchResponse, TraceExportResponse
from tinsmith.types.transfer import CopyWeightsRequest, CopyWeightsResponse, ExternalWeightsUrlsResponse

from . import endpoints as to
from .caller import Caller, Json, dump
from .transport import Response

WEIGHTS_TOKEN_HEADER = "x-tinker-weights-access-token"


class StoredApi(Caller):
    """One method for each."""

    async def weights_info(self, tinker_path: str) -> WeightsInfoResponse:
        """What a checkpoint holds."""
        return await self.json(to.WEIGHTS_INFO, {"tinker_path": tinker_path}, WeightsInfoResponse)

    async def training_runs(self, query: Json) -> TrainingRunsResponse:
        """A page of runs."""
        return await self.json(to.RUNS, None, TrainingRunsResponse, query=query)

    async def training_run(self, run_id: str, query: Json) -> TrainingRun:
        """One run."""
        return await self.json(to.RUN, None, TrainingRun, query=query, run_id=run_id)

    async def run_checkpoints(self, run_id: str) -> CheckpointsListResponse:
        """The checkpoints of a run."""
        return await self.json(to.RUN_CHECKPOINTS, None, CheckpointsListResponse, run_id=run_id)

    async def checkpoints(self, query: Json) -> CheckpointsListResponse:
        """A page of all checkpoints."""
        return await self.json(to.CHECKPOINTS, None, CheckpointsListResponse, query=query)

    async def delete_checkpoint(self, run_id: str, checkpoint_id: str) -> None:
        """Delete a checkpoint."""
        await self.call(to.DELETE, None, run_id=run_id, checkpoint_id=checkpoint_id)

    async def publish_checkpoint(self, run_id: str, checkpoint_id: str, public: bool) -> None:
        """Make a checkpoint public, or private again."""
        await self.call(
            to.PUBLISH if public else to.UNPUBLISH, None, run_id=run_id, checkpoint_id=checkpoint_id
        )

    async def set_checkpoint_ttl(self, run_id: str, checkpoint_id: str, ttl_seconds: int | None) -> None:
        """Let a checkpoint expire, or (None) keep it."""
        await self.call(to.TTL, {"ttl_seconds": ttl_seconds}, run_id=run_id, checkpoint_id=checkpoint_id)

    async def sessions(self, query: Json) -> ListSessionsResponse:
        """A page of sessions."""
        return await self.json(to.SESSIONS, None, ListSessionsResponse, query=query)

    async def session(self, session_id: str, query: Json) -> GetSessionResponse:
        """One session."""
        return await self.json(to.SESSION, None, GetSessionResponse, query=query, session_id=session_id)

    async def sampler(self, sampler_id: str) -> GetSamplerResponse:
        """One sampler."""
        return await self.json(to.SAMPLER, None, GetSamplerResponse, sampler_id=sampler_id)

    async def search_sessions(self, request: SessionSearchRequest) -> SessionSearchResponse:
        """A page of the sessions that fit."""
        return await self.json(to.SEARCH, dump(request), SessionSearchResponse)

    async def assign_project(self, session_id: str, project_id: str) -> None:
        """Move a session into a project."""
        await self.call(to.PROJECT, {"project_id": project_id}, session_id=session_id)

    async def trace_export(self, session_id: str) -> TraceExportResponse:
        """Where a session's trace stands."""
        return await self.json(to.TRACE, None, TraceExportResponse, session_id=session_id)

    # ---- weights on their way -------------------------------------------------------------------

    async def external_weights_urls(self, run_id: str, checkpoint_id: str) -> ExternalWeightsUrlsResponse:
        """An address for each file of an export."""
        return await self.json(
            to.EXTERNAL_URLS,
            None,
            ExternalWeightsUrlsResponse,
            run_id=run_id,
            checkpoint_id=checkpoint_id,
        )

    async def archive(self, run_id: str, checkpoint_id: str) -> Response:
        """The redirection to a checkpoint's archive."""
        return await self.call(
            to.ARCHIVE,
            None,
            headers={"accept": "application/gzip"},
            run_id=run_id,
            checkpoint_id=checkpoint_id,
        )

    async def copy_weights(self, request: CopyWeightsRequest, weights_access_token: str | None) -> str:
        """Copy a checkpoint; the path of the copy. A token goes in a header, where nothing logs it."""
        headers = {WEIGHTS_TOKEN_HEADER: weights_access_token} if weights_access_token else None
        reply = await self.json(to.COPY, dump(request), CopyWeightsResponse, headers=headers)
        return reply.tinker_path

    # ---- the account ----------------------------------------------------------------------------

    async def token(self) -> str:
        """A short-lived token for the key."""
        return (await self.json(to.TOKEN, {}, AuthTokenResponse)).jwt

    async def audit_log(self, query: Json) -> AuditLogResponse:
        """Who did what on one day."""
        return await self.json(to.AUDIT, None, AuditLogResponse, query=query)

    async def usage(self, query: Json) -> BillingUsageResponse:
        """What was used, by hour."""
        return await self.json(to.USAGE, None, BillingUsageResponse, query=query)

    async def storage(self, query: Json) -> CheckpointStorageResponse:
        """What is kept now."""
        return await self.json(to.STORAGE, None, CheckpointStorageResponse, query=query)
