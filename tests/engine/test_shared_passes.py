"""Calls of several runs share passes; nobody's numbers, errors or cancellations reach anybody else."""

import asyncio
from collections.abc import Mapping

import pytest
from engine_support import cross_entropy, gradients_of, same, sft_datum, trained_run, with_engine

from tinsmith.engine import trainer
from tinsmith.engine.interface import BaseModel
from tinsmith.engine.local import LocalEngine
from tinsmith.types import Datum, ForwardBackwardInput, ModelInput, UserError

Models = Mapping[str, BaseModel]
RUNS = {"a": 4, "b": 1, "c": 8}


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many runs each pass has carried."""
    seen: list[int] = []
    original = trainer.packed_pass

    def counting(decoder, runs, *args, **options):
        seen.append(len(runs))
        return original(decoder, runs, *args, **options)

    monkeypatch.setattr(trainer, "packed_pass", counting)
    return seen


def batch(run: str) -> ForwardBackwardInput:
    return cross_entropy(*(sft_datum(length, length) for length in range(7, 7 + 3 * RUNS[run], 3)))


async def three_runs(engine: LocalEngine) -> None:
    for run, rank in RUNS.items():
        await trained_run(engine, run, "tiny-llama", rank=rank, seed=rank)


def test_runs_that_call_at_once_share_passes_and_get_the_same_bits(models: Models, sizes: list[int]) -> None:
    async def body(engine: LocalEngine, at_once: bool):
        await three_runs(engine)
        sizes.clear()
        calls = [engine.forward_backward(run, batch(run), True) for run in RUNS]
        outputs = await asyncio.gather(*calls) if at_once else [await call for call in calls]
        return outputs, {run: gradients_of(engine, run) for run in RUNS}, list(sizes)

    alone, alone_gradients, alone_sizes = with_engine(models, lambda e: body(e, False), train_tokens=64)
    shared, shared_gradients, shared_sizes = with_engine(models, lambda e: body(e, True), train_tokens=64)
    assert set(alone_sizes) == {1} and max(shared_sizes) > 1
    for one, other in zip(alone, shared, strict=True):
        assert one.metrics == other.metrics
        for mine, theirs in zip(one.loss_fn_outputs, other.loss_fn_outputs, strict=True):
            assert all((mine[key].data == theirs[key].data).all() for key in mine)
    for run in RUNS:
        assert same(alone_gradients[run], shared_gradients[run])


def test_one_runs_bad_loss_is_its_own(models: Models, sizes: list[int]) -> None:
    inputs = {"target_tokens": [5, 6], "logprobs": [-1e6, -1.0], "advantages": [1.0, 1.0]}
    bad = ForwardBackwardInput([Datum(ModelInput.from_ints([4, 5]), inputs)], "importance_sampling")

    async def body(engine: LocalEngine, with_bad: bool):
        await three_runs(engine)
        sizes.clear()
        calls = [engine.forward_backward(run, batch(run), True) for run in "bc"]
        if with_bad:
            calls.append(engine.forward_backward("a", bad, True))
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        return outcomes, {run: gradients_of(engine, run) for run in RUNS}

    _, without = with_engine(models, lambda e: body(e, False))
    outcomes, beside = with_engine(models, lambda e: body(e, True))
    assert isinstance(outcomes[2], UserError) and 3 in sizes
    assert beside["a"] is None
    assert all(same(without[run], beside[run]) for run in "bc")


def test_a_cancelled_call_leaves_the_others_whole(models: Models, sizes: list[int]) -> None:
    async def body(engine: LocalEngine, cancel: bool):
        await three_runs(engine)
        sizes.clear()
        long = cross_entropy(*(sft_datum(30, seed) for seed in range(400)))
        task = asyncio.create_task(engine.forward_backward("a", long, True)) if cancel else None
        others = [asyncio.create_task(engine.forward_backward(run, batch(run), True)) for run in "bc"]
        while task is not None and not sizes:
            await asyncio.sleep(0)
        if task is not None:
            task.cancel()
        await asyncio.gather(*others)
        return {run: gradients_of(engine, run) for run in RUNS}

    without = with_engine(models, lambda e: body(e, False), train_tokens=128)
    beside = with_engine(models, lambda e: body(e, True), train_tokens=128)
    assert beside["a"] is None
    assert all(same(without[run], beside[run]) for run in "bc")
