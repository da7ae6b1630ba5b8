"""Waiting for results: long polls that never spin, and pauses that are told about."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TypeVar

from .api import Api
from .clock import CLOCK, Clock
from .errors import (
    APIError,
    APIStatusError,
    BillingError,
    DeadlineError,
    ResultExpiredError,
    RetrieveError,
)
from .gate import BytesBudget
from .replies import ServerConfig
from .results import Kind, Large, Pending, Ready, pending_of, read_reply
from .retry import Delay, Layer, hint_of, should_retry

_log = logging.getLogger("tinsmith")
_T = TypeVar("_T")

HELD = 1.0  # a service that kept us at least this long did the waiting itself
PENDING = Delay(0.05, 2.0)
TROUBLE = Delay(0.5, 30.0)
BILLING_PAUSE = 5.0
EMPTY_400S = 5  # a proxy's hiccup passes; this many in a row are an answer
TELL_EVERY = 60.0

Check = Callable[[], None]


class QueueWatch:
    """Tells the user, at most once a minute, that the service keeps the work waiting and why."""

    def __init__(self, what: str, clock: Clock = CLOCK) -> None:
        self._what = what
        self._clock = clock
        self._told_at: float | None = None

    def saw(self, pending: Pending) -> None:
        """Note one answer's state."""
        if pending.queue_state in (None, "active"):
            return
        now = self._clock.now()
        if self._told_at is None or now - self._told_at >= TELL_EVERY:
            self._told_at = now
            reason = pending.reason or (pending.queue_state or "").replace("_", " ")
            _log.warning("%s is waiting: %s", self._what, reason)


class Poller:
    """Asks for results until they are there."""

    def __init__(
        self, api: Api, server: ServerConfig, clock: Clock = CLOCK, deadline: float | None = None
    ) -> None:
        self._api = api
        self._deadline = deadline
        self._large = BytesBudget(server.inflight_response_bytes_semaphore_size)
        self._billing_pause = server.billing_exception_max_pause_duration_sec
        self._protobuf = not server.old_dialect
        self._clock = clock

    async def wait(
        self, request_id: str, kind: Kind[_T], watch: QueueWatch | None = None, check: Check | None = None
    ) -> _T:
        """The result of an operation. ``check`` may raise between two polls, to give up."""
        pace = _Pace(self._clock, self._billing_pause)
        began = self._clock.now()
        async with AsyncExitStack() as held:
            metadata_only, iteration = True, 0
            while True:
                if check is not None:
                    check()
                asked_at = self._clock.now()
                reply = await self._ask(request_id, kind, iteration, metadata_only)
                iteration += 1
                if isinstance(reply, Ready):
                    return reply.value
                if isinstance(reply, Large):
                    if not metadata_only:
                        raise RetrieveError(
                            f"the service never sent the result [request {request_id}]", request_id
                        )
                    await held.enter_async_context(self._large.hold(reply.size))
                    metadata_only = False
                    continue
                if isinstance(reply, Pending) and watch is not None:
                    watch.saw(reply)
                self._check_deadline(began, kind.name, request_id)
                await self._clock.sleep(pace.pause(reply, self._clock.now() - asked_at, request_id))

    def _check_deadline(self, began: float, kind: str, request_id: str) -> None:
        waited = self._clock.now() - began
        if self._deadline is not None and waited > self._deadline:
            raise DeadlineError(
                f"{kind} had no result after {waited:.0f} s; `deadline` of ServiceClient says how long to "
                f"wait [request {request_id}]",
                request_id,
            )

    async def _ask(
        self, request_id: str, kind: Kind[_T], iteration: int, metadata_only: bool
    ) -> Pending | Large | Ready[_T] | APIError:
        try:
            response = await self._api.retrieve_future(
                request_id,
                kind=kind.name,
                iteration=iteration,
                protobuf=self._protobuf and kind.from_protobuf is not None,
                metadata_only=metadata_only,
            )
        except APIStatusError as error:
            if error.status_code == 408:
                return pending_of(error.body)
            if should_retry(error, Layer.POLL):
                return error
            raise _final(error, kind.name, request_id) from error
        except APIError as error:
            if should_retry(error, Layer.POLL):
                return error
            raise RetrieveError(f"{kind.name}: {error} [request {request_id}]", request_id) from error
        return read_reply(response, kind, request_id)


def _final(error: APIStatusError, kind: str, request_id: str) -> RetrieveError:
    if error.status_code == 410:
        return ResultExpiredError(f"the result of {kind} is gone: {error} [request {request_id}]", request_id)
    return RetrieveError(f"the result of {kind} cannot be had: {error} [request {request_id}]", request_id)


class _Pace:
    """How long to pause before asking again."""

    def __init__(self, clock: Clock, billing_pause: float) -> None:
        self._clock = clock
        self._quick = 0  # answers in a row that came at once
        self._empty = 0  # 400s in a row that said nothing
        self._billing_until: float | None = None
        self._billing_pause = billing_pause

    def pause(self, reply: Pending | APIError, held: float, request_id: str) -> float:
        """Seconds to wait: none after a poll the service held, growing while it answers at once."""
        if isinstance(reply, BillingError):
            return self._billing(reply, request_id)
        self._billing_until = None
        self._count_empty(reply, request_id)
        if isinstance(reply, APIError) and (hint := hint_of(reply)) is not None:
            return hint
        if held >= HELD:
            self._quick = 0
            return 0.0
        self._quick += 1
        delay = PENDING if isinstance(reply, Pending) else TROUBLE
        return delay.after(self._quick - 1, self._clock.chance())

    def _count_empty(self, reply: Pending | APIError, request_id: str) -> None:
        if not (isinstance(reply, APIStatusError) and reply.status_code == 400):
            self._empty = 0
            return
        self._empty += 1
        if self._empty > EMPTY_400S:
            raise _final(reply, "the operation", request_id) from reply

    def _billing(self, error: BillingError, request_id: str) -> float:
        now = self._clock.now()
        if self._billing_until is None:
            self._billing_until = now + self._billing_pause
            _log.warning("%s; waiting up to %.0f s for billing to be put right", error, self._billing_pause)
        if now >= self._billing_until:
            raise RetrieveError(f"{error} [request {request_id}]", request_id) from error
        return BILLING_PAUSE
