"""What may stand in the query of an address, endpoint by endpoint. Anything else is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from .base import Day, Moment, Request

AccessScope = Literal["owned", "accessible"]
_MOST_DAYS = 14


class Query(Request):
    """An empty query, and what all have in common: text becomes numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class ScopeQuery(Query):
    """Whose things to look among. Nobody sees another's, so both scopes hold the same."""

    access_scope: AccessScope = "owned"


class SessionsQuery(ScopeQuery):
    """A page of sessions."""

    limit: int = Field(20, ge=0, le=1000)
    offset: int = Field(0, ge=0, le=2**31)


class RunsQuery(SessionsQuery):
    """A page of runs, of all projects or of one."""

    project_id: str | None = None


class CheckpointsQuery(Query):
    """A page of checkpoints."""

    limit: int = Field(100, ge=0, le=1000)
    offset: int = Field(0, ge=0, le=2**31)


class AuditQuery(Query):
    """What to look for in the audit log, on which day (UTC; today)."""

    event_type: Literal[
        "all", "checkpoints", "projects", "teams", "organizations", "sessions", "training_runs"
    ] = "all"
    day: Day | None = None
    owner: str | None = None  # whose; `*`: everybody's. For admins; others see their own.


def _whole_hour(moment: datetime) -> datetime:
    try:
        moment = moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("is out of range") from None
    if (moment.minute, moment.second, moment.microsecond) != (0, 0, 0):
        raise ValueError("must be a whole hour, UTC")
    return moment


Hour = Annotated[Moment, AfterValidator(_whole_hour)]


class UsageQuery(Query):
    """The window to account for: whole hours, 14 days at most."""

    starting_on: Hour
    ending_before: Hour

    @model_validator(mode="after")
    def _a_window(self) -> UsageQuery:
        if self.ending_before <= self.starting_on:
            raise ValueError("ending_before: must be later than starting_on")
        if self.ending_before - self.starting_on > timedelta(days=_MOST_DAYS):
            raise ValueError(f"ending_before: at most {_MOST_DAYS} days after starting_on")
        if self.starting_on > datetime.now(UTC):
            raise ValueError("starting_on: lies in the future")
        return self


class StorageQuery(Query):
    """Checkpoints of all projects, or of one."""

    project_id: str | None = None


class SignedQuery(Query):
    """What makes an address good for whoever has it."""

    expires: int
    signature: str = Field(max_length=128)
