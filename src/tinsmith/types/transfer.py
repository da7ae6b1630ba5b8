"""Weights on their way: exports, download addresses, copies."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field, model_validator

from .base import Reply, Request

_UINT31 = 2**31 - 1
MOST_RECIPIENTS = 10


class SaveWeightsExternalRequest(Request):
    """Saves weights to be fetched file by file, in plain or encrypted to ``age`` recipients."""

    model_id: str
    path: str
    seq_id: int | None = Field(None, ge=0, le=_UINT31)
    ttl_seconds: int | None = None
    age_encryption_recipients: list[str] | None = Field(None, min_length=1, max_length=MOST_RECIPIENTS)
    type: Literal["save_weights_external"] = "save_weights_external"


class SaveWeightsExternalResponse(Reply):
    """Where the export was saved."""

    path: str
    size_bytes: int | None = None
    type: Literal["save_weights_external"] = "save_weights_external"


class ExternalWeightsUrlsResponse(Reply):
    """An address for each file of an export, good until ``expires``."""

    urls: dict[str, str]
    expires: datetime


class CopyWeightsRequest(Request):
    """Copies a checkpoint into a project, or into a session under a run number of its own."""

    source_path: str
    destination_project_id: str | None = Field(None, min_length=1)
    session_id: str | None = None
    model_seq_id: int | None = Field(None, ge=0, le=_UINT31)
    ttl_seconds: int | None = None
    weights_access_token: str | None = None

    @model_validator(mode="after")
    def _one_destination(self) -> CopyWeightsRequest:
        if (self.session_id is None) != (self.model_seq_id is None):
            raise ValueError("model_seq_id: session_id and model_seq_id go together")
        if (self.destination_project_id is None) == (self.session_id is None):
            raise ValueError(
                "destination_project_id: give either destination_project_id, or session_id and model_seq_id"
            )
        return self


class CopyWeightsResponse(Reply):
    """Where the copy is."""

    tinker_path: str
