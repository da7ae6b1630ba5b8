"""The service: what a Tinker is. No HTTP, no tensors."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import sqlalchemy as sa

from tinsmith.engine.interface import BaseModel, Engine
from tinsmith.store import Blobs, Database, DataDirLock, Space, schema
from tinsmith.types import GetInfoResponse, GetSamplerResponse, ModelData, Unavailable

from .audit import Audit
from .base_models import BaseModels, Finder
from .billing import Billing
from .checkpoints import Checkpoints
from .completions import Completions
from .copies import Copies
from .custom_losses import CustomLosses
from .execution import Executor
from .exports import Exports
from .futures import Futures
from .history import History
from .journal import Journal
from .keys import Keys
from .open_samplers import OpenSamplers
from .queue_state import QueueState
from .quotas import Quotas
from .recovery import Recovery
from .residence import Residence
from .run_listing import RunListing
from .runs import Runs
from .sampler_clients import SamplerClients
from .samplers import Samplers
from .session_search import SessionSearch
from .sessions import Session, Sessions
from .settings import Settings, is_loopback
from .signing import Signer
from .snapshots import Snapshots
from .supervision import Supervisor
from .tokens import Tokens
from .traces import Traces
from .usage import Usage

log = logging.getLogger(__name__)
_T = TypeVar("_T")


class Service:
    """Sessions, runs, samplers, checkpoints and futures, over one engine and one data directory.

    ``private`` says that every client lives and dies with this process, so whatever an earlier process
    left active has ended, and that clients see this machine's folders.
    """

    def __init__(
        self, engine: Engine, settings: Settings, *, finder: Finder | None = None, private: bool = False
    ) -> None:
        self.settings = settings
        self._engine = engine
        self._private = private
        self._lock = DataDirLock(settings.data_dir)
        self._database = Database.in_folder(settings.data_dir)
        self._blobs = blobs = Blobs(settings.data_dir / "blobs")
        self._space = Space(settings.data_dir, settings.data_budget, settings.disk_reserve)
        self.base_models = BaseModels(engine, finder)
        self.sessions = Sessions(self._database)
        self.futures = Futures(self._database)
        self.signer = Signer(settings.data_dir)
        operators_key = "" if settings.api_key is None else settings.api_key.get_secret_value()
        self.tokens = Tokens(self.signer, settings.token_ttl, operators_key)
        self.keys = Keys(self._database, settings.data_dir)
        self.audit = Audit(self._database)
        self.quotas = Quotas(settings.quota, self.keys, self.futures, self._database)
        self.usage = Usage(self._database)
        self.billing = Billing(self._database, self.usage, settings)
        self.completions = Completions(self._database, self.futures)
        self.sampler_clients = SamplerClients(self._database)
        self.session_search = SessionSearch(self._database)
        self._history = History(self._database, max(settings.history_ttl, settings.result_ttl))
        self.traces = Traces(self._database, settings.data_dir / "traces", settings.url_ttl)
        self.checkpoints = Checkpoints(self._database, blobs)
        self.copies = Copies(self._database, self.checkpoints, self.sessions, self.quotas)
        self.exports = Exports(self.checkpoints, settings.data_dir / "archives", settings.url_ttl)
        journal = Journal(self._database, self.futures, self._space)
        self.custom_losses = CustomLosses(journal, self.futures)
        supervisor = Supervisor(engine)
        self.samplers = Samplers(
            self._database,
            blobs,
            journal,
            self.futures,
            self.checkpoints,
            self.base_models,
            self.usage,
            OpenSamplers(engine, self.base_models, self.quotas, blobs, settings),
            supervisor,
            self.quotas,
            engine,
            settings,
        )
        executor = Executor(
            engine,
            self.base_models,
            self.checkpoints,
            self.samplers,
            self.custom_losses,
            blobs,
            self.quotas,
            settings,
        )
        self._snapshots = Snapshots(
            self._database, blobs, engine, self.quotas, settings, restartable=not private
        )
        self._residence = Residence(engine, executor, journal, self._snapshots, settings)
        self.runs = Runs(
            self._database,
            journal,
            self.futures,
            self.checkpoints,
            executor,
            self._residence,
            self._snapshots,
            supervisor,
            self.base_models,
            self.usage,
            self.quotas,
            engine,
            settings,
        )
        self.run_listing = RunListing(self._database, self.checkpoints, self.runs)
        self._recovery = Recovery(
            journal, self.futures, self.custom_losses, self.runs, self.samplers, self.quotas, settings
        )
        self._housekeeper: asyncio.Task[None] | None = None
        self._stopping = False
        self._begun: set[asyncio.Task[Any]] = set()  # what is done to its end though its caller may leave

    async def start(self) -> None:
        """Take up what an earlier process left."""
        self.sessions.load()
        ended = (
            self.sessions.all_active()
            if self._private
            else self.sessions.silent_since(self._oldest_sign_of_life())
        )
        for session in ended:
            await self.end_session(session, "cancelled", "the client did not come back")
        await self._write_off_orphans()
        await self._sweep()
        await asyncio.to_thread(self._space.measure)
        await self._recovery.recover()
        self._housekeeper = asyncio.get_running_loop().create_task(self._keep_house(), name="housekeeping")

    async def _write_off_orphans(self) -> None:
        """Runs and samplers whose session ended while the service was dying."""
        active = {session.session_id for session in self.sessions.all_active()}
        for row in await self.runs.live_rows():
            if row.session_id not in active:
                await self.runs.end(row.run_id)
        for session_id in await self.samplers.sessions_with_snapshots():
            if session_id not in active:
                await self.samplers.close_session(session_id)

    async def _sweep(self) -> None:
        """Remove what a crash left: files that never came into the catalogue, or that had gone from it."""
        tables = schema.checkpoints, schema.samplers, schema.snapshots
        query = sa.union(*(sa.select(table.c.blob) for table in tables))
        known = set(await self._database.read(lambda connection: list(connection.scalars(query))))
        await asyncio.to_thread(self._blobs.sweep, known)

    async def drain(self) -> None:
        """Take nothing new, finish what is being carried out if that is soon done, and save the runs.

        Nothing would be lost without it; but coming back takes longer the more has to be done again.
        """
        self._stopping = True
        self.futures.let_go()
        self.completions.let_go()
        deadline = asyncio.get_running_loop().time() + self.settings.drain_seconds
        try:
            async with asyncio.timeout_at(deadline):
                await asyncio.gather(self.runs.drain(), self.samplers.drain())
        except TimeoutError:
            log.warning("what is being carried out takes too long; it is done again after the next start")

    async def stop(self) -> None:
        """Stop working. Whatever was accepted is in the journal."""
        self._stopping = True
        if self._housekeeper is not None:
            self._housekeeper.cancel()
        await asyncio.gather(*self._begun)
        await self.runs.stop()
        await self.samplers.stop()
        await self.traces.stop()
        await self.sessions.flush()
        await self.usage.flush()
        await self.futures.settle()
        await self._engine.close()
        self._database.close()
        self._lock.release()

    async def to_the_end(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Do this even if its caller leaves: an operation is accepted whole or not at all."""
        task = asyncio.get_running_loop().create_task(work)
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)
        return await asyncio.shield(task)

    def check_open(self) -> None:
        """Refuse new work while stopping."""
        if self._stopping:
            raise Unavailable("the service is shutting down")

    async def end_session(self, session: Session, status: str, detail: object = None) -> None:
        """End a session: its runs and samplers go, named checkpoints stay."""
        await self.sessions.end(session, status, detail)
        for row in await self.runs.live_rows():
            if row.session_id == session.session_id:
                await self.runs.end(row.run_id)
        await self.samplers.close_session(session.session_id)
        await self.custom_losses.end_session(session.session_id)

    def queue_state(self, request_id: str) -> QueueState:
        """Why an operation has no answer yet."""
        ticket = self.futures.ticket(request_id)
        state = ticket and (self.runs.queue_state(ticket) or self.samplers.queue_state(ticket))
        return state or QueueState("active", "just accepted")

    async def get_info(self, owner: str, run_id: str) -> GetInfoResponse:
        """What a run is."""
        run = self.runs.live(owner, run_id)
        model = await self.base_models.get(run.base_model)
        return GetInfoResponse(
            model_data=ModelData(
                arch=model.arch, model_name=run.base_model, tokenizer_id=self._tokenizer(model)
            ),
            model_id=run_id,
            is_lora=True,
            lora_rank=run.lora.rank,
            model_name=run.base_model,
            optimizer_config={"type": "adamw"},
        )

    async def get_sampler(self, owner: str, sampler_id: str) -> GetSamplerResponse:
        """What a sampler samples from."""
        sampler = await self.samplers.get(owner, sampler_id)
        return GetSamplerResponse(
            sampler_id=sampler_id,
            base_model=sampler.base_model,
            model_path=sampler.model_path,
            tokenizer_id=self._tokenizer(await self.base_models.get(sampler.base_model)),
        )

    def _tokenizer(self, model: BaseModel) -> str:
        """A client on this machine can read the tokenizer from our folder; others get the public name."""
        here = self._private or is_loopback(self.settings.host)
        return str(model.folder) if here else model.name

    # -- housekeeping ----------------------------------------------------------------------------

    def _oldest_sign_of_life(self) -> float:
        return time.time() - self.settings.session_ttl

    async def _keep_house(self) -> None:
        chores: tuple[Callable[[], Awaitable[None]], ...] = (
            self.futures.write_refused,
            self.sessions.flush,
            self.usage.flush,
            self._end_silent_sessions,
            self._expire,
            self._database.reclaim,
            self._measure,
        )
        while True:
            await asyncio.sleep(self.settings.housekeeping_interval)
            for chore in chores:
                try:
                    await chore()
                except Exception:  # of a full disk, say: the next round tries again, and the others go on
                    log.exception("housekeeping: %s failed", chore.__qualname__)

    async def _end_silent_sessions(self) -> None:
        for session in self.sessions.silent_since(self._oldest_sign_of_life()):
            log.info("session %s expired", session.session_id)
            await self.end_session(session, "cancelled", "no heartbeat")

    async def _expire(self) -> None:
        self.completions.forget_unasked(self.settings.result_ttl)
        self.traces.expire()
        self.exports.expire()
        await self.checkpoints.expire()
        await self.futures.expire(time.time() - self.settings.result_ttl)
        await self._history.expire()

    async def _measure(self) -> None:
        await asyncio.to_thread(self._space.measure)
