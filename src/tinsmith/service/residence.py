"""Which runs the engine holds: brought in when they are worked on, written out when others need the room.

A run is not there after the service started, after the engine died, or because it was written out. It always
comes back the same way: its newest good snapshot, and what the journal has after that.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict

from tinsmith.engine.interface import Engine
from tinsmith.types import Unavailable, UserError

from .execution import Executor
from .journal import Entry, Journal, PayloadGone
from .run import Run, Unsaved
from .settings import Settings
from .snapshots import Snapshots

log = logging.getLogger(__name__)


class Unrestorable(RuntimeError):
    """A run cannot be brought back: its snapshots are damaged and the journal begins too late."""


class Residence:
    """Brings runs in and writes them out."""

    def __init__(
        self, engine: Engine, executor: Executor, journal: Journal, snapshots: Snapshots, settings: Settings
    ) -> None:
        self._engine = engine
        self._executor = executor
        self._journal = journal
        self._snapshots = snapshots
        self._budget = settings.adapter_memory
        self._used: OrderedDict[str, Run] = OrderedDict()  # those the engine holds; the last used is last

    def __len__(self) -> int:
        return len(self._used)

    async def bring_in(self, run: Run, before: int) -> None:
        """Have the engine hold the run as it was before an operation. The caller has the run's lock."""
        if run.generation != self._engine.generation:
            await self._make_room(run)
            await self._restore(run, before)
        self._used[run.run_id] = run
        self._used.move_to_end(run.run_id)

    async def _restore(self, run: Run, before: int) -> None:
        run.generation = None
        generation = self._engine.generation
        await self._engine.drop_adapter(run.run_id)  # an earlier attempt may have left half of it
        run.applied = await self._snapshots.load(run, before)
        run.unsaved = Unsaved()
        replayed = 0
        for entry in await self._journal.history(run.run_id, after=run.applied):
            if entry.seq_id < before and entry.applied:
                await self._repeat(run, entry)
                replayed += 1
        run.generation = generation
        if before > 0:
            log.info("run %s is back at operation %d; %d repeated", run.run_id, before, replayed)

    async def _repeat(self, run: Run, entry: Entry) -> None:
        started = time.monotonic()
        try:
            await self._executor.execute(run, await self._journal.operation(entry))
        except (PayloadGone, UserError) as error:
            raise Unrestorable(f"run {run.run_id} cannot be brought back: {error}") from error
        run.applied = entry.seq_id
        run.unsaved.add(0, time.monotonic() - started)

    async def measure(self, run: Run) -> None:
        """Note what a new run takes, and write out others if that is too much together."""
        run.memory = await self._engine.adapter_bytes(run.run_id)
        await self._make_room(run)

    async def _make_room(self, run: Run) -> None:
        others = [each for each in self._used.values() if each is not run]
        excess = run.memory + sum(each.memory for each in others) - self._budget
        for idle in others:
            if excess > 0 and idle.current is None and not idle.lock.locked():
                excess -= idle.memory
                try:
                    await self.write_out(idle)
                except (OSError, Unavailable):  # it stays where it is: better too much memory than a lost run
                    log.exception("run %s could not be written out", idle.run_id)

    async def write_out(self, run: Run) -> None:
        """Save the run and have the engine forget it, until it is used again."""
        async with run.lock:
            await self.save(run)
            await self._engine.drop_adapter(run.run_id)
            run.generation = None
            self._used.pop(run.run_id, None)

    async def save(self, run: Run) -> None:
        """A snapshot, if there is anything in the engine that none has. The caller has the run's lock."""
        if run.saving is not None:
            await run.saving
        if run.unsaved.operations and run.generation == self._engine.generation:
            await self._snapshots.take(run)

    def forget(self, run: Run) -> None:
        """The run has ended."""
        self._used.pop(run.run_id, None)
