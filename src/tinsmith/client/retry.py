"""What is tried again, what is not, and how long to wait: one table, one budget for each call."""

from __future__ import annotations

import email.utils
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from tinsmith.types import RequestErrorCategory

from .clock import CLOCK, Clock
from .errors import (
    APIConnectionError,
    APIStatusError,
    APITimeoutError,
    RequestFailedError,
    RetrieveError,
)

_log = logging.getLogger("tinsmith")
_T = TypeVar("_T")

MAX_HINT = 60.0  # a longer Retry-After is taken for a mistake


class Layer(StrEnum):
    """Who asks. Exactly one layer retries a given call, so attempts never multiply."""

    CALL = "call"  # submits, creations, look-ups; the service recognises a repeated submit by its seq id
    REST = "rest"  # one-off changes, where a conflict is an answer and not a hiccup
    POLL = "poll"  # waiting for the result of an accepted operation
    SAMPLE = "sample"  # submitting a sample, up to the progress timeout
    GATE = "gate"  # submitting a sample when the service asks for a pause: all clients of it wait together
    RESAMPLE = "resample"  # asking for a whole new sample in place of a lost one
    OPTIONAL = "optional"  # the same, where RetryConfig.retry_failed asks for it


class Pause(StrEnum):
    """How long to wait before trying again."""

    NONE = "-"
    BACKOFF = "back-off"
    HINT = "the hint, else back-off"
    HELD = "none if the service held the poll, else the hint or a growing pause"
    BILLING = "5 s, while the service's pause for billing lasts"


@dataclass(frozen=True, slots=True)
class Rule:
    """One row: who tries again, how long it waits, whose mistake it is, and why."""

    retried_by: frozenset[Layer]
    delay: Pause
    user_error: bool
    why: str


def _rule(layers: str, delay: Pause, user_error: bool, why: str) -> Rule:
    return Rule(frozenset(Layer(name) for name in layers.split()), delay, user_error, why)


# The truth table; docs/retries.md is made from it. `user_error` only decides how telemetry files it: any
# 4xx but 408. A hint is a Retry-After header in (0, 60] seconds; without one BACKOFF counts.
TABLE: dict[str, Rule] = {
    "timeout": _rule("call rest poll sample", Pause.BACKOFF, False, "no answer in time"),
    "connection": _rule("call rest poll sample", Pause.BACKOFF, False, "no connection, or it broke"),
    "400-empty": _rule(
        "call rest poll sample", Pause.HINT, True, "a proxy's: the service says what is wrong"
    ),
    "402": _rule("poll", Pause.BILLING, True, "billing may be put right; the result waits"),
    "408": _rule("call rest poll sample", Pause.HELD, False, "not ready yet"),
    "409": _rule(
        "call poll sample", Pause.HINT, True, "passing by convention, except where it answers a change"
    ),
    "410": _rule("resample", Pause.BACKOFF, True, "the result is gone; only a sample can be asked for anew"),
    "429": _rule("call rest poll gate", Pause.HINT, True, "too many for now"),
    "4xx": _rule("", Pause.NONE, True, "wrong now and wrong again"),
    "5xx": _rule("call rest poll sample", Pause.HINT, False, "the service is in trouble"),
    "failed-user": _rule("", Pause.NONE, True, "the operation was refused"),
    "failed-server": _rule(
        "optional", Pause.BACKOFF, False, "the operation failed; asking again is a choice"
    ),
    "failed-unknown": _rule(
        "optional", Pause.BACKOFF, False, "the operation failed; asking again is a choice"
    ),
    "other": _rule("", Pause.NONE, False, "not an answer of the service"),
}


# Those that ask over HTTP: a word of the service (x-should-retry) goes before the table there.
_HEEDS_THE_SERVICE = frozenset({Layer.CALL, Layer.REST, Layer.POLL, Layer.SAMPLE})


def case_of(error: BaseException) -> str:
    """The row of an error."""
    if isinstance(error, APITimeoutError):
        return "timeout"
    if isinstance(error, APIConnectionError):
        return "connection"
    if isinstance(error, RequestFailedError):
        return f"failed-{error.category.value}"
    if not isinstance(error, APIStatusError):
        return "other"
    status = error.status_code
    if status == 400 and not error.response.body:
        return "400-empty"
    if str(status) in TABLE:
        return str(status)
    return "5xx" if status >= 500 else "4xx"


def should_retry(error: BaseException, layer: Layer) -> bool:
    """Whether this layer tries again. The service's own word (x-should-retry) goes before the table."""
    rule = TABLE[case_of(error)]
    if isinstance(error, APIStatusError) and layer in _HEEDS_THE_SERVICE:
        word: str = error.response.headers.get("x-should-retry", "").lower()
        if word in ("true", "false") and not (layer is Layer.SAMPLE and Layer.GATE in rule.retried_by):
            return word == "true"
    return layer in rule.retried_by


def may_help_to_ask_again(error: BaseException) -> bool:
    """Whether any layer would try again, or the caller may choose to."""
    at: BaseException | None = error
    while isinstance(at, RetrieveError):
        at = at.__cause__
    return at is not None and bool(TABLE[case_of(at)].retried_by)


def is_user_error(error: BaseException) -> bool:
    """Whether the error, or one it came from, was the user's mistake."""
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        if isinstance(at, RequestFailedError) and at.category is RequestErrorCategory.User:
            return True
        status = getattr(at, "status_code", None)
        if isinstance(status, int) and 400 <= status < 500 and status != 408:
            return True
        at = at.__cause__ or at.__context__
    return False


def retry_after(headers: Mapping[str, str], wall_time: Callable[[], float] = time.time) -> float | None:
    """The hint in seconds, if in (0, 60]: from retry-after-ms or retry-after (a number or an HTTP date)."""
    seconds = _number(headers.get("retry-after-ms"))
    if seconds is not None:
        seconds /= 1000
    else:
        text = headers.get("retry-after")
        seconds = _number(text)
        if seconds is None and text:
            parsed = email.utils.parsedate_tz(text)
            seconds = None if parsed is None else email.utils.mktime_tz(parsed) - wall_time()
    return seconds if seconds is not None and 0 < seconds <= MAX_HINT else None


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Delay:
    """Exponential back-off: min(base * 2^attempt, most), less up to the jitter's share by chance."""

    base: float = 0.5
    most: float = 10.0
    jitter: float = 0.25

    def after(self, attempt: int, chance: float) -> float:
        """Seconds to wait after attempt 0, 1, …"""
        delay: float = min(self.base * 2 ** min(attempt, 30), self.most)
        return delay * (1 - self.jitter * chance)


@dataclass(frozen=True, slots=True)
class Budget:
    """All the patience one call has."""

    layer: Layer
    seconds: float = 300.0
    retries: int | None = None
    delay: Delay = Delay()
    judge: Callable[[BaseException], bool] | None = None  # None: the table


async def call_with_retries(
    attempt: Callable[[int], Awaitable[_T]], budget: Budget, clock: Clock = CLOCK, what: str = "request"
) -> _T:
    """Try until it works, the answer is final, or the budget is spent."""
    started, tries = clock.now(), 0
    while True:
        try:
            return await attempt(tries)
        except Exception as error:
            tries += 1
            if not (budget.judge(error) if budget.judge else should_retry(error, budget.layer)):
                raise
            delay = hint_of(error) or budget.delay.after(tries - 1, clock.chance())
            spent = clock.now() - started
            if spent + delay > budget.seconds or (budget.retries is not None and tries > budget.retries):
                error.add_note(f"gave up on {what} after {tries} attempts in {spent:.0f} s")
                raise
            _log.debug("%s: %r; trying again in %.1f s", what, error, delay)
            await clock.sleep(delay)


def hint_of(error: BaseException) -> float | None:
    """The Retry-After of an error's answer, if there is one to use."""
    return retry_after(error.response.headers) if isinstance(error, APIStatusError) else None


@dataclass(frozen=True, slots=True)
class RetryConfig:
    """How one SamplingClient tries again.

    ``max_connections`` bounds the samples under way (None: what the service asks for). An error status is
    judged by the table in docs/retries.md, any other error by ``retryable_exceptions``. When no sample has
    ended for ``progress_timeout`` seconds all that wait fail, unless ``enable_stuck_detection`` is off.
    ``retry_failed`` also asks anew for samples that failed on the service through no fault of the
    caller's (category server or unknown); the official client never does, so it is off.

    >>> RetryConfig(retry_delay_max=2.0).delay.after(attempt=10, chance=0.0)
    2.0
    """

    max_connections: int | None = None
    progress_timeout: float = 120 * 60.0
    retry_delay_base: float = 0.5
    retry_delay_max: float = 10.0
    jitter_factor: float = 0.25
    enable_retry_logic: bool = True
    retryable_exceptions: tuple[type[Exception], ...] = (TimeoutError, APIConnectionError)
    enable_stuck_detection: bool = True
    retry_failed: bool = False

    @property
    def delay(self) -> Delay:
        """The back-off of these settings."""
        return Delay(self.retry_delay_base, self.retry_delay_max, self.jitter_factor)

    def retries(self, error: BaseException) -> bool:
        """Whether a submit that ended like this is tried again."""
        if isinstance(error, APIStatusError):
            return should_retry(error, Layer.SAMPLE)
        return isinstance(error, self.retryable_exceptions)
