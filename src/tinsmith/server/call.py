"""One HTTP call as a handler sees it."""

from __future__ import annotations

import re
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from tinsmith.service import Service
from tinsmith.types.checkpoint import CHECKPOINT_TYPES, CheckpointType
from tinsmith.wire import json, protobuf

from .auth import Caller
from .intake import Taking

_T = TypeVar("_T")
_SDK_VERSION = re.compile(r"(\d{1,9})\.(\d{1,9})")
_FIRST_SDK_WITH_EXPORTS = (0, 28)


class Malformed(Exception):
    """The body is not what this endpoint takes."""


@dataclass(slots=True)
class Call:
    """The service, who asks, and what was asked; ``body`` and ``query`` already have the endpoint's types."""

    service: Service
    caller: Caller
    http: Request
    taking: Taking
    body: Any = None
    query: Any = None
    key_required: bool = True

    @property
    def owner(self) -> str:
        """Whose call it is."""
        return self.caller.owner

    @property
    def path(self) -> dict[str, str]:
        """Parameters of the path."""
        return self.http.path_params

    def url(self, path: str) -> str:
        """The whole address of one of our paths, as this client reaches us."""
        base = self.service.settings.public_url or str(self.http.base_url)
        return f"{base.rstrip('/')}{path}"

    async def accepted(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Accept an operation: done to the end, even if whoever asked hangs up meanwhile."""
        return await self.service.to_the_end(work)

    @property
    def accepts_protobuf(self) -> bool:
        """Whether results may be written as protobuf."""
        return protobuf.CONTENT_TYPE in self.http.headers.get("accept", "")

    @property
    def checkpoint_types(self) -> tuple[CheckpointType, ...]:
        """The types of checkpoints this client can read about.

        Official SDKs before 0.28 refuse a whole list with one export in it, and nothing else in their
        requests tells them from later ones.
        """
        stated = _SDK_VERSION.match(self.http.headers.get("x-stainless-package-version", ""))
        old = stated is not None and (int(stated[1]), int(stated[2])) < _FIRST_SDK_WITH_EXPORTS
        return ("training", "sampler") if old else CHECKPOINT_TYPES

    @property
    def sent_protobuf(self) -> bool:
        """Whether the body is protobuf."""
        return self.http.headers.get("content-type", "").startswith(protobuf.CONTENT_TYPE)


def reply(value: Any, status: int = 200) -> Response:
    """A JSON answer: a model, or plain values."""
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json", exclude_none=True)
    return Response(json.dumps(value), status, media_type=json.CONTENT_TYPE)
