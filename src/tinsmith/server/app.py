"""The ASGI application: the table of routes, and one place where errors become status codes."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute

from tinsmith.service import Service
from tinsmith.service.samplers import TooManySamples
from tinsmith.types import Gone, NotFound, Unavailable, UserError
from tinsmith.wire import json

from .auth import Authenticator, Unauthorized
from .call import Call, Malformed, TooLarge, read_body, reply
from .routes import API, ROUTES, Route
from .training import consume

log = logging.getLogger(__name__)

# The first class that fits decides. A permanent refusal is never 409, which clients take as "try again".
STATUS: list[tuple[type[Exception], int]] = [
    (Unauthorized, 401),
    (NotFound, 404),
    (Gone, 410),
    (TooLarge, 413),
    (Malformed, 422),
    (TooManySamples, 429),
    (UserError, 400),
    (Unavailable, 503),
]
_TRY_AGAIN_LATER = {429: "1", 503: "5"}


def create_app(service: Service, auth: Authenticator, *, own_service: bool = False) -> Starlette:
    """The application. With ``own_service`` it starts and stops the service with itself."""

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        await service.start()
        try:
            yield
        finally:
            await service.stop()

    routes = [
        StarletteRoute(f"{API}/{route.path}", _endpoint(service, auth, route), methods=[route.method])
        for route in ROUTES
    ]
    return Starlette(
        routes=routes,
        lifespan=lifespan if own_service else None,
        exception_handlers={HTTPException: _http_error},
    )


def _endpoint(
    service: Service, auth: Authenticator, route: Route
) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(http: Request) -> Response:
        try:
            owner = "nobody" if route.open else auth.owner(http.headers.get("x-api-key"))
            service.check_open()
            call = Call(service, owner, http)
            if route.takes is not None:
                call.body = await _parse(call, route)
            return await route.handler(call)
        except Exception as error:
            return _error(error, route)

    return endpoint


async def _parse(call: Call, route: Route) -> object:
    assert route.takes is not None
    body = await read_body(call.http, call.service.settings.max_body_bytes)
    try:
        return json.parse_model(route.takes, json.loads(body or b"{}"))
    except UserError as error:
        consume(call, *json.peek_address(body))
        raise Malformed(str(error)) from error


def _error(error: Exception, route: Route) -> Response:
    for kind, status in STATUS:
        if isinstance(error, kind):
            response = reply({"detail": str(error)}, status)
            if status in _TRY_AGAIN_LATER:
                response.headers["Retry-After"] = _TRY_AGAIN_LATER[status]
            return response
    log.error("%s %s failed", route.method, route.path, exc_info=error)
    return reply({"detail": f"internal error: {type(error).__name__}"}, 500)


async def _http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return reply({"detail": error.detail}, error.status_code)
