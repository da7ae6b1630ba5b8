"""Saved weights and the runs they belong to."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, Literal, get_args

from .base import Params, Reply

CheckpointType = Literal["training", "sampler", "external"]
CHECKPOINT_TYPES: tuple[CheckpointType, ...] = get_args(CheckpointType)

# The middle segment of a path, and what kind of checkpoint it means.
PATH_KINDS: dict[str, CheckpointType] = {
    "weights": "training",
    "sampler_weights": "sampler",
    "external_weights": "external",
}
CHECKPOINT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_SCHEME = "tinker://"


class ParsedCheckpointTinkerPath(Params):
    """``tinker://<training_run_id>/<weights|sampler_weights|external_weights>/<name>`` in its parts.

    >>> ParsedCheckpointTinkerPath.from_tinker_path("tinker://run/weights/best").checkpoint_id
    'weights/best'
    """

    tinker_path: str
    training_run_id: str
    checkpoint_type: CheckpointType
    checkpoint_id: str

    @classmethod
    def from_tinker_path(cls, tinker_path: str) -> ParsedCheckpointTinkerPath:
        """Take a path apart, or say what is wrong with it."""
        shape = f"{_SCHEME}<training_run_id>/<{'|'.join(PATH_KINDS)}>/<name>"
        parts = tinker_path.removeprefix(_SCHEME).split("/")
        if not tinker_path.startswith(_SCHEME) or len(parts) != 3 or not all(parts):
            raise ValueError(f"Invalid checkpoint tinker path {tinker_path!r}: it must look like {shape}")
        run_id, kind, name = parts
        if kind not in PATH_KINDS:
            raise ValueError(
                f"Invalid checkpoint tinker path {tinker_path!r}: {kind!r} is none of {list(PATH_KINDS)}"
            )
        check_checkpoint_name(name)
        return cls(
            tinker_path=tinker_path,
            training_run_id=run_id,
            checkpoint_type=PATH_KINDS[kind],
            checkpoint_id=f"{kind}/{name}",
        )


def check_checkpoint_name(name: str) -> str:
    """The name itself, if it can be one segment of a path; letters, digits, dots, dashes and underscores."""
    if not CHECKPOINT_NAME.fullmatch(name):
        raise ValueError(
            f"name: {name[:80]!r} cannot name a checkpoint; use up to 255 letters, digits, '.', '_' or '-', "
            "starting with a letter or digit"
        )
    return name


class Checkpoint(Reply):
    """One saved checkpoint.

    >>> path = training.save_state("kept").result().path
    >>> rest = service.create_rest_client()
    >>> [found] = rest.list_checkpoints(training.model_id).result().checkpoints
    >>> isinstance(found, Checkpoint), found.tinker_path == path
    (True, True)
    """

    checkpoint_id: str
    checkpoint_type: CheckpointType
    time: datetime
    tinker_path: str
    size_bytes: int | None = None
    public: bool = False
    user_metadata: dict[str, Any] | None = None
    expires_at: datetime | None = None


class TrainingRun(Reply):
    """One run: a base model with an adapter being trained.

    >>> isinstance(service.create_rest_client().get_training_run(training.model_id).result(), TrainingRun)
    True
    """

    training_run_id: str
    base_model: str
    model_owner: str
    is_lora: bool
    last_request_time: datetime
    corrupted: bool = False
    lora_rank: int | None = None
    last_checkpoint: Checkpoint | None = None
    last_sampler_checkpoint: Checkpoint | None = None
    user_metadata: dict[str, Any] | None = None


class Cursor(Reply):
    """Where a page stands in the whole listing."""

    offset: int
    limit: int
    total_count: int


class TrainingRunsResponse(Reply):
    """A page of runs."""

    training_runs: list[TrainingRun]
    cursor: Cursor


class CheckpointsListResponse(Reply):
    """Checkpoints of one run, or a page of all of a user's."""

    checkpoints: list[Checkpoint]
    cursor: Cursor | None = None


class CheckpointArchiveUrlResponse(Reply):
    """Where a checkpoint's files are to be had as one tar.gz, until ``expires``."""

    url: str
    expires: datetime


class WeightsInfoResponse(Reply):
    """What is needed to make a run that can load a checkpoint."""

    base_model: str
    is_lora: bool
    lora_rank: int | None = None
    train_unembed: bool | None = None
    train_mlp: bool | None = None
    train_attn: bool | None = None
    optimizer_config: dict[str, Any] | None = None


class GetSamplerResponse(Reply):
    """What a sampler samples from."""

    sampler_id: str
    base_model: str
    model_path: str | None = None
    tokenizer_id: str | None = None


class GetSessionResponse(Reply):
    """What a session holds."""

    training_run_ids: list[str]
    sampler_ids: list[str]
    user_metadata: dict[str, Any] | None = None
    display_name: str | None = None


class ListSessionsResponse(Reply):
    """A page of session ids."""

    sessions: list[str]
