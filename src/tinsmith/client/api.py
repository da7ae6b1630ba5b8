"""The endpoints: a table of how each is called, and one method for each. No policy beyond the table's."""

from __future__ import annotations

import platform
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from pydantic import BaseModel

from tinsmith.types import (
    CheckpointsListResponse,
    CreateModelRequest,
    CreateSamplingSessionRequest,
    CreateSessionRequest,
    GetInfoResponse,
    GetSamplerResponse,
    GetServerCapabilitiesResponse,
    GetSessionResponse,
    ListSessionsResponse,
    LoadWeightsRequest,
    OptimStepRequest,
    SaveWeightsForSamplerRequest,
    SaveWeightsRequest,
    TrainingRun,
    TrainingRunsResponse,
    UserError,
    WeightsInfoResponse,
)
from tinsmith.wire import json as wire_json
from tinsmith.wire import protobuf as wire_protobuf

from .clock import CLOCK, Clock
from .config import PROTOCOL_VERSION, ClientConfig
from .errors import APIResponseValidationError, NotFoundError, status_error
from .replies import OLD_SERVER, CreateSamplingSessionReply, CreateSessionReply, ServerConfig, Submitted
from .retry import Budget, Layer, call_with_retries
from .transport import Pool, Response, Transport

_M = TypeVar("_M", bound=BaseModel)
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """How one endpoint is called. Without a layer it is tried once: its caller does the retrying."""

    method: str
    path: str
    pool: Pool = "session"
    layer: Layer | None = Layer.CALL
    seconds: float = 300.0  # the retry budget
    timeout: float | None = None  # of one attempt; None: the config's


_CONFIG = Endpoint("POST", "client/config")
_CREATE_SESSION = Endpoint("POST", "create_session")
_HEARTBEAT = Endpoint("POST", "session_heartbeat", layer=None, timeout=10)
_FINISH = Endpoint("POST", "sessions/{session_id}/finish", layer=None, timeout=5)
_CAPABILITIES = Endpoint("GET", "get_server_capabilities", layer=Layer.CALL, seconds=60)
_TELEMETRY = Endpoint("POST", "telemetry", "telemetry", layer=None, timeout=5)
_CREATE_SAMPLING = Endpoint("POST", "create_sampling_session", "sample")
_CREATE_MODEL = Endpoint("POST", "create_model", "train")
_GET_INFO = Endpoint("POST", "get_info", "train")
_FORWARD = Endpoint("POST", "forward", "train")
_FORWARD_BACKWARD = Endpoint("POST", "forward_backward", "train")
_OPTIM_STEP = Endpoint("POST", "optim_step", "train")
_SAVE_WEIGHTS = Endpoint("POST", "save_weights", "train")
_LOAD_WEIGHTS = Endpoint("POST", "load_weights", "train")
_SAVE_SAMPLER = Endpoint("POST", "save_weights_for_sampler", "train")
_ASAMPLE = Endpoint("POST", "asample", "sample", layer=None)
_RETRIEVE = Endpoint("POST", "retrieve_future", "retrieve", layer=None, timeout=45)
_CANCEL = Endpoint("POST", "cancel_future", layer=None, timeout=30)
_WEIGHTS_INFO = Endpoint("POST", "weights_info", layer=Layer.REST, seconds=60)
_RUNS = Endpoint("GET", "training_runs", layer=Layer.REST, seconds=60)
_RUN = Endpoint("GET", "training_runs/{run_id}", layer=Layer.REST, seconds=60)
_RUN_CHECKPOINTS = Endpoint("GET", "training_runs/{run_id}/checkpoints", layer=Layer.REST, seconds=60)
_CHECKPOINTS = Endpoint("GET", "checkpoints", layer=Layer.REST, seconds=60)
_DELETE = Endpoint(
    "DELETE", "training_runs/{run_id}/checkpoints/{checkpoint_id}", layer=Layer.REST, seconds=60
)
_PUBLISH = Endpoint(
    "POST", "training_runs/{run_id}/checkpoints/{checkpoint_id}/publish", layer=Layer.REST, seconds=60
)
_UNPUBLISH = Endpoint(
    "DELETE", "training_runs/{run_id}/checkpoints/{checkpoint_id}/publish", layer=Layer.REST, seconds=60
)
_TTL = Endpoint("PUT", "training_runs/{run_id}/checkpoints/{checkpoint_id}/ttl", layer=Layer.REST, seconds=60)
_SESSIONS = Endpoint("GET", "sessions", layer=Layer.REST, seconds=60)
_SESSION = Endpoint("GET", "sessions/{session_id}", layer=Layer.REST, seconds=60)
_SAMPLER = Endpoint("GET", "samplers/{sampler_id}", layer=Layer.REST, seconds=60)


class Api:
    """Calls endpoints over a transport. Knows nothing of sessions."""

    def __init__(self, transport: Transport, config: ClientConfig, clock: Clock = CLOCK) -> None:
        self._transport = transport
        self._config = config
        self._clock = clock
        own = {"accept": wire_json.CONTENT_TYPE, "user-agent": f"tinsmith (protocol {PROTOCOL_VERSION})"}
        if config.api_key:
            own["x-api-key"] = config.api_key
        self._headers = own
        self._overrides = {name.lower(): value for name, value in config.headers.items()}

    # ---- service --------------------------------------------------------------------------------

    async def server_config(self) -> ServerConfig:
        """How the service wants to be used; a service without the endpoint speaks the old dialect."""
        try:
            return await self._json(_CONFIG, {"sdk_version": PROTOCOL_VERSION}, ServerConfig)
        except NotFoundError:
            return OLD_SERVER

    async def create_session(self, request: CreateSessionRequest) -> CreateSessionReply:
        """Open a session."""
        return await self._json(_CREATE_SESSION, _dump(request), CreateSessionReply)

    async def heartbeat(self, session_id: str) -> None:
        """Say that the session's client is still there."""
        await self._call(_HEARTBEAT, {"session_id": session_id, "type": "session_heartbeat"})

    async def finish_session(self, session_id: str, status: str, detail: str | None) -> None:
        """Say how the session's work ended."""
        body = {"reason": {"type": status}, "detail": detail}
        await self._call(_FINISH, body, session_id=session_id)

    async def capabilities(self) -> GetServerCapabilitiesResponse:
        """The models on offer."""
        return await self._json(_CAPABILITIES, None, GetServerCapabilitiesResponse)

    async def telemetry(self, session_id: str, events: list[Json]) -> None:
        """Hand over events."""
        body = {
            "events": events,
            "platform": platform.system(),
            "sdk_version": PROTOCOL_VERSION,
            "session_id": session_id,
        }
        await self._call(_TELEMETRY, body)

    # ---- training -------------------------------------------------------------------------------

    async def create_model(self, request: CreateModelRequest) -> Submitted:
        """Make a run."""
        return await self._json(_CREATE_MODEL, _dump(request), Submitted)

    async def get_info(self, model_id: str) -> GetInfoResponse:
        """What a run is."""
        return await self._json(_GET_INFO, {"model_id": model_id, "type": "get_info"}, GetInfoResponse)

    async def forward_backward(self, body: bytes, compressed: bool) -> Submitted:
        """A batch in protobuf, forward only or both ways."""
        headers = {"content-type": wire_protobuf.CONTENT_TYPE}
        if compressed:
            headers["content-encoding"] = "zstd"
        return await self._json(_FORWARD_BACKWARD, body, Submitted, headers=headers)

    async def forward_backward_json(self, body: Json, forward_only: bool) -> Submitted:
        """A batch in the old dialect."""
        return await self._json(_FORWARD if forward_only else _FORWARD_BACKWARD, body, Submitted)

    async def optim_step(self, request: OptimStepRequest) -> Submitted:
        """Apply the accumulated gradient."""
        return await self._json(_OPTIM_STEP, _dump(request), Submitted)

    async def save_weights(self, request: SaveWeightsRequest) -> Submitted:
        """Save a checkpoint."""
        return await self._json(_SAVE_WEIGHTS, _dump(request), Submitted)

    async def load_weights(self, request: LoadWeightsRequest) -> Submitted:
        """Load a checkpoint, or make a run from it."""
        return await self._json(_LOAD_WEIGHTS, _dump(request), Submitted)

    async def save_weights_for_sampler(self, request: SaveWeightsForSamplerRequest) -> Submitted:
        """Take a snapshot to sample from."""
        return await self._json(_SAVE_SAMPLER, _dump(request), Submitted)

    # ---- sampling and results -------------------------------------------------------------------

    async def create_sampling_session(
        self, request: CreateSamplingSessionRequest
    ) -> CreateSamplingSessionReply:
        """Make a sampler."""
        return await self._json(_CREATE_SAMPLING, _dump(request), CreateSamplingSessionReply)

    async def sample(self, body: bytes) -> Submitted:
        """Ask for samples, once."""
        return await self._json(_ASAMPLE, body, Submitted, headers={"x-tinker-sampling-backpressure": "1"})

    async def retrieve_future(
        self, request_id: str, *, kind: str, iteration: int, protobuf: bool, metadata_only: bool
    ) -> Response:
        """Ask for a result, once."""
        headers = {"x-tinker-request-type": kind, "x-tinker-request-iteration": str(iteration)}
        if protobuf:
            headers["accept"] = wire_protobuf.CONTENT_TYPE  # what is not a result comes as JSON all the same
        body = {"request_id": request_id, "allow_metadata_only": metadata_only}
        return await self._call(_RETRIEVE, body, headers=headers)

    async def cancel_future(self, request_id: str) -> None:
        """Say that nobody waits for a result any more."""
        await self._call(_CANCEL, {"request_id": request_id})

    # ---- what is stored -------------------------------------------------------------------------

    async def weights_info(self, tinker_path: str) -> WeightsInfoResponse:
        """What a checkpoint holds."""
        return await self._json(_WEIGHTS_INFO, {"tinker_path": tinker_path}, WeightsInfoResponse)

    async def training_runs(self, query: Json) -> TrainingRunsResponse:
        """A page of runs."""
        return await self._json(_RUNS, None, TrainingRunsResponse, query=query)

    async def training_run(self, run_id: str, query: Json) -> TrainingRun:
        """One run."""
        return await self._json(_RUN, None, TrainingRun, query=query, run_id=run_id)

    async def run_checkpoints(self, run_id: str) -> CheckpointsListResponse:
        """The checkpoints of a run."""
        return await self._json(_RUN_CHECKPOINTS, None, CheckpointsListResponse, run_id=run_id)

    async def checkpoints(self, query: Json) -> CheckpointsListResponse:
        """A page of all checkpoints."""
        return await self._json(_CHECKPOINTS, None, CheckpointsListResponse, query=query)

    async def delete_checkpoint(self, run_id: str, checkpoint_id: str) -> None:
        """Delete a checkpoint."""
        await self._call(_DELETE, None, run_id=run_id, checkpoint_id=checkpoint_id)

    async def publish_checkpoint(self, run_id: str, checkpoint_id: str, public: bool) -> None:
        """Make a checkpoint public, or private again."""
        await self._call(_PUBLISH if public else _UNPUBLISH, None, run_id=run_id, checkpoint_id=checkpoint_id)

    async def set_checkpoint_ttl(self, run_id: str, checkpoint_id: str, ttl_seconds: int | None) -> None:
        """Let a checkpoint expire, or (None) keep it."""
        await self._call(_TTL, {"ttl_seconds": ttl_seconds}, run_id=run_id, checkpoint_id=checkpoint_id)

    async def sessions(self, query: Json) -> ListSessionsResponse:
        """A page of sessions."""
        return await self._json(_SESSIONS, None, ListSessionsResponse, query=query)

    async def session(self, session_id: str, query: Json) -> GetSessionResponse:
        """One session."""
        return await self._json(_SESSION, None, GetSessionResponse, query=query, session_id=session_id)

    async def sampler(self, sampler_id: str) -> GetSamplerResponse:
        """One sampler."""
        return await self._json(_SAMPLER, None, GetSamplerResponse, sampler_id=sampler_id)

    # ---- how all of them are called -------------------------------------------------------------

    async def _json(self, endpoint: Endpoint, body: Json | bytes | None, reply: type[_M], **how: Any) -> _M:
        response = await self._call(endpoint, body, **how)
        try:
            return wire_json.parse_model(reply, wire_json.loads(response.body))
        except UserError as error:
            what = f"{endpoint.method} {endpoint.path}"
            raise APIResponseValidationError(
                f"{self._config.place} answered {what} with what is not a {reply.__name__}: {error}",
                response=response,
                body=response.body[:2000].decode(errors="replace"),
                request=what,
            ) from error

    async def _call(
        self,
        endpoint: Endpoint,
        body: Json | bytes | None,
        *,
        headers: Mapping[str, str] | None = None,
        query: Json | None = None,
        **segments: str,
    ) -> Response:
        path = "/api/v1/" + endpoint.path.format_map({k: quote(v, safe="/:") for k, v in segments.items()})
        if query:
            path += "?" + urlencode({key: value for key, value in query.items() if value is not None})
        data = body if isinstance(body, bytes) or body is None else wire_json.dumps(body)
        fixed = self._fixed_headers(endpoint, data, headers or {})

        async def attempt(tries: int) -> Response:
            response = await self._transport.request(
                endpoint.method,
                path,
                body=data,
                headers=fixed | {"x-stainless-retry-count": str(tries)},
                timeout=endpoint.timeout or self._config.timeout,
                pool=endpoint.pool,
            )
            if response.status_code >= 300:
                raise status_error(f"{endpoint.method} {path.partition('?')[0]}", response)
            return response

        if endpoint.layer is None:
            return await attempt(0)
        budget = Budget(endpoint.layer, endpoint.seconds, self._config.max_retries)
        return await call_with_retries(attempt, budget, self._clock, endpoint.path)

    def _fixed_headers(
        self, endpoint: Endpoint, data: bytes | None, headers: Mapping[str, str]
    ) -> dict[str, str]:
        own = dict(self._headers)
        if data is not None:
            own["content-type"] = wire_json.CONTENT_TYPE
        if endpoint.method != "GET":
            own["x-idempotency-key"] = str(uuid.uuid4())
        return own | dict(headers) | self._overrides


def _dump(request: BaseModel) -> Json:
    """Every default written out and no nulls: what every generation of services reads the same way."""
    dumped: Json = request.model_dump(mode="json", exclude_none=True)
    return dumped
