"""The retry table row by row, the hints, the back-off and the one budget."""

from __future__ import annotations

import asyncio
import email.utils

import pytest
import retries_document

from tinsmith.client.errors import (
    APIConnectionError,
    APITimeoutError,
    RequestFailedError,
    RetrieveError,
    status_error,
)
from tinsmith.client.retry import (
    TABLE,
    Budget,
    Delay,
    Layer,
    RetryConfig,
    call_with_retries,
    case_of,
    is_user_error,
    retry_after,
    should_retry,
)
from tinsmith.client.transport import Response


def http(status: int, headers: dict[str, str] | None = None, body: bytes = b'{"detail": "x"}') -> Exception:
    return status_error("POST /x", Response(status, headers or {}, body))


C, R, P, S, G = Layer.CALL, Layer.REST, Layer.POLL, Layer.SAMPLE, Layer.GATE
N, X = Layer.RESAMPLE, Layer.OPTIONAL

ROWS = [
    ("timeout", APITimeoutError(), {C, R, P, S}, False),
    ("connection", APIConnectionError(), {C, R, P, S}, False),
    ("400-empty", http(400, body=b""), {C, R, P, S}, True),
    ("4xx", http(400), set(), True),
    ("4xx", http(401), set(), True),
    ("402", http(402), {P}, True),
    ("4xx", http(403), set(), True),
    ("4xx", http(404), set(), True),
    ("408", http(408), {C, R, P, S}, False),
    ("409", http(409), {C, P, S}, True),
    ("410", http(410), {N}, True),
    ("4xx", http(422), set(), True),
    ("429", http(429), {C, R, P, G}, True),
    ("5xx", http(500), {C, R, P, S}, False),
    ("5xx", http(503), {C, R, P, S}, False),
    ("5xx", http(599), {C, R, P, S}, False),
    ("failed-user", RequestFailedError("m", "r", "user"), set(), True),
    ("failed-server", RequestFailedError("m", "r", "server"), {X}, False),
    ("failed-unknown", RequestFailedError("m", "r", "nonsense"), {X}, False),
    ("other", ValueError("x"), set(), False),
]


@pytest.mark.parametrize(("case", "error", "layers", "user"), ROWS, ids=[str(at) for at in range(len(ROWS))])
def test_row(case, error, layers, user):
    assert case_of(error) == case
    assert {layer for layer in Layer if should_retry(error, layer)} == layers
    assert is_user_error(error) is user


def test_every_row_of_the_table_is_tested():
    assert {case for case, *_ in ROWS} == set(TABLE)


@pytest.mark.parametrize(("status", "word", "retried"), [(400, "true", True), (503, "false", False)])
def test_the_service_s_word_goes_before_the_table(status, word, retried):
    assert should_retry(http(status, {"x-should-retry": word}), C) is retried


def test_a_user_error_is_found_behind_its_wrapper():
    wrapped = RetrieveError("m", "r")
    wrapped.__cause__ = http(404)
    assert is_user_error(wrapped)
    wrapped.__cause__ = http(408)
    assert not is_user_error(wrapped)


NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": "2.5"}, 2.5),
        ({"retry-after": "60"}, 60.0),
        ({"retry-after": "60.1"}, None),
        ({"retry-after": "0"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": email.utils.formatdate(NOW + 30, usegmt=True)}, 30.0),
        ({"retry-after": email.utils.formatdate(NOW - 30, usegmt=True)}, None),
        ({"retry-after": "2026-01-01T00:00:00Z"}, None),
        ({"retry-after": "later"}, None),
    ],
)
def test_retry_after(headers, seconds):
    assert retry_after(headers, wall_time=lambda: NOW) == seconds


def test_backoff_doubles_to_its_limit_and_jitters_downwards():
    delay = Delay()
    assert [delay.after(n, 0.0) for n in range(6)] == [0.5, 1, 2, 4, 8, 10]
    assert delay.after(2, 1.0) == pytest.approx(1.5)
    assert delay.after(10_000, 0.0) == 10
    assert Delay(1.0, 3.0, 0.5).after(5, 1.0) == 1.5


def run(failures, clock, budget):
    left = list(failures)

    async def attempt(tries):
        if left:
            raise left.pop(0)
        return tries

    return asyncio.run(call_with_retries(attempt, budget, clock))


def test_it_tries_until_it_works_with_the_hint_where_there_is_one(clock):
    failures = [http(503), http(503, {"retry-after": "7"}), APIConnectionError()]
    assert run(failures, clock, Budget(C)) == 3
    assert clock.slept == [0.5, 7.0, 2.0]


def test_a_final_answer_is_final(clock):
    with pytest.raises(Exception, match="404"):
        run([http(404)], clock, Budget(C))
    assert clock.slept == []


def test_one_budget_of_time_bounds_the_whole_call(clock):
    with pytest.raises(Exception, match="503") as caught:
        run([http(503)] * 1000, clock, Budget(C, seconds=60))
    assert clock.time <= 60
    assert "gave up" in caught.value.__notes__[0]


def test_a_number_of_retries_bounds_it_too(clock):
    with pytest.raises(Exception, match="503"):
        run([http(503)] * 9, clock, Budget(C, retries=3))
    assert len(clock.slept) == 3


def test_the_document_says_what_the_table_says():
    assert retries_document.DOCUMENT.read_text() == retries_document.render()


def test_every_layer_is_described():
    assert set(retries_document.LAYERS) == set(Layer)


@pytest.mark.parametrize(
    ("error", "retryable"),
    [
        (http(503), True),
        (http(404), False),
        (APIConnectionError(), True),
        (RequestFailedError("m", "r", "server"), True),
        (RequestFailedError("m", "r", "user"), False),
        (RetrieveError("m", "r"), False),
    ],
)
def test_an_error_says_whether_to_ask_again(error, retryable):
    assert error.retryable is retryable


def test_what_wraps_an_answer_is_as_retryable_as_the_answer():
    wrapped = RetrieveError("m", "r")
    wrapped.__cause__ = http(503)
    assert wrapped.retryable


def test_exceptions_of_the_user_s_own_are_retried_where_he_says_so():
    config = RetryConfig(retryable_exceptions=(KeyError,))
    assert config.retries(KeyError())
    assert not config.retries(APIConnectionError())
    assert config.retries(http(503))
    assert not config.retries(http(404))
