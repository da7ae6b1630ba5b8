"""One HTTP call as a handler sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tinsmith.service import Service
from tinsmith.types import UserError
from tinsmith.wire import compression, json, protobuf


class Malformed(Exception):
    """The body is not what this endpoint takes."""


class TooLarge(Exception):
    """The body is larger than this service accepts."""


@dataclass(slots=True)
class Call:
    """The service, who asks, and what was asked (``body`` is already the endpoint's request type)."""

    service: Service
    owner: str
    http: Request
    body: Any = None

    @property
    def path(self) -> dict[str, str]:
        """Parameters of the path."""
        return self.http.path_params

    def integer(self, name: str, default: int, least: int, most: int) -> int:
        """A whole number of the query."""
        text = self.http.query_params.get(name)
        if text is None:
            return default
        try:
            value = int(text)
        except ValueError:
            raise UserError(f"{text!r} is not a whole number", field=name) from None
        if not least <= value <= most:
            raise UserError(f"{value} is not between {least} and {most}", field=name)
        return value

    @property
    def accepts_protobuf(self) -> bool:
        """Whether results may be written as protobuf."""
        return protobuf.CONTENT_TYPE in self.http.headers.get("accept", "")

    @property
    def sent_protobuf(self) -> bool:
        """Whether the body is protobuf."""
        return self.http.headers.get("content-type", "").startswith(protobuf.CONTENT_TYPE)


async def read_body(http: Request, limit: int) -> bytes:
    """The plain body, bounded while it streams in and while it unfolds."""
    chunks, size = [], 0
    async for chunk in http.stream():
        size += len(chunk)
        if size > limit:
            raise TooLarge(f"body: larger than {limit} bytes; send fewer datums per request")
        chunks.append(chunk)
    encoding = http.headers.get("content-encoding", "identity")
    return compression.decompress(b"".join(chunks), encoding, limit)


def reply(value: Any, status: int = 200) -> Response:
    """A JSON answer: a model, or plain values."""
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json", exclude_none=True)
    return Response(json.dumps(value), status, media_type=json.CONTENT_TYPE)
