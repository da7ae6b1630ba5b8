"""Decoding by programs, as on a GPU: recorded there and launched plainly here, the same tokens come out."""

import asyncio

import numpy as np
import pytest
from engine_support import job, tokens, train_a_little, trained_run, until, with_engine

from tinsmith.engine.local import LocalEngine
from tinsmith.types import LoraConfig, SampleResponse


async def _samples(engine: LocalEngine, model: str) -> list[SampleResponse]:
    """Adapters of several ranks and none, prompts on several shelves, some that join while others decode."""
    for name, lora in {
        "a": {"rank": 4},
        "b": {"rank": 1, "train_mlp": False},
        "c": {"rank": 16, "train_attn": False, "train_unembed": True},
    }.items():
        await trained_run(engine, name, model, **lora)
        await engine.open_sampler(name, model, run_id=name)
    await engine.open_sampler("base", model)
    first = [
        ("base", job(tokens(5, 1), n=3, seed=1, max_tokens=40, stop=[])),
        ("a", job(tokens(60, 2), n=2, seed=2, max_tokens=60, stop=[])),  # moves to another shelf
    ]
    later = [
        ("b", job(tokens(70, 3), n=20, seed=3, max_tokens=30, stop=[], topk_sample_logprobs=2)),
        ("c", job(tokens(130, 4), seed=4, max_tokens=20, stop=[], temperature=0.0, prompt_logprobs=True)),
        ("a", job(tokens(3, 5), seed=5, max_tokens=25)),
    ]
    begun = [asyncio.create_task(engine.sample(*each)) for each in first]
    await until(lambda: sum(batch.sequences() for batch in engine._batches.values()) >= 5)
    begun += [asyncio.create_task(engine.sample(*each)) for each in later]
    return await asyncio.gather(*begun)


@pytest.mark.parametrize("model", ["tiny-llama", "tiny-qwen3"])
def test_programs_give_the_same_samples(models, model: str) -> None:
    plain, captured = (
        with_engine(models, lambda engine: _samples(engine, model), captured=captured)
        for captured in (False, True)
    )
    parted = []  # a random number may lie between the two ways' sums, and then it draws another token
    for one, other in zip(plain, captured, strict=True):
        for a, b in zip(one.sequences, other.sequences, strict=True):
            common = _common(a.tokens, b.tokens)
            np.testing.assert_allclose(a.logprobs_np[:common], b.logprobs_np[:common], rtol=0, atol=1e-5)
            if common < len(a.tokens):
                parted.append(common)
        if one.prompt_logprobs is not None:
            np.testing.assert_allclose(one.prompt_logprobs[1:], other.prompt_logprobs[1:], rtol=0, atol=1e-5)
    assert len(parted) <= 1


def _common(one: list[int], other: list[int]) -> int:
    """How many tokens are the same until two differ."""
    pairs = enumerate(zip(one, other, strict=True))
    return next((at for at, (a, b) in pairs if a != b), len(one))


def test_more_adapters_than_stand_side_by_side(models) -> None:
    async def body(engine: LocalEngine):
        answers = []
        for at in range(20):
            await engine.create_adapter(f"{at}", "tiny-llama", LoraConfig(rank=2, seed=at))
            await engine.open_sampler(f"{at}", "tiny-llama", run_id=f"{at}")
        for count in (20, 3, 9):
            asked = [
                engine.sample(f"{at}", job(tokens(9, at), seed=at, max_tokens=30, stop=[]))
                for at in range(count)
            ]
            answers += [answer.sequences[0].tokens for answer in await asyncio.gather(*asked)]
        return answers

    plain, captured = (with_engine(models, body, captured=captured) for captured in (False, True))
    assert plain == captured


async def _broken_and_healthy(engine: LocalEngine) -> None:
    """Samplers a, with infinite weights, and b."""
    for name in "ab":
        await trained_run(engine, name, "tiny-llama")
    next(iter(engine._adapters["a"].weights.pairs.values())).b.fill_(float("inf"))
    for name in "ab":
        await engine.open_sampler(name, "tiny-llama", run_id=name)


def test_what_is_not_finite_stays_with_its_owner(models) -> None:
    """Adapters are multiplied side by side, and 0 times infinity is not 0."""

    async def body(engine: LocalEngine):
        await _broken_and_healthy(engine)
        broken = asyncio.create_task(engine.sample("a", job(tokens(9, 1), max_tokens=30, stop=[])))
        healthy = await engine.sample("b", job(tokens(9, 1), seed=1, max_tokens=30, stop=[]))
        await asyncio.gather(broken, return_exceptions=True)
        return healthy.sequences[0].logprobs_np

    plain, captured = (with_engine(models, body, captured=captured) for captured in (False, True))
    assert np.isfinite(captured).all()
    np.testing.assert_allclose(plain, captured, rtol=0, atol=1e-5)


def test_nobody_reads_what_another_left_behind(models) -> None:
    """Rows of the memory are used again, and what is masked must be finite all the same."""

    async def body(engine: LocalEngine):
        await _broken_and_healthy(engine)
        broken = job(tokens(40, 1), seed=1, max_tokens=10, stop=[])
        await asyncio.gather(engine.sample("a", broken), return_exceptions=True)
        healthy = await engine.sample("b", job(tokens(9, 1), seed=1, max_tokens=10, stop=[]))
        return healthy.sequences[0].logprobs_np

    plain, captured = (with_engine(models, body, captured=captured) for captured in (False, True))
    assert np.isfinite(plain).all()
    np.testing.assert_allclose(plain, captured, rtol=0, atol=1e-5)


def test_who_does_not_decode_is_not_written_to(models) -> None:
    """A long prompt is read over many steps beside a sample that decodes on the same shelf."""

    async def body(engine: LocalEngine):
        await trained_run(engine, "a", "tiny-llama")
        await engine.open_sampler("a", "tiny-llama", run_id="a")
        first = asyncio.create_task(engine.sample("a", job(tokens(5, 1), seed=1, max_tokens=60, stop=[])))
        await until(lambda: sum(batch.sequences() for batch in engine._batches.values()) >= 1)
        second = await engine.sample("a", job(tokens(100, 2), seed=2, max_tokens=10, stop=[]))
        await first
        return second.sequences[0].logprobs_np

    plain, captured = (
        with_engine(models, body, captured=captured, prefill_tokens_beside=16) for captured in (False, True)
    )
    np.testing.assert_allclose(plain, captured, rtol=0, atol=1e-5)


def test_one_adapter_takes_the_place_of_another(models) -> None:
    async def body(engine: LocalEngine):
        found = []
        for at, rank in enumerate((4, 4, 3)):
            await engine.create_adapter(f"{at}", "tiny-llama", LoraConfig(rank=rank, seed=at))
            await train_a_little(engine, f"{at}", seed=50 + 10 * at)
            await engine.open_sampler(f"{at}", "tiny-llama", run_id=f"{at}")
            answer = await engine.sample(f"{at}", job(tokens(9, 1), seed=1, max_tokens=10, stop=[]))
            await engine.close_sampler(f"{at}")
            found.append(answer.sequences[0].logprobs_np)
        return found

    plain, captured = (with_engine(models, body, captured=captured) for captured in (False, True))
    np.testing.assert_allclose(plain, captured, rtol=0, atol=1e-5)
