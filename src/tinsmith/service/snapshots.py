"""States of live runs on disk, so that a run that is lost need not be done again from its beginning."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Row

from tinsmith import failpoints
from tinsmith.engine.interface import Engine
from tinsmith.store import Blobs, Damaged, Database, check, schema, seal

from .journal import covered, drop_payloads, first_open
from .quotas import Quotas
from .run import Run, Unsaved
from .settings import Settings

log = logging.getLogger(__name__)
_table = schema.snapshots
_FOLDER = "snapshots"
_KEPT = 2  # the newest, and the one before in case the newest turns out damaged


class Snapshots:
    """Writes them beside the training, reads them back, and drops what they make superfluous."""

    def __init__(
        self,
        database: Database,
        blobs: Blobs,
        engine: Engine,
        quotas: Quotas,
        settings: Settings,
        *,
        restartable: bool,
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._engine = engine
        self._quotas = quotas
        self._settings = settings
        self._restartable = restartable  # otherwise runs end with the process, and nothing comes after it

    # -- writing ---------------------------------------------------------------------------------

    async def start_if_due(self, run: Run) -> None:
        """Begin one if enough has happened since the last. The run may go on at once."""
        unsaved, settings = run.unsaved, self._settings
        due = (
            unsaved.operations >= settings.snapshot_operations
            or unsaved.bytes >= settings.snapshot_bytes
            or unsaved.seconds >= settings.snapshot_seconds
        )
        if self._restartable and due and (run.saving is None or run.saving.done()):
            run.saving = asyncio.get_running_loop().create_task(self._try(run), name=f"snapshot {run.run_id}")
            await asyncio.sleep(0)  # now the engine has been asked: what comes later is not in it

    async def _try(self, run: Run) -> None:
        try:
            await self.take(run)
        except Exception:  # the journal still has everything; the next one is tried when it is due
            log.exception("the state of run %s could not be saved", run.run_id)

    async def after_load(self, run: Run) -> None:
        """What was loaded may be gone when it would have to be loaded again."""
        if self._restartable:
            await self._try(run)

    async def take(self, run: Run) -> None:
        """Write the state as it is now; durable on return."""
        seq, run.unsaved = run.applied, Unsaved()
        key = f"{_FOLDER}/{run.run_id}/{seq}"
        staged = self._blobs.stage()
        try:
            await self._engine.save_state(run.run_id, staged)
            failpoints.reach("snapshot.written")
            size = await asyncio.to_thread(self._publish, staged, key)
        except BaseException:
            self._blobs.discard(staged)
            raise
        row = {"run_id": run.run_id, "seq_id": seq, "blob": key, "size_bytes": size}
        old = await self._database.write(lambda connection: _enter(connection, row))
        failpoints.reach("snapshot.entered")
        for blob in old:
            self._blobs.delete(blob)

    def _publish(self, staged: Path, key: str) -> int:
        seal(staged)
        failpoints.reach("snapshot.sealed")
        return self._blobs.publish(staged, key)

    # -- reading ---------------------------------------------------------------------------------

    async def load(self, run: Run, before: int) -> int:
        """Bring the engine the newest good state from before an operation; -1 if there is none.

        Gives the last operation that is in it.
        """
        for row in await self._of_run(run.run_id, before):
            folder = self._blobs.path(row.blob)
            try:
                await asyncio.to_thread(check, folder)
                tenant = self._quotas.tenant(run.owner)
                await self._engine.load_state(run.run_id, run.base_model, run.lora, folder, tenant)
            except (Damaged, OSError) as error:
                log.error("the state of run %s at %d is damaged: %s", run.run_id, row.seq_id, error)
                await self._forget(run.run_id, row.seq_id)
                self._blobs.delete(row.blob)
            else:
                seq_id: int = row.seq_id
                return seq_id
        return -1

    async def _of_run(self, run_id: str, before: int) -> list[Row[Any]]:
        query = (
            sa.select(_table)
            .where(_table.c.run_id == run_id, _table.c.seq_id < before)
            .order_by(_table.c.seq_id.desc())
        )
        return list(await self._database.read(lambda connection: connection.execute(query).all()))

    # -- ending ----------------------------------------------------------------------------------

    async def drop(self, run_id: str) -> None:
        """A run that has ended is not brought back."""
        await self._forget(run_id)
        self._blobs.delete(f"{_FOLDER}/{run_id}")

    async def _forget(self, run_id: str, seq_id: int | None = None) -> None:
        which = _table.c.run_id == run_id
        if seq_id is not None:
            which = sa.and_(which, _table.c.seq_id == seq_id)
        await self._database.write(lambda connection: connection.execute(_table.delete().where(which)))


def _enter(connection: Connection, row: dict[str, Any]) -> list[str]:
    """Enter one; gives the blobs of those it replaces. What all that are kept cover is not needed again."""
    run_id = row["run_id"]
    same = sa.and_(_table.c.run_id == run_id, _table.c.seq_id == row["seq_id"])
    connection.execute(_table.delete().where(same))
    connection.execute(_table.insert(), row | {"created_at": time.time()})
    all_of_run = sa.select(_table).where(_table.c.run_id == run_id).order_by(_table.c.seq_id.desc())
    rows = list(connection.execute(all_of_run))
    oldest_open = connection.scalar(first_open(run_id))  # it is done again from a state before it
    kept = max(_KEPT, sum(1 for each in rows if oldest_open is not None and each.seq_id >= oldest_open) + 1)
    rows, old = rows[:kept], rows[kept:]
    for each in old:
        connection.execute(_table.delete().where(_table.c.run_id == run_id, _table.c.seq_id == each.seq_id))
    if len(rows) == kept:
        drop_payloads(connection, covered(run_id, rows[-1].seq_id))
    return [each.blob for each in old]
