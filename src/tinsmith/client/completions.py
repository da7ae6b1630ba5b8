"""One poll for many samples: asks which samples of a sampler have finished, while enough of them wait."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from tinsmith.types.polling import RetrieveFuturesRequest, SamplingTarget

from .api import Api
from .clock import CLOCK, Clock
from .errors import APIError, APIStatusError, ClientClosedError
from .loop import background
from .polling import HELD, PENDING, TROUBLE
from .retry import Layer, hint_of, should_retry

_log = logging.getLogger("tinsmith")

ALONE = 32  # so many samples are each polled for by themselves: that costs no request more
_EARLY = 20_000  # completions told of before anybody asked: their submits are still being answered
_ACKNOWLEDGED = 1000  # in one poll
_LONGEST = 120.0  # until a sample asks for itself after all


class Completions:
    """Tells samples that wait when to fetch their results.

    A service that cannot be asked this way is asked for each sample as ever: `finished` then returns at
    once, and the caller's own poll does the waiting. So nothing depends on this for being right.
    """

    def __init__(self, api: Api, sampling_session_id: str, client: int, clock: Clock = CLOCK) -> None:
        self._api = api
        self._target = SamplingTarget(sampling_session_id=sampling_session_id, cloned_sampler_id=client)
        self._clock = clock
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._early: OrderedDict[str, None] = OrderedDict()
        self._fetched: list[str] = []
        self._cursor = 0
        self._under_way = 0
        self._task: asyncio.Task[None] | None = None
        self._works = True

    @contextmanager
    def following(self, request_id: str) -> Iterator[None]:
        """A sample is under way; when this block ends its result was fetched, or nobody wants it."""
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            if self._cursor:
                self._fetched.append(request_id)

    async def finished(self, request_id: str) -> None:
        """Wait until it is worth asking for the result."""
        told = request_id in self._early
        self._early.pop(request_id, None)
        if told or not self._works or self._under_way <= ALONE:
            return
        waiter = self._waiting[request_id] = asyncio.get_running_loop().create_future()
        if self._task is None:
            self._task = background().start(self._poll(), f"poll {self._target.sampling_session_id}")
        try:
            async with asyncio.timeout(_LONGEST):
                await waiter
        except TimeoutError:  # the caller's own poll sees to it that nobody waits for something lost
            return
        finally:
            self._waiting.pop(request_id, None)

    async def _poll(self) -> None:
        trouble = quick = 0
        try:
            while self._waiting and self._works:
                asked_at = self._clock.now()
                try:
                    told = await self._ask()
                except APIError as error:
                    self._works = self._passes(error)
                    trouble += 1
                    await self._clock.sleep(
                        hint_of(error) or TROUBLE.after(trouble - 1, self._clock.chance())
                    )
                    continue
                except ClientClosedError:
                    return
                trouble = 0
                quick = 0 if told or self._clock.now() - asked_at >= HELD else quick + 1
                if quick:
                    await self._clock.sleep(PENDING.after(quick - 1, self._clock.chance()))
        finally:
            self._task = None
            for waiter in self._waiting.values():  # if this ended before its time, they ask for themselves
                if not waiter.done():
                    waiter.set_result(None)

    async def _ask(self) -> int:
        """One poll; how many new completions it told of."""
        acknowledged, rest = self._fetched[:_ACKNOWLEDGED], self._fetched[_ACKNOWLEDGED:]
        self._fetched = rest
        request = RetrieveFuturesRequest(
            target=self._target, prev_cursor=self._cursor, retrieved_request_ids=acknowledged
        )
        try:
            reply = await self._api.retrieve_futures(request)
        except APIError:
            self._fetched = acknowledged + self._fetched
            raise
        self._cursor = reply.cursor
        for completion in reply.completions:
            waiter = self._waiting.get(completion.request_id)
            if waiter is None:
                self._early[completion.request_id] = None
            elif not waiter.done():
                waiter.set_result(None)
        while len(self._early) > _EARLY:
            self._early.popitem(last=False)
        return len(reply.completions)

    def _passes(self, error: APIError) -> bool:
        if should_retry(error, Layer.POLL) and not isinstance(error, APIStatusError):
            return True
        if isinstance(error, APIStatusError) and should_retry(error, Layer.CALL):
            return True
        _log.info("samples are polled for one by one from now on: %s", error)
        return False
