"""The ASGI application: the table of routes, and one place where errors become status codes."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute

from tinsmith.service import Service
from tinsmith.service.quotas import TooMuchWaiting
from tinsmith.types import Forbidden, Gone, NotFound, Unavailable, UserError
from tinsmith.types.queries import Query
from tinsmith.wire import json

from .auth import NOBODY, Authenticator, RejectedToken, Unauthorized
from .call import Call, Malformed, reply
from .intake import MOST_CONTROL_BYTES, Intake, TooLarge, TooSlow, read_body
from .metrics import Metrics
from .openapi import DOCUMENT_PATHS, document
from .pace import Paced
from .routes import API, ROUTES, Route
from .training import consume

log = logging.getLogger(__name__)

# The first class that fits decides. A permanent refusal is never 409, which clients take as "try again".
STATUS: list[tuple[type[Exception], int]] = [
    (Unauthorized, 401),
    (Forbidden, 403),
    (NotFound, 404),
    (Gone, 410),
    (TooSlow, 408),
    (TooLarge, 413),
    (Malformed, 422),
    (TooMuchWaiting, 429),
    (UserError, 400),
    (Unavailable, 503),
]
_TRY_AGAIN_LATER = {429: "1", 503: "5"}  # seconds, where the error itself does not say
_NEW_TOKEN = 'Bearer error="invalid_token"'  # clients that came with a token then make a new one


def create_app(service: Service, auth: Authenticator, *, own_service: bool = False) -> Starlette:
    """The application. With ``own_service`` it starts and stops the service with itself."""

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        await service.start()
        try:
            yield
        finally:
            await service.stop()

    metrics = Metrics(service)
    intake = Intake(service.settings.max_body_bytes)

    def endpoint(route: Route) -> Callable[[Request], Awaitable[Response]]:
        return _endpoint(service, auth, intake, route, metrics)

    routes = [StarletteRoute(route.address, endpoint(route), methods=[route.method]) for route in ROUTES]
    routes.append(StarletteRoute("/metrics", endpoint(Route("GET", "metrics", metrics.handler))))
    described = reply(document())
    routes += [StarletteRoute(path, _constant(described)) for path in DOCUMENT_PATHS]
    return Starlette(
        routes=routes,
        middleware=[Middleware(Paced, paths={f"{API}/{route.path}" for route in ROUTES if route.bulk})],
        lifespan=lifespan if own_service else None,
        exception_handlers={HTTPException: _http_error},
    )


def _endpoint(
    service: Service, auth: Authenticator, intake: Intake, route: Route, metrics: Metrics
) -> Callable[[Request], Awaitable[Response]]:
    async def answer(http: Request) -> Response:
        try:
            caller = NOBODY if route.open else auth.caller(http.headers)
            service.check_open()
            with intake.of(caller.owner) as taking:
                call = Call(service, caller, http, taking, key_required=auth.required)
                if route.query is not None:
                    call.query = _parse_query(http, route.query)
                if route.takes is not None:
                    call.body = await _parse(call, route)
                return await route.handler(call)
        except Exception as error:
            return _error(error, route)

    async def endpoint(http: Request) -> Response:
        response = await answer(http)
        metrics.count(route, response.status_code)
        return response

    return endpoint


def _constant(response: Response) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(_http: Request) -> Response:
        return response

    return endpoint


def _parse_query(http: Request, query: type[Query]) -> Query:
    given = http.query_params.multi_items()
    for name, _ in given:
        if sum(other == name for other, _ in given) > 1:
            raise UserError("given more than once", field=name)
    return json.parse_model(query, dict(given))


async def _parse(call: Call, route: Route) -> object:
    assert route.takes is not None
    body = await read_body(call, None if route.bulk else MOST_CONTROL_BYTES)
    try:
        return json.parse_model(route.takes, json.loads_request(body or b"{}"))
    except UserError as error:
        consume(call, *json.peek_address(body))
        raise Malformed(str(error)) from error


def _error(error: Exception, route: Route) -> Response:
    for kind, status in STATUS:
        if isinstance(error, kind):
            response = _refusal(route, str(error), status)
            if status in _TRY_AGAIN_LATER:
                seconds = getattr(error, "retry_after", _TRY_AGAIN_LATER[status])
                response.headers["Retry-After"] = str(seconds)
            if isinstance(error, RejectedToken):
                response.headers["WWW-Authenticate"] = _NEW_TOKEN
            return response
    log.error("%s %s failed", route.method, route.path, exc_info=error)
    return _refusal(route, f"internal error: {type(error).__name__}", 500)


def _refusal(route: Route, message: str, status: int) -> Response:
    """What was wrong; for OpenAI's clients also where they look for it."""
    if route.prefix == API:
        return reply({"detail": message}, status)
    kind = "invalid_request_error" if status < 500 else "server_error"
    error = {"message": message, "type": kind, "param": None, "code": None}
    return reply({"detail": message, "error": error}, status)


async def _http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    response = reply({"detail": error.detail}, error.status_code)
    response.headers.update(error.headers or {})
    return response
