"""The embedded service: the whole Tinsmith in this process, without a port.

Clients that are told nothing else use it. It is one per process, started by the first client and
stopped by the last.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tinsmith.engine.host import LocalModels, open_engine
from tinsmith.server.app import create_app
from tinsmith.server.auth import Authenticator
from tinsmith.service import Service, Settings


class _Embedded:
    users = 0
    service: Service | None = None
    app: Any = None
    lock: asyncio.Lock | None = None


def _lock() -> asyncio.Lock:
    if _Embedded.lock is None:
        _Embedded.lock = asyncio.Lock()
    return _Embedded.lock


async def acquire() -> Any:
    """The ASGI application of the service, started on the calling event loop."""
    async with _lock():
        if _Embedded.service is None:
            settings = Settings()
            engine = open_engine({}, settings.engine_options())
            service = Service(engine, settings, finder=LocalModels(), private=True)
            await service.start()
            _Embedded.service, _Embedded.app = service, create_app(service, Authenticator())
        _Embedded.users += 1
        return _Embedded.app


async def release() -> None:
    """Say that one client is done; the last one stops the service."""
    async with _lock():
        _Embedded.users -= 1
        if _Embedded.users == 0 and _Embedded.service is not None:
            service, _Embedded.service, _Embedded.app = _Embedded.service, None, None
            await service.stop()
