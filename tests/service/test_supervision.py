"""Who is blamed for the death of an engine, and who is not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from tinsmith.engine.interface import Engine, EngineLost
from tinsmith.service.supervision import EngineKilled, Supervisor


class Mortal:
    """An engine that some work is the death of; whoever is inside then is told."""

    def __init__(self) -> None:
        self.generation = 0
        self._inside: list[asyncio.Future[None]] = []

    def die(self) -> None:
        self.generation += 1
        for each in self._inside:
            if not each.done():
                each.set_exception(EngineLost("dead"))
        self._inside.clear()

    def work(self, name: str, *, deadly: bool = False) -> Callable[[], Awaitable[str]]:
        async def attempt() -> str:
            mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._inside.append(mine)
            await asyncio.sleep(0)  # others come in
            if deadly:
                self.die()
            elif not mine.done():
                mine.set_result(None)
            await mine
            return name

        return attempt


async def _outcomes(engine: Mortal, works: list[Callable[[], Awaitable[str]]]) -> list[Any]:
    supervisor = Supervisor(cast(Engine, engine))
    async with asyncio.timeout(30):
        return await asyncio.gather(*(supervisor.carry_out(work) for work in works), return_exceptions=True)


@pytest.mark.parametrize("neighbours", [0, 1, 2, 7, 20])
def test_what_kills_the_engine_fails_and_its_neighbours_do_not(neighbours: int) -> None:
    engine = Mortal()
    works = [engine.work(f"good {at}") for at in range(neighbours)]
    works.insert(neighbours // 2, engine.work("bad", deadly=True))
    outcomes = asyncio.run(_outcomes(engine, works))
    assert isinstance(outcomes.pop(neighbours // 2), EngineKilled)
    assert outcomes == [f"good {at}" for at in range(neighbours)]
    assert engine.generation <= 2 + (neighbours + 1).bit_length()


def test_two_killers_are_both_found() -> None:
    engine = Mortal()
    works = [engine.work(str(at), deadly=at in (2, 6)) for at in range(8)]
    outcomes = asyncio.run(_outcomes(engine, works))
    assert [at for at, one in enumerate(outcomes) if isinstance(one, EngineKilled)] == [2, 6]
    assert [one for one in outcomes if isinstance(one, str)] == ["0", "1", "3", "4", "5", "7"]


def test_a_death_from_outside_fails_nobody() -> None:
    async def main() -> list[str]:
        engine = Mortal()
        supervisor = Supervisor(cast(Engine, engine))
        tasks = [asyncio.create_task(supervisor.carry_out(engine.work(str(at)))) for at in range(5)]
        await asyncio.sleep(0)
        engine.die()
        newcomer = asyncio.create_task(supervisor.carry_out(engine.work("newcomer")))
        async with asyncio.timeout(30):
            return await asyncio.gather(*tasks, newcomer)

    assert asyncio.run(main()) == ["0", "1", "2", "3", "4", "newcomer"]


def test_an_error_that_is_not_a_death_goes_to_the_caller() -> None:
    async def fail() -> str:
        raise ValueError("mine")

    (outcome,) = asyncio.run(_outcomes(Mortal(), [fail]))
    assert isinstance(outcome, ValueError)


def test_an_error_for_lack_of_the_old_engine_is_a_death_too() -> None:
    engine = Mortal()

    async def arrives_too_late() -> str:
        if engine.generation == 0:
            engine.die()
            raise KeyError("no such adapter")
        return "done"

    assert asyncio.run(_outcomes(engine, [arrives_too_late])) == ["done"]


def test_an_engine_that_dies_before_it_begins_is_nobodys_fault() -> None:
    engine, deaths = Mortal(), [0]

    async def on_the_fifth_engine() -> str:
        deaths[0] += 1
        if deaths[0] < 5:
            raise EngineLost("it never came up")
        return "done"

    assert asyncio.run(_outcomes(engine, [on_the_fifth_engine])) == ["done"]


def test_a_suspect_whose_caller_gave_up_keeps_nobody_waiting() -> None:
    async def main() -> str:
        engine = Mortal()
        supervisor = Supervisor(cast(Engine, engine))
        hanging = asyncio.Event()

        async def hang() -> str:
            if engine.generation == 0:
                engine.die()
                raise EngineLost("dead")
            hanging.set()
            return await asyncio.Event().wait() or "never"

        suspect = asyncio.create_task(supervisor.carry_out(hang))
        await hanging.wait()
        newcomer = asyncio.create_task(supervisor.carry_out(engine.work("newcomer")))
        await asyncio.sleep(0)
        suspect.cancel()
        return await newcomer

    assert asyncio.run(main()) == "newcomer"
