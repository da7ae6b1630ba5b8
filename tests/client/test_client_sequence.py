"""Seq ids follow the calls; turns follow the seq ids, whatever becomes of each."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tinsmith.client.sequence import Sequence


def test_ids_have_no_gaps_whoever_takes_them():
    sequence = Sequence(first=1)
    taken: list[int] = []
    lock = threading.Lock()

    def take():
        for _ in range(200):
            for turn in sequence.take(1, 2):
                with lock:
                    taken.extend(turn.ids)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(1, 8 * 200 * 3 + 1))


def test_several_ranges_taken_at_once_follow_on_each_other():
    first, second = Sequence(first=5).take(2, 3)
    assert (list(first.ids), list(second.ids)) == ([5, 6], [7, 8, 9])


async def run_all(turns, log, fails=()):
    async def one(turn):
        async with turn:
            log.append(turn.first)
            await asyncio.sleep(0)
            if turn.first in fails:
                raise ValueError(turn.first)

    return await asyncio.gather(*(one(turn) for turn in turns), return_exceptions=True)


def test_turns_come_in_order_however_they_are_started():
    async def main():
        log: list[int] = []
        turns = Sequence().take(1, 3, 1, 2, 1)
        await run_all(reversed(turns), log)
        return log

    assert asyncio.run(main()) == [1, 2, 5, 6, 8]


def test_a_failed_turn_passes_on():
    async def main():
        log: list[int] = []
        turns = Sequence().take(1, 1, 1)
        outcomes = await run_all(turns, log, fails=(1, 2))
        return log, [type(outcome) for outcome in outcomes]

    assert asyncio.run(main()) == ([1, 2, 3], [ValueError, ValueError, type(None)])


def test_a_turn_given_up_before_it_came_is_passed_over():
    async def main():
        sequence = Sequence()
        first, second, third = sequence.take(1, 2, 1)
        log: list[int] = []
        waiting = [asyncio.create_task(run_all([turn], log)) for turn in (second, third)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting[0]
        await run_all([first], log)
        await waiting[1]
        return log

    assert asyncio.run(main()) == [1, 4]
