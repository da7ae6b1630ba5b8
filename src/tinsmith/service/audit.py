"""The audit log: who did what, when. Entries are only ever added, in the commit of what they tell."""

from __future__ import annotations

import time
from datetime import UTC, date, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from tinsmith.store import Database, schema
from tinsmith.types.account import AuditLogEntry, AuditLogResponse

_table = schema.audit
_DAY = 86400.0
THE_SERVICE = "tinsmith"  # as an actor: what the service does by itself

# Every event, and what kind of thing it is about: `event_type` filters by that.
EVENTS = {
    "session_created": "sessions",
    "session_client_finished": "sessions",
    "session_cancelled": "sessions",
    "training_run_created": "training_runs",
    "training_run_ended": "training_runs",
    "checkpoint_created": "checkpoints",
    "checkpoint_read": "checkpoints",
    "checkpoint_published": "checkpoints",
    "checkpoint_unpublished": "checkpoints",
    "checkpoint_ttl_set": "checkpoints",
    "checkpoint_deleted": "checkpoints",
    "checkpoint_expired": "checkpoints",
    "project_session_assigned": "projects",
    "api_key_created": "organizations",
    "api_key_limited": "organizations",
    "api_key_revoked": "organizations",
}


def record(
    connection: Connection, owner: str, event: str, *, actor: str | None = None, **details: Any
) -> None:
    """Note one event. ``owner`` is whose thing it was, ``actor`` who did it, if that was somebody else."""
    row = {
        "owner": owner,
        "at": time.time(),
        "event": event,
        "subject": EVENTS[event],
        "details": {"actor": actor or owner} | details,
    }
    connection.execute(_table.insert(), row)


class Audit:
    """Reading the log, and adding what belongs to no other change."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def note(self, owner: str, event: str, *, actor: str | None = None, **details: Any) -> None:
        """Note an event that changes nothing else, such as a read."""
        await self._database.write(
            lambda connection: record(connection, owner, event, actor=actor, **details)
        )

    async def of_day(self, owner: str | None, subject: str, day: date | None) -> AuditLogResponse:
        """An owner's entries (None: everybody's) of one day (UTC; None: today) about one kind of thing, or
        about ``all``."""
        midnight = datetime.combine(day or datetime.now(UTC).date(), datetime.min.time(), UTC).timestamp()
        query = (
            sa.select(_table)
            .where(_table.c.at >= midnight, _table.c.at < midnight + _DAY)
            .order_by(_table.c.at, _table.c.entry_id)
        )
        if owner is not None:
            query = query.where(_table.c.owner == owner)
        if subject != "all":
            query = query.where(_table.c.subject == subject)
        rows = await self._database.read(lambda connection: connection.execute(query).all())
        return AuditLogResponse(entries=[_entry(row) for row in rows])


def _entry(row: sa.Row[Any]) -> AuditLogEntry:
    details = {"owner": row.owner} | row.details
    return AuditLogEntry(
        timestamp=datetime.fromtimestamp(row.at, UTC),
        event=row.event,
        event_details=details,
        model_id=details.get("training_run_id") if row.subject == "checkpoints" else None,
        tinker_path=details.get("tinker_path"),
        purpose=details.get("purpose"),
    )
