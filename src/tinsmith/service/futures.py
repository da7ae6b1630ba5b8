"""Futures: what was asked, and its answer once there is one."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import Connection, Table

from tinsmith.store import Database, pack, schema, unpack
from tinsmith.types import Gone, NotFound

from .kinds import KINDS

log = logging.getLogger(__name__)

Category = Literal["user", "server", "unknown"]
_MEMORY_BYTES = 256 * 2**20
_AT_ONCE = 500  # ids in one statement


@dataclass(frozen=True, slots=True)
class Outcome:
    """An answer: encoded result bytes, or an error and whose fault it is."""

    kind: str
    body: bytes = b""
    error: str | None = None
    category: Category | None = None

    @property
    def size(self) -> int:
        """Bytes it takes to keep."""
        return len(self.body) + len(self.error or "")


@dataclass(slots=True)
class Ticket:
    """One accepted operation that has no answer yet."""

    request_id: str
    owner: str
    kind: str
    stream_id: str
    accepted: asyncio.Future[None]  # done once the operation is durable
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    answered: bool = False  # a replay: the answer is in the journal already
    started_at: float | None = None
    size: int = 0  # of what was asked, encoded

    def start(self) -> None:
        """It is being carried out from now on."""
        self.started_at = time.time()


class Futures:
    """All futures of a service. Recent answers stay in memory, all of them in the journal."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._open: dict[str, Ticket] = {}
        self._unwritten: dict[str, tuple[str, Outcome]] = {}  # on their way to the journal
        self._refused: dict[str, dict[str, Any]] = {}  # rows of those that the journal did not take
        self._recent: OrderedDict[str, tuple[str, Outcome]] = OrderedDict()  # a cache of what is in it
        self._recent_bytes = 0
        self._background: set[asyncio.Task[None]] = set()
        self.listeners: list[Callable[[Ticket, Outcome], None]] = []  # hear of every answer
        self.outcomes: Counter[tuple[str, str]] = Counter()  # kind and how it ended -> how often

    @property
    def pending(self) -> int:
        """Operations without an answer."""
        return len(self._open)

    def ticket(self, request_id: str) -> Ticket | None:
        """The ticket of an operation that is still open."""
        return self._open.get(request_id)

    def open(self, request_id: str, owner: str, kind: str, stream_id: str) -> Ticket:
        """Register an operation before it is journalled."""
        accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ticket = Ticket(request_id, owner, kind, stream_id, accepted)
        self._open[request_id] = ticket
        return ticket

    def replay(self, request_id: str, owner: str, kind: str, stream_id: str) -> Ticket:
        """A ticket for doing again what was answered before: nobody waits, and the old answer stands."""
        accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        return Ticket(request_id, owner, kind, stream_id, accepted, answered=True)

    def abandon(self, ticket: Ticket) -> None:
        """The operation could not be journalled: it was never accepted."""
        self._open.pop(ticket.request_id, None)
        ticket.finished.set()

    async def known(self, request_id: str, owner: str) -> bool:
        """Whether this operation was accepted before; waits until that acceptance is durable."""
        if await self.known_here(request_id, owner):
            return True
        table = schema.operations
        query = sa.select(table.c.request_id).where(table.c.request_id == request_id)
        if await self._database.read(lambda connection: connection.scalar(query)) is not None:
            return True
        return await self.known_here(request_id, owner)  # a twin may have come while the journal was read

    async def known_here(self, request_id: str, owner: str) -> bool:
        """The same without a look into the journal, which finds out by itself when it is to be written."""
        if ticket := self._open.get(request_id):
            if ticket.owner != owner:
                raise NotFound(f"no such future {request_id!r}", field="request_id")
            await asyncio.shield(ticket.accepted)
            return True
        return request_id in self._unwritten or request_id in self._recent

    def resolve(self, ticket: Ticket, outcome: Outcome) -> None:
        """Give the answer to whoever waits, and journal it behind their backs.

        A crash before the journal has it costs nothing: the operation runs again and gives the same answer.
        """
        if not ticket.answered and ticket.request_id not in self._unwritten:
            row = _row(ticket, outcome)
            self._unwritten[ticket.request_id] = (ticket.owner, outcome)
            self._tell(ticket, outcome)
            self._in_background(self._journal(row, outcome))

    async def resolve_durably(self, ticket: Ticket, outcome: Outcome) -> None:
        """Journal the answer first: one that would not come out the same if the operation ran again.

        It is told however the caller ends.
        """

        async def journal_and_tell() -> None:
            await self._journal(row, outcome)
            self._tell(ticket, outcome)

        if not ticket.answered:
            row = _row(ticket, outcome)
            self._unwritten[ticket.request_id] = (ticket.owner, outcome)
            await asyncio.shield(self._in_background(journal_and_tell()))

    def _tell(self, ticket: Ticket, outcome: Outcome) -> None:
        self._open.pop(ticket.request_id, None)
        ticket.finished.set()
        self.outcomes[ticket.kind, outcome.category or "ok"] += 1
        for listener in self.listeners:
            listener(ticket, outcome)

    async def wait(self, request_id: str, owner: str, hold: float) -> Outcome | None:
        """The answer, or None if there is none within ``hold`` seconds."""
        ticket = self._open.get(request_id)
        if ticket is not None and ticket.owner == owner:
            try:
                async with asyncio.timeout(hold):
                    await ticket.finished.wait()
            except TimeoutError:
                return None
            if request_id in self._open:  # let go without an answer
                return None
        return await self._answer(request_id, owner)

    def let_go(self) -> None:
        """The service is stopping: whoever waits shall ask again, of the next one."""
        for ticket in self._open.values():
            ticket.finished.set()

    async def _answer(self, request_id: str, owner: str) -> Outcome:
        kept = self._unwritten.get(request_id) or self._recent.get(request_id)
        if kept and kept[0] == owner:
            return kept[1]
        return await self._database.read(lambda connection: _read_answer(connection, request_id, owner))

    async def expire(self, older_than: float) -> None:
        """Forget answers from before this moment."""
        results, answers = schema.results, schema.answers
        old = (
            sa.select(results.c.request_id)
            .join(answers, answers.c.request_id == results.c.request_id)
            .where(results.c.finished_at < older_than)
        )

        def change(connection: Connection) -> list[str]:
            found = list(connection.scalars(old))
            delete_rows(connection, answers, found)
            return found

        self._forget(await self._database.write(change))

    async def acknowledge(self, request_ids: Sequence[str], owner: str) -> None:
        """Their client has the answers of these samples: free what they take."""
        operations = schema.operations

        def change(connection: Connection) -> None:
            theirs = operations.c.owner == owner, operations.c.request_id.in_(request_ids)
            found = list(connection.scalars(sa.select(operations.c.request_id).where(*theirs)))
            delete_rows(connection, schema.answers, found)

        if any(request_id in self._unwritten for request_id in request_ids):
            await self.settle()  # or the journal would get them afterwards, and keep them
        await self._database.write(change)
        self._forget(request_ids)

    def _forget(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            if kept := self._recent.pop(request_id, None):
                self._recent_bytes -= kept[1].size

    def unwritten_of(self, stream_id: str) -> list[tuple[str, Outcome]]:
        """Answers of a stream that the journal does not have yet."""
        prefix = f"{stream_id}:"
        return [(key, outcome) for key, (_, outcome) in self._unwritten.items() if key.startswith(prefix)]

    async def settle(self) -> None:
        """Wait for the answers that are on their way to the journal."""
        await asyncio.gather(*self._background)

    def _cache(self, request_id: str) -> None:
        owner, outcome = self._unwritten.pop(request_id)
        self._recent[request_id] = (owner, outcome)
        self._recent_bytes += outcome.size
        while self._recent_bytes > _MEMORY_BYTES and len(self._recent) > 1:
            _, (_, dropped) = self._recent.popitem(last=False)
            self._recent_bytes -= dropped.size

    async def _journal(self, row: dict[str, Any], outcome: Outcome) -> None:
        request_id: str = row["request_id"]

        def change(connection: Connection) -> None:
            connection.execute(schema.results.insert(), row)
            answer = {"request_id": request_id, "body": pack(outcome.body)}
            connection.execute(schema.answers.insert(), answer)
            if outcome.error is not None or not KINDS[outcome.kind].lasting:
                delete_rows(connection, schema.payloads, [request_id])  # it will never be needed again

        try:
            await self._database.write(change)
        except Exception:  # it stays in memory, is tried again later, and a restart computes it again
            log.exception("the answer of %s could not be journalled", request_id)
            self._refused[request_id] = row
        else:
            self._cache(request_id)

    async def write_refused(self) -> None:
        """Try again to journal what the disk did not take."""
        for request_id, row in list(self._refused.items()):
            del self._refused[request_id]
            await self._journal(row, self._unwritten[request_id][1])

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task


def _row(ticket: Ticket, outcome: Outcome) -> dict[str, Any]:
    return {
        "request_id": ticket.request_id,
        "owner": ticket.owner,
        "kind": outcome.kind,
        "started_at": ticket.started_at,
        "finished_at": time.time(),
        "error": outcome.error,
        "category": outcome.category,
        "size": len(outcome.body),
    }


def delete_rows(connection: Connection, table: Table, request_ids: Sequence[str]) -> None:
    """Delete what a table has of these requests."""
    for at in range(0, len(request_ids), _AT_ONCE):
        some = request_ids[at : at + _AT_ONCE]
        connection.execute(table.delete().where(table.c.request_id.in_(some)))


def _read_answer(connection: Connection, request_id: str, owner: str) -> Outcome:
    results, answers = schema.results, schema.answers
    row = connection.execute(
        sa.select(results, answers.c.body)
        .join(answers, answers.c.request_id == results.c.request_id, isouter=True)
        .where(results.c.request_id == request_id, results.c.owner == owner)
    ).one_or_none()
    if row is None:
        raise NotFound(f"no such future {request_id!r}", field="request_id")
    if row.body is None:
        raise Gone(f"the result of {request_id!r} has expired or was acknowledged", field="request_id")
    return Outcome(row.kind, unpack(row.body), row.error, row.category)
