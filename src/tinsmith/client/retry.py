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
from .errors import APIConnectionError, APIStatusError, APITimeoutError, RequestFailedError

_log = logging.getLogger("tinsmith")
_T = TypeVar("_T")

MAX_HINT = 60.0  # a longer Retry-After is taken for a mistake


class Layer(StrEnum):
    """Who asks. Exactly one layer retries a given call, so attempts never multiply."""

    CALL = "call"  # submits, creations, look-ups; the service recognises a repeated submit by its seq id
    REST = "rest"  # one-off changes, where a conflict is an answer and not a hiccup
    POLL = "poll"  # waiting for the result of an accepted operation
    SAMPLE = "sample"  # submitting a sample; 429 there opens a shared pause (see `gate`)
    RESAMPLE = "resample"  # asking for a whole new sample in place of a lost one


@dataclass(frozen=True, slots=True)
class Rule:
    """One row: which layers try again, whether it is the user's mistake, and why."""

    retried_by: frozenset[Layer]
    user_error: bool
    why: str


def _rule(layers: str, user_error: bool, why: str) -> Rule:
    return Rule(frozenset(Layer(name) for name in layers.split()), user_error, why)


# The truth table. `user_error` only decides how telemetry files it: any 4xx but 408.
TABLE: dict[str, Rule] = {
    "timeout": _rule("call rest poll sample", False, "no answer in time"),
    "connection": _rule("call rest poll sample", False, "no connection, or it broke"),
    "400-empty": _rule("call rest poll sample", True, "a proxy's: the service's own say what is wrong"),
    "402": _rule("poll", True, "billing may be put right; the result waits"),
    "408": _rule("call rest poll sample", False, "not ready yet"),
    "409": _rule("call poll sample", True, "transient by convention, except where it answers a change"),
    "410": _rule("resample", True, "the result is gone; only a sample can be asked for anew"),
    "429": _rule("call rest poll", True, "too many for now"),
    "4xx": _rule("", True, "wrong now and wrong again"),
    "5xx": _rule("call rest poll sample", False, "the service is in trouble"),
    "failed-user": _rule("", True, "the operation was refused"),
    "failed-server": _rule("", False, "the operation failed; asking again is the caller's choice"),
    "failed-unknown": _rule("", False, "the operation failed; asking again is the caller's choice"),
    "other": _rule("", False, "not an answer of the service"),
}


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
    if isinstance(error, APIStatusError) and layer is not Layer.RESAMPLE:
        word: str = error.response.headers.get("x-should-retry", "").lower()
        if word in ("true", "false") and not (layer is Layer.SAMPLE and error.status_code == 429):
            return word == "true"
    return layer in TABLE[case_of(error)].retried_by


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
            if not should_retry(error, budget.layer):
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

    ``retry_failed`` also asks anew for samples that failed on the service through no fault of the
    caller's (category server or unknown); the official client never does, so it is off.
    """

    max_connections: int = 2000
    progress_timeout: float = 120 * 60.0
    retry_delay_base: float = 0.5
    retry_delay_max: float = 10.0
    jitter_factor: float = 0.25
    enable_retry_logic: bool = True
    retry_failed: bool = False

    @property
    def delay(self) -> Delay:
        """The back-off of these settings."""
        return Delay(self.retry_delay_base, self.retry_delay_max, self.jitter_factor)
