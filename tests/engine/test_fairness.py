"""Tenants share the engine's time: a crowd slows a modest one down twofold at most, and moves no number."""

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest
from engine_support import cross_entropy, gradients_of, job, sft_datum, tokens, until, with_engine

from tinsmith.engine.interface import Tenant
from tinsmith.engine.local import LocalEngine
from tinsmith.engine.scheduler import ComputeThread, Pause
from tinsmith.engine.shares import Shares
from tinsmith.types import LoraConfig

MODEST, GREEDY = Tenant("modest"), Tenant("greedy")


def seconds_of(rows: int) -> float:
    """What a step of so many rows takes: something for itself, and less for a row than one alone would."""
    return 1.0 + 0.1 * rows


def shared_steps(rows: dict[Tenant, int], steps: int) -> tuple[Counter[str], float]:
    """Steps as the sampler makes them: how many each tenant was in, and how long all of them took."""
    shares, taken, clock = Shares(), Counter(), 0.0
    for _ in range(steps):
        shares.attend(tenant.name for tenant in rows)
        leader = min(rows, key=lambda tenant: shares.had(tenant.name))
        joining = [tenant for tenant in rows if shares.may_join(tenant.name)]
        assert leader in joining
        for tenant in joining:
            shares.count(tenant, rows[tenant])
            taken[tenant.name] += 1
        seconds = seconds_of(sum(rows[tenant] for tenant in joining))
        shares.charge(seconds, leader, turn_goes_on=False)
        clock += seconds
    return taken, clock


@pytest.mark.parametrize("crowd", [2, 8, 32, 300])
def test_a_crowd_slows_a_modest_tenant_down_twofold_at_most(crowd: int) -> None:
    taken, clock = shared_steps({MODEST: 1, GREEDY: crowd}, 2000)
    assert taken["modest"] == 2000, "whoever had least is in every step"
    assert clock / (2000 * seconds_of(1)) < 2.0
    assert taken["greedy"] * seconds_of(crowd) > 0.4 * clock, "the crowd has its half all the same"


def test_equal_tenants_go_on_sharing_their_steps() -> None:
    taken, _ = shared_steps({Tenant("a"): 30, Tenant("b"): 34}, 2000)
    assert min(taken.values()) > 0.85 * 2000


def test_time_nobody_wanted_is_not_owed() -> None:
    shares = Shares()
    shares.attend(["greedy"])
    shares.charge(100.0, GREEDY, turn_goes_on=False)
    shares.attend(["greedy", "modest"])
    assert shares.had("modest") == shares.had("greedy") == 100.0
    shares.charge(5.0, GREEDY, turn_goes_on=False)
    shares.attend(["modest"])
    shares.attend(["greedy", "modest"])
    assert shares.had("greedy") == 105.0, "nor is time somebody had forgotten when he is gone for a moment"


class Clock:
    """Goes on when the work says so, not by itself."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def steps_of(clock: Clock, log: list[str], name: str, seconds: float) -> Iterator[Pause]:
    while True:
        clock.now += seconds
        log.append(name)
        yield Pause.TURN_OVER


def test_turns_go_by_time_and_weight_not_by_how_many_jobs_somebody_has() -> None:
    async def main() -> None:
        clock, log = Clock(), []
        compute = ComputeThread(sampling_budget=100, clock=clock)
        heavy, light = Tenant("heavy", weight=3.0), Tenant("light")
        jobs = [
            asyncio.create_task(compute.run(steps_of(clock, log, "light", 1.0), "train", tenant=light))
            for _ in range(5)
        ]
        jobs.append(
            asyncio.create_task(compute.run(steps_of(clock, log, "heavy", 2.0), "train", tenant=heavy))
        )
        await until(lambda: log.count("heavy") > 300)
        compute.stop()
        await asyncio.gather(*jobs, return_exceptions=True)
        both = Counter(log[log.index("heavy") :])
        assert 2.7 < 2 * both["heavy"] / both["light"] < 3.3

    asyncio.run(main())


def test_a_crowd_in_line_keeps_nobody_out() -> None:
    async def main() -> None:
        clock, log = Clock(), []
        compute = ComputeThread(sampling_budget=100, clock=clock)

        def start(tenant: Tenant, name: str, cost: int) -> asyncio.Task[None]:
            work = steps_of(clock, log, name, 1.0)
            return asyncio.create_task(compute.run(work, "sample", cost=cost, tenant=tenant))

        jobs = [start(GREEDY, f"greedy {at}", 50) for at in range(10)]
        await until(lambda: {"greedy 0", "greedy 1"} <= set(log))
        jobs.append(start(MODEST, "small", 20))
        await until(lambda: "small" in log)  # by the reserve
        jobs.append(start(MODEST, "next", 30))
        jobs[0].cancel()
        await until(lambda: "next" in log)  # before the eight that came earlier
        assert "greedy 2" not in log
        compute.stop()
        await asyncio.gather(*jobs, return_exceptions=True)

    asyncio.run(main())


def test_numbers_do_not_depend_on_other_tenants(models) -> None:
    async def alone(engine: LocalEngine):
        return await work(engine, "modest", MODEST)

    async def in_a_crowd(engine: LocalEngine):
        crowd = [asyncio.create_task(work(engine, f"greedy {at}", GREEDY, rows=8)) for at in range(4)]
        mine = await work(engine, "modest", MODEST)
        await asyncio.gather(*crowd)
        return mine

    async def work(engine: LocalEngine, name: str, tenant: Tenant, rows: int = 1):
        await engine.create_adapter(name, "tiny-llama", LoraConfig(rank=4, seed=1), tenant)
        await engine.open_sampler(name, "tiny-llama", run_id=name, tenant=tenant)
        sampled, trained = await asyncio.gather(
            engine.sample(name, job(tokens(9, 3), n=rows, max_tokens=24, stop=[], seed=5)),
            engine.forward_backward(name, cross_entropy(*[sft_datum(20, 1)] * 3 * rows), True),
        )
        first = sampled.sequences[0]
        gradients = gradients_of(engine, name)
        return first.tokens, first.logprobs, trained.metrics["loss:sum"] / rows, gradients

    one, other = with_engine(models, alone), with_engine(models, in_a_crowd)
    assert one[:3] == other[:3]
    assert one[3].keys() == other[3].keys()
    assert all((one[3][name] == other[3][name]).all() for name in one[3])


def test_a_weight_is_above_zero() -> None:
    with pytest.raises(ValueError, match="weight"):
        Tenant("nobody", weight=0.0)
