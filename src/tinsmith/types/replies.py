"""Small answers that no other module owns."""

from __future__ import annotations

from typing import Literal

from .base import Reply


class Empty(Reply):
    """Done; there is nothing to tell."""


class ErrorReply(Reply):
    """What was wrong, naming the field."""

    detail: str


class HealthResponse(Reply):
    """The process answers."""

    status: Literal["ok"] = "ok"


class TelemetryResponse(Reply):
    """Received."""

    status: Literal["accepted"] = "accepted"


class CreateSessionResponse(Reply):
    """A new session."""

    session_id: str
    type: Literal["create_session"] = "create_session"


class HeartbeatResponse(Reply):
    """The session lives on."""

    type: Literal["session_heartbeat"] = "session_heartbeat"


class CreateSamplingSessionResponse(Reply):
    """A new sampler."""

    sampling_session_id: str
    type: Literal["create_sampling_session"] = "create_sampling_session"


class FutureResponse(Reply):
    """An operation was accepted; its result is to be had under ``request_id``."""

    request_id: str
    model_id: str | None = None
    sample_sequence_ids: list[str] | None = None


class ClientConfigResponse(Reply):
    """How a client should use this service."""

    pjwt_auth_enabled: bool
    credential_default_source: str
    sample_dispatch_bytes_semaphore_size: int
    inflight_response_bytes_semaphore_size: int
    parallel_fwdbwd_chunks: bool
    proto_compress_fwdbwd: bool
    fwdbwd_max_chunk_len: int
    fwdbwd_max_chunk_bytes_count: int
    fwdbwd_dispatch_bytes_semaphore_size: int
    billing_exception_max_pause_duration_sec: int
    sample_no_retries: bool
    sample_enable_stuck_detection: bool
    sample_max_concurrent_requests: int
    use_pyqwest_transport: bool
    sample_use_retrieve_futures: bool
    custom_loss_server_side: bool
    sample_join_sampling_session: bool
    proto_write_fwdbwd: bool
    fwd_via_fwdbwd: bool
    create_model_via_load_weights: bool
    sample_stream: bool


class DynamicConfigResponse(Reply):
    """What a client should look at again now and then."""

    refresh_interval_sec: int
    sample_cancel_enabled: bool
    sample_cancel_max_batch_size: int


class PendingReply(Reply):
    """There is no result yet: ask again."""

    request_id: str
    queue_state: Literal["active", "paused_capacity", "paused_rate_limit"]
    queue_state_reason: str
