"""Names of things. Request ids follow from who asked what, so a resubmission finds its future."""

from __future__ import annotations

import uuid


def new_session_id() -> str:
    """A session is a UUID."""
    return str(uuid.uuid4())


def run_id(session_id: str, model_seq_id: int) -> str:
    """Clients compute this one themselves, so its form is fixed."""
    return f"{session_id}:train:{model_seq_id}"


def sampler_id(session_id: str, sampling_session_seq_id: int) -> str:
    """The sampler's id within its session."""
    return f"{session_id}:sample:{sampling_session_seq_id}"


def request_id(stream_id: str, seq_id: int) -> str:
    """The future of one operation of a run or a sampler."""
    return f"{stream_id}:{seq_id}"


def sequence_ids(request: str, count: int) -> list[str]:
    """One id for each of the samples of a request."""
    return [f"{request}:{at}" for at in range(count)]
