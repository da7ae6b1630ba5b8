"""Custom losses: made once in a session, kept in the journal, used by the session's runs."""

from __future__ import annotations

from dataclasses import replace

from tinsmith.types import ForwardBackwardInput, UserError
from tinsmith.types.custom_loss import CreateCustomLossRequest, CustomLoss, checked_loss

from . import ids
from .futures import Futures, Outcome, Ticket
from .journal import Journal, Operation
from .kinds import KINDS
from .sessions import Session

_KIND = "create_custom_loss"
_CONFIG = frozenset({"loss_id"})


class CustomLosses:
    """The losses of all sessions. The operation that made one is also where it is kept."""

    def __init__(self, journal: Journal, futures: Futures) -> None:
        self._journal = journal
        self._futures = futures
        self._known: dict[str, CustomLoss] = {}

    async def create(self, session: Session, request: CreateCustomLossRequest) -> str:
        """Accept a loss; gives the request id. What is wrong with it is said through the future."""
        loss_id = ids.loss_id(session.session_id, request.custom_loss_seq_id)
        request_id = ids.request_id(loss_id, 0)
        operation = Operation(request_id, session.owner, loss_id, 0, _KIND, request)
        ticket = await self._journal.accept(operation)
        if ticket is not None:
            self.answer(operation, ticket)
        return request_id

    def answer(self, operation: Operation, ticket: Ticket) -> None:
        """Check a loss that was accepted, now or before a restart."""
        ticket.start()
        try:
            self._known[operation.stream_id] = checked_loss(operation.payload)
        except UserError as error:
            self._futures.resolve(ticket, Outcome(_KIND, error=str(error), category="user"))
        else:
            result = {"loss_id": operation.stream_id, "type": _KIND}
            self._futures.resolve(ticket, Outcome(_KIND, KINDS[_KIND].result.encode(result)))

    async def beside(self, session_id: str, batch: ForwardBackwardInput) -> ForwardBackwardInput:
        """The batch, with the loss it names if that is a custom one."""
        if batch.loss_fn != "custom":
            return batch
        config = dict(batch.loss_fn_config or {})
        loss_id = config.get("loss_id")
        if config.keys() != _CONFIG or not isinstance(loss_id, str):
            raise UserError("custom takes loss_id, which create_custom_loss gave", field="loss_fn_config")
        return replace(batch, custom_loss=await self._find(session_id, loss_id))

    async def _find(self, session_id: str, loss_id: str) -> CustomLoss:
        if ids.session_of_loss(loss_id) != session_id:
            raise UserError(
                f"no loss {loss_id!r} in this session; a loss belongs to the session that made it",
                field="loss_fn_config['loss_id']",
            )
        if loss_id not in self._known:
            history = await self._journal.history(loss_id)
            if not history:
                raise UserError(f"no loss {loss_id!r}", field="loss_fn_config['loss_id']")
            self._known[loss_id] = checked_loss((await self._journal.operation(history[0])).payload)
        return self._known[loss_id]

    async def end_session(self, session_id: str) -> None:
        """Forget a session's losses: its runs have ended."""
        prefix = ids.loss_prefix(session_id)
        for loss_id in [known for known in self._known if known.startswith(prefix)]:
            del self._known[loss_id]
        await self._journal.drop_payloads_under(prefix)
