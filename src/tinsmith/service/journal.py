"""Accepting an operation: once, and on disk before it is acknowledged."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from tinsmith.store import Database, Space, pack, schema, unpack

from .futures import Futures, Outcome, Ticket
from .kinds import KINDS

_table, _payloads, _results = schema.operations, schema.payloads, schema.results


class PayloadGone(RuntimeError):
    """An operation is needed again whose payload has been dropped."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing asked of a run or a sampler."""

    request_id: str
    owner: str
    stream_id: str
    seq_id: int
    kind: str
    payload: Any


@dataclass(frozen=True, slots=True)
class Entry:
    """What the journal says of an operation, without its payload."""

    request_id: str
    owner: str
    stream_id: str
    seq_id: int
    kind: str
    answered: bool
    error: str | None  # answered with one, it changed nothing

    @property
    def applied(self) -> bool:
        """Whether the run is different for it."""
        return self.answered and self.error is None and KINDS[self.kind].changes_run


class Journal:
    """The operations of all runs and samplers, in the order they were accepted."""

    def __init__(self, database: Database, futures: Futures, space: Space) -> None:
        self._database = database
        self._futures = futures
        self._space = space

    async def accept(
        self, operation: Operation, beside: Callable[[Connection], Any] | None = None
    ) -> Ticket | None:
        """Make an operation durable. None if it was accepted before: then it must not run again.

        ``beside`` is written in the same commit.
        """
        if await self._futures.known_here(operation.request_id, operation.owner):
            return None
        encoded = KINDS[operation.kind].payload.encode(operation.payload)
        if not KINDS[operation.kind].frees:
            self._space.claim(len(encoded))
        ticket = self._futures.open(
            operation.request_id, operation.owner, operation.kind, operation.stream_id
        )
        ticket.size = len(encoded)
        row = _row(operation)

        def change(connection: Connection) -> None:
            if beside is not None:
                beside(connection)
            connection.execute(_table.insert(), row)
            payload = {"request_id": operation.request_id, "body": pack(encoded)}
            connection.execute(_payloads.insert(), payload)

        try:
            await self._database.write(change)
        except IntegrityError:
            self._futures.abandon(ticket)
            ticket.accepted.set_result(None)
            if await self._futures.known(operation.request_id, operation.owner):
                return None
            raise
        except BaseException as error:
            self._futures.abandon(ticket)
            ticket.accepted.set_exception(error)
            ticket.accepted.exception()  # heard: the error goes on to the caller below
            raise
        ticket.accepted.set_result(None)
        return ticket

    async def resume_at(self, stream_id: str) -> int:
        """The seq id after the last answer that has no open operation before it.

        It may be of one that is still on its way here, though a later one has arrived.
        """
        last = sa.select(sa.func.max(_table.c.seq_id)).where(_table.c.stream_id == stream_id)

        def query(connection: Connection) -> int:
            upto = connection.scalar(first_open(stream_id))
            found = connection.scalar(last if upto is None else last.where(_table.c.seq_id < upto))
            return 0 if found is None else found + 1

        return await self._database.read(query)

    async def refusal(self, stream_id: str, seq_id: int) -> str | None:
        """The error an operation was answered with, if it was."""
        ours = _table.c.stream_id == stream_id, _table.c.seq_id == seq_id
        query = sa.select(_results.c.error).join(_table, _table.c.request_id == _results.c.request_id)
        return await self._database.read(lambda connection: connection.scalar(query.where(*ours)))

    async def history(self, stream_id: str, after: int = -1) -> list[Entry]:
        """A stream's operations in seq order, with answers that are still on their way to the disk."""
        on_their_way = dict(self._futures.unwritten_of(stream_id))
        query = (
            sa.select(_table, _results.c.request_id.is_not(None).label("answered"), _results.c.error)
            .join(_results, _results.c.request_id == _table.c.request_id, isouter=True)
            .where(_table.c.stream_id == stream_id, _table.c.seq_id > after)
            .order_by(_table.c.seq_id)
        )
        rows = await self._database.read(lambda connection: connection.execute(query).all())
        return [_entry(row, on_their_way.get(row.request_id)) for row in rows]

    async def operation(self, entry: Entry) -> Operation:
        """An operation with its payload."""
        query = sa.select(_payloads.c.body).where(_payloads.c.request_id == entry.request_id)
        body = await self._database.read(lambda connection: connection.scalar(query))
        if body is None:
            raise PayloadGone(f"the journal does not hold {entry.request_id} any more")
        payload = KINDS[entry.kind].payload.decode(unpack(body))
        return Operation(entry.request_id, entry.owner, entry.stream_id, entry.seq_id, entry.kind, payload)

    async def request_of(self, owner: str, stream_id: str, kind: str) -> str | None:
        """The request id of a stream's first operation of this kind, if there is one."""
        theirs = _table.c.stream_id == stream_id, _table.c.kind == kind, _table.c.owner == owner
        query = sa.select(_table.c.request_id).where(*theirs).order_by(_table.c.seq_id).limit(1)
        found: str | None = await self._database.read(lambda connection: connection.scalar(query))
        return found

    async def unanswered(self, kind: str) -> list[Operation]:
        """Operations of this kind that were accepted but not answered when the service stopped."""
        query = (
            sa.select(_table, _payloads.c.body)
            .join(_payloads, _payloads.c.request_id == _table.c.request_id)
            .join(_results, _results.c.request_id == _table.c.request_id, isouter=True)
            .where(_table.c.kind == kind, _results.c.request_id.is_(None))
            .order_by(_table.c.accepted_at)
        )
        rows = await self._database.read(lambda connection: connection.execute(query).all())
        return [_operation(row) for row in rows]

    async def drop_payloads(self, stream_id: str) -> None:
        """A stream that has ended is never replayed: free what its operations take."""
        await self._drop(_table.c.stream_id == stream_id)

    async def drop_payloads_under(self, prefix: str) -> None:
        """The same for all streams whose ids begin so."""
        await self._drop(_table.c.stream_id.startswith(prefix, autoescape=True))

    async def _drop(self, which: sa.ColumnElement[bool]) -> None:
        await self._database.write(lambda connection: drop_payloads(connection, which))


def drop_payloads(connection: Connection, which: sa.ColumnElement[bool]) -> None:
    """Delete the payloads of these operations."""
    theirs = sa.select(_table.c.request_id).where(which)
    connection.execute(_payloads.delete().where(_payloads.c.request_id.in_(theirs)))


def first_open(stream_id: str) -> sa.Select[tuple[int]]:
    """The first seq id of a stream that the journal has no answer of."""
    return sa.select(sa.func.min(_table.c.seq_id)).where(_table.c.stream_id == stream_id, ~_answered())


def covered(run_id: str, upto: int) -> sa.ColumnElement[bool]:
    """A run's operations that a snapshot makes superfluous: in it, and answered for good."""
    return sa.and_(_table.c.stream_id == run_id, _table.c.seq_id <= upto, _answered())


def _answered() -> sa.ColumnElement[bool]:
    return sa.select(_results.c.request_id).where(_results.c.request_id == _table.c.request_id).exists()


def _row(operation: Operation) -> dict[str, Any]:
    return {
        "request_id": operation.request_id,
        "owner": operation.owner,
        "stream_id": operation.stream_id,
        "seq_id": operation.seq_id,
        "kind": operation.kind,
        "accepted_at": time.time(),
    }


def _entry(row: Any, on_its_way: Outcome | None) -> Entry:
    error = row.error if on_its_way is None else on_its_way.error
    answered = row.answered or on_its_way is not None
    return Entry(row.request_id, row.owner, row.stream_id, row.seq_id, row.kind, answered, error)


def _operation(row: Any) -> Operation:
    payload = KINDS[row.kind].payload.decode(unpack(row.body))
    return Operation(row.request_id, row.owner, row.stream_id, row.seq_id, row.kind, payload)
