"""HTTP without a socket: a transport that calls an ASGI app, and passes on its answer as it comes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote, urlsplit

from .errors import APIConnectionError, APITimeoutError, ClientClosedError
from .transport import Pool, Response, StreamedResponse

_log = logging.getLogger("tinsmith")
_HOST = "embedded"


class InProcess:
    """Calls the app. An app that fails before it answers is a 500, as a server would make it.

    A redirection is always given back as it is.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._closed = False
        self._open: set[_Exchange] = set()

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout: float,
        pool: Pool,
        follow_redirects: bool = True,
    ) -> Response:
        """One exchange, bounded as a whole: there is no socket to time out."""
        try:
            async with asyncio.timeout(timeout), self._exchange(method, path, body, headers) as answer:
                return Response(answer.status_code, answer.headers, await answer.aread())
        except TimeoutError as error:
            what = f"{method} {path.partition('?')[0]}"
            raise APITimeoutError(what, f"{what} got no answer in {timeout:.0f} s") from error

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout: float,
        pool: Pool,
    ) -> AsyncIterator[StreamedResponse]:
        """One exchange whose answer is read piece by piece."""
        async with self._exchange(method, path, body, headers) as answer:
            yield answer

    @asynccontextmanager
    async def _exchange(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> AsyncIterator[_Exchange]:
        """The answer as soon as its headers are there."""
        self._check_open()
        exchange = _Exchange(body or b"")
        self._open.add(exchange)
        scope = _scope(method, path, headers)
        exchange.work = asyncio.create_task(self._run(scope, exchange), name="in-process request")
        try:
            await exchange.started
            yield exchange
        except APIConnectionError:
            self._check_open()
            raise
        finally:
            self._open.discard(exchange)
            exchange.leave()

    async def _run(self, scope: dict[str, Any], exchange: _Exchange) -> None:
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except Exception as error:
            _log.error("the app in this process failed", exc_info=error)
        finally:
            exchange.ended()

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosedError("this client was closed; make a new ServiceClient")

    async def aclose(self) -> None:
        """Whoever waits hears that the client was closed."""
        self._closed = True
        for exchange in list(self._open):
            exchange.cut()


class _Exchange:
    """One request's way in and its answer's way out."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._gone = asyncio.Event()
        self._whole = False
        self.started = asyncio.get_running_loop().create_future()
        self.work: asyncio.Task[None] | None = None
        self.status_code = 500
        self.headers: dict[str, str] = {}

    # ---- the app's side -------------------------------------------------------------------------

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
            self.status_code = message["status"]
            self.headers = {
                name.decode("latin-1").lower(): value.decode("latin-1")
                for name, value in message.get("headers", [])
            }
            self._start()
            return
        if body := message.get("body"):
            self._pieces.put_nowait(body)
        self._whole = not message.get("more_body", False)

    def ended(self) -> None:
        """The app is done, well or not."""
        self._whole = self._whole or not self.started.done()  # one that said nothing is a 500
        self._start()
        self._pieces.put_nowait(None)

    def _start(self) -> None:
        if not self.started.done():
            self.started.set_result(None)

    # ---- the caller's side ----------------------------------------------------------------------

    async def aiter_bytes(self) -> AsyncIterator[bytes]:
        """The body as it is made."""
        while (piece := await self._pieces.get()) is not None:
            yield piece
        if not self._whole:
            raise APIConnectionError(message="the answer of the service in this process broke off")

    async def aread(self) -> bytes:
        """The whole body."""
        return b"".join([piece async for piece in self.aiter_bytes()])

    def leave(self) -> None:
        """The answer was read, or is not wanted."""
        self._gone.set()
        if self.work is not None and not self.work.done():
            self.work.cancel()

    def cut(self) -> None:
        """Nothing more will come."""
        self._whole = False
        if not self.started.done():
            self.started.set_exception(APIConnectionError(message="the client was closed"))
        self._pieces.put_nowait(None)


def _scope(method: str, path: str, headers: Mapping[str, str]) -> dict[str, Any]:
    parts = urlsplit(path)
    fields = {"host": _HOST, **{name.lower(): value for name, value in headers.items()}}
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields.items()],
        "scheme": "http",
        "path": unquote(parts.path),
        "raw_path": parts.path.encode(),
        "query_string": parts.query.encode(),
        "server": (_HOST, 80),
        "client": ("127.0.0.1", 0),
        "root_path": "",
    }
