"""Streaming samples: tokens as they are decoded, the same as without, and an end on request."""

import asyncio
import pickle
import threading
from collections.abc import AsyncGenerator, Sequence

import numpy as np
import pytest
from engine_support import job, tokens, until, with_engine

from tinsmith.engine.feed import Feed
from tinsmith.engine.local import LocalEngine
from tinsmith.engine.sequence import Sequence as Sample
from tinsmith.types import NotFound, SampleDelta, SampleResponse, UserError


async def collect(deltas: AsyncGenerator[SampleDelta, None]) -> list[SampleDelta]:
    return [pickle.loads(pickle.dumps(delta)) async for delta in deltas]


def check_sum(deltas: Sequence[SampleDelta], whole: SampleResponse) -> None:
    """The deltas end to end, and the response of the last, are the sample as it comes without streaming."""
    *early, last = deltas
    assert last.response is not None
    assert not any(delta.response for delta in early)
    for index, sequence in enumerate(whole.sequences):
        parts = [part for delta in deltas for part in delta.sequences if part.index == index]
        assert [part.stop_reason for part in parts] == [None] * (len(parts) - 1) + [sequence.stop_reason]
        streamed = last.response.sequences[index]
        for got in (np.concatenate([part.tokens_np for part in parts]), streamed.tokens_np):
            np.testing.assert_array_equal(got, sequence.tokens_np)
        for got in (np.concatenate([part.logprobs_np for part in parts]), streamed.logprobs_np):
            np.testing.assert_array_equal(got, sequence.logprobs_np)


def test_deltas_end_to_end_are_the_sample(models, model: str) -> None:
    async def body(engine: LocalEngine) -> None:
        await engine.open_sampler("s", model)
        request = job(tokens(10, 1), n=5, seed=3, max_tokens=20)
        whole = await engine.sample("s", request)
        check_sum(await collect(engine.stream_sample("s", request)), whole)

    with_engine(models, body, sample_rows=2)


def test_each_token_can_be_read_before_the_next_is_decoded(
    models, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine goes on only when the reader has what came before: a stream that lags would never end."""
    read = threading.Semaphore(0)
    tell = Feed.tell

    def tell_and_wait(feed: Feed, samples: Sequence[Sample]) -> None:
        told = dict(feed._told)
        tell(feed, samples)
        if feed._told != told:
            read.acquire()

    monkeypatch.setattr(Feed, "tell", tell_and_wait)

    async def body(engine: LocalEngine) -> list[SampleDelta]:
        await engine.open_sampler("s", model)
        deltas = []
        async for delta in engine.stream_sample("s", job([5], max_tokens=30, stop=[])):
            deltas.append(delta)
            read.release()
        return deltas

    *early, last = with_engine(models, body)
    assert [[len(part.tokens_np) for part in delta.sequences] for delta in early] == [[1]] * 30
    assert last.response is not None


def test_a_slow_reader_gets_fewer_and_longer_deltas(models) -> None:
    async def body(engine: LocalEngine) -> None:
        await engine.open_sampler("s", "tiny-llama")
        request = job([5], n=2, max_tokens=30, stop=[])
        whole = await engine.sample("s", request)
        deltas = engine.stream_sample("s", request)
        first = await anext(deltas)
        await until(lambda: not engine._thread.busy())
        rest = await collect(deltas)
        assert len(rest) <= 2
        check_sum([first, *rest], whole)

    with_engine(models, body)


def test_closing_the_stream_ends_the_sample_and_frees_its_room(models, model: str) -> None:
    async def body(engine: LocalEngine) -> None:
        await engine.open_sampler("s", model)
        deltas = engine.stream_sample("s", job([5], n=3, stop=[]))
        await anext(deltas)
        await deltas.aclose()
        await until(lambda: not engine._thread.busy())
        assert all(batch.sequences() == 0 for batch in engine._batches.values())

        async def read() -> None:
            async for _ in engine.stream_sample("s", job([5], n=3, stop=[])):
                pass

        reading = asyncio.create_task(read())
        await until(engine._thread.busy)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await until(lambda: not engine._thread.busy())

    with_engine(models, body)


def test_errors_are_those_of_sample(models) -> None:
    async def body(engine: LocalEngine) -> None:
        with pytest.raises(NotFound, match="sampling_session_id"):
            await collect(engine.stream_sample("none", job([5])))
        await engine.open_sampler("s", "tiny-llama")
        with pytest.raises(UserError, match="num_samples"):
            await collect(engine.stream_sample("s", job([5], n=0)))

    with_engine(models, body)
