"""A connection to one service: opened on first use, closed with its last user or at exit."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import weakref
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

from .api import Api
from .clock import CLOCK, Clock
from .config import ClientConfig
from .errors import ClientClosedError
from .in_process import InProcess
from .loop import BackgroundLoop, at_exit, background, in_thread
from .transport import NetworkTransport, Transport

_log = logging.getLogger("tinsmith")


class Connection:
    """Holds the transport, and whatever else must be let go when the last client of it is."""

    def __init__(self, config: ClientConfig, clock: Clock = CLOCK) -> None:
        self.config = config
        self.clock = clock
        self.closing = AsyncExitStack()
        self._api: Api | None = None
        self._opening = asyncio.Lock()
        self._loop = background()
        self._closed = False
        self._ending: asyncio.Future[None] | None = None
        # Not at exit: the order of things matters then, see _close_all.
        weakref.finalize(self, _abandon, self._loop, self.closing).atexit = False
        _open.add(self)

    def check(self) -> None:
        """Refuse to be used when closed, or in a forked child."""
        self._loop.check()
        if self._closed:
            raise ClientClosedError("this client was closed; make a new ServiceClient")

    async def api(self) -> Api:
        """The endpoints, connecting first if need be."""
        self.check()
        async with self._opening:
            if self._api is None:
                _log.info("tinsmith uses %s (%s)", self.config.place, self.config.chosen_by)
                self._api = Api(await self._transport(), self.config, self.clock)
            return self._api

    async def _transport(self) -> Transport:
        transport: Transport
        if self.config.base_url is None:
            transport = InProcess(await _acquire_embedded(self.closing))
        else:
            transport = NetworkTransport(self.config.base_url, connect_timeout=self.config.connect_timeout)
        self.closing.push_async_callback(transport.aclose)
        return transport

    async def close(self, last: Callable[[], Awaitable[None]] | None = None) -> None:
        """Let go of everything, after one ``last`` call. Whoever calls again waits for the same end."""
        self._closed = True
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._end(last))
        await asyncio.shield(self._ending)

    async def _end(self, last: Callable[[], Awaitable[None]] | None) -> None:
        try:
            if last is not None:
                await last()
        finally:
            await _close(self.closing)
            _open.discard(self)  # until now the interpreter's exit waits for it


_open: weakref.WeakSet[Connection] = weakref.WeakSet()


async def _acquire_embedded(closing: AsyncExitStack) -> Any:
    """The service of this process; its reference is given back with the connection."""
    try:
        module = await in_thread(importlib.import_module, "tinsmith.embedded")
        app = await module.acquire()
    except ImportError as error:
        raise ImportError(
            f"the embedded service needs packages that are not installed ({error}): "
            "pip install 'tinsmith[serve]', or set TINKER_BASE_URL to a running service"
        ) from error
    closing.push_async_callback(module.release)
    return app


async def _close(closing: AsyncExitStack) -> None:
    try:
        await closing.pop_all().aclose()
    except Exception:  # whoever drops a client is not there to be told
        _log.exception("closing a client's connection failed")


def _abandon(loop: BackgroundLoop, closing: AsyncExitStack) -> None:
    if loop.pid == os.getpid():  # a forked child must not close its parent's sockets
        loop.call(lambda: loop.start(_close(closing), "close an abandoned connection"))


async def _close_all() -> None:
    await asyncio.gather(*(connection.close() for connection in list(_open)))


at_exit(_close_all)
