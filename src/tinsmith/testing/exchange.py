"""One HTTP exchange in the hands of a fault: it may reach the service, be answered, or come to nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

DROP = "tinsmith.drop"  # the scope's key for a function that cuts the connection
API = "/api/v1/"


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class Exchange:
    """A request that came whole, and what becomes of it."""

    def __init__(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send, body: bytes) -> None:
        self._app, self._scope, self._receive, self._send = app, scope, receive, send
        self.body = body

    async def forward(self) -> Answer:
        """Have the service carry the request out; its answer is kept back."""
        sent: list[Message] = []
        unread = [{"type": "http.request", "body": self.body, "more_body": False}]

        async def receive() -> Message:
            return unread.pop() if unread else await self._receive()

        async def send(message: Message) -> None:
            sent.append(message)

        await self._app(self._scope, receive, send)
        start, *rest = sent
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in start["headers"]}
        return Answer(start["status"], b"".join(part.get("body", b"") for part in rest), headers)

    async def answer(self, answer: Answer) -> None:
        """Answer, whole."""
        await self.begin(answer)
        await self.more(answer.body, last=True)

    async def begin(self, answer: Answer) -> None:
        """Send the head of an answer, with the length its body ought to have."""
        headers = {name.lower(): value for name, value in answer.headers.items()}
        headers["content-length"] = str(len(answer.body))
        fields = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": answer.status, "headers": fields})

    async def more(self, body: bytes, *, last: bool = False) -> None:
        """Send a piece of the body."""
        await self._send({"type": "http.response.body", "body": body, "more_body": not last})

    async def drop(self) -> None:
        """Cut the connection; the client sees it break."""
        cut = self._scope.get(DROP)
        if cut is None:
            raise RuntimeError("connections can only be dropped where a FaultyService listens")
        cut()
        while (await self._receive())["type"] != "http.disconnect":
            pass


async def read_whole(receive: Receive) -> bytes | None:
    """The body of a request; None if the client went away before it had sent it all."""
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)
