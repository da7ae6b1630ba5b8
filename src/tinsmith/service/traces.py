"""A session's timeline as a trace file: what was asked, when it was begun, when it ended, and how.

The format is the Chrome trace-event format, which Perfetto and chrome://tracing open.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import Connection, Row

from tinsmith.store import Database, schema
from tinsmith.types import NotFound

from .sessions import Session

log = logging.getLogger(__name__)
_operations, _results = schema.operations, schema.results
_STREAMS = ((schema.runs, "run_id"), (schema.samplers, "sampler_id"))


@dataclass(slots=True)
class Export:
    """The building of one session's trace."""

    task: asyncio.Task[Path]
    built_from: tuple[int, int]
    handed_out: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """Where an export stands."""

    status: Literal["pending", "ready", "failed"]
    error: str | None = None


class Traces:
    """Builds traces in the background and keeps their files as long as their addresses are good."""

    def __init__(self, database: Database, folder: Path, keep: float) -> None:
        self._database = database
        self._folder = folder
        self._keep = keep
        self._exports: dict[str, Export] = {}

    async def export(self, session: Session) -> Progress:
        """Begin a trace, or say how it stands; one that was handed out is built anew if more has happened."""
        session_id = session.session_id
        version = await self._database.read(lambda connection: _version(connection, session_id))
        export = self._exports.get(session_id)
        if export is None or (export.handed_out and export.built_from != version):
            task = asyncio.get_running_loop().create_task(self._build(session), name=f"trace {session_id}")
            self._exports[session_id] = Export(task, version)
            return Progress("pending")
        if not export.task.done():
            return Progress("pending")
        if (error := export.task.exception()) is not None:
            del self._exports[session_id]
            log.error("the trace of session %s failed", session_id, exc_info=error)
            return Progress("failed", f"internal error: {type(error).__name__}")
        export.handed_out = True
        return Progress("ready")

    async def _build(self, session: Session) -> Path:
        rows = await self._database.read(lambda connection: _history(connection, session.session_id))
        return await asyncio.to_thread(self._write, session, rows)

    def _write(self, session: Session, rows: list[Row[Any]]) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{session.session_id}.json"
        unfinished = path.with_suffix(".part")
        trace = {"traceEvents": list(_events(session, rows)), "displayTimeUnit": "ms"}
        unfinished.write_text(json.dumps(trace), encoding="utf-8")
        unfinished.rename(path)
        return path

    def file(self, session_id: str) -> Path:
        """The file of a trace that was built."""
        export = self._exports.get(session_id)
        if export is None or not export.task.done() or export.task.exception() is not None:
            raise NotFound(f"no trace of session {session_id!r}; export it again", field="session_id")
        return export.task.result()

    def expire(self) -> None:
        """Remove files whose addresses are no longer good."""
        oldest = time.time() - 2 * self._keep
        for path in self._folder.glob("*.json"):
            if path.stat().st_mtime < oldest:
                self._exports.pop(path.stem, None)
                path.unlink()

    async def stop(self) -> None:
        """Stop building."""
        tasks = [export.task for export in self._exports.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _version(connection: Connection, session_id: str) -> tuple[int, int]:
    """Changes whenever an operation of the session is accepted or answered."""
    query = (
        sa.select(sa.func.count(_operations.c.request_id), sa.func.count(_results.c.request_id))
        .join(_results, _results.c.request_id == _operations.c.request_id, isouter=True)
        .where(_operations.c.stream_id.in_(_stream_ids(session_id)))
    )
    accepted, answered = connection.execute(query).one()
    return accepted, answered


def _history(connection: Connection, session_id: str) -> list[Row[Any]]:
    asked = (_operations.c.request_id, _operations.c.stream_id, _operations.c.seq_id, _operations.c.kind)
    query = (
        sa.select(
            *asked,
            _operations.c.accepted_at,
            _results.c.started_at,
            _results.c.finished_at,
            _results.c.category,
        )
        .join(_results, _results.c.request_id == _operations.c.request_id, isouter=True)
        .where(_operations.c.stream_id.in_(_stream_ids(session_id)))
        .order_by(_operations.c.accepted_at)
    )
    return list(connection.execute(query))


def _stream_ids(session_id: str) -> sa.CompoundSelect[Any]:
    return sa.union_all(
        *(sa.select(table.c[key]).where(table.c.session_id == session_id) for table, key in _STREAMS)
    )


def _events(session: Session, rows: list[Row[Any]]) -> Iterator[dict[str, Any]]:
    """One track for each run and sampler; on it, from acceptance to answer, every operation."""
    name = f"session {session.display_name or session.session_id}"
    yield {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": name}}
    tracks: dict[str, int] = {}
    for row in rows:
        if row.stream_id not in tracks:
            tracks[row.stream_id] = len(tracks) + 1
            track = {"ph": "M", "pid": 1, "tid": tracks[row.stream_id]}
            yield track | {"name": "thread_name", "args": {"name": row.stream_id}}
        yield from _operation_events(row, tracks[row.stream_id])


def _operation_events(row: Row[Any], track: int) -> Iterator[dict[str, Any]]:
    """Nested spans, as operations overlap: the outer one is the whole, the inner one the work."""
    common = {"pid": 1, "tid": track, "cat": "operation", "id": row.request_id}
    outcome = "pending" if row.finished_at is None else "ok" if row.category is None else row.category
    args = {
        "request_id": row.request_id,
        "seq_id": row.seq_id,
        "kind": row.kind,
        "outcome": outcome,
        "accepted_at": row.accepted_at,
        "started_at": row.started_at,
        "finished_at": row.finished_at,
    }
    spans = [(row.kind, row.accepted_at, row.finished_at), ("running", row.started_at, row.finished_at)]
    begun = [(name, start, end) for name, start, end in spans if start is not None]
    for name, start, _ in begun:
        yield common | {"ph": "b", "name": name, "ts": _microseconds(start), "args": args}
    for name, _, end in reversed(begun):
        if end is not None:
            yield common | {"ph": "e", "name": name, "ts": _microseconds(end)}


def _microseconds(seconds: float) -> int:
    return round(seconds * 1e6)
