"""What a program can see of its own operations: counts and durations, listeners, OpenTelemetry spans."""

from __future__ import annotations

import functools
import importlib.util
import logging
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

from .clock import CLOCK, Clock

_log = logging.getLogger("tinsmith")

KEPT = 4096  # durations of each operation that percentiles are taken from: the latest


@dataclass(frozen=True, slots=True)
class OperationEvent:
    """An operation began, or ended well or with an error. ``seconds`` is 0 at the beginning.

    >>> seen: list[OperationEvent] = []
    >>> service.add_listener(seen.append)
    >>> _ = sampler.sample(PROMPT, 1, SamplingParams(max_tokens=1)).result()
    >>> [(event.operation, event.phase) for event in seen if event.operation == "sample"]
    [('sample', 'start'), ('sample', 'stop')]
    """

    operation: str
    phase: Literal["start", "stop", "exception"]
    seconds: float = 0.0
    error: BaseException | None = None
    attributes: dict[str, Any] = field(default_factory=dict)


Listener = Callable[[OperationEvent], None]


@dataclass(frozen=True, slots=True)
class OperationStats:
    """How one kind of operation has gone so far; durations in seconds, from call to result.

    >>> _ = sampler.sample(PROMPT, 1, SamplingParams(max_tokens=1)).result()
    >>> stats = service.metrics()["sample"]
    >>> stats.count >= 1, stats.p50 <= stats.p99
    (True, True)
    """

    count: int
    errors: int
    in_flight: int
    p50: float
    p95: float
    p99: float


@dataclass(slots=True)
class _Tally:
    count: int = 0
    errors: int = 0
    in_flight: int = 0
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))


class Observer:
    """Sees every operation of one session. A listener that raises is logged and otherwise ignored."""

    def __init__(self, clock: Clock = CLOCK) -> None:
        self._clock = clock
        self._tallies: dict[str, _Tally] = defaultdict(_Tally)
        self._lock = threading.Lock()
        self.listeners: list[Listener] = []

    @contextmanager
    def operation(self, name: str, **attributes: Any) -> Iterator[None]:
        """Everything that happens in this block is one operation."""
        began = self._clock.now()
        with self._lock:
            self._tallies[name].in_flight += 1
        self._tell(OperationEvent(name, "start", attributes=attributes))
        failure: BaseException | None = None
        try:
            with _span(name, attributes):
                yield
        except BaseException as error:
            failure = error
            raise
        finally:
            seconds = self._clock.now() - began
            self._count(name, seconds, failure is not None)
            phase: Literal["stop", "exception"] = "stop" if failure is None else "exception"
            self._tell(OperationEvent(name, phase, seconds, failure, attributes))

    def snapshot(self) -> dict[str, OperationStats]:
        """The state of every kind of operation now."""
        with self._lock:
            tallies = {
                name: (tally.count, tally.errors, tally.in_flight, sorted(tally.seconds))
                for name, tally in self._tallies.items()
            }
        return {
            name: OperationStats(count, errors, in_flight, *(percentile(times, at) for at in (50, 95, 99)))
            for name, (count, errors, in_flight, times) in tallies.items()
        }

    def _count(self, name: str, seconds: float, failed: bool) -> None:
        with self._lock:
            tally = self._tallies[name]
            tally.in_flight -= 1
            tally.count += 1
            tally.errors += failed
            tally.seconds.append(seconds)

    def _tell(self, event: OperationEvent) -> None:
        for listener in self.listeners:
            try:
                listener(event)
            except Exception:  # somebody's dashboard must not stop a training run
                _log.exception("a listener failed on %s of %s", event.phase, event.operation)


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The nearest rank; 0 where there is nothing.

    >>> percentile([1.0, 2.0, 3.0, 4.0], 50)
    2.0
    """
    if not ordered:
        return 0.0
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)]


def _span(name: str, attributes: dict[str, Any]) -> AbstractContextManager[Any]:
    tracer = _tracer()
    if tracer is None:
        return nullcontext()
    span: AbstractContextManager[Any] = tracer.start_as_current_span(
        f"tinsmith.{name}", attributes={f"tinsmith.{key}": value for key, value in attributes.items()}
    )
    return span


def trace_headers() -> dict[str, str]:
    """The headers that carry the current trace to the service, where OpenTelemetry is installed."""
    headers: dict[str, str] = {}
    if _tracer() is not None:
        from opentelemetry.propagate import inject

        inject(headers)
    return headers


@functools.cache
def _tracer() -> Any:
    if importlib.util.find_spec("opentelemetry") is None:
        return None
    try:
        from opentelemetry.trace import get_tracer
    except ImportError:  # another package of that namespace
        return None
    return get_tracer("tinsmith")
