"""Names of things. Request ids follow from who asked what, so a resubmission finds its future."""

from __future__ import annotations

import uuid


def new_session_id() -> str:
    """A session is a UUID."""
    return str(uuid.uuid4())


def run_id(session_id: str, model_seq_id: int) -> str:
    """Clients compute this one themselves, so its form is fixed."""
    return f"{session_id}:train:{model_seq_id}"


def session_of_run(run_id: str) -> str:
    """The session a run was made in."""
    return run_id.partition(":train:")[0]


def sampler_id(session_id: str, sampling_session_seq_id: int) -> str:
    """The sampler's id within its session."""
    return f"{session_id}:sample:{sampling_session_seq_id}"


def loss_id(session_id: str, custom_loss_seq_id: int) -> str:
    """A custom loss of a session."""
    return f"{loss_prefix(session_id)}{custom_loss_seq_id}"


def loss_prefix(session_id: str) -> str:
    """What the ids of a session's custom losses begin with."""
    return f"{session_id}:loss:"


def session_of_loss(loss_id: str) -> str:
    """The session a custom loss was made in."""
    return loss_id.partition(":loss:")[0]


def request_id(stream_id: str, seq_id: int) -> str:
    """The future of one operation of a run or a sampler."""
    return f"{stream_id}:{seq_id}"


def sequence_ids(request: str, count: int) -> list[str]:
    """One id for each of the samples of a request."""
    return [f"{request}:{at}" for at in range(count)]


def seq_id(request: str) -> int:
    """The seq id a request id ends with."""
    return int(request.rpartition(":")[2])
