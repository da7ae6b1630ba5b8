"""A connection as the service holds it: bounded in number, in the size of a head, and in patience."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES = 64 * 2**10  # of a request line and its headers
HEAD_SECONDS = 20.0  # from the first byte, or from connecting, to the end of the headers
HEARING_SECONDS = 60.0  # a caller may leave what we write unread
_MOST_PIPELINED = 16  # requests of a connection that wait for an answer to the one before
_PAUSE = 0.05  # seconds until what was sent with connecting has been read
_REFUSAL = b"HTTP/1.1 %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_LARGE_HEAD = _REFUSAL % b"431 Request Header Fields Too Large"
_SLOW_HEAD = _REFUSAL % b"408 Request Timeout"


async def _full(scope: Scope, receive: Receive, send: Send) -> None:
    """The application where no more requests can be answered at a time."""
    headers = {"Retry-After": "5", "Connection": "close"}
    await Response(status_code=503, headers=headers)(scope, receive, send)


class Connection(HttpToolsProtocol):
    """uvicorn's, which bounds neither how long a head is nor how long it takes."""

    hearing_seconds: float
    most: int  # at a time; while they come in faster, more are held, but only for a moment
    head_seconds: float
    # Those without a request being answered, the longest without first: when there are too many connections,
    # they make room.
    idle: dict[Connection, None]
    making_room: list[asyncio.TimerHandle]  # at most one

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._head_bytes = 0
        self._head_due: asyncio.TimerHandle | None = None
        self._reading_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.idle[self] = None
        self._await_head()
        if len(self.connections) > self.most and not self.making_room:
            self.making_room.append(self.loop.call_later(_PAUSE, self._make_room))

    def _make_room(self) -> None:
        """Whoever only holds connections, or lets a head trickle in, loses those that did so longest."""
        self.making_room.clear()
        leaving = sum(connection.transport.is_closing() for connection in self.connections)
        for longest in list(self.idle)[: max(0, len(self.connections) - leaving - self.most)]:
            del self.idle[longest]
            longest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_there()
        self.resume_writing()
        self.idle.pop(self, None)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The other side does not read."""
        super().pause_writing()
        if self._reading_due is None:
            self._reading_due = self.loop.call_later(self.hearing_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """It does again."""
        super().resume_writing()
        if self._reading_due is not None:
            self._reading_due.cancel()
            self._reading_due = None

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._head_due is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_due is not None and self._head_bytes > HEAD_BYTES:
            self._refuse(_LARGE_HEAD)

    def on_message_begin(self) -> None:
        self._await_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head_is_there()
        self.idle.pop(self, None)
        if len(self.connections) - len(self.idle) > self.most:
            self.app = _full
        super().on_headers_complete()
        if len(self.pipeline) > _MOST_PIPELINED:
            self.transport.abort()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing() and self.cycle is not None and self.cycle.response_complete:
            self.idle[self] = None  # also if a body nobody reads is still coming

    def _await_head(self) -> None:
        if self._head_due is None:
            self._head_bytes = 0
            self._head_due = self.loop.call_later(self.head_seconds, self._refuse, _SLOW_HEAD)

    def _head_is_there(self) -> None:
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None

    def _refuse(self, answer: bytes) -> None:
        self._head_is_there()
        self.transport.write(answer)
        self.transport.close()


def bounded(
    most: int, head_seconds: float = HEAD_SECONDS, hearing_seconds: float = HEARING_SECONDS
) -> type[Connection]:
    """The connections of one server."""
    own = {"most": most, "head_seconds": head_seconds, "hearing_seconds": hearing_seconds}
    return type("BoundedConnection", (Connection,), own | {"idle": {}, "making_room": []})
