"""Finding sessions: the database narrows by what it knows well, predicates decide the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Row

from tinsmith.store import Database, schema
from tinsmith.types.session import (
    FinishDetail,
    FinishedQuery,
    NextPage,
    SessionActive,
    SessionCancelled,
    SessionFinished,
    SessionSearchRequest,
    SessionSearchResponse,
    SessionsOf,
    SessionStatus,
    SessionSummary,
)

from .sessions import DEFAULT_PROJECT, metadata_as_text

_table = schema.sessions
_PAGE = 500  # rows looked at between two queries


class SessionSearch:
    """Searches the sessions an owner may see, newest first."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, owner: str, request: SessionSearchRequest) -> SessionSearchResponse:
        """One page of matches."""

        def query(connection: Connection) -> SessionSearchResponse:
            matches = _matches(connection, owner, request)
            found = [row for row, _ in zip(matches, range(request.limit + 1), strict=False)]
            page = found[: request.limit]
            stored = _stored(connection, [row.session_id for row in page])
            return SessionSearchResponse(
                sessions=[_summary(row, *stored.get(row.session_id, (0, 0))) for row in page],
                next_cursor=_cursor(page[-1]) if len(found) > request.limit else None,
            )

        return await self._database.read(query)


def _matches(connection: Connection, owner: str, request: SessionSearchRequest) -> Iterator[Row[Any]]:
    if isinstance(request.owner, SessionsOf) and owner not in request.owner.owner_urns:
        return
    narrowed = sa.select(_table).where(_table.c.owner == owner, *_conditions(request))
    narrowed = narrowed.order_by(_table.c.created_at.desc(), _table.c.session_id.desc()).limit(_PAGE)
    after = None
    if request.cursor is not None:
        after = (request.cursor.last_created_at.timestamp(), request.cursor.last_session_id)
        # A client may keep times less finely than we do; the session it has seen must not come again.
        narrowed = narrowed.where(_table.c.session_id != request.cursor.last_session_id)
    while True:
        query = narrowed
        if after is not None:
            query = narrowed.where(sa.tuple_(_table.c.created_at, _table.c.session_id) < after)
        rows = connection.execute(query).all()
        yield from (row for row in rows if all(fits(row, request) for fits in _PREDICATES))
        if len(rows) < _PAGE:
            return
        after = (rows[-1].created_at, rows[-1].session_id)


def _conditions(request: SessionSearchRequest) -> Iterator[sa.ColumnElement[bool]]:
    if request.project_ids is not None:
        yield sa.func.coalesce(_table.c.project_id, DEFAULT_PROJECT).in_(request.project_ids)
    if request.statuses is not None:
        yield _table.c.status.in_({status.type for status in request.statuses})
    if request.session_id is not None and request.display_name is None:
        yield _table.c.session_id == request.session_id


def _fits_name(row: Row[Any], request: SessionSearchRequest) -> bool:
    """Every word of the name somewhere in the session's; or else the id, if that is asked for too."""
    if request.display_name is None:
        return True
    name = (row.display_name or "").casefold()
    by_name = all(word in name for word in request.display_name.casefold().split())
    return by_name or row.session_id == request.session_id


def _fits_metadata(row: Row[Any], request: SessionSearchRequest) -> bool:
    if not request.user_metadata:
        return True
    return request.user_metadata.items() <= (metadata_as_text(row) or {}).items()


def _fits_reason(row: Row[Any], request: SessionSearchRequest) -> bool:
    if request.statuses is None:
        return True
    asked = [status for status in request.statuses if status.type == row.status]
    return any(
        not isinstance(status, FinishedQuery)
        or status.reasons is None
        or row.status_detail["reason"] in status.reasons
        for status in asked
    )


_PREDICATES: list[Callable[[Row[Any], SessionSearchRequest], bool]] = [
    _fits_name,
    _fits_metadata,
    _fits_reason,
]


def _stored(connection: Connection, session_ids: list[str]) -> dict[str, tuple[int, int]]:
    """How many checkpoints each session has now, and how many bytes they take."""
    kept = schema.storage.c
    query = (
        sa.select(kept.session_id, sa.func.count(), sa.func.sum(kept.size_bytes))
        .where(kept.session_id.in_(session_ids), kept.until.is_(None))
        .group_by(kept.session_id)
    )
    return {session_id: (count, size) for session_id, count, size in connection.execute(query)}


def _summary(row: Row[Any], checkpoints: int, size: int) -> SessionSummary:
    return SessionSummary(
        session_id=row.session_id,
        created_at=datetime.fromtimestamp(row.created_at, UTC),
        owner=row.owner,
        project_id=row.project_id or DEFAULT_PROJECT,
        status=_STATUS[row.status](row.status_detail),
        checkpoints_count=checkpoints,
        checkpoint_storage_bytes=size,
        display_name=row.display_name,
        user_metadata=metadata_as_text(row),
    )


def _finished(detail: Any) -> SessionStatus:
    return SessionFinished(reason=FinishDetail(type=detail["reason"]), detail=detail["detail"])


# How a session's row tells its status.
_STATUS: dict[str, Callable[[Any], SessionStatus]] = {
    "active": lambda _: SessionActive(),
    "cancelled": lambda detail: SessionCancelled(detail=detail),
    "client_finished": _finished,
}


def _cursor(row: Row[Any]) -> NextPage:
    return NextPage(
        last_created_at=datetime.fromtimestamp(row.created_at, UTC), last_session_id=row.session_id
    )
