"""One thread owns every tensor and advances all work in turn, a step at a time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, TypeVar

LaneName = Literal["control", "train", "sample"]
T = TypeVar("T")


class Pause(Enum):
    """What a piece of work yields between its steps, each short enough for others to wait for."""

    TURN_OVER = 1  # anybody may go next
    KEEP_TURN = 2  # other lanes may go; of this lane nobody, for the work holds memory it wants to free first


Work = Generator[Pause, None, T]


class EngineStopped(RuntimeError):
    """The engine's thread is gone, so nothing can be computed any more; the cause says why."""


@dataclass(eq=False)
class _Job:
    work: Work[Any]
    future: Future[Any]
    cost: int


@dataclass(eq=False)
class _Lane:
    """Jobs of one kind. Those within the budget take turns, the others wait in line; one is always let in."""

    budget: float = float("inf")
    taken: int = 0
    seconds: float = 0.0  # thread time used, to share it fairly
    turns: deque[_Job] = field(default_factory=deque)
    line: deque[_Job] = field(default_factory=deque)

    def add(self, job: _Job) -> None:
        self.line.append(job)
        self._let_in()

    def remove_first(self) -> None:
        self.taken -= self.turns.popleft().cost
        self._let_in()

    def clear(self) -> list[_Job]:
        jobs = [*self.turns, *self.line]
        self.turns.clear()
        self.line.clear()
        return jobs

    def _let_in(self) -> None:
        while self.line and (not self.turns or self.taken + self.line[0].cost <= self.budget):
            job = self.line.popleft()
            self.taken += job.cost
            self.turns.append(job)


class ComputeThread:
    """Runs generators cooperatively.

    Short control work goes first. Training and sampling each get half of the thread's time while both
    have something to do, however long the steps of either are; within a lane, jobs take turns.
    """

    def __init__(self, *, sampling_budget: int, on_start: Callable[[], None] = lambda: None) -> None:
        self._control = _Lane()
        self._shared = {"train": _Lane(), "sample": _Lane(sampling_budget)}
        self._lanes: dict[str, _Lane] = {"control": self._control, **self._shared}
        self._wake = threading.Condition()
        self._stopping = self._ended = False
        self._cause: BaseException | None = None
        self._thread = threading.Thread(
            target=self._main, args=(on_start,), name="tinsmith-compute", daemon=True
        )
        self._thread.start()

    async def run(self, work: Work[T], lane: LaneName, cost: int = 0) -> T:
        """The result of ``work``. Cancelling this call ends the work before its next step.

        ``cost``: the share of the lane's budget it takes, from its first step to its last.
        """
        job = _Job(work, Future(), cost)
        with self._wake:
            self.check_running()
            self._catch_up(lane)
            self._lanes[lane].add(job)
            self._wake.notify()
        result: T = await asyncio.wrap_future(job.future)
        return result

    async def call(self, function: Callable[[], T]) -> T:
        """The result of a short function, run in the thread between two steps of other work."""
        return await self.run(_single_step(function), "control")

    def check_running(self) -> None:
        """Raise `EngineStopped` if nothing can be run any more."""
        if self._ended or self._stopping:
            raise _stopped(self._cause)

    def busy(self) -> bool:
        """Whether any work is under way."""
        with self._wake:
            return any(lane.turns for lane in self._lanes.values())

    def stop(self) -> None:
        """End after the current step. Work that is not done fails with `EngineStopped`."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _catch_up(self, name: LaneName) -> None:
        """Time a lane did not want while it was idle is not owed to it."""
        lane = self._lanes[name]
        if not lane.turns:
            lane.seconds = max([lane.seconds, *(o.seconds for o in self._shared.values() if o.turns)])

    def _main(self, on_start: Callable[[], None]) -> None:
        cause: BaseException | None = None
        try:
            on_start()
            while self._turn():
                pass
        except BaseException as error:  # told to every waiter
            cause = error
        self._end(cause)

    def _turn(self) -> bool:
        """One step of one job; False when the thread shall end."""
        with self._wake:
            self._wake.wait_for(lambda: self._stopping or any(lane.turns for lane in self._lanes.values()))
            if self._stopping:
                return False
            lane = self._choose()
            job = lane.turns[0]  # stays there, so that it is told should the thread die
        started = time.monotonic()
        pause = _advance(job)
        with self._wake:
            lane.seconds += time.monotonic() - started
            if pause is None:
                lane.remove_first()
            elif pause is Pause.TURN_OVER:
                lane.turns.rotate(-1)
        return True

    def _choose(self) -> _Lane:
        if self._control.turns:
            return self._control
        return min((lane for lane in self._shared.values() if lane.turns), key=lambda lane: lane.seconds)

    def _end(self, cause: BaseException | None) -> None:
        with self._wake:
            self._ended, self._cause = True, cause
            jobs = [job for lane in self._lanes.values() for job in lane.clear()]
        for job in jobs:
            if job.future.set_running_or_notify_cancel():
                job.future.set_exception(_stopped(cause))


def _advance(job: _Job) -> Pause | None:
    """One step; None when the job is over."""
    if job.future.cancelled():
        job.work.close()
        return None
    try:
        return next(job.work)
    except StopIteration as done:
        if job.future.set_running_or_notify_cancel():
            job.future.set_result(done.value)
    except Exception as error:
        if job.future.set_running_or_notify_cancel():
            job.future.set_exception(error)
    return None


def _single_step(function: Callable[[], T]) -> Work[T]:
    return function()
    yield Pause.TURN_OVER  # makes this a generator


def _stopped(cause: BaseException | None) -> EngineStopped:
    error = EngineStopped("the engine has stopped" if cause is None else f"the engine died: {cause!r}")
    error.__cause__ = cause
    return error
