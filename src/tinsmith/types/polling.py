"""Waiting for all samples of a sampler at once, and sharing a sampler between clients."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .base import Reply, Request

# Each client of a sampler numbers its samples in a range of this size.
SEQ_IDS_PER_CLIENT = 1_000_000_000


class SamplingTarget(Request):
    """One client's samples of one sampler; the first client is 0."""

    type: Literal["sampling_session"] = "sampling_session"
    sampling_session_id: str
    cloned_sampler_id: int = Field(0, ge=0, le=2**33)


class RetrieveFuturesRequest(Request):
    """Asks which samples have finished since ``prev_cursor``, and says whose results have been fetched."""

    target: SamplingTarget
    prev_cursor: int = Field(0, ge=0, le=2**53)
    timeout: float | None = Field(None, ge=0)
    retrieved_request_ids: list[str] = Field([], max_length=20_000)


class Finished(Reply):
    """A sample that has a result."""

    state: Literal["finished"] = "finished"
    request_id: str
    response_payload_uncompressed_size: int | None = None


class Failed(Reply):
    """A sample that has an error."""

    state: Literal["failed"] = "failed"
    request_id: str


class RetrieveFuturesResponse(Reply):
    """What has finished, and the cursor to ask with next."""

    completions: list[Annotated[Finished | Failed, Field(discriminator="state")]]
    cursor: int


class JoinSamplingSessionRequest(Request):
    """Asks for a range of seq ids of its own in somebody's sampler."""

    sampling_session_id: str
    type: Literal["join_sampling_session"] = "join_sampling_session"


class JoinSamplingSessionResponse(Reply):
    """The client's number; the sampler's first client is 0."""

    client_counter: int
    type: Literal["join_sampling_session"] = "join_sampling_session"
