"""Samples token by token: a stream that is read once, from a loop or without one, and ends when closed."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tinsmith.types import SampleJob, StopReason, UserError
from tinsmith.types.sampling import none_for_nan
from tinsmith.wire import sample_events, sse

from . import endpoints as to
from .errors import (
    APIResponseValidationError,
    DeadlineError,
    RequestFailedError,
    StreamConsumedError,
    StreamingUnsupportedError,
    status_error,
)
from .futures import APIFuture, spawn
from .loop import BackgroundLoop, background
from .transport import Response, StreamedResponse

if TYPE_CHECKING:
    from .sampler import Sampler
    from .session import Live, Session

_AHEAD = 256  # tokens read before anybody took them; then the service has to wait


@dataclass(frozen=True, slots=True)
class StreamedToken:
    """One token as it was decoded. ``stop_reason`` is set on the last one of each sequence.

    >>> *_, last = sampler.stream(PROMPT, SamplingParams(max_tokens=3, stop=[]))
    >>> isinstance(last, StreamedToken), last.stop_reason
    (True, 'length')
    """

    token_id: int
    logprob: float | None
    sequence: int = 0
    stop_reason: StopReason | None = None


class TokenStream:
    """The tokens of one `SamplingClient.stream`. Iterate over it once, with ``for`` or ``async for``.

    Leaving it early (``break``, an error, ``close()``) ends the sampling on the service too. It is a
    context manager, so that this happens at once and not when the stream is collected.

    >>> with sampler.stream(PROMPT, SamplingParams(max_tokens=3, stop=[])) as stream:
    ...     print(len([token.token_id for token in stream]))
    3
    """

    def __init__(self, tokens: AsyncGenerator[list[StreamedToken], None]) -> None:
        self._loop = background()
        self._feed = _Feed()
        self._taken = False
        self._work = spawn(_fill(tokens, self._feed), "stream a sample")
        self._stop = weakref.finalize(self, _cancel, self._loop, self._work)
        self._stop.atexit = False

    def __iter__(self) -> Iterator[StreamedToken]:
        self._take()
        try:
            while tokens := spawn(self._feed.take(), "next tokens").result():
                yield from tokens
            self._work.result()
        finally:
            self.close()

    def __aiter__(self) -> AsyncIterator[StreamedToken]:
        self._take()
        return self._each()

    async def _each(self) -> AsyncIterator[StreamedToken]:
        try:
            while tokens := await spawn(self._feed.take(), "next tokens"):
                for token in tokens:
                    yield token
            await self._work
        finally:
            self.close()

    def _take(self) -> None:
        if self._taken:
            raise StreamConsumedError("this stream was read already; ask for a new one")
        self._taken = True

    def close(self) -> None:
        """End the stream; tokens not yet taken are lost. It does not wait and may be called again."""
        self._taken = True
        self._stop()

    async def aclose(self) -> None:
        """`close`, for ``contextlib.aclosing``."""
        self.close()

    def __enter__(self) -> TokenStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> TokenStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


class _Feed:
    """Tokens on their way to whoever reads. Used on the background loop only."""

    def __init__(self) -> None:
        self._tokens: deque[StreamedToken] = deque()
        self._changed = asyncio.Condition()
        self._ended = False

    async def put(self, tokens: list[StreamedToken]) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._tokens) < _AHEAD)
            self._tokens.extend(tokens)
            self._changed.notify_all()

    async def end(self) -> None:
        async with self._changed:
            self._ended = True
            self._changed.notify_all()

    async def take(self) -> list[StreamedToken]:
        """All there are, once there are some; nothing at the end."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._tokens or self._ended)
            tokens = list(self._tokens)
            self._tokens.clear()
            self._changed.notify_all()
            return tokens


async def _fill(tokens: AsyncGenerator[list[StreamedToken], None], feed: _Feed) -> None:
    try:
        async with aclosing(tokens):
            async for some in tokens:
                await feed.put(some)
    finally:
        await feed.end()


def _cancel(loop: BackgroundLoop, work: APIFuture[Any]) -> None:
    try:
        loop.check()
    except RuntimeError:  # a forked child must leave its parent's stream alone
        return
    work.cancel()


# ---- over HTTP ----------------------------------------------------------------------------------------


async def produce(sampler: Sampler, job: SampleJob, number: int) -> AsyncGenerator[list[StreamedToken], None]:
    """The tokens of a job, from the service's events. One that breaks is an error, and is not repeated."""
    live = await sampler.session.live()
    if not live.server.sample_stream:
        raise StreamingUnsupportedError(f"{live.api.config.place} does not stream samples; use sample()")
    body = await sampler.body(live, job, number)
    with live.telemetry.noting_errors(), live.observer.operation("stream", sampler=sampler.id):
        answer, held = await sampler.submit(live, body, partial(_begin, live, body))
        async with held, aclosing(_events(answer, sampler.session)) as events:
            async for event in events:
                if event.event == "tokens":
                    yield _tokens(event)
                elif event.event == "error":
                    raise _failure(event)
                elif event.event == "done":
                    return
        raise RequestFailedError("the stream broke off before its end", "", "server")


async def _begin(live: Live, body: bytes) -> tuple[StreamedResponse, AsyncExitStack]:
    """The answer that has begun, and what to close after it; a refusal raises."""
    async with AsyncExitStack() as held:
        answer = await held.enter_async_context(live.api.stream(to.STREAM, body))
        if answer.status_code != 200:
            raise await _refusal(answer)
        return answer, held.pop_all()


async def _events(answer: StreamedResponse, session: Session) -> AsyncGenerator[sse.Event, None]:
    """Events as they come. A service that only keeps the connection alive is not waited for without end."""
    decoder, clock, most = sse.Decoder(), session.clock, session.config.deadline
    heard = clock.now()
    async for piece in answer.aiter_bytes():
        events = decoder.feed(piece)
        for event in events:
            yield event
        if events:
            heard = clock.now()
        elif most is not None and clock.now() - heard > most:
            raise DeadlineError(f"the stream had no token for {clock.now() - heard:.0f} s", "")


def _tokens(event: sse.Event) -> list[StreamedToken]:
    try:
        delta = sample_events.tokens_of(event)
    except UserError as error:
        response = Response(200, {}, event.data.encode())
        raise APIResponseValidationError(
            response, event.data, f"an event of the stream cannot be read: {error}"
        ) from error
    logprobs = none_for_nan(delta.logprobs_np)
    last = len(logprobs) - 1
    return [
        StreamedToken(token, logprob, delta.index, delta.stop_reason if at == last else None)
        for at, (token, logprob) in enumerate(zip(delta.tokens_np.tolist(), logprobs, strict=True))
    ]


def _failure(event: sse.Event) -> RequestFailedError:
    error, category = sample_events.failure_of(event)
    return RequestFailedError(f"the stream failed: {error}", event.id, category)


async def _refusal(answer: StreamedResponse) -> Exception:
    headers = {name.lower(): value for name, value in answer.headers.items()}
    response = Response(answer.status_code, headers, await answer.aread())
    return status_error(f"POST /api/v1/{to.STREAM.path}", response)
