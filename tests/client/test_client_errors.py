"""Exceptions: the hierarchy, what they say, and that they survive a trip to another process."""

from __future__ import annotations

import pickle

import pytest

import tinsmith
from tinsmith.client import errors
from tinsmith.client.errors import RequestFailedError, RetrieveError, parse_category, status_error
from tinsmith.client.transport import Response
from tinsmith.types import RequestErrorCategory, UserError

RESPONSE = Response(418, {"x": "y"}, b'{"detail": "teapot"}')

EXAMPLES = [
    tinsmith.TinkerError("m"),
    tinsmith.APIError("m", "POST /x", body={"a": 1}),
    tinsmith.APIResponseValidationError(RESPONSE, None, "m"),
    tinsmith.APIStatusError("m", response=RESPONSE, body=None),
    tinsmith.APIConnectionError(),
    tinsmith.APITimeoutError("GET /y", "slow"),
    *(cls("m", response=RESPONSE) for cls in errors.STATUS_ERRORS.values()),
    tinsmith.InternalServerError("m", response=RESPONSE),
    tinsmith.RequestFailedError("m", "r", "server"),
    tinsmith.RetrieveError("m", "r"),
    tinsmith.ResultExpiredError("m", "r"),
    tinsmith.ClientClosedError("m"),
    tinsmith.ForkedProcessError("m"),
    UserError("m", field="f"),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_pickling(error):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.__dict__ == error.__dict__


@pytest.mark.parametrize(
    ("status", "name"),
    [
        (400, "BadRequestError"),
        (401, "AuthenticationError"),
        (402, "BillingError"),
        (403, "PermissionDeniedError"),
        (404, "NotFoundError"),
        (408, "APIStatusError"),
        (409, "ConflictError"),
        (422, "UnprocessableEntityError"),
        (429, "RateLimitError"),
        (500, "InternalServerError"),
        (503, "InternalServerError"),
    ],
)
def test_status_to_class(status, name):
    error = status_error("POST /api/v1/x", Response(status, {}, b'{"detail": "because"}'))
    assert type(error).__name__ == name
    assert error.status_code == status
    assert "because" in str(error)
    assert "POST /api/v1/x" in str(error)
    assert isinstance(error, tinsmith.APIError)


@pytest.mark.parametrize(
    "body", [b"", b"<html>bad gateway</html>", b"\xff\xfe", b"[1]", b'{"error": {"a": 1}}']
)
def test_any_error_body_is_readable(body):
    assert "502" in str(status_error("GET /x", Response(502, {}, body)))


@pytest.mark.parametrize(
    ("text", "category"),
    [
        ("user", "user"),
        ("User", "user"),
        ("SERVER", "server"),
        ("unknown", "unknown"),
        ("USER_ERR", "unknown"),
        ("", "unknown"),
        (None, "unknown"),
    ],
)
def test_category_in_any_spelling(text, category):
    assert parse_category(text) == category
    assert RequestFailedError("m", "r", text).category is RequestErrorCategory(category)


def test_a_fatal_poll_error_is_a_value_error_too():
    assert issubclass(RetrieveError, ValueError)
    assert issubclass(RetrieveError, tinsmith.TinkerError)
