"""HTTP without a socket: an httpx transport that calls an ASGI app, and passes on its answer as it comes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx

_log = logging.getLogger("tinsmith")


class InProcess(httpx.AsyncBaseTransport):
    """Calls the app. An app that fails before it answers is a 500, as a server would make it."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Start the app's work and return as soon as its headers are there."""
        exchange = _Exchange(await request.aread())
        exchange.work = asyncio.create_task(self._run(_scope(request), exchange), name="in-process request")
        try:
            status, headers = await exchange.started
        except BaseException:
            exchange.abandon()
            raise
        return httpx.Response(status, headers=headers, stream=exchange)

    async def _run(self, scope: dict[str, Any], exchange: _Exchange) -> None:
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except Exception as error:
            _log.error("the app in this process failed", exc_info=error)
        finally:
            exchange.ended()


class _Exchange(httpx.AsyncByteStream):
    """One request's way in and its answer's way out."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._gone = asyncio.Event()
        self.started: asyncio.Future[tuple[int, list[tuple[bytes, bytes]]]] = (
            asyncio.get_running_loop().create_future()
        )
        self.work: asyncio.Task[None] | None = None

    async def receive(self) -> dict[str, Any]:
        """The request's body, whole; then nothing until the caller is gone."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        """A piece of the answer."""
        if message["type"] == "http.response.start":
            if not self.started.done():
                self.started.set_result((message["status"], message.get("headers", [])))
        elif body := message.get("body"):
            self._pieces.put_nowait(body)

    def ended(self) -> None:
        """The app is done, well or not."""
        if not self.started.done():
            self.started.set_result((500, []))
        self._pieces.put_nowait(None)

    def abandon(self) -> None:
        """Nobody reads any more."""
        self._gone.set()
        if self.work is not None:
            self.work.cancel()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (piece := await self._pieces.get()) is not None:
            yield piece

    async def aclose(self) -> None:
        """The answer was read, or is not wanted."""
        self._gone.set()
        if self.work is not None and not self.work.done():
            self.work.cancel()


def _scope(request: httpx.Request) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "scheme": request.url.scheme,
        "path": request.url.path,
        "raw_path": request.url.raw_path.partition(b"?")[0],
        "query_string": request.url.query,
        "server": (request.url.host, request.url.port),
        "client": ("127.0.0.1", 0),
        "root_path": "",
    }
