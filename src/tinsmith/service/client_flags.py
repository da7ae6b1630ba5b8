"""How official clients are told to behave: each flag also as TINSMITH_CLIENT_... in the environment."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

# What clients ask for again and again; everything else they ask for once.
_DYNAMIC = frozenset({"refresh_interval_sec", "sample_cancel_enabled", "sample_cancel_max_batch_size"})


class ClientFlags(BaseSettings):
    """The flags of client/config and client/dynamic_config."""

    model_config = SettingsConfigDict(env_prefix="TINSMITH_CLIENT_", extra="forbid", frozen=True)

    pjwt_auth_enabled: bool = Field(
        True, description="exchange the key for a short-lived token; `whoami` needs it"
    )
    credential_default_source: Literal["api_key", "credential_cmd"] = "api_key"
    sample_dispatch_bytes_semaphore_size: int = Field(10 * 2**20, gt=0)
    inflight_response_bytes_semaphore_size: int = Field(50 * 2**20, gt=0)
    parallel_fwdbwd_chunks: bool = Field(
        True,
        description="operations are ordered by seq id, not by arrival, so chunks may overtake each other",
    )
    proto_compress_fwdbwd: bool = Field(
        False, description="compress batches; on one machine that costs more than it saves"
    )
    fwdbwd_max_chunk_len: int = Field(1024, gt=0)
    fwdbwd_max_chunk_bytes_count: int = Field(5_000_000, gt=0)
    fwdbwd_dispatch_bytes_semaphore_size: int = Field(50_000_000, gt=0)
    billing_exception_max_pause_duration_sec: int = Field(3600, ge=0)
    sample_no_retries: bool = False
    sample_enable_stuck_detection: bool = True
    sample_max_concurrent_requests: int = Field(2000, gt=0)
    use_pyqwest_transport: bool = True
    sample_use_retrieve_futures: bool = Field(
        True, description="one poll for all samples of a sampler instead of one for each"
    )
    custom_loss_server_side: bool = Field(
        True, description="custom losses run here, from the graph the client traces"
    )
    sample_join_sampling_session: bool = Field(
        True, description="unpickled samplers get their number range from the service, so none collide"
    )
    # Clients of 0.19 to 0.25 ask for these.
    proto_write_fwdbwd: bool = True
    fwd_via_fwdbwd: bool = True
    create_model_via_load_weights: bool = True
    # Our own client asks for this.
    sample_stream: bool = Field(True, description="samples can be had token by token")

    refresh_interval_sec: int = Field(300, ge=10)
    sample_cancel_enabled: bool = True
    sample_cancel_max_batch_size: int = Field(64, gt=0)

    def once(self) -> dict[str, Any]:
        """What client/config answers."""
        return self.model_dump(exclude=set(_DYNAMIC))

    def again(self) -> dict[str, Any]:
        """What client/dynamic_config answers."""
        return self.model_dump(include=set(_DYNAMIC))
