"""Samplers: immutable weights to sample from, and the samples in flight."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from tinsmith.engine.interface import Engine
from tinsmith.store import Blobs, Database, schema
from tinsmith.types import (
    CreateSamplingSessionRequest,
    NotFound,
    OutOfSpace,
    SampleDelta,
    SampledSequence,
    SampleJob,
    SampleRequest,
    SampleResponse,
    SequenceDelta,
    Unavailable,
    UserError,
)

from . import ids, queue_state
from .base_models import BaseModels
from .checkpoints import Checkpoints
from .futures import Futures, Outcome, Ticket
from .journal import Journal, Operation
from .kinds import KINDS
from .open_samplers import OpenSamplers, Sampler
from .queue_state import QueueState
from .quotas import Quotas, TooMuchWaiting
from .sample_jobs import job_of, sequence_ids, with_seed
from .sessions import Session
from .settings import Settings
from .streams import StreamFailed, supervised
from .supervision import EngineKilled, Supervisor
from .usage import Usage

log = logging.getLogger(__name__)
_table = schema.samplers


class Samplers:
    """All samplers of a service. Their weights are opened when the first sample asks for them."""

    def __init__(
        self,
        database: Database,
        blobs: Blobs,
        journal: Journal,
        futures: Futures,
        checkpoints: Checkpoints,
        base_models: BaseModels,
        usage: Usage,
        opened: OpenSamplers,
        supervisor: Supervisor,
        quotas: Quotas,
        engine: Engine,
        settings: Settings,
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._journal = journal
        self._futures = futures
        self._checkpoints = checkpoints
        self._base_models = base_models
        self._usage = usage
        self._opened = opened
        self._supervisor = supervisor
        self._quotas = quotas
        self._engine = engine
        self._settings = settings
        self._known: dict[str, Sampler] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._streaming: set[asyncio.Task[None]] = set()
        self._stream_numbers = itertools.count()

    # -- making ----------------------------------------------------------------------------------

    async def create(self, session: Session, request: CreateSamplingSessionRequest) -> str:
        """A sampler of a base model or of a checkpoint; the same request gives the same sampler."""
        sampler_id = ids.sampler_id(session.session_id, request.sampling_session_seq_id)
        if await self._find(sampler_id) is None:
            base_model, blob = await self._source(session.owner, request.base_model, request.model_path)
            await self._add(
                session.session_id, session.owner, sampler_id, base_model, request.model_path, blob
            )
        return sampler_id

    async def _source(
        self, owner: str, base_model: str | None, model_path: str | None
    ) -> tuple[str, str | None]:
        if model_path is None:
            assert base_model is not None
            await self._base_models.get(base_model)
            return base_model, None
        row = await self._checkpoints.find(owner, model_path, purpose="sampling")
        if base_model not in (None, row.base_model):
            raise UserError(
                f"{model_path!r} is of {row.base_model!r}, not {base_model!r}", field="base_model"
            )
        await self._base_models.get(row.base_model)
        return row.base_model, row.blob

    async def add_snapshot(self, run: Any, sampler_id: str, staged: Path) -> None:
        """A sampler of weights just written, that only this sampler will ever use."""
        blob = f"samplers/{sampler_id}"
        size = self._blobs.publish(staged, blob)
        if await self._find(sampler_id) is None:
            await self._add(run.session_id, run.owner, sampler_id, run.base_model, None, blob, size)

    async def _add(
        self,
        session_id: str,
        owner: str,
        sampler_id: str,
        base_model: str,
        model_path: str | None,
        blob: str | None,
        size: int = 0,
    ) -> Sampler:
        sampler = Sampler(sampler_id, session_id, owner, base_model, model_path, blob, size, time.time())

        def change(connection: Connection) -> None:
            same = sa.select(_table.c.sampler_id).where(_table.c.sampler_id == sampler_id)
            if connection.scalar(same) is None:  # else a twin of this request was first
                connection.execute(_table.insert(), sampler.row())

        await self._database.write(change)
        return self._known.setdefault(sampler_id, sampler)

    async def _find(self, sampler_id: str) -> Sampler | None:
        if sampler_id not in self._known:
            query = sa.select(_table).where(_table.c.sampler_id == sampler_id)
            row = await self._database.read(lambda connection: connection.execute(query).one_or_none())
            if row is None:
                return None
            self._known[sampler_id] = Sampler(**row._mapping)
        return self._known[sampler_id]

    async def get(self, owner: str, sampler_id: str) -> Sampler:
        """A sampler of this owner."""
        sampler = await self._find(sampler_id)
        if sampler is None or sampler.owner != owner:
            raise NotFound(f"no sampler {sampler_id!r}", field="sampling_session_id")
        return sampler

    async def ids_of_session(self, session_id: str) -> list[str]:
        """Sampler ids of a session, oldest first."""
        query = (
            sa.select(_table.c.sampler_id)
            .where(_table.c.session_id == session_id)
            .order_by(_table.c.created_at)
        )
        return await self._database.read(lambda connection: list(connection.scalars(query)))

    # -- sampling --------------------------------------------------------------------------------

    async def submit(self, owner: str, request: SampleRequest) -> tuple[str, list[str]]:
        """Accept a sample; gives its request id and one id for each sequence to come."""
        sampler, operation = await self._asked(owner, request)
        request_id = operation.request_id
        named = request_id, sequence_ids(request, request_id)
        if not await self._futures.known_here(request_id, owner):
            try:
                await self._accept(operation, self._base_models.context_length(sampler.base_model))
            except (TooMuchWaiting, OutOfSpace):
                if not await self._futures.known(request_id, owner):
                    raise
        return named

    async def _asked(self, owner: str, request: SampleRequest) -> tuple[Sampler, Operation]:
        """What is asked, numbered and with a seed, and of whom; or a refusal."""
        if request.record_stability_info:
            raise UserError("is not available: stable_reinforce is not public", field="record_stability_info")
        sampler = await self._addressed(owner, request)
        seq = request.seq_id
        if seq is None:
            if request.sampling_session_id is not None:
                raise UserError("missing; number the samples of a session from 0", field="seq_id")
            seq = secrets.randbits(62)
        request_id = ids.request_id(sampler.sampler_id, seq)
        return sampler, Operation(request_id, owner, sampler.sampler_id, seq, "sample", with_seed(request))

    async def _accept(self, operation: Operation, context_length: int) -> None:
        self._check_room()
        with self._quotas.admitted(operation, context_length):
            if await self._journal.accept(operation) is not None:
                self.begin(operation)

    def _check_room(self) -> None:
        if self.running_count >= self._settings.max_pending_samples:
            raise TooMuchWaiting(
                f"the service is full: {self.running_count} samples of all its users are waiting"
            )

    async def _addressed(self, owner: str, request: SampleRequest) -> Sampler:
        if request.sampling_session_id is not None:
            return await self.get(owner, request.sampling_session_id)
        if request.base_model is None and request.model_path is None:
            raise UserError("give sampling_session_id, base_model or model_path", field="sampling_session_id")
        base_model, blob = await self._source(owner, request.base_model, request.model_path)
        # A name may be given to other weights later: those are another sampler.
        weights = base_model if blob is None else f"{request.model_path}:{blob.rpartition('/')[2]}"
        sampler_id = f"direct:{owner}:{weights}"
        existing = await self._find(sampler_id)
        return existing or await self._add("direct", owner, sampler_id, base_model, request.model_path, blob)

    def begin(self, operation: Operation) -> None:
        """Start sampling."""
        task = asyncio.get_running_loop().create_task(
            self._work(operation), name=f"sample {operation.request_id}"
        )
        self._running[operation.request_id] = task
        task.add_done_callback(lambda _: self._running.pop(operation.request_id, None))

    def cancel(self, owner: str, request_id: str) -> None:
        """Stop a sample nobody waits for any more."""
        ticket = self._futures.ticket(request_id)
        if ticket is None or ticket.owner != owner or request_id not in self._running:
            return
        self._running[request_id].cancel()
        self._futures.resolve(ticket, Outcome("sample", error="cancelled by the client", category="user"))

    async def _work(self, operation: Operation) -> None:
        ticket = self._futures.ticket(operation.request_id)
        assert ticket is not None
        ticket.start()
        self._futures.resolve(ticket, await self._perform(operation))

    def queue_state(self, ticket: Ticket) -> QueueState | None:
        """Why a sample has no answer yet; None if it is of no sampler at work."""
        sampler = self._known.get(ticket.stream_id)
        if sampler is None or ticket.request_id not in self._running:
            return None
        if not self._base_models.is_loaded(sampler.base_model):
            return queue_state.loading(sampler.base_model)
        return queue_state.among_samples(ticket, self._running)

    @property
    def live_count(self) -> int:
        """Samplers the engine has open."""
        return len(self._opened)

    @property
    def running_count(self) -> int:
        """Samples in flight."""
        return len(self._running) + len(self._streaming)

    async def _perform(self, operation: Operation) -> Outcome:
        try:
            sampler = await self.get(operation.owner, operation.stream_id)
            job = job_of(operation.payload, operation.request_id)
            response = await self._supervisor.carry_out(lambda: self._sample(sampler, job))
            self._count(sampler, job, response.prompt_cache_hit_tokens, _length(response.sequences))
            return Outcome("sample", KINDS["sample"].result.encode(response))
        except Exception as error:
            return _failure(error, operation)

    async def _sample(self, sampler: Sampler, job: SampleJob) -> SampleResponse:
        async with self._opened.using(sampler):
            return await self._engine.sample(sampler.sampler_id, job)

    def _count(self, sampler: Sampler, job: SampleJob, cached: int, sampled: int) -> None:
        where = sampler.owner, sampler.session_id, sampler.base_model
        self._usage.sampled(*where, prompt=job.prompt.length, cached=cached, sampled=sampled)

    # -- streaming -------------------------------------------------------------------------------

    @asynccontextmanager
    async def streaming(
        self, owner: str, request: SampleRequest
    ) -> AsyncIterator[AsyncGenerator[SampleDelta, None]]:
        """A sample told as it is decoded, for as long as the block runs; refusals are those of `submit`.

        It is nobody's future: nothing of it is journalled, and whoever loses it asks again. It counts
        against quotas like any sample without an answer; what was told is used, even if the reader leaves.
        """
        sampler, operation = await self._asked(owner, request)
        self._check_room()
        stream = replace(operation, request_id=f"{operation.request_id}:stream:{next(self._stream_numbers)}")
        with self._quotas.admitted(stream, self._base_models.context_length(sampler.base_model)):
            async with aclosing(self._told(sampler, operation)) as deltas:
                yield deltas

    async def _told(self, sampler: Sampler, operation: Operation) -> AsyncGenerator[SampleDelta, None]:
        """The deltas; raises `StreamFailed`."""
        outcome, told, cached = "abandoned", 0, 0
        try:
            job = job_of(operation.payload, operation.request_id)
            stream = supervised(self._supervisor, lambda: self._stream(sampler, job), self._streaming)
            async with aclosing(stream) as deltas:
                async for delta in deltas:
                    told += _length(delta.sequences)
                    if delta.response is not None:
                        outcome, cached = "ok", delta.response.prompt_cache_hit_tokens
                    yield delta
        except Exception as error:
            failure = _failure(error, operation)
            assert failure.error is not None
            assert failure.category is not None
            outcome = failure.category
            raise StreamFailed(failure.error, failure.category) from error
        finally:
            self._futures.outcomes["stream", outcome] += 1
            if told:
                self._count(sampler, job, cached, told)

    async def _stream(self, sampler: Sampler, job: SampleJob) -> AsyncGenerator[SampleDelta, None]:
        async with (
            self._opened.using(sampler),
            aclosing(self._engine.stream_sample(sampler.sampler_id, job)) as deltas,
        ):
            async for delta in deltas:
                yield delta

    # -- ending ----------------------------------------------------------------------------------

    async def close_session(self, session_id: str) -> None:
        """Free what a session's samplers take; snapshots that only they could use go with them."""
        query = sa.select(_table).where(_table.c.session_id == session_id)
        rows = await self._database.read(lambda connection: connection.execute(query).all())
        for row in rows:
            self._known.pop(row.sampler_id, None)
            await self._opened.close(row.sampler_id)
            if row.blob is not None and row.blob.startswith("samplers/"):
                self._blobs.delete(row.blob)
        freed = _table.update().where(_table.c.session_id == session_id).values(size_bytes=0)
        await self._database.write(lambda connection: connection.execute(freed))

    async def sessions_with_snapshots(self) -> list[str]:
        """The sessions that keep files only their samplers use."""
        query = sa.select(_table.c.session_id).where(_table.c.size_bytes > 0).distinct()
        return await self._database.read(lambda connection: list(connection.scalars(query)))

    async def drain(self) -> None:
        """Finish the samples in flight, streams too."""
        if tasks := [*self._running.values(), *self._streaming]:
            await asyncio.wait(tasks)

    async def stop(self) -> None:
        """Stop sampling; the journal has what is needed to sample again later."""
        tasks = [*self._running.values(), *self._streaming]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._opened.settle()


def _failure(error: Exception, operation: Operation) -> Outcome:
    """Whose fault it was that a sample failed, in words for its owner."""
    if isinstance(error, UserError):
        return Outcome("sample", error=str(error), category="user")
    if isinstance(error, Unavailable):
        return Outcome("sample", error=str(error), category="server")
    log.error("sample %s failed", operation.request_id, exc_info=error)
    said = str(error) if isinstance(error, EngineKilled) else f"internal error: {type(error).__name__}"
    return Outcome("sample", error=said, category="server")


def _length(sequences: Iterable[SampledSequence | SequenceDelta]) -> int:
    return sum(len(sequence.tokens_np) for sequence in sequences)
