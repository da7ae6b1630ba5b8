"""Sending the batches of a run: in chunks, checked before a seq id is taken, never leaving one unused."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, TypeVar, get_args

from tinsmith.types import Datum, EncodedTextChunk, ForwardBackwardInput, ImageAssetPointerChunk, LossFnType
from tinsmith.types.losses import LOSSES
from tinsmith.types.validation import check_batch
from tinsmith.wire import json as wire_json
from tinsmith.wire.compression import compress
from tinsmith.wire.protobuf import ForwardBackwardCall, encode_forward_backward

from .chunking import split
from .custom_loss import harmless
from .errors import APIConnectionError, APIError
from .loop import in_thread
from .replies import Submitted
from .sequence import Turn
from .session import Live

_log = logging.getLogger("tinsmith")
_T = TypeVar("_T")

_ANY = 2**31 - 1  # what only the service knows: the vocabulary, the context length


class BatchSender:
    """Submits forward and forward_backward requests of one run."""

    def __init__(self, live: Live, model_id: str) -> None:
        self._live = live
        self._model_id = model_id

    def prepare(
        self,
        data: Iterable[Datum],
        loss_fn: str,
        config: Mapping[str, float | str] | None,
        *,
        forward_only: bool,
    ) -> list[ForwardBackwardInput]:
        """The requests' batches, or a refusal."""
        batch = ForwardBackwardInput(list(data), loss_fn, None if config is None else dict(config))
        self._check(batch, forward_only)
        return [
            ForwardBackwardInput(chunk, loss_fn, batch.loss_fn_config)
            for chunk in split(batch.data, self._live.server)
        ]

    def _check(self, batch: ForwardBackwardInput, forward_only: bool) -> None:
        if batch.loss_fn not in get_args(LossFnType):
            names = ", ".join(get_args(LossFnType))
            raise ValueError(f"loss_fn: {batch.loss_fn!r} is not a loss; use one of {names}")
        text_only = True
        for at, datum in enumerate(batch.data):
            if not isinstance(datum, Datum):
                raise TypeError(f"data[{at}]: a Datum is needed, not {type(datum).__name__}")
            for place, chunk in enumerate(datum.model_input.chunks):
                text_only &= isinstance(chunk, EncodedTextChunk)
                if isinstance(chunk, ImageAssetPointerChunk) and not self._live.server.old_dialect:
                    raise ValueError(
                        f"data[{at}].model_input.chunks[{place}]: an image pointer cannot be trained on; "
                        "send the image itself"
                    )
        if text_only and batch.loss_fn in LOSSES:
            check_batch(batch, vocab_size=_ANY, max_context_length=_ANY, backward=not forward_only)

    async def submit(
        self, turn: Turn, batches: list[ForwardBackwardInput], *, forward_only: bool
    ) -> list[Submitted]:
        """Send all of one call when its turn comes."""
        async with turn:
            return await self.send(turn.ids, batches, forward_only=forward_only)

    async def send(
        self, ids: range, batches: list[ForwardBackwardInput], *, forward_only: bool
    ) -> list[Submitted]:
        """Send one call's batches under its seq ids; its turn has come.

        The first goes last: by then the others are known to be accepted, and since the service
        starts with the first, a call that is refused in part has mostly not begun.
        """
        sends = dict(zip(ids, batches, strict=True))
        outcomes: dict[int, Submitted | BaseException] = {}

        async def one(seq_id: int) -> None:
            try:
                outcomes[seq_id] = await self._send(seq_id, sends[seq_id], forward_only)
            except Exception as error:
                outcomes[seq_id] = error

        if self._live.server.parallel_fwdbwd_chunks:
            await asyncio.gather(*(one(seq_id) for seq_id in ids[1:]))
            if not _first_error(outcomes):
                await one(ids[0])
        else:
            for seq_id in ids:
                if not _first_error(outcomes):
                    await one(seq_id)
        if (error := _first_error(outcomes)) is None:
            return [reply for _, reply in sorted(outcomes.items()) if isinstance(reply, Submitted)]
        accepted = sum(isinstance(reply, Submitted) for reply in outcomes.values())
        if accepted and not forward_only:
            error.add_note(
                f"{accepted} of this call's {len(batches)} requests had been accepted: "
                "their part of the gradient counts towards the next optim_step"
            )
        unsent = [seq_id for seq_id in ids if not isinstance(outcomes.get(seq_id), Submitted | APIError)]
        await self.fill(unsent, error)
        raise error

    async def _send(self, seq_id: int, batch: ForwardBackwardInput, forward_only: bool) -> Submitted:
        live = self._live
        call = ForwardBackwardCall(self._model_id, seq_id, batch, forward_only)
        if live.server.old_dialect:
            return await live.api.forward_backward_json(
                wire_json.forward_backward_to_json(call), forward_only
            )
        body = encode_forward_backward(call)
        compressed = live.server.proto_compress_fwdbwd
        if compressed:
            body = await in_thread(compress, body)
        async with live.training_bytes.hold(len(body)):
            return await live.api.forward_backward(body, compressed)

    async def fill(self, ids: Iterable[int], reason: BaseException) -> None:
        """Use up seq ids that nothing will come under, so that the service does not wait for them."""
        if isinstance(reason, APIConnectionError | asyncio.CancelledError):
            return  # nothing gets through now, and the service passes over the hole by itself after a while
        for seq_id in ids:
            batch = ForwardBackwardInput([harmless()], "cross_entropy")
            try:
                await self._send(seq_id, batch, True)
            except Exception as error:
                _log.warning("%s: seq id %d stays unused: %s", self._model_id, seq_id, error)

    async def gather(self, waits: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
        """All results, or the first error once all have ended."""
        outcomes = await asyncio.gather(*waits, return_exceptions=True)
        results: list[_T] = []
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
            results.append(outcome)
        return results


def _first_error(outcomes: Mapping[int, object]) -> BaseException | None:
    for _, outcome in sorted(outcomes.items()):
        if isinstance(outcome, BaseException):
            return outcome
    return None
