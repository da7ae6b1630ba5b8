"""Samplers: immutable weights to sample from, and the samples in flight."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tinsmith.engine.interface import Engine
from tinsmith.store import Blobs, Database, schema
from tinsmith.types import (
    CreateSamplingSessionRequest,
    NotFound,
    SampleJob,
    SampleRequest,
    SampleResponse,
    UserError,
)
from tinsmith.wire import json

from . import ids, queue_state
from .base_models import BaseModels
from .checkpoints import Checkpoints
from .futures import Futures, Outcome, Ticket
from .journal import Journal, Operation
from .kinds import KINDS
from .open_samplers import OpenSamplers, Sampler
from .queue_state import QueueState
from .quotas import Quotas, TooMuchWaiting
from .sessions import Session
from .settings import Settings
from .supervision import EngineKilled, Supervisor
from .usage import Usage

log = logging.getLogger(__name__)
_table = schema.samplers
_MAX_SEED = 2**63 - 1
_MOST_SEQUENCES = 4096  # more are refused by the engine, through the future


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
        self._next_seq: dict[str, int] = {}

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
        await self._database.write(lambda connection: connection.execute(_table.insert(), sampler.row()))
        self._known[sampler_id] = sampler
        return sampler

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
        if request.record_stability_info:
            raise UserError("is not available: stable_reinforce is not public", field="record_stability_info")
        sampler = await self._addressed(owner, request)
        seq = request.seq_id
        if seq is None:
            if request.sampling_session_id is not None:
                raise UserError("missing; number the samples of a session from 0", field="seq_id")
            seq = secrets.randbits(62)
        request_id = ids.request_id(sampler.sampler_id, seq)
        sequence_ids = ids.sequence_ids(request_id, min(max(request.num_samples, 0), _MOST_SEQUENCES))
        if not await self._futures.known_here(request_id, owner):
            operation = Operation(request_id, owner, sampler.sampler_id, seq, "sample", _with_seed(request))
            try:
                await self._accept(operation, self._base_models.context_length(sampler.base_model))
            except TooMuchWaiting:
                if not await self._futures.known(request_id, owner):
                    raise
        return request_id, sequence_ids

    async def _accept(self, operation: Operation, context_length: int) -> None:
        if len(self._running) >= self._settings.max_pending_samples:
            raise TooMuchWaiting(
                f"the service is full: {len(self._running)} samples of all its users are waiting"
            )
        with self._quotas.admitted(operation, context_length):
            if await self._journal.accept(operation) is not None:
                self.begin(operation)

    async def _addressed(self, owner: str, request: SampleRequest) -> Sampler:
        if request.sampling_session_id is not None:
            return await self.get(owner, request.sampling_session_id)
        if request.base_model is None and request.model_path is None:
            raise UserError("give sampling_session_id, base_model or model_path", field="sampling_session_id")
        base_model, blob = await self._source(owner, request.base_model, request.model_path)
        sampler_id = f"direct:{owner}:{request.model_path or base_model}"
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
        return len(self._running)

    async def _perform(self, operation: Operation) -> Outcome:
        try:
            sampler = await self.get(operation.owner, operation.stream_id)
            job = _job(operation.payload, operation.request_id)
            response = await self._supervisor.carry_out(lambda: self._sample(sampler, job))
            self._usage.sampled(sampler.owner, sampler.session_id, sampler.base_model, job, response)
            return Outcome("sample", KINDS["sample"].result.encode(response))
        except UserError as error:
            return Outcome("sample", error=str(error), category="user")
        except EngineKilled as error:
            log.error("sample %s failed: %s", operation.request_id, error)
            return Outcome("sample", error=str(error), category="server")
        except Exception as error:
            log.exception("sample %s failed", operation.request_id)
            return Outcome("sample", error=f"internal error: {type(error).__name__}", category="server")

    async def _sample(self, sampler: Sampler, job: SampleJob) -> SampleResponse:
        async with self._opened.using(sampler):
            return await self._engine.sample(sampler.sampler_id, job)

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

    async def stop(self) -> None:
        """Stop sampling; the journal has what is needed to sample again later."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _with_seed(request: SampleRequest) -> SampleRequest:
    """A seed chosen once and journalled, so that a sample repeated after a restart is the same sample."""
    if request.sampling_params.seed is not None:
        return request
    params = request.sampling_params.model_copy(update={"seed": secrets.randbits(62)})
    return request.model_copy(update={"sampling_params": params})


def _job(request: SampleRequest, request_id: str) -> SampleJob:
    target = request.target_prompt_logprobs
    seed = request.sampling_params.seed
    if seed is None or not 0 <= seed <= _MAX_SEED:
        raise UserError(f"{seed} is not between 0 and {_MAX_SEED}", field="sampling_params.seed")
    return SampleJob(
        prompt=json.model_input_from_json(request.prompt, "prompt"),
        params=request.sampling_params,
        num_samples=request.num_samples,
        prompt_logprobs=bool(request.prompt_logprobs),
        topk_prompt_logprobs=request.topk_prompt_logprobs,
        topk_sample_logprobs=request.topk_sample_logprobs,
        target_prompt_logprobs=None
        if target is None
        else json.tensor_from_json(target, "target_prompt_logprobs"),
        prompt_alt_tokens_k=request.prompt_alt_tokens_k,
        prompt_logprobs_last_n=request.prompt_logprobs_last_n,
        seed=seed,
        sequence_ids=ids.sequence_ids(request_id, min(max(request.num_samples, 0), _MOST_SEQUENCES)),
    )
