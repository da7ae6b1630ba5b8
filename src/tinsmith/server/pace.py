"""A burst of samples is let in little by little: a heartbeat that comes after it need not wait for it all."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Set

from starlette.types import ASGIApp, Receive, Scope, Send

_AT_ONCE = 8  # in each turn of the event loop


class Paced:
    """Holds requests to some paths before anything is done for them, and lets them in as they came."""

    def __init__(self, app: ASGIApp, paths: Set[str]) -> None:
        self._app = app
        self._paths = paths
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application, when it is this request's turn."""
        if scope["type"] == "http" and scope["path"] in self._paths:
            await self._turn()
        await self._app(scope, receive, send)

    async def _turn(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._let_in, loop)
        turn = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _let_in(self, loop: asyncio.AbstractEventLoop) -> None:
        for _ in range(min(_AT_ONCE, len(self._waiting))):
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
        if self._waiting:
            loop.call_soon(self._let_in, loop)
