"""A thread pool that the interpreter's exit does not wait for, and that still takes work during it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


class DaemonPool(ThreadPoolExecutor):
    """The default executor of the client's event loop.

    The standard pool refuses work as soon as the main thread has ended, which is when an embedded
    service must still close its files. (It is only a ThreadPoolExecutor because a loop takes no other.)
    """

    def __init__(self, most: int = 16) -> None:
        super().__init__(max_workers=1)  # never used: submit() goes to our own threads
        self._most = most
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._starting = threading.Lock()
        self._started = 0

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Run a function on one of the threads."""
        future: Future[_T] = Future()

        def job() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        self._jobs.put(job)
        if not self._idle.acquire(blocking=False):
            self._grow()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Nothing to do: the threads end with the process."""

    def _grow(self) -> None:
        with self._starting:
            if self._started < self._most:
                self._started += 1
                threading.Thread(target=self._work, name="tinsmith-pool", daemon=True).start()

    def _work(self) -> Any:
        while True:
            self._jobs.get()()
            self._idle.release()
