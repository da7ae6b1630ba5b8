"""How a sample is had: numbered, submitted through the gate, waited for, asked for anew where it was lost."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import partial
from typing import TypeVar

from tinsmith.types import SampleJob, SampleResponse
from tinsmith.types.polling import SEQ_IDS_PER_CLIENT

from .completions import Completions
from .errors import NotFoundError, RateLimitError, RequestFailedError, ResultExpiredError, TinkerError, about
from .loop import background
from .polling import QueueWatch
from .replies import Submitted
from .results import SAMPLE
from .retry import Budget, Layer, RetryConfig, call_with_retries, hint_of, should_retry
from .samples import Progress, checked, encode, with_ids
from .session import Live, Session

_log = logging.getLogger("tinsmith")
_T = TypeVar("_T")
_RESAMPLES = 5


class Sampler:
    """One client's use of one sampler on the service.

    The first client of a sampler numbers its samples from 0. Each further one (``joins``: it came from
    another process) has a range of its own, given out by the service, or drawn by lot where it gives none.
    """

    def __init__(
        self,
        session: Session,
        sampling_session_id: str,
        retry: RetryConfig,
        *,
        record_stability_info: bool = False,
        joins: bool = False,
    ) -> None:
        self.session = session
        self.id = sampling_session_id
        self.retry = retry
        self.watch = QueueWatch(f"sampling from {sampling_session_id}", session.clock)
        self._stability = record_stability_info
        self._client = None if joins else 0
        self._joining = asyncio.Lock()
        self._numbers = itertools.count()
        self._slots: asyncio.Semaphore | None = None
        self._progress = Progress(retry.progress_timeout, session.clock)
        self._completions: Completions | None = None

    def number(self) -> int:
        """The next sample's number in this client's range; from any thread."""
        return next(self._numbers)

    async def sample(self, job: SampleJob, number: int) -> SampleResponse:
        """The samples of one job."""
        live = await self.session.live()
        with (
            live.telemetry.noting_errors(),
            live.observer.operation("sample", sampler=self.id, num_samples=job.num_samples),
        ):
            async with self._slot(live):
                self._progress.began()
                try:
                    return await self._until_sampled(live, job, number)
                finally:
                    self._progress.ended()

    async def body(self, live: Live, job: SampleJob, number: int) -> bytes:
        """The request for a job, under its seq id."""
        client = await self._client_number(live)
        return encode(job, self.id, client * SEQ_IDS_PER_CLIENT + number, self._stability)

    def _slot(self, live: Live) -> asyncio.Semaphore:
        if self._slots is None:
            most = self.retry.max_connections or live.server.sample_max_concurrent_requests
            self._slots = asyncio.Semaphore(most)
        return self._slots

    async def _client_number(self, live: Live) -> int:
        if self._client is not None:
            return self._client
        async with self._joining:
            if self._client is None:
                self._client = await self._join(live)
            return self._client

    async def _join(self, live: Live) -> int:
        if live.server.sample_join_sampling_session:
            try:
                return await live.api.join_sampling_session(self.id)
            except NotFoundError as error:
                _log.debug("%s cannot be joined, so its number is drawn: %s", self.id, error)
        return random.SystemRandom().randint(1, 10**9)

    # ---- one sample -----------------------------------------------------------------------------

    async def _until_sampled(self, live: Live, job: SampleJob, number: int) -> SampleResponse:
        """Samples are repeatable, so one whose result the service lost is asked for anew, a few times."""
        losses = 0
        while True:
            body = await self.body(live, job, number)
            with about(seq_id=number):
                submitted = await self.submit(live, body, partial(live.api.sample, body))
                try:
                    response = await self._outcome(live, submitted)
                except (ResultExpiredError, RequestFailedError) as error:
                    if losses == _RESAMPLES or not self._asks_anew(error):
                        raise
                    _log.info("asking for a new sample: %s", error)
                    await self._pause(losses)
                    losses, number = losses + 1, self.number()
                    continue
            return checked(job, with_ids(response, submitted.sample_sequence_ids))

    async def _pause(self, attempt: int) -> None:
        clock = self.session.clock
        await clock.sleep(self.retry.delay.after(attempt, clock.chance()))

    def _asks_anew(self, error: Exception) -> bool:
        if not self.retry.enable_retry_logic:
            return False
        if isinstance(error, RequestFailedError):
            return self.retry.retry_failed and should_retry(error, Layer.OPTIONAL)
        return isinstance(error.__cause__, Exception) and should_retry(error.__cause__, Layer.RESAMPLE)

    async def submit(self, live: Live, body: bytes, attempt: Callable[[], Awaitable[_T]]) -> _T:
        """Through the gate; the seq id stays the same however often the service asks for a pause."""
        while True:
            async with live.gate.slot(), live.sample_bytes.hold(len(body)):
                self._check_progress(live)
                try:
                    return await self._try_submit(attempt)
                except RateLimitError as error:
                    if not self.retry.enable_retry_logic:
                        raise
                    live.gate.pause(hint_of(error))

    async def _try_submit(self, attempt: Callable[[], Awaitable[_T]]) -> _T:
        if not self.retry.enable_retry_logic:
            return await attempt()
        budget = Budget(
            Layer.SAMPLE,
            self.retry.progress_timeout,
            self.session.config.max_retries,
            self.retry.delay,
            self.retry.retries,
        )
        return await call_with_retries(lambda _: attempt(), budget, self.session.clock, "asample")

    def _check_progress(self, live: Live) -> None:
        if self.retry.enable_stuck_detection and live.server.sample_enable_stuck_detection:
            self._progress.check()

    async def _outcome(self, live: Live, submitted: Submitted) -> SampleResponse:
        request_id = submitted.request_id
        completions = self._polled_together(live)
        try:
            with completions.following(request_id) if completions else nullcontext():
                if completions is not None:
                    await completions.finished(request_id)
                return await live.poller.wait(
                    request_id, SAMPLE, self.watch, lambda: self._check_progress(live)
                )
        except asyncio.CancelledError:
            background().start(_abandon(live, request_id), "cancel a sample")
            raise

    def _polled_together(self, live: Live) -> Completions | None:
        if self._completions is None and live.server.sample_use_retrieve_futures:
            assert self._client is not None  # a sample was submitted under it
            self._completions = Completions(live.api, self.id, self._client, self.session.clock)
        return self._completions


async def _abandon(live: Live, request_id: str) -> None:
    try:
        await live.api.cancel_future(request_id)
    except TinkerError as error:  # a courtesy: a service that does not know it samples on
        _log.debug("request %s could not be cancelled: %s", request_id, error)
