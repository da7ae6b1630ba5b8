"""Waiting for results: every kind of answer, and the pauses between polls."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any

import orjson
import pytest

from tinsmith.client.api import Api
from tinsmith.client.config import ClientConfig
from tinsmith.client.errors import (
    APIConnectionError,
    APITimeoutError,
    RequestFailedError,
    ResultExpiredError,
    RetrieveError,
)
from tinsmith.client.polling import Poller, QueueWatch
from tinsmith.client.replies import OLD_SERVER, ServerConfig
from tinsmith.client.results import FORWARD_BACKWARD, OPTIM_STEP
from tinsmith.client.transport import Response
from tinsmith.types import ForwardBackwardOutput
from tinsmith.wire import protobuf

DONE = Response(200, {"content-type": "application/json"}, b'{"metrics": {"a:sum": 1.0}}')


def answer(status: int, body: Any = None, headers: dict[str, str] | None = None) -> Response:
    return Response(status, headers or {}, b"" if body is None else orjson.dumps(body))


class Scripted:
    """A transport that answers from a list, and lets time pass as a service does that holds polls."""

    def __init__(self, clock: Any, answers: list[Any], held: float = 0.0) -> None:
        self.clock = clock
        self.answers = deque(answers)
        self.held = held
        self.requests: list[dict[str, Any]] = []

    async def request(self, method: str, path: str, **how: Any) -> Response:
        self.requests.append({"path": path, **how, "body": orjson.loads(how["body"])})
        self.clock.time += self.held
        reply = self.answers.popleft()
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def aclose(self) -> None:
        pass


def wait(clock, answers, kind=OPTIM_STEP, held=0.0, server=None, **how):
    transport = Scripted(clock, answers, held)
    api = Api(transport, ClientConfig(base_url="http://x"), clock)
    poller = Poller(api, server or ServerConfig(), clock)
    try:
        return asyncio.run(poller.wait("req", kind, **how)), transport
    finally:
        wait.transport = transport


PENDING = [
    answer(408, {"queue_state": "active"}),
    answer(408),
    answer(200, {"type": "try_again", "request_id": "req"}),
]


@pytest.mark.parametrize("pending", PENDING)
def test_answers_at_once_make_the_pauses_grow(clock, pending):
    result, transport = wait(clock, [pending] * 8 + [DONE])
    assert result.metrics == {"a:sum": 1.0}
    assert clock.slept == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    assert [request["headers"]["x-tinker-request-iteration"] for request in transport.requests] == [
        str(n) for n in range(9)
    ]


@pytest.mark.parametrize("pending", PENDING)
def test_a_service_that_holds_the_poll_is_asked_again_at_once(clock, pending):
    wait(clock, [pending] * 5 + [DONE], held=30.0)
    assert clock.slept == [0.0] * 5


@pytest.mark.parametrize("trouble", [answer(500), answer(503), APIConnectionError(), answer(429)])
def test_trouble_backs_off_further(clock, trouble):
    wait(clock, [trouble] * 9 + [DONE])
    assert clock.slept == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]


def test_a_poll_that_timed_out_has_waited_long_enough(clock):
    wait(clock, [APITimeoutError()] * 2 + [DONE], held=45.0)
    assert clock.slept == [0.0, 0.0]


def test_the_hint_is_followed(clock):
    wait(clock, [answer(503, headers={"retry-after": "12"}), DONE])
    assert clock.slept == [12.0]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_what_is_wrong_stays_wrong(clock, status):
    with pytest.raises(RetrieveError, match="no such thing") as caught:
        wait(clock, [answer(status, {"detail": "no such thing"})])
    assert isinstance(caught.value, ValueError)
    assert caught.value.request_id == "req"
    assert caught.value.__cause__.status_code == status
    assert clock.slept == []


def test_gone(clock):
    with pytest.raises(ResultExpiredError):
        wait(clock, [answer(410, {"detail": "expired"})])


def test_an_empty_400_is_a_proxy_s_but_not_for_ever(clock):
    wait(clock, [answer(400)] * 5 + [DONE])
    with pytest.raises(RetrieveError):
        wait(clock, [answer(400)] * 6 + [DONE])
    wait(
        clock, [answer(408)] * 9 + [answer(400)] + [answer(408)] * 9 + [DONE]
    )  # among others, one is nothing


def test_billing_may_be_put_right_for_a_while(clock):
    server = ServerConfig(billing_exception_max_pause_duration_sec=12)
    wait(clock, [answer(402, {"detail": "pay"})] * 2 + [DONE], server=server)
    assert clock.slept == [5.0, 5.0]
    with pytest.raises(RetrieveError, match="pay"):
        wait(clock, [answer(402, {"detail": "pay"})] * 9, server=server)


@pytest.mark.parametrize("category", ["user", "User", "server", "unknown", None])
def test_a_failed_operation(clock, category):
    with pytest.raises(RequestFailedError, match="bad shape") as caught:
        wait(clock, [answer(200, {"error": "bad shape", "category": category})])
    assert caught.value.category == (category or "unknown").lower()
    assert caught.value.request_id == "req"


@pytest.mark.parametrize("body", [b"not json", b"{}", b'{"metrics": 3}', b"[]"])
def test_what_cannot_be_read_names_the_request(clock, body):
    with pytest.raises(ValueError, match="req"):
        wait(clock, [Response(200, {"content-type": "application/json"}, body)], FORWARD_BACKWARD)


RESULT = ForwardBackwardOutput("T", [], {"loss:sum": 2.0})


def test_protobuf_and_json_results(clock):
    binary = Response(
        200,
        {"content-type": "application/x-protobuf; v=1"},
        protobuf.encode_forward_backward_output(RESULT),
    )
    result, transport = wait(clock, [binary], FORWARD_BACKWARD)
    assert result.metrics == RESULT.metrics
    assert transport.requests[0]["headers"]["accept"] == "application/x-protobuf"
    text = answer(200, {"loss_fn_output_type": "T", "loss_fn_outputs": [], "metrics": {"loss:sum": 2.0}})
    result, transport = wait(clock, [text], FORWARD_BACKWARD, server=OLD_SERVER)
    assert result.metrics == RESULT.metrics
    assert transport.requests[0]["headers"]["accept"] == "application/json"


def test_a_large_result_is_asked_for_in_whole(clock):
    large = answer(200, {"status": "complete_metadata", "response_payload_size": 10**9})
    _, transport = wait(clock, [large, DONE])
    assert [request["body"]["allow_metadata_only"] for request in transport.requests] == [True, False]
    with pytest.raises(RetrieveError, match="never sent"):
        wait(clock, [large, large])


def test_the_caller_may_give_up_between_polls(clock):
    def check():
        if clock.now() > 1:
            raise APIConnectionError(message="stuck")

    with pytest.raises(APIConnectionError, match="stuck"):
        wait(clock, [answer(408)] * 99, check=check)


def test_a_paused_queue_is_told_once_a_minute(clock, caplog):
    paused = answer(408, {"queue_state": "paused_capacity", "queue_state_reason": "no room"})
    with caplog.at_level(logging.WARNING, "tinsmith"):
        wait(clock, [paused] * 8 + [DONE], held=10.0, watch=QueueWatch("training of R", clock))
    assert [record.message for record in caplog.records] == ["training of R is waiting: no room"] * 2
