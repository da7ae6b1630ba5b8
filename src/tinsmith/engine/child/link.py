"""One engine process as the service sees it: started, asked, and heard of when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from typing import Any

from tinsmith.engine.interface import EngineLost

from . import frames

log = logging.getLogger(__name__)
_TO_START = 300.0  # seconds more, for bringing torch in on a busy machine
# glibc hands large blocks back to the kernel, which then zeroes them anew at every step: here they are kept.
_MALLOC = {
    "arena_max": 1,
    "mmap_max": 0,
    "trim_threshold": 2**62,
    "top_pad": 64 * 2**20,
    "hugetlb": 1,  # large pages where the system has them on request
}
_ENVIRONMENT = {
    "GLIBC_TUNABLES": ":".join(f"glibc.malloc.{name}={value}" for name, value in _MALLOC.items()),
    # OpenMP's threads wait for each other by spinning. For long they take the cores from the service and its
    # clients, and are put off when they are needed; without any they fall asleep between two steps.
    "GOMP_SPINCOUNT": "50000",
}
_BEATS = 4  # of the heart, in the time after which a silent engine is given up


class Link:
    """A process and the socket to it. It starts at once; `run` speaks for it until it dies."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            # Of the thread that starts it the child is told when it dies: the one the event loop runs in.
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tinsmith.engine.child.process", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=_ENVIRONMENT | os.environ,
            )
        self._socket = ours
        self._writer: asyncio.StreamWriter | None = None
        self._waiting: dict[int, asyncio.Future[tuple[str, Any]]] = {}
        self._numbers = itertools.count(1)
        self._ready = asyncio.Event()
        self._wedged = False
        self.dead = False
        self.started_at = time.monotonic()

    @property
    def ready(self) -> bool:
        """Whether it ever was."""
        return self._ready.is_set()

    async def open(self, *start: Any) -> asyncio.StreamReader:
        """Connect, and say what engine it shall be."""
        reader, self._writer = await asyncio.open_unix_connection(sock=self._socket)
        self._send(0, frames.START, start)
        return reader

    async def run(self, reader: asyncio.StreamReader, patience: float) -> None:
        """Hand out answers until the process dies. Whoever waits then still waits."""
        beating = asyncio.get_running_loop().create_task(self._beat(patience))
        try:
            while True:
                number, kind, value = await frames.read(reader)
                if kind == frames.READY:
                    self._ready.set()
                waiting = self._waiting.get(number)
                if waiting is not None and not waiting.done():
                    waiting.set_result((kind, value))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # it is dead: `cause` says of what
        finally:
            beating.cancel()
            self.dead = True

    async def cause(self) -> str:
        """What a dead process died of."""
        self.process.kill()
        code = await asyncio.to_thread(self.process.wait)
        if self._wedged:
            return "was wedged"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"

    def give_up(self, error: EngineLost) -> None:
        """Tell whoever waits that no answer will come."""
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(error)
                waiting.exception()  # one who was cancelled meanwhile does not ask
        if self._writer is not None:
            self._writer.close()

    async def call(self, method: str, *arguments: Any) -> Any:
        """The result of a method. Cancelling the caller cancels it there."""
        number = self._open(method, arguments)
        try:
            return (await self._next(number))[1]
        except asyncio.CancelledError:
            self._send(number, frames.CANCEL)
            raise
        finally:
            self._waiting.pop(number, None)

    async def stream(self, method: str, *arguments: Any) -> AsyncGenerator[Any, None]:
        """Its items, each fetched when it is asked for."""
        number = self._open(method, arguments)
        kind = frames.ITEM
        try:
            while True:
                self._send(number, frames.MORE)
                kind, item = await self._next(number)
                if kind == frames.DONE:
                    return
                yield item
        finally:
            self._waiting.pop(number, None)
            if kind != frames.DONE:
                self._send(number, frames.CANCEL)

    def offer(self, *models: Any) -> None:
        """Tell a process that has started of more base models."""
        self._send(0, frames.OFFER, models)

    async def close(self, within: float) -> None:
        """End the process, in good order if it can."""
        self._send(0, frames.CLOSE)
        try:
            await asyncio.to_thread(self.process.wait, within)
        except subprocess.TimeoutExpired:
            self.process.kill()
            await asyncio.to_thread(self.process.wait)
        self.give_up(EngineLost("the engine was closed"))
        if self._writer is None:
            self._socket.close()

    def _open(self, method: str, arguments: tuple[Any, ...]) -> int:
        number = next(self._numbers)
        self._send(number, method, arguments)
        return number

    async def _next(self, number: int) -> tuple[str, Any]:
        if self.dead:
            raise EngineLost("the engine has been closed")
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        kind, value = await answer
        if kind == frames.FAILED:
            raise value
        return kind, value

    def _send(self, number: int, what: str, arguments: Any = ()) -> None:
        if self._writer is not None and not self.dead:
            self._writer.write(frames.pack((number, what, arguments)))

    async def _beat(self, patience: float) -> None:
        """Kill a process whose compute thread makes no step."""
        with contextlib.suppress(EngineLost):
            while True:
                try:
                    async with asyncio.timeout(patience if self._ready.is_set() else _TO_START + patience):
                        await self._ready.wait()
                        await self.call("beat")
                except TimeoutError:
                    log.error("the engine made no step for more than %g seconds", patience)
                    self._wedged = True
                    self.process.kill()
                    return
                await asyncio.sleep(patience / _BEATS)
