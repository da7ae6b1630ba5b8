"""Streams as the client reads them: once, to their end or not at all, and with a reason where they fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace

import numpy as np
import pytest
from client_stub import Answer, Stub, serve

import tinsmith
from tinsmith import ModelInput, SamplingParams
from tinsmith.client.stream import _events
from tinsmith.types import SequenceDelta
from tinsmith.wire import sample_events, sse

PROMPT = ModelInput.from_ints([1, 2])


def told(*tokens: int, index: int = 0, reason: str | None = None) -> bytes:
    logprobs = np.full(len(tokens), -1.0, np.float32)
    delta = SequenceDelta(index, np.array(tokens, np.int32), logprobs, reason)
    return sse.encode(sample_events.tokens_event(delta))


DONE = sse.encode(sample_events.DONE)


@pytest.fixture
def streaming() -> Iterator[tuple[Stub, tinsmith.SamplingClient]]:
    stub = Stub({"sample_stream": True})
    with serve(stub) as stub.url, tinsmith.ServiceClient(base_url=stub.url) as service:
        yield stub, service.create_sampling_client(base_model="m").result(30)


def answer(stub: Stub, *pieces: bytes, status: int = 200) -> None:
    stub.script["sample_stream"].append(Answer(status, b"".join(pieces), content_type=sse.CONTENT_TYPE))


def test_tokens_come_in_order_and_the_last_says_why(streaming) -> None:
    stub, sampler = streaming
    answer(stub, told(5, 6), sse.comment(), told(9, index=1, reason="stop"), told(7, reason="length"), DONE)
    tokens = list(sampler.stream(PROMPT, SamplingParams(max_tokens=3), num_samples=2))
    assert [(token.token_id, token.sequence, token.stop_reason) for token in tokens] == [
        (5, 0, None),
        (6, 0, None),
        (9, 1, "stop"),
        (7, 0, "length"),
    ]
    (request,) = stub.to("sample_stream")
    assert request.json["num_samples"] == 2
    assert request.headers["accept"] == sse.CONTENT_TYPE


def test_a_stream_is_read_once_in_either_way(streaming) -> None:
    stub, sampler = streaming
    answer(stub, told(5, reason="stop"), DONE)
    stream = sampler.stream(PROMPT, SamplingParams())
    assert len(list(stream)) == 1

    async def again() -> None:
        async for _ in stream:
            raise AssertionError("there is nothing left")

    with pytest.raises(tinsmith.StreamConsumedError):
        iter(stream).__next__()
    with pytest.raises(tinsmith.StreamConsumedError):
        asyncio.run(again())
    closed = sampler.stream(PROMPT, SamplingParams())
    closed.close()
    with pytest.raises(tinsmith.StreamConsumedError):
        next(iter(closed))


def test_a_service_without_streams_is_named(stub, service) -> None:
    sampler = service.create_sampling_client(base_model="m").result(30)
    with pytest.raises(tinsmith.StreamingUnsupportedError, match=stub.url):
        list(sampler.stream(PROMPT, SamplingParams()))
    assert not stub.to("sample_stream")


def test_one_that_breaks_off_or_fails_is_an_error(streaming) -> None:
    stub, sampler = streaming
    answer(stub, told(5))
    with pytest.raises(tinsmith.RequestFailedError, match="broke off"):
        list(sampler.stream(PROMPT, SamplingParams()))
    answer(stub, told(5), sse.encode(sample_events.failure_event("no room", "server")))
    with pytest.raises(tinsmith.RequestFailedError, match="no room") as caught:
        list(sampler.stream(PROMPT, SamplingParams()))
    assert caught.value.category is tinsmith.RequestErrorCategory.Server
    answer(stub, sse.encode(sse.Event("{}", "tokens")))
    with pytest.raises(tinsmith.APIResponseValidationError):
        list(sampler.stream(PROMPT, SamplingParams()))
    answer(stub, b'{"detail": "unknown"}', status=404)
    with pytest.raises(tinsmith.NotFoundError):
        list(sampler.stream(PROMPT, SamplingParams()))


def test_a_service_that_only_keeps_the_connection_alive_is_given_up_on(clock) -> None:
    async def comments() -> AsyncIterator[bytes]:
        while True:
            clock.time += 10
            yield sse.comment()

    session = SimpleNamespace(clock=clock, config=SimpleNamespace(deadline=60.0))

    async def read() -> None:
        async for _ in _events(SimpleNamespace(aiter_bytes=comments), session):  # type: ignore[arg-type]
            raise AssertionError("comments are no events")

    with pytest.raises(tinsmith.DeadlineError, match="no token for 70 s"):
        asyncio.run(read())
