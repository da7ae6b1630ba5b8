"""One background event loop per process. Everything asynchronous of the client runs there."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from .daemon_pool import DaemonPool
from .errors import ForkedProcessError

_log = logging.getLogger("tinsmith")
_T = TypeVar("_T")

EXIT_SECONDS = 10.0  # the most an interpreter's exit waits for clients to let go of what they hold


class BackgroundLoop:
    """An event loop on a daemon thread of its own."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(DaemonPool())
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="tinsmith-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._stopping:
            try:
                self._loop.run_forever()
            except BaseException:  # a SystemExit in one callback must not strand everybody else's futures
                _log.exception("a callback tried to end the client's event loop; it goes on")

    def call(self, function: Callable[..., object], *args: object) -> None:
        """Run a function on the loop, from any thread."""
        self.check()
        self._loop.call_soon_threadsafe(lambda: function(*args))

    def check(self) -> None:
        """Refuse to be used in a forked child: the thread that runs this loop exists in the parent only."""
        if self.pid != os.getpid():
            raise ForkedProcessError(
                "this client was made before os.fork(); make a new ServiceClient in the child process, "
                "or start processes with multiprocessing's 'spawn' method"
            )

    def inside(self) -> bool:
        """Whether the caller is on the loop's own thread."""
        return threading.get_ident() == self._thread.ident

    def start(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Start owned work, on the loop: it is kept alive until done, and its death is logged."""
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("background task %s died", task.get_name(), exc_info=error)

    def stop(self, last: Coroutine[Any, Any, Any] | None, seconds: float) -> None:
        """Run last work for a bounded time, then end the thread. Not to be called twice."""
        if last is not None:
            done = threading.Event()
            self.call(lambda: self.start(last, "exit").add_done_callback(lambda _: done.set()))
            if not done.wait(seconds):
                _log.warning("clients were still closing after %.0f s; leaving", seconds)
        self._stopping = True
        self.call(self._loop.stop)
        self._thread.join(1.0)


_lock = threading.Lock()
_current: BackgroundLoop | None = None
_exit_work: list[Callable[[], Coroutine[Any, Any, None]]] = []


def background() -> BackgroundLoop:
    """This process's loop, started on first use (and afresh in a forked child)."""
    global _current
    with _lock:
        if _current is None or _current.pid != os.getpid():
            _current = BackgroundLoop()
        return _current


def at_exit(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run this on the loop when the interpreter exits, for a bounded time."""
    _exit_work.append(work)


async def in_thread(function: Callable[..., _T], *args: Any) -> _T:
    """Run a function on a daemon thread of its own, so that neither the loop nor the exit waits for it."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[_T] = loop.create_future()

    def settle(result: _T | None, error: BaseException | None) -> None:
        if outcome.cancelled():
            return
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        try:
            result = function(*args)
        except BaseException as error:
            # StopIteration cannot pass through a future.
            wrapped = (
                RuntimeError(f"{function!r} raised {error!r}") if isinstance(error, StopIteration) else error
            )
            loop.call_soon_threadsafe(settle, None, wrapped)
        else:
            loop.call_soon_threadsafe(settle, result, None)

    threading.Thread(target=work, name="tinsmith-work", daemon=True).start()
    return await outcome


def _stop_at_exit() -> None:
    if _current is None or _current.pid != os.getpid():
        return

    async def last() -> None:
        await asyncio.gather(*(work() for work in _exit_work))

    _current.stop(last() if _exit_work else None, EXIT_SECONDS)


def _forget_in_child() -> None:
    global _current, _lock
    _lock = threading.Lock()  # the parent may have held it
    _current = None


# Exit hooks run last in, first out, and weakref registers its own with its first finalizer. It has to be
# there before ours: what finalizers tear down (an embedded engine) must outlive the last calls to it.
weakref.finalize(_stop_at_exit, lambda: None)
atexit.register(_stop_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
