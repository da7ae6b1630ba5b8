"""Streaming samples end to end: over a port, over the embedded service, refused, abandoned, killed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from server_support import TOKENS, Api, Serve

import tinsmith
from tinsmith.client.in_process import InProcess
from tinsmith.client.transport import StreamedResponse
from tinsmith.engine.interface import EngineLost
from tinsmith.service.limits import Quota
from tinsmith.testing import Drop, Faults, FaultyService, RetryAfter, Status
from tinsmith.types import SampleDelta
from tinsmith.wire import json, sample_events, sse

PROMPT = tinsmith.ModelInput.from_ints(TOKENS)


def params(**given: Any) -> tinsmith.SamplingParams:
    return tinsmith.SamplingParams(**{"max_tokens": 12, "seed": 3, "stop": []} | given)


def body(sampler: str, **given: Any) -> dict[str, Any]:
    sampling = {"max_tokens": 12, "seed": 3, "stop": []} | given.pop("sampling_params", {})
    prompt = {"chunks": [{"tokens": TOKENS}]}
    return {
        "sampling_session_id": sampler,
        "seq_id": 0,
        "prompt": prompt,
        "sampling_params": sampling,
    } | given


@pytest.fixture
def client(tinsmith_faults: Faults, monkeypatch: pytest.MonkeyPatch) -> Iterator[tinsmith.ServiceClient]:
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    with tinsmith.ServiceClient(base_url=tinsmith_faults.url, api_key="tml-test") as service:
        yield service


@pytest.fixture
def sampler(client: tinsmith.ServiceClient) -> tinsmith.SamplingClient:
    return client.create_sampling_client(base_model="tiny-llama").result()


def check_same(streamed: list[tinsmith.StreamedToken], whole: tinsmith.SampleResponse) -> None:
    for index, sequence in enumerate(whole.sequences):
        mine = [token for token in streamed if token.sequence == index]
        assert [token.token_id for token in mine] == sequence.tokens
        assert [token.logprob for token in mine] == sequence.logprobs
        assert [token.stop_reason for token in mine] == [None] * (len(mine) - 1) + [sequence.stop_reason]


def test_a_stream_is_the_sample_token_by_token(sampler: tinsmith.SamplingClient) -> None:
    whole = sampler.sample(PROMPT, 3, params()).result()
    check_same(list(sampler.stream(PROMPT, params(), num_samples=3)), whole)

    async def read() -> list[tinsmith.StreamedToken]:
        async with sampler.stream(PROMPT, params(), num_samples=3) as stream:
            return [token async for token in stream]

    check_same(asyncio.run(read()), whole)


def test_the_first_token_is_there_before_the_last_is_decoded(
    sampler: tinsmith.SamplingClient,
    tinsmith_faulty_service: FaultyService,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The service goes on only once the first token has been read here."""
    read = threading.Event()
    engine: Any = tinsmith_faulty_service.service._engine
    original = engine.stream_sample

    async def held(sampler_id: str, job: Any) -> AsyncGenerator[SampleDelta, None]:
        async for delta in original(sampler_id, job):
            yield delta
            assert await asyncio.to_thread(read.wait, 60)

    monkeypatch.setattr(engine, "stream_sample", held)
    with sampler.stream(PROMPT, params()) as stream:
        tokens = iter(stream)
        first = next(tokens)
        read.set()
        assert [first, *tokens][-1].stop_reason == "length"


@pytest.mark.parametrize("leave", ["break", "close", "connection"])
def test_leaving_ends_the_sample(
    sampler: tinsmith.SamplingClient,
    client: tinsmith.ServiceClient,
    tinsmith_faulty_service: FaultyService,
    leave: str,
) -> None:
    """It would go on for as long as the model can; one that stays busy fails by the test's time limit."""
    service: Any = tinsmith_faulty_service.service
    before = service.futures.outcomes["stream", "abandoned"]
    endless = params(max_tokens=None)
    stream = sampler.stream(PROMPT, endless, num_samples=64)
    for _ in stream:
        if leave == "break":
            break
        if leave == "close":
            stream.close()
        else:
            client.close().result()
        break
    pause = threading.Event()
    while service.futures.outcomes["stream", "abandoned"] == before or service._engine._thread.busy():
        pause.wait(0.01)
    assert service.samplers.running_count == 0


def test_trouble_before_the_first_token_is_tried_again(
    sampler: tinsmith.SamplingClient, tinsmith_faults: Faults
) -> None:
    wait = RetryAfter("ms", 20)
    tinsmith_faults.on("sample_stream", Status(503, retry_after=wait), Status(429, retry_after=wait), Drop())
    assert len(list(sampler.stream(PROMPT, params()))) == 12
    assert tinsmith_faults.left == 0
    assert tinsmith_faults.requests["sample_stream"] == 4


def test_what_the_engine_refuses_is_the_user_s_error(sampler: tinsmith.SamplingClient) -> None:
    wrong = tinsmith.ModelInput.from_ints([10**6])
    with pytest.raises(tinsmith.RequestFailedError, match="token") as caught:
        list(sampler.stream(wrong, params()))
    assert caught.value.category is tinsmith.RequestErrorCategory.User


def test_over_the_embedded_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINSMITH_DATA_DIR", str(tmp_path))
    with tinsmith.ServiceClient(base_url=tinsmith.EMBEDDED) as service:
        sampler = service.create_sampling_client(base_model="tiny-llama").result()
        whole = sampler.sample(PROMPT, 2, params()).result()
        check_same(list(sampler.stream(PROMPT, params(), num_samples=2)), whole)
        with sampler.stream(PROMPT, params(max_tokens=None), num_samples=64) as stream:
            next(iter(stream))
        assert len(sampler.sample(PROMPT, 1, params()).result().sequences) == 1


# ---- the route itself -----------------------------------------------------------------------------------


async def make_sampler(api: Api) -> str:
    made = await api.post(
        "create_sampling_session",
        session_id=await api.session(),
        sampling_session_seq_id=0,
        base_model="tiny-llama",
    )
    return str(made["sampling_session_id"])


def events(raw: bytes) -> list[sse.Event]:
    return sse.Decoder().feed(raw)


def test_refusals_are_those_of_asample(serve: Serve) -> None:
    async def main() -> None:
        async with serve() as api:
            name = await make_sampler(api)
            for wrong, field in (
                (body("nobody:sample:0"), "sampling_session_id"),
                (body(name, seq_id=None), "seq_id"),
                (body(name, record_stability_info=True), "record_stability_info"),
                (body(name, base_model="x", sampling_session_id=None), "base_model"),
                (body(name, unknown=1), "unknown"),
                (body(name, sampling_params={"top_p": "much"}), "top_p"),
            ):
                stream = await api.http.post("sample_stream", json=wrong)
                sample = await api.http.post("asample", json=wrong)
                assert stream.status_code == sample.status_code >= 400
                assert stream.json() == sample.json()
                assert field in stream.json()["detail"]

    asyncio.run(main())


def test_a_stream_counts_against_the_quota_while_it_lasts(serve: Serve) -> None:
    async def main() -> None:
        async with serve(quota=Quota(concurrent_samples=1)) as api:
            name = await make_sampler(api)
            async with _streamed(api, body(name)) as answer:
                assert answer.status_code == 200
                assert answer.headers["content-type"].startswith("text/event-stream")
                # Even under the same seq id it is another stream, and is counted.
                for path in ("sample_stream", "asample"):
                    refused = await api.http.post(path, json=body(name))
                    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
                raw = b"".join([piece async for piece in answer.aiter_bytes()])
            assert [event.event for event in events(raw)][-1] == "done"
            assert (await api.do("asample", **body(name)))["sequences"]

    asyncio.run(main())


def _streamed(api: Api, asked: dict[str, Any]) -> AbstractAsyncContextManager[StreamedResponse]:
    """Unlike httpx's transport for apps, ours passes on the answer while it is made."""
    app = api.http._transport.app  # type: ignore[attr-defined]
    headers = {"content-type": "application/json"}
    how: dict[str, Any] = {"headers": headers, "timeout": 60, "pool": "stream"}
    return InProcess(app).stream("POST", "/api/v1/sample_stream", body=json.dumps(asked), **how)


def test_usage_counts_what_was_told_even_if_the_reader_left(serve: Serve) -> None:
    async def main() -> None:
        async with serve() as api:
            name = await make_sampler(api)
            totals = api.service.usage.totals
            await api.http.post("sample_stream", json=body(name))
            assert (totals["prefill"] + totals["prefill_cached"], totals["sample"]) == (len(TOKENS), 12)
            endless = body(name, sampling_params={"max_tokens": None, "seed": 5, "stop": []}, num_samples=64)
            told = 0
            async with _streamed(api, endless) as answer:
                decoder = sse.Decoder()
                async for piece in answer.aiter_bytes():
                    told += sum(
                        len(sample_events.tokens_of(event).tokens_np) for event in decoder.feed(piece)
                    )
                    if told:
                        break
            while not api.service.futures.outcomes["stream", "abandoned"]:
                await asyncio.sleep(0)
            assert totals["sample"] >= 12 + told
            assert totals["prefill"] + totals["prefill_cached"] == 2 * len(TOKENS)
            assert api.service.futures.outcomes["stream", "ok"] == 1

    asyncio.run(main())


@pytest.mark.parametrize("deaths", [[4], [2, 4]], ids=["once", "twice"])
def test_an_engine_that_dies_under_a_stream(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, deaths: list[int]
) -> None:
    """It is begun anew under the same seed and nothing is told twice; what kills the engine twice fails."""
    left = list(deaths)

    async def main() -> None:
        async with serve() as api:
            name = await make_sampler(api)
            engine: Any = api.service._engine
            original = engine.stream_sample

            async def mortal(sampler_id: str, job: Any) -> AsyncGenerator[SampleDelta, None]:
                lives = left.pop(0) if left else 10**9
                async for delta in original(sampler_id, job):
                    if not lives:
                        engine.generation = engine.generation + 1
                        await engine.close_sampler(sampler_id)
                        raise EngineLost("killed by the test")
                    lives -= 1
                    yield delta

            monkeypatch.setattr(engine, "stream_sample", mortal)
            answer = await api.http.post("sample_stream", json=body(name, num_samples=3))
            assert not left
            *parts, last = events(answer.content)
            whole = (await api.do("asample", **body(name, num_samples=3)))["sequences"]
            told: list[list[int]] = [[], [], []]
            for part in map(sample_events.tokens_of, parts):
                told[part.index] += part.tokens_np.tolist()
            if len(deaths) == 1:
                assert last == sample_events.DONE
                assert told == [sequence["tokens"] for sequence in whole]
            else:
                failure = "the engine died of this operation, twice"
                assert sample_events.failure_of(last) == (failure, "server")
                for mine, sequence in zip(told, whole, strict=True):
                    assert 0 < len(mine) < 12
                    assert mine == sequence["tokens"][: len(mine)]

    asyncio.run(main())


def test_a_service_that_stops_says_so_to_whoever_reads(serve: Serve) -> None:
    async def main() -> None:
        async with serve() as api:
            name = await make_sampler(api)
            endless = body(name, sampling_params={"max_tokens": None, "stop": []}, num_samples=64)
            async with _streamed(api, endless) as answer:
                pieces = answer.aiter_bytes()
                raw = await anext(pieces)
                await api.service.samplers.stop()
                raw += b"".join([piece async for piece in pieces])
            last = events(raw)[-1]
            assert sample_events.failure_of(last) == ("the service is shutting down", "server")

    asyncio.run(main())
