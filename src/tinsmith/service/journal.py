"""Accepting an operation: once, and on disk before it is acknowledged."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from tinsmith.store import Database, schema

from .futures import Futures, Ticket
from .kinds import KINDS

_table = schema.operations


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing asked of a run or a sampler."""

    request_id: str
    owner: str
    stream_id: str
    seq_id: int
    kind: str
    payload: Any

    def row(self) -> dict[str, Any]:
        """The journal's row."""
        return {
            "request_id": self.request_id,
            "owner": self.owner,
            "stream_id": self.stream_id,
            "seq_id": self.seq_id,
            "kind": self.kind,
            "accepted_at": time.time(),
            "payload": KINDS[self.kind].payload.encode(self.payload),
        }


class Journal:
    """The operations of all runs and samplers, in the order they were accepted."""

    def __init__(self, database: Database, futures: Futures) -> None:
        self._database = database
        self._futures = futures

    async def accept(
        self, operation: Operation, beside: Callable[[Connection], Any] | None = None
    ) -> Ticket | None:
        """Make an operation durable. None if it was accepted before: then it must not run again.

        ``beside`` is written in the same commit.
        """
        if await self._futures.known(operation.request_id, operation.owner):
            return None
        ticket = self._futures.open(
            operation.request_id, operation.owner, operation.kind, operation.stream_id
        )
        row = operation.row()

        def change(connection: Connection) -> None:
            if beside is not None:
                beside(connection)
            connection.execute(_table.insert(), row)

        try:
            await self._database.write(change)
        except BaseException as error:
            self._futures.abandon(ticket)
            ticket.accepted.set_exception(error)
            ticket.accepted.exception()  # heard: the error goes on to the caller below
            raise
        ticket.accepted.set_result(None)
        return ticket

    async def of_stream(self, stream_id: str) -> list[tuple[Operation, bool]]:
        """A stream's operations in seq order, each with whether it has an answer."""
        results = schema.results
        query = (
            sa.select(_table, results.c.request_id.is_not(None).label("answered"))
            .join(results, results.c.request_id == _table.c.request_id, isouter=True)
            .where(_table.c.stream_id == stream_id)
            .order_by(_table.c.seq_id)
        )
        rows = await self._database.read(lambda connection: connection.execute(query).all())
        return [(_operation(row), bool(row.answered)) for row in rows]

    async def unanswered(self, kind: str) -> list[Operation]:
        """Operations of this kind that were accepted but not answered when the service stopped."""
        results = schema.results
        query = (
            sa.select(_table)
            .join(results, results.c.request_id == _table.c.request_id, isouter=True)
            .where(_table.c.kind == kind, results.c.request_id.is_(None), _table.c.payload != b"")
            .order_by(_table.c.accepted_at)
        )
        rows = await self._database.read(lambda connection: connection.execute(query).all())
        return [_operation(row) for row in rows]

    async def drop_payloads(self, stream_id: str) -> None:
        """A stream that has ended is never replayed: free what its operations take."""
        change = _table.update().where(_table.c.stream_id == stream_id).values(payload=b"")
        await self._database.write(lambda connection: connection.execute(change))

    async def drop_payloads_under(self, prefix: str) -> None:
        """The same for all streams whose ids begin so."""
        theirs = _table.c.stream_id.startswith(prefix, autoescape=True)
        change = _table.update().where(theirs).values(payload=b"")
        await self._database.write(lambda connection: connection.execute(change))


def _operation(row: Any) -> Operation:
    payload = KINDS[row.kind].payload.decode(row.payload)
    return Operation(row.request_id, row.owner, row.stream_id, row.seq_id, row.kind, payload)
