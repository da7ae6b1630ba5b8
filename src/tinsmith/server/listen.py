"""The application on a port."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

import uvicorn
from starlette.applications import Starlette


class _Server(uvicorn.Server):
    """Says where it listens once it does, so that a port of 0 is known too."""

    announce: Callable[[str], None]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.should_exit:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            self.announce(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")


def listen(app: Starlette, host: str, port: int, announce: Callable[[str], None]) -> None:
    """Serve until told to stop; ``announce`` hears the URL."""
    config = uvicorn.Config(
        app, host, port, log_level="warning", access_log=False, timeout_graceful_shutdown=5, lifespan="on"
    )
    server = _Server(config)
    server.announce = announce
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn has stopped in good order, then passes Ctrl-C on
        server.run()
