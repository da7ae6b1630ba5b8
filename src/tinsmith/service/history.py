"""The record of what was asked and answered, without the contents: kept for a while, then forgotten.

It answers whoever submits again, and is what traces are made from. A session that has ended is asked neither
for ever; nor is a sample once it was answered.
"""

from __future__ import annotations

import time
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from tinsmith.store import Database, schema

from .futures import delete_rows

_operations, _results, _sessions = schema.operations, schema.results, schema.sessions
_TABLES = schema.operations, schema.results, schema.payloads, schema.answers
_AT_ONCE = 1000  # rows in one change, so that nobody waits long for it
_SELDOM = 3600.0  # seconds between two looks, which read much


class History:
    """Forgets what is older than ``keep`` seconds."""

    def __init__(self, database: Database, keep: float) -> None:
        self._database, self._keep = database, keep
        self._due = 0.0

    async def expire(self) -> None:
        """Now and then: sessions that ended so long ago, samples that were answered so long ago."""
        now = time.time()
        if now < self._due:
            return
        self._due = now + min(_SELDOM, self._keep)
        before = now - self._keep
        for session_id in await self._database.read(lambda connection: _ended(connection, before)):
            # Runs, samplers and custom losses of a session have ids that begin with its own.
            inside = _operations.c.stream_id.between(f"{session_id}:", f"{session_id};")
            await self._forget(sa.select(_operations.c.request_id).where(inside, _answered_before(before)))
        answered = (
            sa.select(_results.c.request_id)
            .where(_results.c.kind == "sample", _results.c.finished_at < before)
            .order_by(_results.c.finished_at)
        )
        await self._forget(answered)

    async def _forget(self, old: sa.Select[Any]) -> None:
        def change(connection: Connection) -> int:
            found = list(connection.scalars(old.limit(_AT_ONCE)))
            for table in _TABLES:
                delete_rows(connection, table, found)
            return len(found)

        while await self._database.write(change) == _AT_ONCE:
            pass


def _answered_before(moment: float) -> sa.ColumnElement[bool]:
    here = _results.c.request_id == _operations.c.request_id
    return sa.select(_results.c.request_id).where(here, _results.c.finished_at < moment).exists()


def _ended(connection: Connection, before: float) -> list[str]:
    """Sessions that are over, gave no sign of life since, and of whom there is still something."""
    first, end = _sessions.c.session_id + ":", _sessions.c.session_id + ";"
    anything = sa.select(_operations.c.request_id).where(_operations.c.stream_id.between(first, end))
    query = sa.select(_sessions.c.session_id).where(
        _sessions.c.status != "active", _sessions.c.last_seen_at < before, anything.exists()
    )
    return list(connection.scalars(query))
