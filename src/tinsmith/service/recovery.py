"""After a restart: bring live runs back to where they were, and go on with what was accepted."""

from __future__ import annotations

import logging

from sqlalchemy import Row

from tinsmith.types import LoraConfig

from .custom_losses import CustomLosses
from .futures import Futures, Ticket
from .journal import Journal, Operation
from .kinds import KINDS
from .runs import Run, Runs
from .samplers import Samplers
from .sequence import SequencedQueue
from .settings import Settings

log = logging.getLogger(__name__)


class Recovery:
    """Replays the journal: what changed a run is done again, what has no answer is done at last."""

    def __init__(
        self,
        journal: Journal,
        futures: Futures,
        custom_losses: CustomLosses,
        runs: Runs,
        samplers: Samplers,
        settings: Settings,
    ) -> None:
        self._journal = journal
        self._futures = futures
        self._custom_losses = custom_losses
        self._runs = runs
        self._samplers = samplers
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

    async def _recover_run(self, row: Row[tuple[object, ...]]) -> None:
        history = await self._journal.of_stream(row.run_id)
        queue: SequencedQueue[tuple[Operation, Ticket]] = SequencedQueue(0, self._settings.gap_timeout)
        run = Run(
            run_id=row.run_id,
            session_id=row.session_id,
            owner=row.owner,
            base_model=row.base_model,
            lora=LoraConfig(**row.lora),
            user_metadata=row.user_metadata,
            created_at=row.created_at,
            queue=queue,
            last_request_at=row.last_request_at,
        )
        replayed = 0
        for operation, answered in history:
            if not answered:
                queue.put(operation.seq_id, (operation, self._reopen(operation)))
            elif KINDS[operation.kind].changes_run:
                queue.put(operation.seq_id, (operation, self._replay(operation)))
                replayed += 1
            else:
                queue.consume(operation.seq_id)
        log.info("run %s: replaying %d of %d operations", run.run_id, replayed, len(history))
        self._runs.begin(run)

    def _reopen(self, operation: Operation) -> Ticket:
        ticket = self._futures.open(
            operation.request_id, operation.owner, operation.kind, operation.stream_id
        )
        ticket.accepted.set_result(None)
        return ticket

    def _replay(self, operation: Operation) -> Ticket:
        return self._futures.replay(
            operation.request_id, operation.owner, operation.kind, operation.stream_id
        )
