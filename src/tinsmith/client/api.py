"""One method for each endpoint. No policy beyond what the table of endpoints says."""

from __future__ import annotations

import platform
from typing import Any

from tinsmith.types import (
    CreateModelRequest,
    CreateSamplingSessionRequest,
    CreateSessionRequest,
    GetInfoResponse,
    GetServerCapabilitiesResponse,
    LoadWeightsRequest,
    OptimStepRequest,
    SaveWeightsForSamplerRequest,
    SaveWeightsRequest,
)
from tinsmith.types.custom_loss import CreateCustomLossRequest
from tinsmith.types.polling import (
    JoinSamplingSessionResponse,
    RetrieveFuturesRequest,
    RetrieveFuturesResponse,
)
from tinsmith.types.transfer import SaveWeightsExternalRequest
from tinsmith.wire import protobuf as wire_protobuf

from . import endpoints as to
from .caller import dump
from .config import PROTOCOL_VERSION
from .errors import NotFoundError
from .replies import OLD_SERVER, CreateSamplingSessionReply, CreateSessionReply, ServerConfig, Submitted
from .stored_api import StoredApi
from .transport import Response

Json = dict[str, Any]


class Api(StoredApi):
    """The whole of the protocol. Knows nothing of sessions."""

    # ---- service --------------------------------------------------------------------------------

    async def server_config(self) -> ServerConfig:
        """How the service wants to be used; a service without the endpoint speaks the old dialect."""
        try:
            return await self.json(to.CONFIG, {"sdk_version": PROTOCOL_VERSION}, ServerConfig)
        except NotFoundError:
            return OLD_SERVER

    async def create_session(self, request: CreateSessionRequest) -> CreateSessionReply:
        """Open a session."""
        return await self.json(to.CREATE_SESSION, dump(request), CreateSessionReply)

    async def heartbeat(self, session_id: str) -> None:
        """Say that the session's client is still there."""
        await self.call(to.HEARTBEAT, {"session_id": session_id, "type": "session_heartbeat"})

    async def finish_session(self, session_id: str, status: str, detail: str | None) -> None:
        """Say how the session's work ended."""
        body: Json = {"reason": {"type": status}}
        if detail is not None:
            body["detail"] = detail
        await self.call(to.FINISH, body, session_id=session_id)

    async def capabilities(self) -> GetServerCapabilitiesResponse:
        """The models on offer."""
        return await self.json(to.CAPABILITIES, None, GetServerCapabilitiesResponse)

    async def telemetry(self, session_id: str, events: list[Json]) -> None:
        """Hand over events."""
        body = {
            "events": events,
            "platform": platform.system(),
            "sdk_version": PROTOCOL_VERSION,
            "session_id": session_id,
        }
        await self.call(to.TELEMETRY, body)

    # ---- training -------------------------------------------------------------------------------

    async def create_model(self, request: CreateModelRequest) -> Submitted:
        """Make a run."""
        return await self.json(to.CREATE_MODEL, dump(request), Submitted)

    async def get_info(self, model_id: str) -> GetInfoResponse:
        """What a run is."""
        return await self.json(to.GET_INFO, {"model_id": model_id, "type": "get_info"}, GetInfoResponse)

    async def forward_backward(self, body: bytes, compressed: bool) -> Submitted:
        """A batch in protobuf, forward only or both ways."""
        headers = {"content-type": wire_protobuf.CONTENT_TYPE}
        if compressed:
            headers["content-encoding"] = "zstd"
        return await self.json(to.FORWARD_BACKWARD, body, Submitted, headers=headers)

    async def forward_backward_json(self, body: Json, forward_only: bool) -> Submitted:
        """A batch in the old dialect."""
        return await self.json(to.FORWARD if forward_only else to.FORWARD_BACKWARD, body, Submitted)

    async def optim_step(self, request: OptimStepRequest) -> Submitted:
        """Apply the accumulated gradient."""
        return await self.json(to.OPTIM_STEP, dump(request), Submitted)

    async def save_weights(self, request: SaveWeightsRequest) -> Submitted:
        """Save a checkpoint."""
        return await self.json(to.SAVE_WEIGHTS, dump(request), Submitted)

    async def load_weights(self, request: LoadWeightsRequest) -> Submitted:
        """Load a checkpoint, or make a run from it."""
        return await self.json(to.LOAD_WEIGHTS, dump(request), Submitted)

    async def save_weights_external(self, request: SaveWeightsExternalRequest) -> Submitted:
        """Save weights to be fetched file by file."""
        return await self.json(to.SAVE_EXTERNAL, dump(request), Submitted)

    async def unload_model(self, model_id: str) -> Submitted:
        """End a run."""
        return await self.json(to.UNLOAD, {"model_id": model_id, "type": "unload_model"}, Submitted)

    async def create_custom_loss(self, request: CreateCustomLossRequest) -> Submitted:
        """Make a loss that batches can name."""
        return await self.json(to.CREATE_LOSS, dump(request), Submitted)

    async def save_weights_for_sampler(self, request: SaveWeightsForSamplerRequest) -> Submitted:
        """Take a snapshot to sample from."""
        return await self.json(to.SAVE_SAMPLER, dump(request), Submitted)

    # ---- sampling and results -------------------------------------------------------------------

    async def create_sampling_session(
        self, request: CreateSamplingSessionRequest
    ) -> CreateSamplingSessionReply:
        """Make a sampler."""
        return await self.json(to.CREATE_SAMPLING, dump(request), CreateSamplingSessionReply)

    async def sample(self, body: bytes) -> Submitted:
        """Ask for samples, once."""
        return await self.json(to.ASAMPLE, body, Submitted, headers={"x-tinker-sampling-backpressure": "1"})

    async def retrieve_future(
        self, request_id: str, *, kind: str, iteration: int, protobuf: bool, metadata_only: bool
    ) -> Response:
        """Ask for a result, once."""
        headers = {"x-tinker-request-type": kind, "x-tinker-request-iteration": str(iteration)}
        if protobuf:
            headers["accept"] = wire_protobuf.CONTENT_TYPE  # what is not a result comes as JSON all the same
        body = {"request_id": request_id, "allow_metadata_only": metadata_only}
        return await self.call(to.RETRIEVE, body, headers=headers)

    async def retrieve_futures(self, request: RetrieveFuturesRequest) -> RetrieveFuturesResponse:
        """Ask which samples of a sampler have finished, once."""
        return await self.json(to.RETRIEVE_MANY, dump(request), RetrieveFuturesResponse)

    async def join_sampling_session(self, sampling_session_id: str) -> int:
        """A client number of one's own in somebody's sampler."""
        body = {"sampling_session_id": sampling_session_id, "type": "join_sampling_session"}
        return (await self.json(to.JOIN, body, JoinSamplingSessionResponse)).client_counter

    async def cancel_future(self, request_id: str) -> None:
        """Say that nobody waits for a result any more."""
        await self.call(to.CANCEL, {"request_id": request_id})
