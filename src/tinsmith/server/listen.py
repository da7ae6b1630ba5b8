"""The application on a port."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import resource
import socket
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import uvicorn
from starlette.applications import Starlette

from .connection import bounded

log = logging.getLogger(__name__)
_TICK = 0.1  # seconds
_BACKLOG = 8192  # connections that wait to be accepted: one that finds no room comes again seconds later
_KEEP_ALIVE = 75  # seconds, so that a client's next heartbeat needs no new connection
_SWITCH = 0.0005  # seconds another thread may keep the event loop waiting; a tenth of Python's own
_FILES_BESIDE = 512  # open files besides connections: the database, blobs, models


class _Server(uvicorn.Server):
    """Says where it listens once it does, so that a port of 0 is known too. Drains before it stops."""

    announce: Callable[[str], None]
    drain: Callable[[], Coroutine[Any, Any, None]]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        draining = asyncio.get_running_loop().create_task(self.drain(), name="drain")
        while not draining.done() and not self.force_exit:  # a second Ctrl-C does not wait
            await asyncio.wait([draining], timeout=_TICK)
        if draining.cancel():
            await asyncio.wait([draining])
        elif error := draining.exception():
            log.error("what was under way could not be finished", exc_info=error)
        await super().shutdown(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.should_exit:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            if ipaddress.ip_address(host).is_unspecified:
                host = socket.gethostname()  # every address of this machine: its name is one to give away
            self.announce(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")


def listen(
    app: Starlette,
    host: str,
    port: int,
    announce: Callable[[str], None],
    drain: Callable[[], Coroutine[Any, Any, None]],
    most_connections: int,
) -> None:
    """Serve until told to stop; ``announce`` hears the URL. While it drains it still answers (503)."""
    config = uvicorn.Config(
        app,
        host,
        port,
        http=bounded(_allow_files(most_connections)),
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=5,
        lifespan="on",
    )
    server = _Server(config)
    server.announce, server.drain = announce, drain
    sys.setswitchinterval(_SWITCH)
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn has stopped in good order, then passes Ctrl-C on
        server.run()


def _allow_files(connections: int) -> int:
    """Let this process hold so many connections; gives how many it may, where the system allows fewer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _BACKLOG + _FILES_BESIDE  # all that wait may be accepted before any makes room
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(1, min(connections, max(soft, wanted) - _FILES_BESIDE))
