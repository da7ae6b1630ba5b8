"""APIFuture: the one kind of future this client gives out."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeVar

from .loop import BackgroundLoop, background

_log = logging.getLogger("tinsmith")
_T = TypeVar("_T")
_F = TypeVar("_F", bound="APIFuture[Any]")


class APIFuture(Future[_T]):
    """The outcome of something the service does. The work goes on whether or not anybody waits.

    It can be awaited on any event loop, any number of times, and ``result()`` waits without one::

        future = training_client.forward_backward(data, "cross_entropy")
        output = await future  # or: output = future.result()

    A timeout bounds that one wait only; the result can still be had later. Giving up for good is
    ``cancel()``: it stops waiting for the result, while a training operation that was already asked for
    still runs on the service. It is a `concurrent.futures.Future` too, so ``as_completed`` and
    ``asyncio.wrap_future`` work.

    >>> future = training.forward([DATUM], "cross_entropy")
    >>> future.result(timeout=60).loss > 0
    True
    """

    def __init__(self) -> None:
        super().__init__()
        self._background: BackgroundLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._wakers: dict[asyncio.Future[None], asyncio.AbstractEventLoop] = {}
        self._cancel_told = False
        self._lock = threading.Lock()
        self.add_done_callback(_wake_all)

    # ---- waiting --------------------------------------------------------------------------------

    def result(self, timeout: float | None = None) -> _T:
        """The outcome, waiting for it at most ``timeout`` seconds (TimeoutError; the work goes on)."""
        self._about_to_block()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error it failed with, or None."""
        self._about_to_block()
        return super().exception(timeout)

    async def result_async(self, timeout: float | None = None) -> _T:
        """The outcome, waiting for it at most ``timeout`` seconds (TimeoutError; the work goes on)."""
        async with asyncio.timeout(timeout):
            return await self

    def __await__(self) -> Generator[Any, None, _T]:
        if not self.done():
            yield from self._wait().__await__()
        if self.cancelled():
            raise asyncio.CancelledError("this future was cancelled")
        return super().result(0)

    async def _wait(self) -> None:
        if self._background is not None:
            self._background.check()
        loop = asyncio.get_running_loop()
        waker: asyncio.Future[None] = loop.create_future()
        with self._lock:
            self._wakers[waker] = loop
        try:
            if not self.done():  # else _wake_all may have run before the waker was there
                await waker
        finally:
            with self._lock:
                self._wakers.pop(waker, None)

    def _about_to_block(self) -> None:
        if self.done():
            return
        if self._background is not None:
            self._background.check()
            if self._background.inside():
                raise RuntimeError(
                    "result() on the client's own event loop would wait for itself; await it instead"
                )
        if (
            "ipykernel" in sys.modules
        ):  # a notebook always has a running loop, and blocking it is what is meant
            return
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        _log.warning("result() blocks the running event loop; use `await future` instead", stacklevel=3)

    # ---- the other ways to hold it --------------------------------------------------------------

    def future(self) -> Future[_T]:
        """This, as a `concurrent.futures.Future`."""
        return self

    async def coroutine(self) -> _T:
        """This, as a coroutine, for what takes nothing else."""
        return await self

    def cancel(self) -> bool:
        """Give up. False if it was already done."""
        if not self._mark_cancelled():
            return False
        if self._background is not None:
            self._background.call(self._cancel_task)
        return True

    def _mark_cancelled(self) -> bool:
        if not super().cancel():
            return False
        with self._lock:
            first, self._cancel_told = not self._cancel_told, True
        if first:
            self.set_running_or_notify_cancel()  # tells as_completed() and wait(); once only
        return True

    # ---- the work behind it ---------------------------------------------------------------------

    def _cancel_task(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _start(self, work: Coroutine[Any, Any, _T], loop: BackgroundLoop, name: str) -> None:
        if self.cancelled():
            work.close()
            return
        self._task = loop.start(self._drive(work), name)

    async def _drive(self, work: Coroutine[Any, Any, _T]) -> None:
        try:
            result = await work
        except asyncio.CancelledError:
            self._mark_cancelled()
        except BaseException as error:  # whatever it is, whoever waits must hear of it
            self._settle(self.set_exception, error)
        else:
            self._settle(self.set_result, result)
        finally:
            self._task = None

    def _settle(self, settle: Callable[[Any], None], outcome: Any) -> None:
        try:
            settle(outcome)
        except InvalidStateError:
            if not self.cancelled():  # else it was cancelled at the last moment, and nobody wants the outcome
                raise


def _wake_all(future: Future[Any]) -> None:
    assert isinstance(future, APIFuture)
    with future._lock:
        wakers = list(future._wakers.items())
    for waker, loop in wakers:
        try:
            loop.call_soon_threadsafe(_wake, waker)
        except RuntimeError:  # that loop is closed: nobody is left there to be woken
            _log.debug("an event loop that waited for a future is gone")


def _wake(waker: asyncio.Future[None]) -> None:
    if not waker.done():
        waker.set_result(None)


def spawn(work: Coroutine[Any, Any, _T], name: str) -> APIFuture[_T]:
    """Start work on the background loop, from any thread."""
    return spawn_into(APIFuture[_T](), work, name)


def spawn_into(future: _F, work: Coroutine[Any, Any, Any], name: str) -> _F:
    """Start work on the background loop that settles this future."""
    loop = background()
    future._background = loop
    try:
        loop.call(future._start, work, loop, name)
    except BaseException:
        work.close()
        raise
    return future
