"""Quotas at work: what every owner has waiting, running and stored, and when that is too much."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from tinsmith.engine.interface import Tenant
from tinsmith.store import Database, schema
from tinsmith.types import EncodedTextChunk, ModelInput, SampleRequest, UserError
from tinsmith.wire.protobuf import ForwardBackwardCall

from .futures import Futures, Outcome, Ticket
from .journal import Operation
from .keys import Keys
from .limits import Quota

_checkpoints, _samplers = schema.checkpoints, schema.samplers


class TooMuchWaiting(RuntimeError):
    """More is waiting than may; the client should come back in ``retry_after`` seconds."""

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class _Waiting:
    owner: str
    is_sample: bool
    tokens: int


class Quotas:
    """Counts what is accepted and not yet answered. A restart counts it again."""

    def __init__(self, default: Quota, keys: Keys, futures: Futures, database: Database) -> None:
        self._default = default
        self._keys = keys
        self._futures = futures
        self._database = database
        self._waiting: dict[str, _Waiting] = {}
        self._samples: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()
        futures.listeners.append(self._hear)

    def of(self, owner: str) -> Quota:
        """What an owner may have."""
        limits = self._keys.limits_of(owner)
        return self._default.with_limits(limits) if limits else self._default

    def tenant(self, owner: str) -> Tenant:
        """An owner as the engine knows him."""
        return Tenant(owner, self.of(owner).weight)

    # -- what waits --------------------------------------------------------------------------------

    @contextmanager
    def admitted(self, operation: Operation, context_length: int = 0) -> Iterator[None]:
        """Within: the operation is accepted, unless it is too much. It counts until it has an answer."""
        known = operation.request_id in self._waiting
        if not known:
            waiting = _weigh(operation, context_length)
            self._check(waiting)
            self._count(operation.request_id, waiting)
        try:
            yield
        finally:
            if not known and self._futures.ticket(operation.request_id) is None:
                self._forget(operation.request_id)  # refused after all, or answered already

    def reopen(self, operation: Operation, context_length: int = 0) -> None:
        """Accepted before a restart, and still without an answer."""
        if operation.request_id not in self._waiting:
            self._count(operation.request_id, _weigh(operation, context_length))

    def _check(self, new: _Waiting) -> None:
        quota = self.of(new.owner)
        samples, tokens = self._samples[new.owner], self._tokens[new.owner]
        if new.is_sample and samples >= quota.concurrent_samples:
            raise TooMuchWaiting(
                f"concurrent_samples: {samples} samples of yours are without an answer, "
                f"{quota.concurrent_samples} may be; collect some results first"
            )
        if new.tokens and tokens and tokens + new.tokens > quota.queued_tokens:
            raise TooMuchWaiting(
                f"queued_tokens: {tokens} tokens of yours are waiting, with this request it would be "
                f"{tokens + new.tokens}, and {quota.queued_tokens} may be; wait for some results first",
                retry_after=1 if new.is_sample else 5,
            )

    def _count(self, request_id: str, waiting: _Waiting) -> None:
        self._waiting[request_id] = waiting
        self._samples[waiting.owner] += waiting.is_sample
        self._tokens[waiting.owner] += waiting.tokens

    def _hear(self, ticket: Ticket, _outcome: Outcome) -> None:
        self._forget(ticket.request_id)

    def _forget(self, request_id: str) -> None:
        if (gone := self._waiting.pop(request_id, None)) is not None:
            for counter, share in ((self._samples, gone.is_sample), (self._tokens, gone.tokens)):
                counter[gone.owner] -= share
                if not counter[gone.owner]:
                    del counter[gone.owner]

    def check_sessions(self, owner: str, active: int) -> None:
        """Refuse another session to somebody who has too many."""
        most = self.of(owner).active_sessions
        if active >= most:
            raise TooMuchWaiting(
                f"active_sessions: {active} sessions of yours are active and {most} may be; finish "
                "some, or wait until those without a heartbeat end",
                retry_after=30,
            )

    # -- what is kept ------------------------------------------------------------------------------

    async def check_storage(self, owner: str) -> None:
        """Refuse to keep more for somebody who keeps too much. What goes over the line is still kept."""
        kept = (_checkpoints.c.owner == owner, _samplers.c.owner == owner)

        def query(connection: sa.Connection) -> int:
            named = connection.scalar(sa.select(sa.func.sum(_checkpoints.c.size_bytes)).where(kept[0]))
            snapshots = connection.scalar(sa.select(sa.func.sum(_samplers.c.size_bytes)).where(kept[1]))
            return (named or 0) + (snapshots or 0)

        stored, most = await self._database.read(query), self.of(owner).stored_bytes
        if stored >= most:
            raise UserError(
                f"{stored} bytes of yours are kept and {most} may be; delete checkpoints, or end sessions "
                "whose samplers you no longer use",
                field="stored_bytes",
            )


def _weigh(operation: Operation, context_length: int) -> _Waiting:
    payload = operation.payload
    if isinstance(payload, ForwardBackwardCall):
        tokens = sum(_text_length(datum.model_input) for datum in payload.batch.data)
        return _Waiting(operation.owner, False, tokens)
    if isinstance(payload, SampleRequest):
        most = payload.sampling_params.max_tokens or context_length
        # A token that comes with its alternatives takes as much room as they do.
        read = _prompt_length(payload.prompt) * (
            1 + max(payload.topk_prompt_logprobs, 0) + max(payload.prompt_alt_tokens_k, 0)
        )
        written = max(payload.num_samples, 0) * max(most, 0) * (1 + max(payload.topk_sample_logprobs, 0))
        return _Waiting(operation.owner, True, read + written)
    return _Waiting(operation.owner, False, 0)


def _text_length(model_input: ModelInput) -> int:
    """Its tokens; an image's length may be unknown, and one is refused before it takes any room."""
    return sum(chunk.length for chunk in model_input.chunks if isinstance(chunk, EncodedTextChunk))


def _prompt_length(prompt: Any) -> int:
    """Tokens of a prompt that has not been checked yet."""
    chunks = prompt.get("chunks") if isinstance(prompt, Mapping) else None
    found = (
        [chunk.get("tokens") for chunk in chunks or () if isinstance(chunk, Mapping)]
        if isinstance(chunks, list)
        else []
    )
    return sum(len(tokens) for tokens in found if isinstance(tokens, list))
