"""Work interleaves, ends when it is cancelled, and never hangs."""

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest
from engine_support import (
    cross_entropy,
    gradients_of,
    job,
    sft_datum,
    tokens,
    trained_run,
    until,
    with_engine,
)

from tinsmith.engine.local import LocalEngine
from tinsmith.engine.scheduler import ComputeThread, EngineStopped, Pause
from tinsmith.types import LoraConfig


def thread(**options) -> ComputeThread:
    return ComputeThread(**{"sampling_budget": 100, **options})


def endless(log: list[str], name: str, pause: Pause = Pause.TURN_OVER) -> Iterator[Pause]:
    try:
        while True:
            log.append(name)
            yield pause
    finally:
        log.append(f"{name} closed")


def test_a_sample_finishes_while_a_long_training_call_goes_on(models) -> None:
    async def body(engine: LocalEngine):
        await engine.create_adapter("run", "tiny-llama", LoraConfig(rank=4, seed=1))
        await engine.open_sampler("s", "tiny-llama")
        # Thousands of micro-batches against ten decoding steps.
        batch = cross_entropy(*[sft_datum(4, 1)] * 5000)
        training = asyncio.create_task(engine.forward_backward("run", batch, True))
        answer = await engine.sample("s", job(tokens(5, 1), max_tokens=10, stop=[]))
        assert len(answer.sequences[0].tokens) == 10
        assert not training.done()
        training.cancel()
        with pytest.raises(asyncio.CancelledError):
            await training
        assert await engine.optim_step("run", adam()) == {
            "unclipped_grad_l2:mean": 0.0,
            "learning_rate:mean": 1e-4,
        }
        assert gradients_of(engine, "run") is None, "a cancelled call leaves no gradient"

    with_engine(models, body, train_tokens=4)


def adam():
    from tinsmith.types import AdamParams

    return AdamParams()


def test_training_and_saving_finish_while_long_samples_go_on(models, tmp_path) -> None:
    async def body(engine: LocalEngine):
        await engine.open_sampler("s", "tiny-llama")
        samples = [
            asyncio.create_task(engine.sample("s", job(tokens(5, at), n=1024, stop=[], seed=at)))
            for at in range(8)
        ]
        await trained_run(engine, "run", "tiny-llama")
        await engine.save_adapter("run", tmp_path, True)
        assert not any(sample.done() for sample in samples)
        for sample in samples:
            sample.cancel()
        await asyncio.gather(*samples, return_exceptions=True)
        await until(lambda: not engine._thread.busy())

    with_engine(models, body, sample_rows=2, cache_tokens=2000)


def test_closing_the_engine_fails_whoever_waits(models) -> None:
    async def main():
        engine = LocalEngine(models)
        await engine.open_sampler("s", "tiny-llama")
        waiting = [asyncio.create_task(engine.sample("s", job([5], n=1024, stop=[]))) for _ in range(3)]
        await engine.sample("s", job([5], max_tokens=1))
        await engine.close()
        for outcome in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(outcome, EngineStopped)
        with pytest.raises(EngineStopped):
            await engine.sample("s", job([5]))
        await engine.close()

    asyncio.run(main())


def test_an_engine_nobody_closed_ends_its_thread(models) -> None:
    engine = LocalEngine(models)
    asyncio.run(engine.open_sampler("s", "tiny-llama"))
    compute, gone = engine._thread, weakref.ref(engine)
    del engine
    gc.collect()
    assert gone() is None and not compute._thread.is_alive()


def test_work_takes_turns_within_a_lane() -> None:
    async def main():
        compute, log = thread(), []
        jobs = [asyncio.create_task(compute.run(endless(log, name), "sample", cost=40)) for name in "abc"]
        await until(lambda: log.count("b") > 20)
        assert "c" not in log, "there is room for two, the third waits in line"
        assert abs(log.count("a") - log.count("b")) <= 2
        jobs[0].cancel()
        await until(lambda: "c" in log)
        assert "a closed" in log and "a" not in log[log.index("a closed") :]
        compute.stop()
        outcomes = await asyncio.gather(*jobs, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [
            asyncio.CancelledError,
            EngineStopped,
            EngineStopped,
        ]

    asyncio.run(main())


def test_a_kept_turn_holds_up_its_own_lane_only() -> None:
    async def main():
        compute, log = thread(), []
        first = asyncio.create_task(compute.run(endless(log, "a", Pause.KEEP_TURN), "train"))
        await until(lambda: "a" in log)
        second = asyncio.create_task(compute.run(endless(log, "b"), "train"))
        sample = asyncio.create_task(compute.run(endless(log, "s"), "sample"))
        await until(lambda: log.count("s") > 20)
        assert "b" not in log
        first.cancel()
        await until(lambda: "b" in log)
        compute.stop()
        await asyncio.gather(first, second, sample, return_exceptions=True)

    asyncio.run(main())


def test_short_work_goes_between_the_steps_of_others() -> None:
    async def main():
        compute, log = thread(), []
        jobs = [asyncio.create_task(compute.run(endless(log, lane), lane)) for lane in ("train", "sample")]
        assert await compute.call(lambda: 42) == 42
        with pytest.raises(KeyError):
            await compute.call(lambda: {}["missing"])
        await until(lambda: {"train", "sample"} <= set(log))
        compute.stop()
        await asyncio.gather(*jobs, return_exceptions=True)

    asyncio.run(main())


def dying() -> Iterator[Pause]:
    yield Pause.TURN_OVER
    raise SystemExit("the thread is going")


def test_the_death_of_the_thread_reaches_every_waiter() -> None:
    async def main():
        compute, log = thread(), []
        waiting = [asyncio.create_task(compute.run(endless(log, name), "sample", cost=400)) for name in "ab"]
        await until(lambda: log)
        with pytest.raises(EngineStopped, match="the thread is going") as caught:
            await compute.run(dying(), "train")
        assert isinstance(caught.value.__cause__, SystemExit)
        for outcome in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(outcome, EngineStopped)
        with pytest.raises(EngineStopped, match="the thread is going"):
            await compute.call(lambda: 1)
        compute.stop()

    asyncio.run(main())


def test_a_thread_that_cannot_start_says_so() -> None:
    def fail() -> None:
        raise OSError("no such device")

    async def main():
        with pytest.raises(EngineStopped, match="no such device"):
            await thread(on_start=fail).call(lambda: 1)

    asyncio.run(main())
