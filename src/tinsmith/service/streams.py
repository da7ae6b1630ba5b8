"""Samples told as they are decoded: begun anew where the engine died, and never told twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from tinsmith.types import SampleDelta, SequenceDelta, Unavailable

from .futures import Category
from .supervision import Supervisor

Begin = Callable[[], AsyncGenerator[SampleDelta, None]]


class StreamFailed(Exception):
    """A sample broke off after it was begun; ``category`` says whose fault it was."""

    def __init__(self, message: str, category: Category) -> None:
        super().__init__(message)
        self.category = category


async def supervised(
    supervisor: Supervisor, begin: Begin, running: set[asyncio.Task[None]]
) -> AsyncGenerator[SampleDelta, None]:
    """The deltas of a sample with a seed, however often the engine dies under it.

    The same seed gives the same sample, so one begun anew passes over what was told before. The work is
    in ``running`` while it lasts; whoever cancels it there ends the stream with `Unavailable`.
    """
    fresh: asyncio.Queue[SampleDelta | None] = asyncio.Queue()
    told: Counter[int] = Counter()  # tokens, by sequence

    async def sample() -> None:
        decoded: Counter[int] = Counter()
        async with aclosing(begin()) as deltas:
            async for delta in deltas:
                fresh.put_nowait(_untold(delta, decoded, told))
                await fresh.join()  # what is decoded until this is taken comes as one

    work = asyncio.create_task(supervisor.carry_out(sample), name="stream a sample")
    work.add_done_callback(lambda _: fresh.put_nowait(None))
    work.add_done_callback(running.discard)
    running.add(work)
    try:
        while (delta := await fresh.get()) is not None:
            if delta.sequences or delta.response is not None:
                yield delta
            fresh.task_done()
        if work.cancelled():
            raise Unavailable("the service is shutting down")
        work.result()
    finally:
        work.cancel()
        await asyncio.wait([work])


def _untold(delta: SampleDelta, decoded: Counter[int], told: Counter[int]) -> SampleDelta:
    """What of a delta is news; counts it as told."""
    news: list[SequenceDelta] = []
    for part in delta.sequences:
        known = told[part.index] - decoded[part.index]
        decoded[part.index] += len(part.tokens_np)
        if known < len(part.tokens_np):
            tokens, logprobs = part.tokens_np[known:], part.logprobs_np[known:]
            news.append(SequenceDelta(part.index, tokens, logprobs, part.stop_reason))
            told[part.index] = decoded[part.index]
    return SampleDelta(news, delta.response)
