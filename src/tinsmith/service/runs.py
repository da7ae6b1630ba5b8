"""Training runs: each one an adapter, a queue of operations and a task that works through it."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Row

from tinsmith.engine.interface import Engine
from tinsmith.store import Database, schema
from tinsmith.types import (
    CreateModelRequest,
    LoadWeightsRequest,
    LoraConfig,
    NotFound,
    TrainingRun,
    UserError,
)
from tinsmith.types.requests import UnloadModelRequest

from . import ids
from .checkpoints import Checkpoints
from .execution import Executor
from .futures import Category, Futures, Outcome, Ticket
from .journal import Journal, Operation
from .kinds import KINDS
from .sequence import SequencedQueue
from .sessions import Session
from .settings import Settings

log = logging.getLogger(__name__)
_table = schema.runs
_DEFAULT_RANK = 32


@dataclass(slots=True)
class Run:
    """One live run."""

    run_id: str
    session_id: str
    owner: str
    base_model: str
    lora: LoraConfig
    user_metadata: dict[str, Any] | None
    created_at: float
    queue: SequencedQueue[tuple[Operation, Ticket]]
    last_request_at: float = 0.0
    failure: str | None = None  # why its creation failed; then nothing else can run
    closing: bool = False
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    def row(self) -> dict[str, Any]:
        """The catalogue's row."""
        return {
            "run_id": self.run_id,
            "session_id": self.session_id,
            "owner": self.owner,
            "base_model": self.base_model,
            "lora": self.lora.model_dump(),
            "user_metadata": self.user_metadata,
            "created_at": self.created_at,
            "last_request_at": self.created_at,
            "live": True,
        }


class Runs:
    """All live runs, and the listing of all there ever were."""

    def __init__(
        self,
        database: Database,
        journal: Journal,
        futures: Futures,
        checkpoints: Checkpoints,
        executor: Executor,
        engine: Engine,
        settings: Settings,
    ) -> None:
        self._database = database
        self._journal = journal
        self._futures = futures
        self._checkpoints = checkpoints
        self._executor = executor
        self._engine = engine
        self._settings = settings
        self._live: dict[str, Run] = {}

    # -- making ----------------------------------------------------------------------------------

    async def create(self, session: Session, request: CreateModelRequest) -> str:
        """Accept a create_model; gives its request id."""
        lora = request.lora_config or LoraConfig(rank=_DEFAULT_RANK)
        if lora.seed is None:  # chosen once and journalled, so that a replay gives the same weights
            lora = lora.model_copy(update={"seed": secrets.randbits(31)})
        request = request.model_copy(update={"lora_config": lora})
        run_id = ids.run_id(session.session_id, request.model_seq_id)
        return await self._start(session, run_id, request.base_model, lora, request.user_metadata, request)

    async def create_from_checkpoint(self, session: Session, request: LoadWeightsRequest) -> str:
        """Accept a load_weights that makes a run with the checkpoint's own shape."""
        assert request.model_seq_id is not None
        row = await self._checkpoints.find(session.owner, request.path)
        if request.base_model not in (None, row.base_model):
            raise UserError(
                f"{request.path!r} is of {row.base_model!r}, not {request.base_model!r}", field="base_model"
            )
        run_id = ids.run_id(session.session_id, request.model_seq_id)
        lora = LoraConfig(**row.lora)
        return await self._start(session, run_id, row.base_model, lora, request.user_metadata, request)

    async def _start(
        self,
        session: Session,
        run_id: str,
        base_model: str,
        lora: LoraConfig,
        user_metadata: Any,
        payload: Any,
    ) -> str:
        request_id = ids.request_id(run_id, 0)
        if run_id not in self._live:
            queue: SequencedQueue[tuple[Operation, Ticket]] = SequencedQueue(0, self._settings.gap_timeout)
            now = time.time()
            run = Run(
                run_id, session.session_id, session.owner, base_model, lora, user_metadata, now, queue, now
            )
            kind = "load_weights" if isinstance(payload, LoadWeightsRequest) else "create_model"
            operation = Operation(request_id, session.owner, run_id, 0, kind, payload)
            ticket = await self._journal.accept(
                operation, beside=lambda connection: connection.execute(_table.insert(), run.row())
            )
            if ticket is not None:
                self.begin(run)
                run.queue.put(0, (operation, ticket))
        else:
            await self._futures.known(request_id, session.owner)
        return request_id

    def begin(self, run: Run) -> None:
        """Start working through a run's queue."""
        self._live[run.run_id] = run
        run.task = asyncio.get_running_loop().create_task(self._work(run), name=f"run {run.run_id}")
        run.task.add_done_callback(lambda task: self._hear_of_death(run, task))

    def _hear_of_death(self, run: Run, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        log.error("the worker of run %s died", run.run_id, exc_info=error)
        self._live.pop(run.run_id, None)
        self._answer_waiting(run, "internal error: the run's worker died", "server")

    def _answer_waiting(self, run: Run, message: str, category: Category) -> None:
        for _, ticket in run.queue.drain():
            self._futures.resolve(ticket, Outcome(ticket.kind, error=message, category=category))

    # -- asking ----------------------------------------------------------------------------------

    def live(self, owner: str, run_id: str) -> Run:
        """A live run of this owner."""
        run = self._live.get(run_id)
        if run is None or run.owner != owner:
            raise NotFound(f"no live training run {run_id!r}", field="model_id")
        return run

    async def submit(self, owner: str, run_id: str, seq_id: int | None, kind: str, payload: Any) -> str:
        """Accept an operation of a run; gives its request id."""
        run = self.live(owner, run_id)
        seq = run.queue.assign() if seq_id is None else seq_id
        request_id = ids.request_id(run_id, seq)
        if await self._futures.known(request_id, owner):
            return request_id
        if run.queue.is_closed(seq):
            raise UserError(f"{seq} is closed: its turn has passed", field="seq_id")
        run.last_request_at = time.time()
        operation = Operation(request_id, owner, run_id, seq, kind, payload)
        ticket = await self._journal.accept(operation)
        if ticket is not None:
            self._enqueue(run, operation, ticket)
        return request_id

    def _enqueue(self, run: Run, operation: Operation, ticket: Ticket) -> None:
        if run.queue.is_closed(operation.seq_id):  # its turn passed while the journal was being written
            message = f"seq_id: {operation.seq_id} is closed: its turn has passed"
            self._futures.resolve(ticket, Outcome(operation.kind, error=message, category="user"))
        else:
            run.queue.put(operation.seq_id, (operation, ticket))

    def consume(self, owner: str, run_id: str, seq_id: int) -> None:
        """A request under this seq id was refused before it became an operation: do not wait for it."""
        run = self._live.get(run_id)
        if run is not None and run.owner == owner:
            run.queue.consume(seq_id)

    async def unload(self, owner: str, run_id: str) -> str:
        """Accept the end of a run."""
        return await self.submit(owner, run_id, None, "unload_model", UnloadModelRequest(model_id=run_id))

    # -- working ---------------------------------------------------------------------------------

    async def _work(self, run: Run) -> None:
        while not run.closing:
            operation, ticket = await run.queue.next()
            outcome = await self._perform(run, operation)
            self._futures.resolve(ticket, outcome)
        await self._drop(run)

    async def _perform(self, run: Run, operation: Operation) -> Outcome:
        """Carry an operation out; whatever happens becomes its outcome."""
        kind = operation.kind
        if run.failure is not None:
            return Outcome(kind, error=f"this run could not be created: {run.failure}", category="user")
        try:
            result = await self._executor.execute(run, operation)
            return Outcome(kind, KINDS[kind].result.encode(result))
        except UserError as error:
            outcome = Outcome(kind, error=str(error), category="user")
        except Exception as error:
            log.exception("%s %s failed", kind, operation.request_id)
            outcome = Outcome(kind, error=f"internal error: {type(error).__name__}", category="server")
        if operation.seq_id == 0:
            run.failure = outcome.error
        return outcome

    async def end(self, run_id: str) -> None:
        """End a run, whether it has been taken up since the last start or not."""
        if run := self._live.get(run_id):
            await self._drop(run)
        else:
            await self._write_off(run_id)

    async def _drop(self, run: Run) -> None:
        """Free a run's adapter, answer what still waits, keep its checkpoints."""
        self._live.pop(run.run_id, None)
        if run.task is not None and run.task is not asyncio.current_task():
            run.task.cancel()
            await asyncio.gather(run.task, return_exceptions=True)
        self._answer_waiting(run, f"training run {run.run_id!r} has ended", "user")
        await self._engine.drop_adapter(run.run_id)
        await self._write_off(run.run_id)

    async def _write_off(self, run_id: str) -> None:
        change = _table.update().where(_table.c.run_id == run_id).values(live=False)
        await self._database.write(lambda connection: connection.execute(change))
        await self._journal.drop_payloads(run_id)

    async def stop(self) -> None:
        """Stop working; the journal has all that is needed to go on later."""
        tasks = [run.task for run in self._live.values() if run.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- listing ---------------------------------------------------------------------------------

    async def page(self, owner: str, limit: int, offset: int) -> tuple[list[TrainingRun], int]:
        """A page of this owner's runs, newest first, and how many there are in all."""
        query = (
            sa.select(_table)
            .where(_table.c.owner == owner)
            .order_by(_table.c.created_at.desc(), _table.c.run_id)
            .limit(limit)
            .offset(offset)
        )
        count = sa.select(sa.func.count()).select_from(_table).where(_table.c.owner == owner)
        rows = await self._database.read(lambda connection: connection.execute(query).all())
        total = await self._database.read(lambda connection: connection.scalar(count))
        return [await self._describe(row) for row in rows], total or 0

    async def get(self, owner: str, run_id: str) -> TrainingRun:
        """One run, live or ended."""
        query = sa.select(_table).where(_table.c.run_id == run_id, _table.c.owner == owner)
        row = await self._database.read(lambda connection: connection.execute(query).one_or_none())
        if row is None:
            raise NotFound(f"no training run {run_id!r}", field="training_run_id")
        return await self._describe(row)

    async def ids_of_session(self, session_id: str) -> list[str]:
        """Run ids of a session, oldest first."""
        query = (
            sa.select(_table.c.run_id).where(_table.c.session_id == session_id).order_by(_table.c.created_at)
        )
        return await self._database.read(lambda connection: list(connection.scalars(query)))

    async def _describe(self, row: Row[Any]) -> TrainingRun:
        saved = await self._checkpoints.of_run(row.run_id)
        newest = {
            checkpoint.checkpoint_type: checkpoint for checkpoint in saved
        }  # oldest first: the last one stays
        live = self._live.get(row.run_id)
        last_request = live.last_request_at if live else row.last_request_at
        return TrainingRun(
            training_run_id=row.run_id,
            base_model=row.base_model,
            model_owner=row.owner,
            is_lora=True,
            lora_rank=row.lora["rank"],
            last_request_time=datetime.fromtimestamp(last_request, UTC),
            last_checkpoint=newest.get("training"),
            last_sampler_checkpoint=newest.get("sampler"),
            user_metadata=row.user_metadata,
        )

    async def live_rows(self) -> list[Row[Any]]:
        """Catalogue rows of the runs that were live when the service stopped."""
        query = sa.select(_table).where(_table.c.live.is_(True)).order_by(_table.c.created_at)
        return list(await self._database.read(lambda connection: connection.execute(query).all()))
