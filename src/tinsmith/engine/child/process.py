"""The engine's own process: answers the service over a socket, and dies with it.

python -m tinsmith.engine.child.process DESCRIPTOR
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import pickle
import signal
import socket
import sys
import traceback
from collections.abc import Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import Any, NoReturn

from tinsmith.engine.host import open_engine
from tinsmith.engine.local import LocalEngine
from tinsmith.engine.scheduler import EngineStopped

from . import frames

_PR_SET_PDEATHSIG = 1
_COMPUTE_THREAD_DIED = 70


def main() -> None:
    """Serve whoever started us."""
    parent = os.getppid()
    _die_with_parent(parent)
    for ours_to_decide in (signal.SIGINT, signal.SIGTERM):  # Ctrl-C reaches the whole terminal
        signal.signal(ours_to_decide, signal.SIG_IGN)
    _be_the_first_to_go()
    asyncio.run(_serve(int(sys.argv[1])))


def _die_with_parent(parent: int) -> None:
    """End of file says the same, but a wedged process would not read it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before we asked
            os._exit(0)


def _be_the_first_to_go() -> None:
    """When memory runs out the kernel shall end the engine, which comes back, and not the service."""
    score = Path("/proc/self/oom_score_adj")
    if score.exists():
        score.write_text("500")


async def _serve(descriptor: int) -> NoReturn:
    reader, writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=descriptor))
    try:
        _, _, (base_models, options) = await frames.read(reader)
        server = _Server(open_engine(base_models, options), writer)
        writer.write(frames.pack((0, frames.READY, None)))
        while True:
            server.take(*await frames.read(reader))
    except (asyncio.IncompleteReadError, ConnectionError):
        os._exit(0)  # the service is gone; nothing here is worth a farewell


class _Server:
    """Answers calls, any number at a time."""

    def __init__(self, engine: LocalEngine, writer: asyncio.StreamWriter) -> None:
        self._engine = engine
        self._writer = writer
        self._running: dict[int, asyncio.Task[None]] = {}
        self._asked: dict[int, asyncio.Semaphore] = {}  # items of a stream that were asked for

    def take(self, number: int, what: str, arguments: tuple[Any, ...]) -> None:
        """Begin what was asked; calls begin in the order they come."""
        if what == frames.CANCEL:
            if task := self._running.get(number):
                task.cancel()
        elif what == frames.MORE:
            if asked := self._asked.get(number):
                asked.release()
        elif what == frames.OFFER:
            for model in arguments:
                self._engine.add_base_model(model)
        elif what == frames.CLOSE:
            self._begin(number, self._close())
        elif what in frames.STREAMS:
            self._asked[number] = asyncio.Semaphore(0)
            self._begin(number, self._stream(number, what, arguments))
        elif what in frames.CALLS:
            self._begin(number, self._call(number, what, arguments))
        else:
            raise ValueError(f"the service asked for {what!r}")

    def _begin(self, number: int, work: Coroutine[Any, Any, None]) -> None:
        task = self._running[number] = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(lambda _: self._forget(number))

    def _forget(self, number: int) -> None:
        self._running.pop(number, None)
        self._asked.pop(number, None)

    async def _call(self, number: int, method: str, arguments: tuple[Any, ...]) -> None:
        try:
            result = await getattr(self._engine, method)(*arguments)
        except Exception as error:
            self._fail(number, error)
        else:
            self._send(number, frames.DONE, result)

    async def _stream(self, number: int, method: str, arguments: tuple[Any, ...]) -> None:
        asked = self._asked[number]
        try:
            async with aclosing(getattr(self._engine, method)(*arguments)) as items:
                await asked.acquire()
                async for item in items:
                    self._send(number, frames.ITEM, item)
                    await asked.acquire()
        except Exception as error:
            self._fail(number, error)
        else:
            self._send(number, frames.DONE, None)

    async def _close(self) -> NoReturn:
        await self._engine.close()
        os._exit(0)

    def _fail(self, number: int, error: Exception) -> None:
        if isinstance(error, EngineStopped):  # this process cannot compute any more
            traceback.print_exception(error)
            os._exit(_COMPUTE_THREAD_DIED)
        self._send(number, frames.FAILED, _portable(error))

    def _send(self, number: int, kind: str, value: Any) -> None:
        self._writer.write(frames.pack((number, kind, value)))


def _portable(error: Exception) -> Exception:
    """The error itself if it survives the way, else its description; with where it happened."""
    try:
        copy: Exception = pickle.loads(pickle.dumps(error))
    except Exception:
        copy = RuntimeError(f"{type(error).__name__}: {error}")
    copy.add_note("in the engine process:\n" + "".join(traceback.format_tb(error.__traceback__)))
    return copy


if __name__ == "__main__":
    main()
