"""A burst of samples is let in little by little: a heartbeat that comes after it need not wait for it all."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Set

from starlette.types import ASGIApp, Receive, Scope, Send

_AT_ONCE = 8  # in each turn of the event loop


class Paced:
    """Holds requests to some paths before anything is done for them.

    Whoever presents a key of his own has a queue of his own, and the queues take turns: a crowd's burst holds
    up the crowd.
    """

    def __init__(self, app: ASGIApp, paths: Set[str]) -> None:
        self._app = app
        self._paths = paths
        self._queues: dict[bytes, deque[asyncio.Future[None]]] = {}  # the next to be served is first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application, when it is this request's turn."""
        if scope["type"] == "http" and scope["path"] in self._paths:
            await self._turn(_credential(scope))
        await self._app(scope, receive, send)

    async def _turn(self, credential: bytes) -> None:
        loop = asyncio.get_running_loop()
        if not self._queues:
            loop.call_soon(self._let_in, loop)
        turn = loop.create_future()
        self._queues.setdefault(credential, deque()).append(turn)
        await turn

    def _let_in(self, loop: asyncio.AbstractEventLoop) -> None:
        for _ in range(_AT_ONCE):
            if not self._queues:
                return
            credential = next(iter(self._queues))
            queue = self._queues.pop(credential)
            if not (turn := queue.popleft()).done():
                turn.set_result(None)
            if queue:
                self._queues[credential] = queue
        if self._queues:
            loop.call_soon(self._let_in, loop)


def _credential(scope: Scope) -> bytes:
    headers = dict(scope["headers"])
    found: bytes = headers.get(b"x-api-key") or headers.get(b"authorization", b"")
    return found
