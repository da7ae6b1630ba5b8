"""RestClient: what is stored on the service, and what may be done with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
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
from tinsmith.types.checkpoint import ParsedCheckpointTinkerPath

from .api import Api
from .config import ClientConfig
from .connection import Connection
from .futures import APIFuture, spawn

_T = TypeVar("_T")
Scope = Literal["owned", "accessible"]


class RestClient:
    """Runs, checkpoints, sessions and samplers. Opens no session of its own.

    >>> runs = RestClient().list_training_runs().result()  # doctest: +SKIP
    """

    def __init__(
        self,
        _connection: Connection | None = None,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
    ) -> None:
        self._connection = _connection or Connection(ClientConfig.resolve(base_url=base_url, api_key=api_key))

    def _ask(self, question: Callable[[Api], Awaitable[_T]]) -> APIFuture[_T]:
        connection = self._connection
        connection.check()

        async def work() -> _T:
            return await question(await connection.api())

        return spawn(work(), "rest")

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


def _parse(tinker_path: str) -> ParsedCheckpointTinkerPath:
    return ParsedCheckpointTinkerPath.from_tinker_path(tinker_path)
