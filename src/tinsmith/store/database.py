"""The database: one writer that groups commits, readers that never wait for it."""

from __future__ import annotations

import asyncio
import errno
import queue
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.exc import DatabaseError

from tinsmith import failpoints
from tinsmith.types import OutOfSpace, Unavailable

from . import schema
from .lock import DataDirUnusable

_T = TypeVar("_T")
DATABASE_FILE = "tinsmith.sqlite"
_STOP = object()
_MOST_PER_COMMIT = 256
_PRAGMAS = (
    "auto_vacuum=INCREMENTAL",  # must come before the first table does
    "journal_mode=WAL",
    "synchronous=FULL",
    "foreign_keys=ON",
    "busy_timeout=10000",
    f"journal_size_limit={64 * 2**20}",
)
_SPARE_PAGES = 4096  # free ones are kept for what is written next: giving them back and forth costs writes
_RECLAIM_PAGES = 4096  # at a time, so that nobody waits long for it
_WRITES: dict[str, Any] = {"tinsmith_writes": True}


class Database:
    """SQLite (embedded, WAL) or any other SQLAlchemy URL.

    ``write`` returns when the change is durable. Changes that wait at the same moment share one
    commit, so many concurrent writers pay for one fsync.
    """

    def __init__(self, url: str) -> None:
        self._engine = sa.create_engine(url)
        if self._engine.dialect.name == "sqlite":
            sa.event.listen(self._engine, "connect", _tune_sqlite)
            sa.event.listen(self._engine, "begin", _begin_sqlite)
        schema.metadata.create_all(self._engine)
        self._check_version()
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write_loop, name="tinsmith-journal", daemon=True)
        self._thread.start()

    @classmethod
    def in_folder(cls, folder: Path) -> Database:
        """The SQLite file of a data directory."""
        return cls(f"sqlite:///{folder / DATABASE_FILE}")

    def _check_version(self) -> None:
        table = schema.properties
        with self._engine.begin() as connection:
            found = connection.scalar(sa.select(table.c.value).where(table.c.name == "schema_version"))
            if found is None:
                connection.execute(
                    table.insert().values(name="schema_version", value=str(schema.SCHEMA_VERSION))
                )
            elif int(found) != schema.SCHEMA_VERSION:
                raise DataDirUnusable(
                    f"the data directory has schema version {found}, this Tinsmith needs "
                    f"{schema.SCHEMA_VERSION}; use another data directory or the Tinsmith that wrote this one"
                )

    async def write(self, change: Callable[[Connection], _T]) -> _T:
        """Run ``change`` in the next commit and return its result once that commit is on disk."""
        done: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        self._queue.put((change, done))
        return await done

    async def read(self, query: Callable[[Connection], _T]) -> _T:
        """Run ``query`` in a thread on what is committed."""
        return await asyncio.to_thread(self.read_now, query)

    def read_now(self, query: Callable[[Connection], _T]) -> _T:
        """Run ``query`` here and now."""
        with self._engine.connect() as connection:
            return query(connection)

    async def reclaim(self) -> None:
        """Give pages that nothing lies on any more back to the file system, some at a time."""
        if self._engine.dialect.name != "sqlite":
            return

        def free(connection: Connection) -> int:
            return int(connection.exec_driver_sql("PRAGMA freelist_count").scalar_one())

        pages = min(await self.read(free) - _SPARE_PAGES, _RECLAIM_PAGES)

        def change(connection: Connection) -> None:
            cursor = connection.connection.cursor()
            for _ in range(pages):  # sqlite3 makes one step of a statement without columns, which frees one
                cursor.execute("PRAGMA incremental_vacuum(1)")
            cursor.close()

        if pages > 0:
            await self.write(change)

    def close(self) -> None:
        """Finish the writes that wait, then close."""
        self._queue.put(_STOP)
        self._thread.join()
        self._engine.dispose()

    # -- the writer thread ------------------------------------------------------------------------

    def _write_loop(self) -> None:
        with self._engine.connect().execution_options(**_WRITES) as connection:
            while (first := self._queue.get()) is not _STOP:
                batch = [first]
                while len(batch) < _MOST_PER_COMMIT and not self._queue.empty():
                    if (item := self._queue.get()) is _STOP:
                        self._queue.put(_STOP)
                        break
                    batch.append(item)
                self._commit(connection, batch)

    def _commit(self, connection: Connection, batch: list[Any]) -> None:
        outcomes: list[tuple[asyncio.Future[Any], Any, BaseException | None]] = []
        try:
            with connection.begin():
                for change, done in batch:
                    outcomes.append((done, *self._apply(connection, change)))
                failpoints.reach("journal.commit")
            failpoints.reach("journal.committed")
        except Exception as error:  # the commit itself failed: nothing of the batch is durable
            outcomes = [(done, None, _as_refusal(error)) for _, done in batch]
        for done, value, failure in outcomes:
            _settle(done, value, failure)

    @staticmethod
    def _apply(
        connection: Connection, change: Callable[[Connection], Any]
    ) -> tuple[Any, BaseException | None]:
        """One change in a savepoint of its own, so that its failure is not its neighbours'."""
        try:
            with connection.begin_nested():
                return change(connection), None
        except Exception as error:
            if not _in_transaction(connection):  # a full disk undid the whole batch, neighbours included
                raise
            return None, _as_refusal(error)


def _as_refusal(error: Exception) -> Exception:
    """What the disk has to say, in words for whoever asked; any other error as it is."""
    if not isinstance(error, OSError | DatabaseError):
        return error
    original = getattr(error, "orig", error)
    code = getattr(original, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL or getattr(original, "errno", None) == errno.ENOSPC:
        return OutOfSpace("the disk is full, so nothing of this request was kept")
    if code == sqlite3.SQLITE_IOERR or isinstance(original, OSError):
        return Unavailable(
            f"the journal could not be written, so nothing of this request was kept: {original}"
        )
    return error


def _in_transaction(connection: Connection) -> bool:
    raw = connection.connection.dbapi_connection
    return bool(getattr(raw, "in_transaction", True))


def _settle(done: asyncio.Future[Any], value: Any, failure: BaseException | None) -> None:
    def deliver() -> None:
        if done.cancelled():
            return
        if failure is not None:
            done.set_exception(failure)
        else:
            done.set_result(value)

    loop = done.get_loop()
    if not loop.is_closed():
        loop.call_soon_threadsafe(deliver)


def _tune_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # SQLAlchemy's begin event writes BEGIN itself, so savepoints work
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    """A writer takes the lock at once: one that only took it at its first write could find that another
    process (`tinsmith key create`) had written in between, and would fail instead of waiting."""
    writes = connection.get_execution_options().get("tinsmith_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
