"""After a restart: bring live runs back to where they were, and go on with what was accepted."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Row

from tinsmith.types import LoraConfig

from .custom_losses import CustomLosses
from .futures import Futures, Ticket
from .journal import Entry, Journal, Operation
from .quotas import Quotas
from .run import Run
from .runs import Runs
from .samplers import Samplers
from .sequence import SequencedQueue
from .settings import Settings


class Recovery:
    """Fills the queues from the journal: what was accepted and has no answer is done at last."""

    def __init__(
        self,
        journal: Journal,
        futures: Futures,
        custom_losses: CustomLosses,
        runs: Runs,
        samplers: Samplers,
        quotas: Quotas,
        settings: Settings,
    ) -> None:
        self._journal = journal
        self._futures = futures
        self._custom_losses = custom_losses
        self._runs = runs
        self._samplers = samplers
        self._quotas = quotas
        self._settings = settings

    async def recover(self) -> None:
        """Open everything the journal has accepted. Returns at once with the work queued."""
        for operation in await self._journal.unanswered("create_custom_loss"):
            self._custom_losses.answer(operation, self._reopen(operation))
        for row in await self._runs.live_rows():
            await self._recover_run(row)
        for operation in await self._journal.unanswered("sample"):
            self._reopen(operation)
            self._samplers.begin(operation)

    async def _recover_run(self, row: Row[Any]) -> None:
        """Fill the run's queue. Its state comes back when the first of the queue is carried out."""
        first = await self._journal.resume_at(row.run_id)
        queue: SequencedQueue[tuple[Operation, Ticket]] = SequencedQueue(first, self._settings.gap_timeout)
        for entry in await self._journal.history(row.run_id, after=first - 1):
            await self._enqueue(queue, entry)
        self._runs.begin(
            Run(
                run_id=row.run_id,
                session_id=row.session_id,
                owner=row.owner,
                base_model=row.base_model,
                lora=LoraConfig(**row.lora),
                user_metadata=row.user_metadata,
                created_at=row.created_at,
                queue=queue,
                last_request_at=row.last_request_at,
                failure=await self._journal.refusal(row.run_id, 0),
            )
        )

    async def _enqueue(self, queue: SequencedQueue[tuple[Operation, Ticket]], entry: Entry) -> None:
        """What has no answer; and between such what has one, if the run is different for it."""
        if not entry.answered:
            operation = await self._journal.operation(entry)
            queue.put(entry.seq_id, (operation, self._reopen(operation)))
        elif entry.applied:
            operation = await self._journal.operation(entry)
            queue.put(entry.seq_id, (operation, self._replay(operation)))
        else:
            queue.consume(entry.seq_id)

    def _reopen(self, operation: Operation) -> Ticket:
        ticket = self._futures.open(
            operation.request_id, operation.owner, operation.kind, operation.stream_id
        )
        ticket.accepted.set_result(None)
        self._quotas.reopen(operation)
        return ticket

    def _replay(self, operation: Operation) -> Ticket:
        return self._futures.replay(
            operation.request_id, operation.owner, operation.kind, operation.stream_id
        )
