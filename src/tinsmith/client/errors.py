"""What can go wrong, as exceptions. All of them survive pickling, and none carries a secret."""

from __future__ import annotations

import json
from typing import Any

from tinsmith.types import RequestErrorCategory


class TinkerError(Exception):
    """Base of everything this client raises about the service."""

    # Keyword-only constructors defeat the default pickling, so an instance is taken apart as it stands.
    def __reduce__(self) -> tuple[Any, ...]:
        return _revive, (type(self), self.args, dict(self.__dict__))


def _revive(cls: type[TinkerError], args: tuple[Any, ...], state: dict[str, Any]) -> TinkerError:
    error = cls.__new__(cls, *args)
    error.__dict__.update(state)
    return error


class APIError(TinkerError):
    """An HTTP exchange that did not give what was asked. ``request`` says which, as ``POST /api/v1/...``."""

    def __init__(self, message: str, request: Any = None, *, body: object = None) -> None:
        super().__init__(message)
        self.message = message
        self.request = request
        self.body = body


class APIResponseValidationError(APIError):
    """The service answered with something this client cannot read."""

    def __init__(self, message: str, *, response: Any, body: object = None, request: Any = None) -> None:
        super().__init__(message, request, body=body)
        self.response = response
        self.status_code: int = response.status_code


class APIStatusError(APIError):
    """The service answered with an error status."""

    def __init__(self, message: str, *, response: Any, body: object = None, request: Any = None) -> None:
        super().__init__(message, request, body=body)
        self.response = response
        self.status_code: int = response.status_code


class APIConnectionError(APIError):
    """The service could not be reached, or the connection broke."""

    def __init__(self, message: str = "Connection error.", request: Any = None) -> None:
        super().__init__(message, request)


class APITimeoutError(APIConnectionError):
    """The service did not answer in time."""

    def __init__(self, message: str = "Request timed out.", request: Any = None) -> None:
        super().__init__(message, request)


class BadRequestError(APIStatusError):
    """400: the request is wrong."""


class AuthenticationError(APIStatusError):
    """401: the API key is missing or not valid."""


class BillingError(APIStatusError):
    """402: the account cannot pay for this."""


class PermissionDeniedError(APIStatusError):
    """403: the API key may not do this."""


class NotFoundError(APIStatusError):
    """404: there is no such thing."""


class ConflictError(APIStatusError):
    """409: the request conflicts with how things stand."""


class UnprocessableEntityError(APIStatusError):
    """422: the request could not be understood."""


class RateLimitError(APIStatusError):
    """429: too many requests for now."""


class InternalServerError(APIStatusError):
    """500 and above: the service failed."""


STATUS_ERRORS: dict[int, type[APIStatusError]] = {
    400: BadRequestError,
    401: AuthenticationError,
    402: BillingError,
    403: PermissionDeniedError,
    404: NotFoundError,
    409: ConflictError,
    422: UnprocessableEntityError,
    429: RateLimitError,
}

_HINTS = {
    401: "check TINKER_API_KEY, or the api_key argument",
    404: "check TINKER_BASE_URL and the id or path asked for",
    413: "the request is too large for the service or a proxy before it",
}


class RequestFailedError(TinkerError):
    """An operation was accepted and then failed. ``category`` says whose fault it was."""

    def __init__(self, message: str, request_id: str, category: RequestErrorCategory | str) -> None:
        super().__init__(message)
        self.message = message
        self.request_id = request_id
        self.category = parse_category(category)


class RetrieveError(TinkerError, ValueError):
    """The result of an accepted operation cannot be had; the HTTP error is the ``__cause__``."""

    def __init__(self, message: str, request_id: str) -> None:
        super().__init__(message)
        self.message = message
        self.request_id = request_id


class ResultExpiredError(RetrieveError):
    """410: the service no longer has the result of this operation."""


class ClientClosedError(TinkerError, RuntimeError):
    """The client was closed; make a new ServiceClient."""


class ForkedProcessError(TinkerError, RuntimeError):
    """A client made before a fork was used in the child process."""


def parse_category(value: object) -> RequestErrorCategory:
    """The category in any spelling; Unknown where it is none of the three."""
    try:
        return RequestErrorCategory(str(value).lower())
    except ValueError:
        return RequestErrorCategory.Unknown


def status_error(request: str, response: Any) -> APIStatusError:
    """The exception for an error status, with what the service said about it."""
    status: int = response.status_code
    body = _error_body(response.body)
    hint = f" ({_HINTS[status]})" if status in _HINTS else ""
    message = f"Error code: {status} - {_detail(body) or 'no details given'}; in answer to {request}{hint}"
    cls = STATUS_ERRORS.get(status) or (InternalServerError if status >= 500 else APIStatusError)
    return cls(message, response=response, body=body, request=request)


def _error_body(body: bytes) -> object:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode(errors="replace").strip()[:2000] or None


def _detail(body: object) -> str:
    if isinstance(body, dict):
        for key in ("detail", "error", "message"):
            if body.get(key):
                return body[key] if isinstance(body[key], str) else json.dumps(body[key])
    return "" if body is None else str(body)
