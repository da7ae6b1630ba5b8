"""Work on an engine that may die under it: done again, unless it is what the engine dies of."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tinsmith.engine.interface import Engine, EngineLost

log = logging.getLogger(__name__)
_T = TypeVar("_T")
_DEATHS_ALONE = 2


class EngineKilled(RuntimeError):
    """An operation that was alone with the engine when it died, twice."""


class _Case:
    """One piece of work, and how often the engine died when nothing else was under way."""

    def __init__(self) -> None:
        self.deaths_alone = 0


class Supervisor:
    """Lets work at the engine, and finds out which work kills it.

    When the engine dies nobody knows whose fault it was. What was under way is done again in two groups, one
    after the other, with newcomers waiting. A group that finishes is cleared; one the engine dies of is
    divided again. What is left alone and kills the engine twice has failed, and only that.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._inside: set[_Case] = set()
        self._groups: deque[set[_Case]] = deque()
        self._waiting: set[asyncio.Future[None]] = set()
        self._deaths_seen = engine.generation

    async def carry_out(self, work: Callable[[], Awaitable[_T]]) -> _T:
        """The result of ``work``, which is begun anew if the engine dies."""
        case = _Case()
        try:
            while True:
                await self._let_in(case)
                generation = self._engine.generation
                try:
                    return await work()
                except Exception as error:
                    # Once the engine is another one, whatever went wrong may be for lack of the old one.
                    if not isinstance(error, EngineLost) and self._engine.generation == generation:
                        raise
                    self._suspect_all_inside()
                    if case.deaths_alone >= _DEATHS_ALONE:
                        raise EngineKilled("the engine died of this operation, twice") from error
                finally:
                    self._inside.discard(case)
        finally:
            self._clear(case)

    async def _let_in(self, case: _Case) -> None:
        while self._groups and case not in self._groups[0]:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(turn)
            await turn
        self._inside.add(case)

    def _suspect_all_inside(self) -> None:
        """The first to hear of a death does this, while all others of that moment are still inside."""
        if self._engine.generation == self._deaths_seen:
            return
        self._deaths_seen = self._engine.generation
        if len(self._inside) == 1:
            next(iter(self._inside)).deaths_alone += 1
        on_trial = self._groups.popleft() if self._groups else set()
        suspects = list(self._inside | on_trial)
        log.warning("the engine died with %d operations under way", len(suspects))
        half = (len(suspects) + 1) // 2
        self._groups.extendleft(set(part) for part in (suspects[half:], suspects[:half]) if part)

    def _clear(self, case: _Case) -> None:
        """It is over, one way or the other."""
        for group in self._groups:
            group.discard(case)
        while self._groups and not self._groups[0]:
            self._groups.popleft()
        for turn in self._waiting:
            if not turn.done():
                turn.set_result(None)
        self._waiting.clear()
