"""RestClient: what is stored on the service, and what may be done with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeVar

from tinsmith.types import (
    CheckpointsListResponse,
    GetSamplerResponse,
    GetServerCapabilitiesResponse,
    GetSessionResponse,
    ListSessionsResponse,
    ModelID,
    TrainingRun,
    TrainingRunsResponse,
    WeightsInfoResponse,
)
from tinsmith.types.account import WhoamiResponse
from tinsmith.types.checkpoint import CheckpointArchiveUrlResponse, ParsedCheckpointTinkerPath
from tinsmith.types.session import SessionSearchRequest, SessionSearchResponse
from tinsmith.types.transfer import CopyWeightsRequest, ExternalWeightsUrlsResponse
from tinsmith.wire import json as wire_json

from . import identity, traces
from .admin_client import AdminClient
from .api import Api
from .archives import archive_address
from .download import download, download_all, unpack
from .futures import APIFuture
from .loop import in_thread

_T = TypeVar("_T")
Scope = Literal["owned", "accessible"]


class RestClient(AdminClient):
    """Runs, checkpoints, sessions and samplers, and the account's books. Opens no session of its own.

    >>> len(RestClient().list_training_runs(limit=5).result().training_runs) <= 5
    True
    """

    # ---- service --------------------------------------------------------------------------------

    def get_server_capabilities(self) -> APIFuture[GetServerCapabilitiesResponse]:
        """The models on offer."""
        return self._ask(lambda api: api.capabilities())

    async def get_server_capabilities_async(self) -> GetServerCapabilitiesResponse:
        """`get_server_capabilities`, awaited."""
        return await self.get_server_capabilities()

    # ---- runs -----------------------------------------------------------------------------------

    def list_training_runs(
        self, limit: int = 20, offset: int = 0, access_scope: Scope = "owned", project_id: str | None = None
    ) -> APIFuture[TrainingRunsResponse]:
        """A page of runs."""
        query = {"limit": limit, "offset": offset, "access_scope": access_scope, "project_id": project_id}
        return self._ask(lambda api: api.training_runs(query))

    async def list_training_runs_async(
        self, limit: int = 20, offset: int = 0, access_scope: Scope = "owned", project_id: str | None = None
    ) -> TrainingRunsResponse:
        """`list_training_runs`, awaited."""
        return await self.list_training_runs(limit, offset, access_scope, project_id)

    def get_training_run(
        self, training_run_id: ModelID, access_scope: Scope = "owned"
    ) -> APIFuture[TrainingRun]:
        """One run."""
        return self._ask(lambda api: api.training_run(training_run_id, {"access_scope": access_scope}))

    async def get_training_run_async(
        self, training_run_id: ModelID, access_scope: Scope = "owned"
    ) -> TrainingRun:
        """`get_training_run`, awaited."""
        return await self.get_training_run(training_run_id, access_scope)

    def get_training_run_by_tinker_path(
        self, tinker_path: str, access_scope: Scope = "owned"
    ) -> APIFuture[TrainingRun]:
        """The run a checkpoint belongs to."""
        return self.get_training_run(_parse(tinker_path).training_run_id, access_scope)

    async def get_training_run_by_tinker_path_async(
        self, tinker_path: str, access_scope: Scope = "owned"
    ) -> TrainingRun:
        """`get_training_run_by_tinker_path`, awaited."""
        return await self.get_training_run_by_tinker_path(tinker_path, access_scope)

    # ---- checkpoints ----------------------------------------------------------------------------

    def list_checkpoints(self, training_run_id: ModelID) -> APIFuture[CheckpointsListResponse]:
        """The checkpoints of a run."""
        return self._ask(lambda api: api.run_checkpoints(training_run_id))

    async def list_checkpoints_async(self, training_run_id: ModelID) -> CheckpointsListResponse:
        """`list_checkpoints`, awaited."""
        return await self.list_checkpoints(training_run_id)

    def list_user_checkpoints(self, limit: int = 100, offset: int = 0) -> APIFuture[CheckpointsListResponse]:
        """A page of all your checkpoints."""
        return self._ask(lambda api: api.checkpoints({"limit": limit, "offset": offset}))

    async def list_user_checkpoints_async(self, limit: int = 100, offset: int = 0) -> CheckpointsListResponse:
        """`list_user_checkpoints`, awaited."""
        return await self.list_user_checkpoints(limit, offset)

    def delete_checkpoint(self, training_run_id: ModelID, checkpoint_id: str) -> APIFuture[None]:
        """Delete a checkpoint, e.g. ``weights/0001``."""
        return self._ask(lambda api: api.delete_checkpoint(training_run_id, checkpoint_id))

    async def delete_checkpoint_async(self, training_run_id: ModelID, checkpoint_id: str) -> None:
        """`delete_checkpoint`, awaited."""
        await self.delete_checkpoint(training_run_id, checkpoint_id)

    def delete_checkpoint_from_tinker_path(self, tinker_path: str) -> APIFuture[None]:
        """Delete a checkpoint."""
        at = _parse(tinker_path)
        return self.delete_checkpoint(at.training_run_id, at.checkpoint_id)

    async def delete_checkpoint_from_tinker_path_async(self, tinker_path: str) -> None:
        """`delete_checkpoint_from_tinker_path`, awaited."""
        await self.delete_checkpoint_from_tinker_path(tinker_path)

    def publish_checkpoint_from_tinker_path(self, tinker_path: str) -> APIFuture[None]:
        """Let everybody read a checkpoint."""
        return self._publish(tinker_path, public=True)

    async def publish_checkpoint_from_tinker_path_async(self, tinker_path: str) -> None:
        """`publish_checkpoint_from_tinker_path`, awaited."""
        await self.publish_checkpoint_from_tinker_path(tinker_path)

    def unpublish_checkpoint_from_tinker_path(self, tinker_path: str) -> APIFuture[None]:
        """Keep a checkpoint to yourself again."""
        return self._publish(tinker_path, public=False)

    async def unpublish_checkpoint_from_tinker_path_async(self, tinker_path: str) -> None:
        """`unpublish_checkpoint_from_tinker_path`, awaited."""
        await self.unpublish_checkpoint_from_tinker_path(tinker_path)

    def set_checkpoint_ttl_from_tinker_path(
        self, tinker_path: str, ttl_seconds: int | None
    ) -> APIFuture[None]:
        """Let a checkpoint expire, or (None) keep it."""
        at = _parse(tinker_path)
        return self._ask(
            lambda api: api.set_checkpoint_ttl(at.training_run_id, at.checkpoint_id, ttl_seconds)
        )

    async def set_checkpoint_ttl_from_tinker_path_async(
        self, tinker_path: str, ttl_seconds: int | None
    ) -> None:
        """`set_checkpoint_ttl_from_tinker_path`, awaited."""
        await self.set_checkpoint_ttl_from_tinker_path(tinker_path, ttl_seconds)

    def get_weights_info_by_tinker_path(self, tinker_path: str) -> APIFuture[WeightsInfoResponse]:
        """What a checkpoint holds."""
        _parse(tinker_path)
        return self._ask(lambda api: api.weights_info(tinker_path))

    async def get_weights_info_by_tinker_path_async(self, tinker_path: str) -> WeightsInfoResponse:
        """`get_weights_info_by_tinker_path`, awaited."""
        return await self.get_weights_info_by_tinker_path(tinker_path)

    def get_checkpoint_archive_url(
        self, training_run_id: ModelID, checkpoint_id: str
    ) -> APIFuture[CheckpointArchiveUrlResponse]:
        """A signed address of a checkpoint's files as one tar.gz."""

        async def work(api: Api) -> CheckpointArchiveUrlResponse:
            return archive_address(await api.archive(training_run_id, checkpoint_id))

        return self._ask(work)

    async def get_checkpoint_archive_url_async(
        self, training_run_id: ModelID, checkpoint_id: str
    ) -> CheckpointArchiveUrlResponse:
        """`get_checkpoint_archive_url`, awaited."""
        return await self.get_checkpoint_archive_url(training_run_id, checkpoint_id)

    def get_checkpoint_archive_url_from_tinker_path(
        self, tinker_path: str
    ) -> APIFuture[CheckpointArchiveUrlResponse]:
        """A signed address of a checkpoint's files as one tar.gz."""
        at = _parse(tinker_path)
        return self.get_checkpoint_archive_url(at.training_run_id, at.checkpoint_id)

    async def get_checkpoint_archive_url_from_tinker_path_async(
        self, tinker_path: str
    ) -> CheckpointArchiveUrlResponse:
        """`get_checkpoint_archive_url_from_tinker_path`, awaited."""
        return await self.get_checkpoint_archive_url_from_tinker_path(tinker_path)

    def get_external_weights_urls(self, tinker_path: str) -> APIFuture[ExternalWeightsUrlsResponse]:
        """A signed address for each file of what `save_weights_external` saved."""
        at = _parse(tinker_path)
        if at.checkpoint_type != "external":
            raise ValueError(f"tinker_path: {tinker_path!r} is no export; save_weights_external makes one")
        return self._ask(lambda api: api.external_weights_urls(at.training_run_id, at.checkpoint_id))

    async def get_external_weights_urls_async(self, tinker_path: str) -> ExternalWeightsUrlsResponse:
        """`get_external_weights_urls`, awaited."""
        return await self.get_external_weights_urls(tinker_path)

    def download_checkpoint(self, tinker_path: str, folder: str | Path) -> APIFuture[list[Path]]:
        """A checkpoint's files, into a folder: in PEFT's layout, an encrypted export as it is.

        What breaks off is taken up where it stopped, also by calling this again; a file that is shorter
        than announced never appears under its name.
        """
        at, into = _parse(tinker_path), Path(folder)

        async def work(api: Api) -> list[Path]:
            clock = self._connection.clock
            if at.checkpoint_type == "external":
                known = await api.external_weights_urls(at.training_run_id, at.checkpoint_id)
                return await download_all(api, known.urls, into, clock)
            url = archive_address(await api.archive(at.training_run_id, at.checkpoint_id)).url
            archive = into / f".{at.checkpoint_id.replace('/', '-')}.tar.gz"
            await download(api, url, archive, clock)
            files = await in_thread(unpack, archive, into)
            archive.unlink()
            return files

        return self._ask(work)

    async def download_checkpoint_async(self, tinker_path: str, folder: str | Path) -> list[Path]:
        """`download_checkpoint`, awaited."""
        return await self.download_checkpoint(tinker_path, folder)

    def copy_weights(
        self,
        path: str,
        destination_project_id: str | None = None,
        *,
        ttl_seconds: int | None = None,
        weights_access_token: str | None = None,
    ) -> APIFuture[str]:
        """Copy a checkpoint into a project (else TINKER_PROJECT_ID); the copy's path."""
        _parse(path)
        project = destination_project_id or self._connection.config.project_id
        if project is None:
            raise ValueError("destination_project_id: give one, or set TINKER_PROJECT_ID")
        request = wire_json.parse_model(
            CopyWeightsRequest,
            {"source_path": path, "destination_project_id": project, "ttl_seconds": ttl_seconds},
        )
        return self._ask(lambda api: api.copy_weights(request, weights_access_token))

    async def copy_weights_async(
        self,
        path: str,
        destination_project_id: str | None = None,
        *,
        ttl_seconds: int | None = None,
        weights_access_token: str | None = None,
    ) -> str:
        """`copy_weights`, awaited."""
        return await self.copy_weights(
            path,
            destination_project_id,
            ttl_seconds=ttl_seconds,
            weights_access_token=weights_access_token,
        )

    def _publish(self, tinker_path: str, *, public: bool) -> APIFuture[None]:
        at = _parse(tinker_path)
        return self._ask(lambda api: api.publish_checkpoint(at.training_run_id, at.checkpoint_id, public))

    # ---- sessions and samplers ------------------------------------------------------------------

    def list_sessions(
        self, limit: int = 20, offset: int = 0, access_scope: Scope = "owned"
    ) -> APIFuture[ListSessionsResponse]:
        """A page of session ids."""
        query: dict[str, Any] = {"limit": limit, "offset": offset, "access_scope": access_scope}
        return self._ask(lambda api: api.sessions(query))

    async def list_sessions_async(
        self, limit: int = 20, offset: int = 0, access_scope: Scope = "owned"
    ) -> ListSessionsResponse:
        """`list_sessions`, awaited."""
        return await self.list_sessions(limit, offset, access_scope)

    def get_session(self, session_id: str, access_scope: Scope = "owned") -> APIFuture[GetSessionResponse]:
        """The runs and samplers of a session."""
        return self._ask(lambda api: api.session(session_id, {"access_scope": access_scope}))

    async def get_session_async(self, session_id: str, access_scope: Scope = "owned") -> GetSessionResponse:
        """`get_session`, awaited."""
        return await self.get_session(session_id, access_scope)

    def get_sampler(self, sampler_id: str) -> APIFuture[GetSamplerResponse]:
        """What a sampler samples from."""
        return self._ask(lambda api: api.sampler(sampler_id))

    async def get_sampler_async(self, sampler_id: str) -> GetSamplerResponse:
        """`get_sampler`, awaited."""
        return await self.get_sampler(sampler_id)

    def search_sessions(self, request: SessionSearchRequest) -> APIFuture[SessionSearchResponse]:
        """A page of the sessions that fit, newest first; its ``next_cursor`` asks for the next page."""
        if not isinstance(request, SessionSearchRequest):
            raise TypeError(f"request: a SessionSearchRequest is needed, not {type(request).__name__}")
        return self._ask(lambda api: api.search_sessions(request))

    async def search_sessions_async(self, request: SessionSearchRequest) -> SessionSearchResponse:
        """`search_sessions`, awaited."""
        return await self.search_sessions(request)

    def assign_session_project(self, session_id: str, project_id: str) -> APIFuture[None]:
        """Move a session, and all it made and makes, into a project."""
        return self._ask(lambda api: api.assign_project(session_id, project_id))

    async def assign_session_project_async(self, session_id: str, project_id: str) -> None:
        """`assign_session_project`, awaited."""
        await self.assign_session_project(session_id, project_id)

    def export_session_trace(self, session_id: str) -> APIFuture[str]:
        """A signed address of a session's timeline as a Perfetto trace."""
        return self._ask(lambda api: traces.export(api, session_id, self._connection.clock))

    async def export_session_trace_async(self, session_id: str) -> str:
        """`export_session_trace`, awaited."""
        return await self.export_session_trace(session_id)

    # ---- the caller -----------------------------------------------------------------------------

    def whoami(self) -> APIFuture[WhoamiResponse]:
        """Who the key belongs to."""
        return self._ask(identity.whoami)

    async def whoami_async(self) -> WhoamiResponse:
        """`whoami`, awaited."""
        return await self.whoami()


def _parse(tinker_path: str) -> ParsedCheckpointTinkerPath:
    return ParsedCheckpointTinkerPath.from_tinker_path(tinker_path)
