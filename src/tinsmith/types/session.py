"""Searching sessions, moving them, and what a search finds."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from .base import Moment, Reply, Request

FinishKind = Literal["success", "errored", "interrupted"]
StatusKind = Literal["active", "cancelled", "failed", "client_finished"]


class OwnSessions(Request):
    """The caller's own sessions."""

    type: Literal["own"] = "own"


class AccessibleSessions(Request):
    """All sessions the caller may see; nobody sees another's, so these are his own."""

    type: Literal["accessible"] = "accessible"


class SessionsOf(Request):
    """The sessions of these users, as far as the caller may see them."""

    type: Literal["user"] = "user"
    owner_urns: list[str] = Field(min_length=1, max_length=10)


class StatusQuery(Request):
    """Sessions of one status."""

    type: Literal["active", "cancelled", "failed"]


class FinishedQuery(Request):
    """Sessions whose client said it was done, and how."""

    type: Literal["client_finished"] = "client_finished"
    reasons: list[FinishKind] | None = Field(None, min_length=1)


class SearchCursor(Request):
    """Where the next page begins."""

    last_created_at: Moment
    last_session_id: str


class SessionSearchRequest(Request):
    """Finds sessions, newest first. With both ``session_id`` and ``display_name``, either one suffices."""

    session_id: str | None = None
    project_ids: list[str] | None = None
    user_metadata: dict[str, str] = {}
    display_name: str | None = Field(None, min_length=1)
    owner: Annotated[OwnSessions | AccessibleSessions | SessionsOf, Field(discriminator="type")] = (
        OwnSessions()
    )
    statuses: list[Annotated[StatusQuery | FinishedQuery, Field(discriminator="type")]] | None = Field(
        None, min_length=1
    )
    limit: int = Field(50, ge=1, le=200)
    cursor: SearchCursor | None = None


class AssignProjectRequest(Request):
    """Moves a session, and all it made and makes, into a project."""

    project_id: str = Field(min_length=1, max_length=255)


class FinishDetail(Reply):
    """How the client said it ended."""

    type: FinishKind


class SessionActive(Reply):
    """Its client is there."""

    type: Literal["active"] = "active"


class SessionCancelled(Reply):
    """The service ended it."""

    type: Literal["cancelled"] = "cancelled"
    detail: str | None = None


class SessionFinished(Reply):
    """Its client said it was done."""

    type: Literal["client_finished"] = "client_finished"
    reason: FinishDetail
    detail: str | None = None


class SessionFailed(Reply):
    """It failed. Sessions of our own service do not; those of others may."""

    type: Literal["failed"] = "failed"
    category: str | None = None
    reason: dict[str, Any] | None = None
    message: str | None = None


SessionStatus = Annotated[
    SessionActive | SessionCancelled | SessionFailed | SessionFinished, Field(discriminator="type")
]


class SessionSummary(Reply):
    """One session found."""

    session_id: str
    created_at: datetime
    owner: str
    project_id: str
    status: SessionStatus | None = None
    checkpoints_count: int
    display_name: str | None = None
    user_metadata: dict[str, str] | None = None
    checkpoint_storage_bytes: int | None = None


class NextPage(Reply):
    """What to ask the next page with."""

    last_created_at: datetime
    last_session_id: str


class SessionSearchResponse(Reply):
    """A page of sessions; without a cursor it is the last one."""

    sessions: list[SessionSummary]
    next_cursor: NextPage | None = None


class TraceExportResponse(Reply):
    """Where the trace stands; once ready, where it lies."""

    status: Literal["pending", "ready", "failed"]
    url: str | None = None
    error: str | None = None
