"""Tokens of a request on their way from the compute thread to whoever reads them while it decodes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

import numpy as np

from tinsmith.types import SequenceDelta, StopReason

from .sequence import Sequence as Sample

Listener = Callable[[Sequence[Sample]], None]  # called in the compute thread after each step


class Feed:
    """What a request's samples have gained and the reader has not taken: never more than the whole answer."""

    def __init__(self) -> None:
        self._loop, self._news = asyncio.get_running_loop(), asyncio.Event()
        self._lock = threading.Lock()
        self._told: dict[int, int] = {}  # by sample: how many tokens
        self._fresh: dict[int, tuple[list[int], list[float], StopReason | None]] = {}

    def tell(self, samples: Sequence[Sample]) -> None:
        """Take in where these samples are now."""
        with self._lock:
            quiet = not self._fresh
            for sample in samples:
                told = self._told.get(sample.index, 0)
                if len(sample.tokens) > told:
                    tokens, logprobs, _ = self._fresh.get(sample.index, ([], [], None))
                    tokens += sample.tokens[told:]
                    logprobs += sample.logprobs[told:]
                    self._fresh[sample.index] = tokens, logprobs, sample.stop_reason
                    self._told[sample.index] = len(sample.tokens)
            if not quiet or not self._fresh:
                return
        self._loop.call_soon_threadsafe(self._news.set)

    def end(self) -> None:
        """Nothing more will come; `news` waits no longer."""
        self._news.set()

    async def news(self) -> None:
        """Wait until something is there to be taken, or the end."""
        await self._news.wait()

    def take(self) -> list[SequenceDelta]:
        """What is there, by sample."""
        self._news.clear()
        with self._lock:
            fresh, self._fresh = self._fresh, {}
        return [
            SequenceDelta(index, np.array(tokens, np.int32), np.array(logprobs, np.float32), stop_reason)
            for index, (tokens, logprobs, stop_reason) in sorted(fresh.items())
        ]
