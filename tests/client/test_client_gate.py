"""The gate samples go through, and budgets of bytes."""

from __future__ import annotations

import asyncio

from tinsmith.client.config import ClientConfig
from tinsmith.client.gate import BytesBudget, SampleGate, gate_for


def test_a_pause_holds_everybody_and_lasts_at_least_a_second(clock):
    async def main():
        gate = SampleGate(clock)
        gate.pause(None)
        async with gate.slot():
            one = clock.now()
        gate.pause(7.0)
        gate.pause(2.0)  # shorter than the one under way
        async with gate.slot():
            return one, clock.now()

    one, two = asyncio.run(main())
    assert one == 1.0
    assert two == 8.0


def test_a_hint_below_a_second_is_a_second(clock):
    async def main():
        gate = SampleGate(clock)
        gate.pause(0.2)
        async with gate.slot():
            return clock.now()

    assert asyncio.run(main()) == 1.0


def test_who_queued_for_a_slot_looks_again(clock):
    async def main():
        gate = SampleGate(clock, slots=1)
        entered: list[float] = []

        async def one():
            async with gate.slot():
                entered.append(clock.now())
                if len(entered) == 1:
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)
                    gate.pause(5.0)

        await asyncio.gather(one(), one())
        return entered

    assert asyncio.run(main()) == [0.0, 5.0]


def test_never_more_than_the_slots_at_once(clock):
    async def main():
        gate = SampleGate(clock, slots=4)
        inside = most = 0

        async def one():
            nonlocal inside, most
            async with gate.slot():
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0)
                inside -= 1

        await asyncio.gather(*(one() for _ in range(50)))
        return most

    assert asyncio.run(main()) == 4


def test_one_gate_for_one_service_and_key():
    def config(url, key):
        return ClientConfig.resolve(base_url=url, api_key=key, environ={})

    one = gate_for(config("http://a/", "k"))
    assert gate_for(config("http://A:80", "k")) is one
    assert gate_for(config("http://a", "other")) is not one
    assert gate_for(config("http://b", "k")) is not one


def test_bytes_are_bounded_but_one_piece_always_fits():
    async def main():
        budget = BytesBudget(10)
        held = most = 0

        async def one(size):
            nonlocal held, most
            async with budget.hold(size):
                held += size
                most = max(most, held)
                await asyncio.sleep(0)
                held -= size

        await asyncio.gather(*(one(size) for size in (100, 4, 4, 4, 4, 4, 100)))
        return most, held

    most, held = asyncio.run(main())
    assert held == 0
    assert most <= 110  # a budget of ten, overshot by one piece


def test_a_cancelled_holder_gives_its_bytes_back():
    async def main():
        budget = BytesBudget(0)
        inside = asyncio.Event()

        async def forever():
            async with budget.hold(5):
                inside.set()
                await asyncio.get_running_loop().create_future()

        task = asyncio.create_task(forever())
        await inside.wait()
        task.cancel()
        async with budget.hold(1):
            return "in"

    assert asyncio.run(main()) == "in"
