"""How an endpoint is called: its address, its headers, its one layer of retries."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from pydantic import BaseModel

from tinsmith.types import UserError
from tinsmith.wire import json as wire_json
from tinsmith.wire import sse

from .clock import CLOCK, Clock
from .config import PROTOCOL_VERSION, ClientConfig
from .endpoints import Endpoint
from .errors import APIResponseValidationError, status_error
from .observe import trace_headers
from .retry import Budget, call_with_retries
from .transport import Response, StreamedResponse, Transport

_M = TypeVar("_M", bound=BaseModel)
Json = dict[str, Any]


class Caller:
    """Calls endpoints over a transport, as their rows say."""

    def __init__(self, transport: Transport, config: ClientConfig, clock: Clock = CLOCK) -> None:
        self.transport = transport
        self.config = config
        self._clock = clock
        own = {"accept": wire_json.CONTENT_TYPE, "user-agent": f"tinsmith (protocol {PROTOCOL_VERSION})"}
        if config.api_key:
            own["x-api-key"] = config.api_key
        self._headers = own
        self._name, self._calls = uuid.uuid4().hex, itertools.count()
        self._overrides = {name.lower(): value for name, value in config.headers.items()}

    async def json(self, endpoint: Endpoint, body: Json | bytes | None, reply: type[_M], **how: Any) -> _M:
        """The answer, read as this type."""
        response = await self.call(endpoint, body, **how)
        try:
            return wire_json.parse_model(reply, wire_json.loads(response.body))
        except UserError as error:
            what = f"{endpoint.method} {endpoint.path}"
            raise APIResponseValidationError(
                response,
                response.body[:2000].decode(errors="replace"),
                f"{self.config.place} answered {what} with what is not a {reply.__name__}: {error}",
                what,
            ) from error

    async def call(
        self,
        endpoint: Endpoint,
        body: Json | bytes | None,
        *,
        headers: Mapping[str, str] | None = None,
        query: Json | None = None,
        **segments: str,
    ) -> Response:
        """The answer; an error status raises."""
        path = "/api/v1/" + endpoint.path.format_map({k: quote(v, safe="/:") for k, v in segments.items()})
        if query:
            path += "?" + urlencode({key: value for key, value in query.items() if value is not None})
        data = body if isinstance(body, bytes) or body is None else wire_json.dumps(body)
        fixed = self.fixed_headers(endpoint, data, headers or {})

        async def attempt(tries: int) -> Response:
            response = await self.transport.request(
                endpoint.method,
                path,
                body=data,
                headers=fixed | {"x-stainless-retry-count": str(tries)},
                timeout=endpoint.timeout or self.config.timeout,
                pool=endpoint.pool,
                follow_redirects=not endpoint.redirects,
            )
            if response.status_code >= (400 if endpoint.redirects else 300):
                raise status_error(f"{endpoint.method} {path.partition('?')[0]}", response)
            return response

        if endpoint.layer is None:
            return await attempt(0)
        budget = Budget(endpoint.layer, endpoint.seconds, self.config.max_retries)
        return await call_with_retries(attempt, budget, self._clock, endpoint.path)

    def stream(self, endpoint: Endpoint, body: bytes) -> AbstractAsyncContextManager[StreamedResponse]:
        """The answer piece by piece, whatever its status."""
        return self.transport.stream(
            endpoint.method,
            "/api/v1/" + endpoint.path,
            body=body,
            headers=self.fixed_headers(endpoint, body, {"accept": sse.CONTENT_TYPE}),
            timeout=endpoint.timeout or self.config.timeout,
            pool=endpoint.pool,
        )

    def fixed_headers(
        self, endpoint: Endpoint, data: bytes | None, headers: Mapping[str, str]
    ) -> dict[str, str]:
        """Those that stay the same over all attempts of one call."""
        own = self._headers | trace_headers()
        if data is not None:
            own["content-type"] = wire_json.CONTENT_TYPE
        if endpoint.method != "GET":
            own["x-idempotency-key"] = f"{self._name}-{next(self._calls)}"
        return own | dict(headers) | self._overrides


def dump(request: BaseModel) -> Json:
    """Every default written out and no nulls: what every generation of services reads the same way."""
    dumped: Json = request.model_dump(mode="json", exclude_none=True)
    return dumped
