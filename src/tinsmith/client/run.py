"""One run on the service: its operations, submitted in the order of their seq ids, and their results."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel

from tinsmith.types import Datum, ForwardBackwardInput, ForwardBackwardOutput
from tinsmith.wire import json as wire_json

from .api import Api
from .batches import BatchSender
from .custom_loss import Surrogate, check_targets, forward_data, merge, require_torch, surrogate
from .errors import about
from .futures import APIFuture, spawn
from .loop import in_thread
from .metrics import combine
from .polling import QueueWatch
from .replies import Submitted
from .results import FORWARD, FORWARD_BACKWARD, UNLOAD, Kind
from .sequence import Sequence, Turn
from .session import Live, Session

if TYPE_CHECKING:
    from .custom_loss import CustomLoss

_T = TypeVar("_T")
_R = TypeVar("_R", bound=BaseModel)


class Run:
    """Takes calls from any thread. What is wrong with one is raised before its seq id is taken."""

    def __init__(self, session: Session, live: Live, model_id: str) -> None:
        self._session = session
        self._live = live
        self._model_id = model_id
        self._sequence = Sequence(first=1)
        self._sender = BatchSender(live, model_id)
        self.watch = QueueWatch(f"training of {model_id}", session.clock)

    def operate(
        self,
        model: type[_R],
        fields: dict[str, Any],
        submit: Callable[[Api, _R], Awaitable[Submitted]],
        kind: Kind[_T],
    ) -> APIFuture[_T]:
        """One operation of one request."""
        self._session.check()
        request = wire_json.parse_model(model, {"model_id": self._model_id, **fields})
        wire_json.dumps(request.model_dump(mode="json"))
        (turn,) = self._sequence.take(1)
        numbered = request.model_copy(update={"seq_id": turn.first})
        submitted = spawn(self._in_turn(turn, submit, numbered), f"submit {kind.name}")
        return spawn(self._outcome(submitted, kind, turn), kind.name)

    def unload(self) -> APIFuture[None]:
        """End the run on the service, after what was asked for before."""
        self._session.check()
        return spawn(self._unload(self._sequence.take(1)[0]), "unload")

    def run_pass(
        self,
        data: list[Datum],
        loss_fn: str,
        config: Mapping[str, float | str] | None,
        *,
        forward_only: bool,
    ) -> APIFuture[ForwardBackwardOutput]:
        """A forward or forward_backward pass, in as many requests as it takes."""
        self._session.check()
        batches = self._sender.prepare(data, loss_fn, config, forward_only=forward_only)
        (turn,) = self._sequence.take(len(batches))
        return self._launch(turn, batches, forward_only=forward_only)

    def run_custom(self, data: list[Datum], loss_fn: CustomLoss) -> APIFuture[ForwardBackwardOutput]:
        """A forward pass, the user's loss, and a backward pass, with nothing else in between."""
        self._session.check()
        require_torch()
        data = list(data)
        check_targets(data)
        batches = self._sender.prepare(forward_data(data), "cross_entropy", None, forward_only=True)
        forward_turn, backward_turn = self._sequence.take(len(batches), len(batches))
        logprobs = self._launch(forward_turn, batches, forward_only=True)
        sizes = [len(batch.data) for batch in batches]
        backward = spawn(self._custom_backward(backward_turn, sizes, data, logprobs, loss_fn), "custom loss")
        return spawn(self._custom_result(backward, backward_turn), "forward_backward_custom")

    # ---- submitting -----------------------------------------------------------------------------

    async def _in_turn(
        self, turn: Turn, submit: Callable[[Api, _R], Awaitable[Submitted]], request: _R
    ) -> Submitted:
        async with turn:
            return await submit(self._live.api, request)

    def _launch(
        self, turn: Turn, batches: list[ForwardBackwardInput], *, forward_only: bool
    ) -> APIFuture[ForwardBackwardOutput]:
        # The submit is work of its own: cancelling the result must not leave a hole in the seq ids.
        submitted = spawn(self._sender.submit(turn, batches, forward_only=forward_only), "submit a batch")
        kind = FORWARD if forward_only else FORWARD_BACKWARD
        return spawn(self._collect(submitted, kind, turn), kind.name)

    async def _custom_backward(
        self,
        turn: Turn,
        sizes: list[int],
        data: list[Datum],
        logprobs: APIFuture[ForwardBackwardOutput],
        loss_fn: CustomLoss,
    ) -> tuple[list[Submitted], Surrogate]:
        async with turn:
            try:
                done = await in_thread(surrogate, data, await logprobs, loss_fn)
            except BaseException as error:
                await self._sender.fill(turn.ids, error)
                raise
            rest = iter(done.data)
            batches = [ForwardBackwardInput(list(islice(rest, size)), "cross_entropy") for size in sizes]
            return await self._sender.send(turn.ids, batches, forward_only=False), done

    async def _unload(self, turn: Turn) -> None:
        async with turn:  # no request comes under this seq id: the run is over
            submitted = await self._live.api.unload_model(self._model_id)
        with self._watched(UNLOAD.name, turn):
            await self._poll(submitted, UNLOAD)

    # ---- results --------------------------------------------------------------------------------

    @contextmanager
    def _watched(self, operation: str, turn: Turn) -> Iterator[None]:
        """Errors that leave this block say which operation they are of, and all of it is observed."""
        live, known = self._live, {"model_id": self._model_id, "seq_id": turn.first}
        with (
            live.telemetry.noting_errors(),
            live.observer.operation(operation, **known),
            about(**known),
        ):
            yield

    async def _outcome(self, submitted: APIFuture[Submitted], kind: Kind[_T], turn: Turn) -> _T:
        with self._watched(kind.name, turn):
            return await self._poll(await submitted, kind)

    async def _collect(
        self, submitted: APIFuture[list[Submitted]], kind: Kind[ForwardBackwardOutput], turn: Turn
    ) -> ForwardBackwardOutput:
        with self._watched(kind.name, turn):
            results = await self._sender.gather(self._poll(one, kind) for one in await submitted)
            return combine(results)

    async def _custom_result(
        self, backward: APIFuture[tuple[list[Submitted], Surrogate]], turn: Turn
    ) -> ForwardBackwardOutput:
        with self._watched("ForwardBackwardCustom", turn):
            submitted, done = await backward
            results = await self._sender.gather(self._poll(one, FORWARD_BACKWARD) for one in submitted)
            return merge(combine(results), done)

    async def _poll(self, submitted: Submitted, kind: Kind[_T]) -> _T:
        return await self._live.poller.wait(submitted.request_id, kind, self.watch)
