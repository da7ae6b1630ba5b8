"""One thread owns every tensor and advances all work in turn, a step at a time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, Protocol, TypeVar

from .interface import NOBODY_ELSE, Tenant
from .shares import Shares

LaneName = Literal["control", "train", "sample"]
T = TypeVar("T")
_RESERVE = 0.25  # of a budget, on top of it: for tenants who find all of it taken by others


class Pause(Enum):
    """What a piece of work yields between its steps, each short enough for others to wait for."""

    TURN_OVER = 1  # anybody may go next
    KEEP_TURN = 2  # other lanes may go; of this lane nobody, for the work holds memory it wants to free first


class Shared(Protocol):
    """What advances several pieces of work in one step. Work yields it to wait for the next step."""

    def step(self) -> None:
        """Advance everybody who waits for it."""
        ...


Work = Generator[Pause | Shared, None, T]


class EngineStopped(RuntimeError):
    """The engine's thread is gone, so nothing can be computed any more; the cause says why."""


@dataclass(eq=False)
class _Job:
    work: Work[Any]
    future: Future[Any]
    cost: int
    tenant: Tenant
    paused: Pause | Shared | None = None  # what it yielded last
    started: bool = False
    over: bool = False


@dataclass(eq=False)
class _Lane:
    """Jobs of one kind. Those within the budget take turns, the others wait in line; one is always let in.

    Whose turn it is, and who is let in, goes by tenant first and then by order: a crowd keeps nobody out.
    """

    budget: float = float("inf")
    seconds: float = 0.0  # thread time used, to share it fairly between lanes
    shares: Shares = field(default_factory=Shares)
    turns: deque[_Job] = field(default_factory=deque)
    lines: dict[str, deque[_Job]] = field(default_factory=dict)  # by tenant
    held: Counter[str] = field(default_factory=Counter)  # of the budget, by tenant

    def add(self, job: _Job) -> None:
        self.lines.setdefault(job.tenant.name, deque()).append(job)
        self._let_in()

    def next_jobs(self) -> list[_Job]:
        """Whose turn it is; with it all who wait for the same shared step, and newcomers, who may join."""
        self.shares.attend(job.tenant.name for job in self.turns)
        if self.turns[0].paused is not Pause.KEEP_TURN:
            first = min(self.turns, key=lambda job: self.shares.had(job.tenant.name))
            self.turns.remove(first)
            self.turns.appendleft(first)
        first = self.turns[0]
        if not _waits_for_step(first):
            return [first]
        return [job for job in self.turns if job.paused is first.paused or not job.started]

    def settle(self, jobs: list[_Job], seconds: float) -> None:
        """After a turn of these: who is over makes room, the others go behind unless they keep their turn."""
        first = self.turns[0]
        goes_on = not first.over and first.paused is Pause.KEEP_TURN
        self.seconds += seconds
        self.shares.charge(seconds, first.tenant, turn_goes_on=goes_on)
        for job in jobs:
            if job.over:
                self.turns.remove(job)
                self.held[job.tenant.name] -= job.cost
        self.held = +self.held
        if not first.over and not goes_on:
            self.turns.rotate(-1)
        self._let_in()

    def clear(self) -> list[_Job]:
        jobs = [*self.turns, *(job for line in self.lines.values() for job in line)]
        self.turns.clear()
        self.lines.clear()
        return jobs

    def _let_in(self) -> None:
        """Whoever holds least of the budget for his weight is next; who holds none may use the reserve."""
        while self.lines:
            name = min(self.lines, key=lambda name: self.held[name] / self.lines[name][0].tenant.weight)
            line = self.lines[name]
            budget = self.budget * (1 if self.held[name] else 1 + _RESERVE)
            if self.turns and self.held.total() + line[0].cost > budget:
                return
            job = line.popleft()
            if not line:
                del self.lines[name]
            self.held[name] += job.cost
            self.turns.append(job)


class ComputeThread:
    """Runs generators cooperatively.

    Short control work goes first. Training and sampling each get half of the thread's time while both
    have something to do, however long the steps of either are; within a lane, tenants do, and the jobs of
    one tenant take turns.
    """

    def __init__(
        self,
        *,
        sampling_budget: int,
        on_start: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
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

    async def run(self, work: Work[T], lane: LaneName, cost: int = 0, tenant: Tenant = NOBODY_ELSE) -> T:
        """The result of ``work``. Cancelling this call ends the work before its next step.

        ``cost``: the share of the lane's budget it takes, from its first step to its last.
        """
        job = _Job(work, Future(), cost, tenant)
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

    def shares(self, lane: LaneName) -> Shares:
        """Who has had how much of a lane; for the compute thread only."""
        return self._lanes[lane].shares

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
        """One step of one job, or of several that share it; False when the thread shall end."""
        with self._wake:
            self._wake.wait_for(lambda: self._stopping or any(lane.turns for lane in self._lanes.values()))
            if self._stopping:
                return False
            lane = self._choose()
            jobs = lane.next_jobs()  # they stay in the lane, so that they are told should the thread die
        started = self._clock()
        if _waits_for_step(jobs[0]):
            _advance_together(jobs)
        else:
            _advance(jobs[0])
        with self._wake:
            lane.settle(jobs, self._clock() - started)
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


def _waits_for_step(job: _Job) -> bool:
    return job.paused is not None and not isinstance(job.paused, Pause)


def _advance_together(jobs: list[_Job]) -> None:
    """One shared step for all who wait for it. Who was cancelled leaves and who is new joins before it."""
    shared = jobs[0].paused
    assert shared is not None and not isinstance(shared, Pause)
    for job in jobs:
        if job.future.cancelled() or not job.started:
            _advance(job)
    waiting = [job for job in jobs if not job.over and job.paused is shared]
    if not waiting:
        return
    try:
        shared.step()
    except Exception as error:
        for job in waiting:
            _advance(job, error)
    else:
        for job in waiting:
            _advance(job)


def _advance(job: _Job, error: Exception | None = None) -> None:
    """On to the next pause, or to the end; with an error, which the work may clean up after."""
    job.started = True
    try:
        if job.future.cancelled():
            job.work.close()
            job.over = True
        else:
            job.paused = next(job.work) if error is None else job.work.throw(error)
    except StopIteration as done:
        job.over = True
        if job.future.set_running_or_notify_cancel():
            job.future.set_result(done.value)
    except Exception as failure:
        job.over = True
        if job.future.set_running_or_notify_cancel():
            job.future.set_exception(failure)


def _single_step(function: Callable[[], T]) -> Work[T]:
    return function()
    yield Pause.TURN_OVER  # makes this a generator


def _stopped(cause: BaseException | None) -> EngineStopped:
    error = EngineStopped("the engine has stopped" if cause is None else f"the engine died: {cause!r}")
    error.__cause__ = cause
    return error
