"""What endpoints answer, where only the client reads it."""

from __future__ import annotations

from pydantic import Field

from tinsmith.types import Reply


class ServerConfig(Reply):
    """How the service wants to be used. A service that has no such endpoint speaks the old JSON dialect."""

    parallel_fwdbwd_chunks: bool = True
    proto_compress_fwdbwd: bool = False
    fwdbwd_max_chunk_len: int = Field(1024, ge=1)
    fwdbwd_max_chunk_bytes_count: int = Field(5_000_000, ge=1)
    fwdbwd_dispatch_bytes_semaphore_size: int = 50_000_000
    sample_dispatch_bytes_semaphore_size: int = 10 * 2**20
    inflight_response_bytes_semaphore_size: int = 50 * 2**20
    billing_exception_max_pause_duration_sec: float = 3600.0
    sample_max_concurrent_requests: int = Field(2000, ge=1)
    sample_use_retrieve_futures: bool = False
    sample_enable_stuck_detection: bool = True
    sample_join_sampling_session: bool = False
    custom_loss_server_side: bool = False
    sample_stream: bool = False  # ours: samples can be had token by token
    old_dialect: bool = Field(False, exclude=True)  # not on the wire: ours to know


OLD_SERVER = ServerConfig(
    parallel_fwdbwd_chunks=False,
    fwdbwd_max_chunk_len=128,
    fwdbwd_max_chunk_bytes_count=500_000,
    old_dialect=True,
)


class CreateSessionReply(Reply):
    """A session, and what the service wants its user to read."""

    session_id: str
    info_message: str | None = None
    warning_message: str | None = None
    error_message: str | None = None


class CreateSamplingSessionReply(Reply):
    """A sampler."""

    sampling_session_id: str


class Submitted(Reply):
    """An operation was accepted; its result is asked for by ``request_id``."""

    request_id: str
    model_id: str | None = None
    sample_sequence_ids: list[str] | None = None


class CreateModelResult(Reply):
    """A run was made."""

    model_id: str


class SnapshotResult(Reply):
    """A snapshot was taken: a named one has a path, an ephemeral one is a sampler at once."""

    path: str | None = None
    sampling_session_id: str | None = None


class LossMade(Reply):
    """A custom loss was made."""

    loss_id: str
