"""Sessions: the scope of one client's runs and samplers, alive as long as it says so."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Row

from tinsmith.store import Database, schema
from tinsmith.types import CreateSessionRequest, Gone, NotFound

from . import audit, ids

DEFAULT_PROJECT = "default"  # of sessions that name none


@dataclass(slots=True)
class Session:
    """One session as the service remembers it."""

    session_id: str
    owner: str
    created_at: float
    last_seen_at: float
    status: str = "active"
    status_detail: Any = None
    tags: list[str] = field(default_factory=list)
    user_metadata: dict[str, Any] = field(default_factory=dict)
    project_id: str | None = None
    display_name: str | None = None
    sdk_version: str | None = None

    def row(self) -> dict[str, Any]:
        """The catalogue's row."""
        return {name: getattr(self, name) for name in self.__slots__}


class Sessions:
    """Sessions that are active, in memory; all of them, in the catalogue."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._active: dict[str, Session] = {}
        self._count: Counter[str] = Counter()  # of active ones, by owner
        self._seen_since_flush: set[str] = set()

    def load(self) -> None:
        """Read the sessions that were active when the service stopped."""
        query = sa.select(schema.sessions).where(schema.sessions.c.status == "active")
        for row in self._database.read_now(lambda connection: connection.execute(query).all()):
            self._add(Session(**row._mapping))

    def _add(self, session: Session) -> None:
        self._active[session.session_id] = session
        self._count[session.owner] += 1

    def active_count(self, owner: str) -> int:
        """How many sessions of this owner are active."""
        return self._count[owner]

    async def create(self, owner: str, request: CreateSessionRequest) -> Session:
        """Open a session."""
        now = round(time.time(), 6)  # so that the search's cursor, which has microseconds, is exact
        session = Session(
            session_id=ids.new_session_id(),
            owner=owner,
            created_at=now,
            last_seen_at=now,
            tags=request.tags,
            user_metadata=request.user_metadata,
            project_id=request.project_id,
            display_name=request.display_name,
            sdk_version=request.sdk_version,
        )

        def change(connection: Connection) -> None:
            connection.execute(schema.sessions.insert(), session.row())
            audit.record(connection, owner, "session_created", session_id=session.session_id)

        await self._database.write(change)
        self._add(session)
        return session

    def active(self, owner: str, session_id: str) -> Session:
        """An active session of this owner."""
        session = self._active.get(session_id)
        if session is None or session.owner != owner or session.status != "active":
            raise NotFound(f"no active session {session_id!r}", field="session_id")
        return session

    async def heartbeat(self, owner: str, session_id: str) -> None:
        """The client is still there. `Gone` tells one whose session has ended to stop."""
        session = self._active.get(session_id)
        if session is not None and session.owner == owner and session.status == "active":
            session.last_seen_at = time.time()
            self._seen_since_flush.add(session_id)
            return
        await self.find(owner, session_id)
        raise Gone(f"session {session_id!r} has ended", field="session_id")

    async def find(self, owner: str, session_id: str) -> Session:
        """A session of this owner, active or ended."""
        if (session := self._active.get(session_id)) and session.owner == owner:
            return session
        table = schema.sessions
        query = sa.select(table).where(table.c.session_id == session_id, table.c.owner == owner)
        row = await self._database.read(lambda connection: connection.execute(query).one_or_none())
        if row is None:
            raise NotFound(f"no session {session_id!r}", field="session_id")
        return Session(**row._mapping)

    async def page(self, owner: str, limit: int, offset: int) -> list[str]:
        """Session ids of this owner, newest first."""
        table = schema.sessions
        query = (
            sa.select(table.c.session_id)
            .where(table.c.owner == owner)
            .order_by(table.c.created_at.desc(), table.c.session_id)
            .limit(limit)
            .offset(offset)
        )
        return await self._database.read(lambda connection: list(connection.scalars(query)))

    async def end(self, session: Session, status: str, detail: Any = None) -> None:
        """Close a session; what it held is for the caller to free. One that could not be closed is active."""
        before = session.status, session.status_detail
        session.status, session.status_detail = status, detail
        actor = session.owner if status == "client_finished" else audit.THE_SERVICE
        try:
            await self._change(
                session,
                f"session_{status}",
                {"status": status, "status_detail": detail, "last_seen_at": session.last_seen_at},
                actor=actor,
                detail=detail,
            )
        except BaseException:
            session.status, session.status_detail = before
            raise
        if self._active.pop(session.session_id, None) is not None:
            self._count[session.owner] -= 1

    async def assign_project(self, owner: str, session_id: str, project_id: str) -> None:
        """Move a session, and all it made and makes, into a project."""
        session = await self.find(owner, session_id)
        session.project_id = project_id
        await self._change(
            session, "project_session_assigned", {"project_id": project_id}, project_id=project_id
        )

    async def _change(self, session: Session, event: str, values: dict[str, Any], **details: Any) -> None:
        table = schema.sessions
        update = table.update().where(table.c.session_id == session.session_id).values(**values)

        def change(connection: Connection) -> None:
            connection.execute(update)
            audit.record(connection, session.owner, event, session_id=session.session_id, **details)

        await self._database.write(change)

    def silent_since(self, moment: float) -> list[Session]:
        """Active sessions whose last sign of life is older than ``moment``."""
        return [session for session in self._active.values() if session.last_seen_at < moment]

    def all_active(self) -> list[Session]:
        """Every active session."""
        return list(self._active.values())

    async def flush(self) -> None:
        """Write down who was seen; called now and then, so that a heartbeat itself costs no write."""
        seen = [
            {"key": session_id, "seen": self._active[session_id].last_seen_at}
            for session_id in self._seen_since_flush
            if session_id in self._active
        ]
        self._seen_since_flush.clear()
        if seen:
            table = schema.sessions
            change = (
                table.update()
                .where(table.c.session_id == sa.bindparam("key"))
                .values(last_seen_at=sa.bindparam("seen"))
            )
            await self._database.write(lambda connection: connection.execute(change, seen))


def metadata_as_text(row: Row[Any]) -> dict[str, str] | None:
    """What the client said about a session, as the text that searches and bills show."""
    said = row.user_metadata.items()
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in said} or None
