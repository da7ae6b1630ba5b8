"""Training runs: each one an adapter, a queue of operations and a task that works through it."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Row

from tinsmith.engine.interface import Engine
from tinsmith.store import Database, schema
from tinsmith.types import (
    CreateModelRequest,
    LoraConfig,
    NotFound,
    OutOfSpace,
    Unavailable,
    UserError,
)
from tinsmith.types.requests import UnloadModelRequest
from tinsmith.wire.protobuf import ForwardBackwardCall

from . import audit, ids, queue_state
from .base_models import BaseModels
from .checkpoints import Checkpoints
from .execution import Executor
from .futures import Category, Futures, Outcome, Ticket
from .journal import Journal, Operation
from .kinds import KINDS, AcceptedLoad
from .queue_state import QueueState
from .quotas import Quotas, TooMuchWaiting
from .residence import Residence, Unrestorable
from .run import Run
from .sequence import SequencedQueue
from .sessions import Session
from .settings import Settings
from .snapshots import Snapshots
from .supervision import EngineKilled, Supervisor
from .usage import Usage

log = logging.getLogger(__name__)
_table = schema.runs
_DEFAULT_RANK = 32


class Runs:
    """All live runs, and the listing of all there ever were."""

    def __init__(
        self,
        database: Database,
        journal: Journal,
        futures: Futures,
        checkpoints: Checkpoints,
        executor: Executor,
        residence: Residence,
        snapshots: Snapshots,
        supervisor: Supervisor,
        base_models: BaseModels,
        usage: Usage,
        quotas: Quotas,
        engine: Engine,
        settings: Settings,
    ) -> None:
        self._database = database
        self._journal = journal
        self._futures = futures
        self._checkpoints = checkpoints
        self._executor = executor
        self._residence = residence
        self._snapshots = snapshots
        self._supervisor = supervisor
        self._base_models = base_models
        self._usage = usage
        self._quotas = quotas
        self._engine = engine
        self._settings = settings
        self._live: dict[str, Run] = {}  # in the order they were made
        self._fewer = asyncio.Event()  # some run has ended
        self._draining = False

    # -- making ----------------------------------------------------------------------------------

    async def create(self, session: Session, request: CreateModelRequest) -> str:
        """Accept a create_model; gives its request id."""
        lora = request.lora_config or LoraConfig(rank=_DEFAULT_RANK)
        if lora.seed is None:  # chosen once and journalled, so that a replay gives the same weights
            lora = lora.model_copy(update={"seed": secrets.randbits(31)})
        request = request.model_copy(update={"lora_config": lora})
        run_id = ids.run_id(session.session_id, request.model_seq_id)
        return await self._start(session, run_id, request.base_model, lora, request.user_metadata, request)

    async def create_from_checkpoint(self, session: Session, request: AcceptedLoad) -> str:
        """Accept a load_weights that makes a run with the checkpoint's own shape."""
        assert request.model_seq_id is not None
        row = await self._checkpoints.find(request.reader or session.owner, request.path)
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
            kind = "load_weights" if isinstance(payload, AcceptedLoad) else "create_model"
            operation = Operation(request_id, session.owner, run_id, 0, kind, payload)

            def beside(connection: Connection) -> None:
                connection.execute(_table.insert(), run.row())
                audit.record(
                    connection,
                    run.owner,
                    "training_run_created",
                    training_run_id=run_id,
                    base_model=base_model,
                )

            ticket = await self._journal.accept(operation, beside)
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
        self._forget(run)
        self._answer_waiting(run, "internal error: the run's worker died", "server")

    def _forget(self, run: Run) -> None:
        self._live.pop(run.run_id, None)
        self._fewer.set()

    def _answer_waiting(self, run: Run, message: str, category: Category) -> None:
        """Whatever stands in the queue, and what was being carried out when the worker ended."""
        under_way = [run.current] if run.current is not None else []
        for ticket in (*under_way, *(ticket for _, ticket in run.queue.drain())):
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
        if not await self._futures.known_here(request_id, owner):
            operation = Operation(request_id, owner, run_id, seq, kind, payload)
            try:
                await self._accept(run, operation)
            except (UserError, TooMuchWaiting, OutOfSpace) as refusal:
                if not await self._futures.known(request_id, owner):
                    if seq_id is None or isinstance(refusal, UserError):  # nobody will send this number again
                        run.queue.consume(seq)
                    raise
        return request_id

    async def _accept(self, run: Run, operation: Operation) -> None:
        if run.queue.is_closed(operation.seq_id):
            raise UserError(f"{operation.seq_id} is closed: its turn has passed", field="seq_id")
        run.last_request_at = time.time()
        with self._quotas.admitted(operation):
            ticket = await self._journal.accept(operation)
            if ticket is not None:
                self._enqueue(run, operation, ticket)

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
        """Accept the end of a run. It ends once: whoever asks again is given the same operation."""
        earlier = await self._journal.request_of(owner, run_id, "unload_model")
        if earlier is not None:
            return earlier
        run = self.live(owner, run_id)
        if run.unload_seq is None:
            run.unload_seq = run.queue.assign()
        request = UnloadModelRequest(model_id=run_id)
        return await self.submit(owner, run_id, run.unload_seq, "unload_model", request)

    # -- working ---------------------------------------------------------------------------------

    def _earlier(self, run: Run) -> int:
        """How many live runs of the same owner came before this one."""
        earlier = 0
        for other in self._live.values():
            if other is run:
                break
            earlier += other.owner == run.owner
        return earlier

    async def _wait_for_place(self, run: Run) -> None:
        """An owner may have so many runs live; those beyond begin as earlier ones end."""
        while self._earlier(run) >= self._quotas.of(run.owner).live_runs:
            self._fewer.clear()
            await self._fewer.wait()

    async def _work(self, run: Run) -> None:
        await self._wait_for_place(run)
        while not run.closing:
            if self._draining:
                return
            operation, run.current = await run.queue.next()
            run.current.start()
            outcome = await self._perform(run, operation, run.current)
            self._count(run, operation, run.current, outcome)
            if outcome.category == "server":
                await self._futures.resolve_durably(run.current, outcome)
            else:
                self._futures.resolve(run.current, outcome)
            run.current = None
            await self._snapshots.start_if_due(run)
        await self._drop(run)

    async def _perform(self, run: Run, operation: Operation, ticket: Ticket) -> Outcome:
        """Carry an operation out; whatever happens becomes its outcome."""
        kind = operation.kind
        if run.failure is not None:
            return Outcome(kind, error=f"this run could not be created: {run.failure}", category="user")
        try:
            result = await self._supervisor.carry_out(lambda: self._apply(run, operation, ticket))
            return Outcome(kind, KINDS[kind].result.encode(result))
        except UserError as error:
            outcome = Outcome(kind, error=str(error), category="user")
        except (EngineKilled, Unrestorable) as error:
            log.error("%s %s failed: %s", kind, operation.request_id, error)
            outcome = Outcome(kind, error=str(error), category="server")
        except (OSError, Unavailable) as error:
            log.exception("%s %s failed", kind, operation.request_id)
            reason = error.strerror or type(error).__name__ if isinstance(error, OSError) else error
            outcome = Outcome(
                kind, error=f"could not be written or read on the service: {reason}", category="server"
            )
        except Exception as error:
            log.exception("%s %s failed", kind, operation.request_id)
            outcome = Outcome(kind, error=f"internal error: {type(error).__name__}", category="server")
        if outcome.category == "server" and KINDS[kind].changes_run:
            run.generation = None  # who knows what became of the adapter; the journal does
        if operation.seq_id == 0:
            run.failure = outcome.error
        return outcome

    async def _apply(self, run: Run, operation: Operation, ticket: Ticket) -> Any:
        """Bring the run in, change it, and note what it would take to do that again."""
        kind = KINDS[operation.kind]
        async with run.lock:
            if kind.needs_adapter:
                await self._residence.bring_in(run, operation.seq_id)
            started = time.monotonic()
            result = await self._executor.execute(run, operation)
            if kind.changes_run:
                run.applied = operation.seq_id
                run.unsaved.add(ticket.size, time.monotonic() - started)
            if kind.reads_checkpoint:
                await self._snapshots.after_load(run)
            if run.memory == 0 and not run.closing:
                await self._residence.measure(run)
        return result

    def _count(self, run: Run, operation: Operation, ticket: Ticket, outcome: Outcome) -> None:
        """Note what was used; what is only repeated after a restart was counted before."""
        if (
            outcome.error is None
            and not ticket.answered
            and isinstance(operation.payload, ForwardBackwardCall)
        ):
            self._usage.trained(run.owner, run.session_id, run.base_model, operation.payload.batch)

    def queue_state(self, ticket: Ticket) -> QueueState | None:
        """Why an operation has no answer yet; None if it is of no live run."""
        run = self._live.get(ticket.stream_id)
        if run is None:
            return None
        earlier, most = self._earlier(run), self._quotas.of(run.owner).live_runs
        if earlier >= most:
            return queue_state.too_many_runs(earlier, most)
        if ticket is not run.current:
            return queue_state.in_queue(ids.seq_id(ticket.request_id), run.queue, run.current)
        if not self._base_models.is_loaded(run.base_model):
            return queue_state.loading(run.base_model)
        return queue_state.being_carried_out(ticket.kind)

    @property
    def live_count(self) -> int:
        """Runs that are live."""
        return len(self._live)

    @property
    def resident_count(self) -> int:
        """Runs the engine holds."""
        return len(self._residence)

    @property
    def waiting_count(self) -> int:
        """Operations of live runs whose turn has not come."""
        return sum(run.queue.waiting for run in self._live.values())

    async def end(self, run_id: str) -> None:
        """End a run, whether it has been taken up since the last start or not."""
        if run := self._live.get(run_id):
            await self._drop(run)
        else:
            await self._write_off(run_id)

    async def _drop(self, run: Run) -> None:
        """Free a run's adapter, answer what still waits, keep its checkpoints."""
        self._forget(run)
        if run.task is not None and run.task is not asyncio.current_task():
            run.task.cancel()
            await asyncio.gather(run.task, return_exceptions=True)
        self._answer_waiting(run, f"training run {run.run_id!r} has ended", "user")
        if run.saving is not None:
            run.saving.cancel()
            await asyncio.gather(run.saving, return_exceptions=True)
        self._residence.forget(run)
        await self._engine.drop_adapter(run.run_id)
        await self._write_off(run.run_id)

    async def _write_off(self, run_id: str) -> None:
        def change(connection: Connection) -> None:
            ended = _table.c.run_id == run_id, _table.c.live.is_(True)
            owner = connection.scalar(sa.select(_table.c.owner).where(*ended))
            if owner is not None:
                connection.execute(_table.update().where(*ended).values(live=False))
                audit.record(connection, owner, "training_run_ended", training_run_id=run_id)

        await self._database.write(change)
        await self._journal.drop_payloads(run_id)
        await self._snapshots.drop(run_id)

    async def drain(self) -> None:
        """Finish what is being carried out, begin nothing more, and save what is not saved."""
        self._draining = True
        await asyncio.gather(*(self._finish(run) for run in self._live.values()))

    async def _finish(self, run: Run) -> None:
        assert run.task is not None
        if run.current is None:
            run.task.cancel()
        await asyncio.wait([run.task])
        try:
            async with run.lock:
                await self._residence.save(run)
        except Exception:  # the journal has all that is needed to go on later
            log.exception("the state of run %s could not be saved", run.run_id)

    async def stop(self) -> None:
        """Stop working; the journal has all that is needed to go on later."""
        tasks = [task for run in self._live.values() for task in (run.task, run.saving) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def last_request(self, run_id: str) -> float | None:
        """When a live run was last asked for something; None if it is not live."""
        run = self._live.get(run_id)
        return None if run is None else run.last_request_at

    async def live_rows(self) -> list[Row[Any]]:
        """Catalogue rows of the runs that were live when the service stopped."""
        query = sa.select(_table).where(_table.c.live.is_(True)).order_by(_table.c.created_at)
        return list(await self._database.read(lambda connection: connection.execute(query).all()))
