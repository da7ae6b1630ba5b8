"""What can go wrong, as exceptions. All of them survive pickling, and none carries a secret."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tinsmith.types import RequestErrorCategory


class TinkerError(Exception):
    """Base of everything this client raises about the service.

    What is known of the operation it concerns stands in ``request_id``, ``seq_id``, ``model_id`` and
    ``category``; ``retryable`` says whether asking once more may help.

    >>> try:
    ...     service.create_lora_training_client("no-such-model").result()
    ... except TinkerError as error:
    ...     print(type(error).__name__)
    RequestFailedError
    """

    request_id: str | None = None
    seq_id: int | None = None
    model_id: str | None = None
    category: RequestErrorCategory | None = None

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later: by the table in docs/retries.md."""
        from .retry import may_help_to_ask_again

        return may_help_to_ask_again(self)

    # Keyword-only constructors defeat the default pickling, so an instance is taken apart as it stands.
    def __reduce__(self) -> tuple[Any, ...]:
        return _revive, (type(self), self.args, dict(self.__dict__))


@contextmanager
def about(**what: Any) -> Iterator[None]:
    """Errors that leave this block say which operation they concern, unless they already do."""
    try:
        yield
    except TinkerError as error:
        for name, value in what.items():
            if getattr(error, name) is None:
                setattr(error, name, value)
        raise


def _revive(cls: type[TinkerError], args: tuple[Any, ...], state: dict[str, Any]) -> TinkerError:
    error = cls.__new__(cls, *args)
    error.__dict__.update(state)
    return error


class APIError(TinkerError):
    """An HTTP exchange that did not give what was asked. ``request`` says which, as ``POST /api/v1/...``.

    >>> faults.on("get_server_capabilities", Status(403, "not for you"))
    >>> try:
    ...     service.get_server_capabilities()
    ... except APIError as error:
    ...     print(error.request)
    GET /api/v1/get_server_capabilities
    """

    def __init__(self, message: str, request: Any = None, *, body: object = None) -> None:
        super().__init__(message)
        self.message = message
        self.request = request
        self.body = body


class APIResponseValidationError(APIError):
    """The service answered with something this client cannot read.

    >>> faults.on("get_server_capabilities", Garbled(b"<html>"))
    >>> service.get_server_capabilities()
    Traceback (most recent call last):
    APIResponseValidationError: ...
    """

    def __init__(
        self,
        response: Any,
        body: object = None,
        message: str = "The service's answer cannot be read.",
        request: Any = None,
    ) -> None:
        super().__init__(message, request, body=body)
        self.response = response
        self.status_code: int = response.status_code


class APIStatusError(APIError):
    """The service answered with an error status.

    >>> faults.on("get_server_capabilities", Status(418, "no pots here"))
    >>> try:
    ...     service.get_server_capabilities()
    ... except APIStatusError as error:
    ...     print(error.status_code, error.body)
    418 {'detail': 'no pots here'}
    """

    status_code: int

    def __init__(self, message: str, response: Any, body: object = None, request: Any = None) -> None:
        super().__init__(message, request, body=body)
        self.response = response
        self.status_code = response.status_code


class APIConnectionError(APIError):
    """The service could not be reached, or the connection broke.

    >>> nobody = ServiceClient(base_url="http://127.0.0.1:9", max_retries=0)
    >>> nobody.get_server_capabilities()
    Traceback (most recent call last):
    APIConnectionError: ...
    """

    def __init__(self, request: Any = None, message: str = "Connection error.") -> None:
        super().__init__(message, request)


class APITimeoutError(APIConnectionError):
    """The service did not answer in time.

    >>> faults.on("get_server_capabilities", Slow(before=0.5))
    >>> hasty = ServiceClient(base_url=faults.url, timeout=0.05, max_retries=0)
    >>> hasty.get_server_capabilities()
    Traceback (most recent call last):
    APITimeoutError: ...
    """

    def __init__(self, request: Any = None, message: str = "Request timed out.") -> None:
        super().__init__(request, message)


class BadRequestError(APIStatusError):
    """400: the request is wrong.

    >>> faults.on("get_server_capabilities", Status(400, "because"))
    >>> try:
    ...     once.get_server_capabilities()
    ... except BadRequestError as error:
    ...     print(error.status_code, error.retryable)
    400 False
    """

    status_code: int = 400


class AuthenticationError(APIStatusError):
    """401: the API key is missing or not valid.

    >>> faults.on("get_server_capabilities", Status(401, "because"))
    >>> try:
    ...     once.get_server_capabilities()
    ... except AuthenticationError as error:
    ...     print(error.status_code, error.retryable)
    401 False
    """

    status_code: int = 401


class BillingError(APIStatusError):
    """402: the account cannot pay for this.

    >>> faults.on("get_server_capabilities", Status(402, "because"))
    >>> try:
    ...     once.get_server_capabilities()
    ... except BillingError as error:
    ...     print(error.status_code, error.retryable)
    402 True
    """

    status_code: int = 402


class PermissionDeniedError(APIStatusError):
    """403: the API key may not do this.

    >>> faults.on("get_server_capabilities", Status(403, "because"))
    >>> try:
    ...     once.get_server_capabilities()
    ... except PermissionDeniedError as error:
    ...     print(error.status_code, error.retryable)
    403 False
    """

    status_code: int = 403


class NotFoundError(APIStatusError):
    """404: there is no such thing.

    >>> service.create_rest_client().get_training_run("no-such-run").result()
    Traceback (most recent call last):
    NotFoundError: ...
    """

    status_code: int = 404


class ConflictError(APIStatusError):
    """409: the request conflicts with how things stand.

    >>> faults.on("get_server_capabilities", Status(409, "because"))
    >>> try:
    ...     once.get_server_capabilities()
    ... except ConflictError as error:
    ...     print(error.status_code, error.retryable)
    409 True
    """

    status_code: int = 409


class UnprocessableEntityError(APIStatusError):
    """422: the request could not be understood.

    >>> faults.on("get_server_capabilities", Status(422, "because"))
    >>> try:
    ...     once.get_server_capabilities()
    ... except UnprocessableEntityError as error:
    ...     print(error.status_code, error.retryable)
    422 False
    """

    status_code: int = 422


class RateLimitError(APIStatusError):
    """429: too many requests for now.

    >>> faults.on("get_server_capabilities", Status(429, "because"))
    >>> try:
    ...     once.get_server_capabilities()
    ... except RateLimitError as error:
    ...     print(error.status_code, error.retryable)
    429 True
    """

    status_code: int = 429


class InternalServerError(APIStatusError):
    """500 and above: the service failed.

    >>> faults.on("get_server_capabilities", Status(503, "because"))
    >>> try:
    ...     once.get_server_capabilities()
    ... except InternalServerError as error:
    ...     print(error.status_code, error.retryable)
    503 True
    """


STATUS_ERRORS: dict[int, type[APIStatusError]] = {
    cls.status_code: cls
    for cls in (
        BadRequestError,
        AuthenticationError,
        BillingError,
        PermissionDeniedError,
        NotFoundError,
        ConflictError,
        UnprocessableEntityError,
        RateLimitError,
    )
}

_HINTS = {
    401: "check TINKER_API_KEY, or the api_key argument",
    404: "check TINKER_BASE_URL and the id or path asked for",
    413: "the request is too large for the service or a proxy before it",
}


class RequestFailedError(TinkerError):
    """An operation was accepted and then failed. ``category`` says whose fault it was.

    >>> prompt = ModelInput.from_ints([10**6])  # the model does not have so many tokens
    >>> try:
    ...     sampler.sample(prompt, 1, SamplingParams(max_tokens=1)).result()
    ... except RequestFailedError as error:
    ...     print(error.category)
    user
    """

    request_id: str
    category: RequestErrorCategory

    def __init__(self, message: str, request_id: str, category: RequestErrorCategory | str) -> None:
        super().__init__(message)
        self.message = message
        self.request_id = request_id
        self.category = parse_category(category)


class RetrieveError(TinkerError, ValueError):
    """The result of an accepted operation cannot be had; the HTTP error is the ``__cause__``.

    >>> faults.on("retrieve_future", Garbled(b"<html>"))
    >>> training.optim_step(AdamParams()).result()
    Traceback (most recent call last):
    RetrieveError: ...
    """

    request_id: str

    def __init__(self, message: str, request_id: str) -> None:
        super().__init__(message)
        self.message = message
        self.request_id = request_id


class ResultExpiredError(RetrieveError):
    """410: the service no longer has the result of this operation.

    >>> faults.on("retrieve_future", Status(410))
    >>> training.forward([DATUM], "cross_entropy").result()
    Traceback (most recent call last):
    ResultExpiredError: ...
    """


class DeadlineError(RetrieveError, TimeoutError):
    """An operation had no result within the client's deadline; the service may still carry it out.

    >>> faults.on("retrieve_future", Pending("408"))
    >>> impatient = ServiceClient(base_url=faults.url, deadline=1e-9)
    >>> impatient.create_lora_training_client("tiny-llama", rank=2).result()
    Traceback (most recent call last):
    DeadlineError: ...
    """


class ClientClosedError(TinkerError, RuntimeError):
    """The client was closed; make a new ServiceClient.

    >>> with ServiceClient() as closed:
    ...     pass
    >>> closed.get_server_capabilities()
    Traceback (most recent call last):
    ClientClosedError: ...
    """


class StreamingUnsupportedError(TinkerError, NotImplementedError):
    """This service does not stream samples; use ``sample()``.

    >>> faults.on("client/config", Garbled(b"{}", "application/json"))  # says nothing of streams
    >>> other = ServiceClient(base_url=faults.url).create_sampling_client(base_model="tiny-llama")
    >>> list(other.stream(PROMPT, SamplingParams(max_tokens=1)))
    Traceback (most recent call last):
    StreamingUnsupportedError: ...
    """


class StreamConsumedError(TinkerError, RuntimeError):
    """The tokens of this stream were taken already; a stream is read once.

    >>> stream = sampler.stream(PROMPT, SamplingParams(max_tokens=2, stop=[]))
    >>> len(list(stream))
    2
    >>> list(stream)
    Traceback (most recent call last):
    StreamConsumedError: ...
    """


class DownloadError(TinkerError, OSError):
    """What was downloaded is not what the service announced.

    >>> issubclass(DownloadError, OSError)
    True
    """


class ExperimentalWarning(UserWarning):
    """What this names may change without notice.

    >>> import warnings
    >>> warnings.simplefilter("error", ExperimentalWarning)  # for programs that want none of it
    """


class ForkedProcessError(TinkerError, RuntimeError):
    """A client made before a fork was used in the child process.

    >>> import os
    >>> if (child := os.fork()) == 0:
    ...     try:
    ...         sampler.sample(PROMPT, 1, SamplingParams())
    ...     except ForkedProcessError:
    ...         os._exit(7)
    >>> os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    7
    """


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
