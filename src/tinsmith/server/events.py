"""Answers told event by event, for as long as somebody listens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tinsmith.wire import sse

KEEP_ALIVE = 10.0  # seconds without an event after which a comment says that there is more to come


class EventStream(Response):
    """Server-sent events. Whoever hangs up is noticed at once, and what made the events is closed.

    ``holding`` is what was opened for the stream, and is let go of with it.
    """

    media_type = sse.CONTENT_TYPE

    def __init__(self, events: AsyncGenerator[sse.Event, None], holding: AsyncExitStack) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._holding = holding

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Tell, until the end or until nobody listens."""
        async with self._holding, aclosing(self._events):
            telling = asyncio.create_task(self._tell(send), name="tell events")
            hearing = asyncio.create_task(_hang_up(receive), name="wait for a hang-up")
            try:
                await asyncio.wait((telling, hearing), return_when=asyncio.FIRST_COMPLETED)
                if telling.done():
                    telling.result()
            finally:
                for task in (telling, hearing):
                    task.cancel()
                await asyncio.wait((telling, hearing))

    async def _tell(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        coming = asyncio.ensure_future(anext(self._events, None))
        try:
            while True:
                await asyncio.wait((coming,), timeout=KEEP_ALIVE)
                if not coming.done():
                    await _send_piece(send, sse.comment("more to come"))
                elif (event := coming.result()) is None:
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
                    return
                else:
                    await _send_piece(send, sse.encode(event))
                    coming = asyncio.ensure_future(anext(self._events, None))
        finally:
            coming.cancel()
            await asyncio.wait((coming,))


async def _send_piece(send: Send, piece: bytes) -> None:
    await send({"type": "http.response.body", "body": piece, "more_body": True})


async def _hang_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
