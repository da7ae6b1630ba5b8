"""Continuous batching: nobody notices neighbours, room is given back, prompts are read once."""

import asyncio

import numpy as np
import pytest
import torch
from engine_support import job, logprobs_of, tokens, trained_run, until, with_engine
from fast_support import FAMILIES, tiny

from tinsmith.engine.batch import Batch
from tinsmith.engine.interface import BaseModel
from tinsmith.engine.local import LocalEngine
from tinsmith.types import SampleResponse, TensorData


def same(one: SampleResponse, other: SampleResponse) -> bool:
    """Equal to the last bit."""
    return all(
        a.tokens == b.tokens and np.array_equal(a.logprobs_np, b.logprobs_np)
        for a, b in zip(one.sequences, other.sequences, strict=True)
    )


def batch_of(engine: LocalEngine) -> Batch:
    (batch,) = engine._batches.values()
    return batch


@pytest.mark.parametrize("threads", [1, 2])
def test_alone_and_among_others_are_equal_to_the_bit(models, model: str, threads: int) -> None:
    """Others with other adapters, ranks, lengths and parameters; they come and go while ours decodes."""

    async def body(engine: LocalEngine):
        for name, rank in (("a", 4), ("b", 1), ("c", 16)):
            await trained_run(engine, name, model, rank=rank, seed=rank)
            await engine.open_sampler(name, model, run_id=name)
        await engine.open_sampler("base", model)
        ours = [
            ("a", job(tokens(70, 1), n=2, seed=3, max_tokens=80, stop=[])),
            ("base", job(tokens(5, 2), seed=4, max_tokens=60, stop=[], topk_sample_logprobs=3)),
            ("c", job(tokens(130, 3), seed=5, max_tokens=70, stop=[], temperature=0.0)),
        ]
        alone = [await engine.sample(sampler, request) for sampler, request in ours]

        async def others(name: str, seed: int) -> None:
            for turn in range(4):
                length, ask = 1 + (37 * seed + 61 * turn) % 150, 5 + 7 * (seed % 5)
                await engine.sample(
                    name, job(tokens(length, seed), n=1 + seed % 3, seed=seed, max_tokens=ask, top_p=0.9)
                )

        crowd = [asyncio.create_task(others("abc"[at % 3], 100 + at)) for at in range(20)]
        await until(lambda: batch_of(engine).sequences() > 10)
        among = await asyncio.gather(*(engine.sample(sampler, request) for sampler, request in ours))
        await asyncio.gather(*crowd)
        assert all(same(one, other) for one, other in zip(alone, among, strict=True))
        assert batch_of(engine).sequences() == 0

    # Nothing kept and small steps in the second half would hide nothing: prefixes are tested on their own.
    with_engine(models, body, threads=threads, prefix_tokens=0, prefill_tokens_beside=50)


def test_a_request_joins_while_another_decodes_and_leaves_before_it(models) -> None:
    async def body(engine: LocalEngine):
        await engine.open_sampler("s", "tiny-llama")
        await engine.sample("s", job(tokens(5, 1), max_tokens=1))
        long = asyncio.create_task(engine.sample("s", job(tokens(5, 1), max_tokens=240, stop=[])))
        await until(lambda: batch_of(engine).sequences() == 1)
        short = await engine.sample("s", job(tokens(40, 2), n=3, max_tokens=4, stop=[]))
        assert all(len(sequence.tokens) == 4 for sequence in short.sequences)
        assert not long.done()
        assert len((await long).sequences[0].tokens) == 240

    with_engine(models, body)


def test_cancelling_gives_the_room_back(models) -> None:
    async def body(engine: LocalEngine):
        await engine.open_sampler("s", "tiny-llama")
        await engine.sample("s", job([5], max_tokens=1))
        batch = batch_of(engine)
        kept = asyncio.create_task(engine.sample("s", job([7], max_tokens=250, stop=[])))
        await until(lambda: batch.sequences() == 1)
        going = asyncio.create_task(engine.sample("s", job([5], n=16, max_tokens=250, stop=[])))
        await until(lambda: batch.sequences() == 17)
        going.cancel()
        steps: list[int] = []
        step = batch.step
        batch.step = lambda: (steps.append(batch.sequences()), step())  # type: ignore[method-assign]
        await until(lambda: len(steps) >= 3)
        # The first recorded step may have been planned before the cancellation; the next knows.
        assert set(steps[1:]) == {1}
        kept.cancel()
        await until(lambda: not engine._thread.busy())
        assert batch.sequences() == 0

    with_engine(models, body)


def test_more_than_fits_waits_in_line(models) -> None:
    async def body(engine: LocalEngine):
        await engine.open_sampler("s", "tiny-llama")
        requests = [job(tokens(10, at), n=4, seed=at, max_tokens=22, stop=[]) for at in range(6)]
        alone = [await engine.sample("s", request) for request in requests]
        seen: list[int] = []
        batch = batch_of(engine)
        step = batch.step
        batch.step = lambda: (seen.append(batch.sequences()), step())  # type: ignore[method-assign]
        together = await asyncio.gather(*(engine.sample("s", request) for request in requests))
        assert all(same(one, other) for one, other in zip(alone, together, strict=True))
        assert max(seen) <= 5, "at most four samples, and a prompt that is being read"

    with_engine(models, body, cache_tokens=130)


def test_samples_of_a_request_take_turns_when_not_all_fit(models) -> None:
    async def body(engine: LocalEngine):
        await engine.open_sampler("s", "tiny-llama")
        return await engine.sample("s", job(tokens(10, 1), n=9, seed=2, max_tokens=12))

    few, many = (with_engine(models, body, sample_rows=rows) for rows in (2, 64))
    assert same(few, many)


def test_a_prompt_read_before_is_not_read_again(models) -> None:
    shared = tokens(100, 1)
    first, second = [*shared, *tokens(30, 2)], [*shared, *tokens(50, 3)]

    async def body(engine: LocalEngine):
        await trained_run(engine, "run", "tiny-llama")
        await engine.open_sampler("s", "tiny-llama", run_id="run")
        await engine.open_sampler("base", "tiny-llama")
        ask = {"seed": 5, "max_tokens": 20, "stop": []}
        everything = job(first, **ask, prompt_logprobs=True)
        last = job(first, **ask, prompt_logprobs=True, prompt_logprobs_last_n=20)
        asks = [("s", job(first, **ask)), ("s", job(first, **ask)), ("s", job(second, **ask))]
        asks += [("base", job(first, **ask)), ("s", everything), ("s", last)]
        return [await engine.sample(name, request) for name, request in asks]

    fresh = with_engine(models, body, prefix_tokens=0)
    cached = with_engine(models, body)
    assert [answer.prompt_cache_hit_tokens for answer in fresh] == [0] * 6
    # The last token is always read; so are those whose log-probabilities are asked for.
    assert [answer.prompt_cache_hit_tokens for answer in cached] == [0, 129, 100, 0, 0, 109]
    assert all(same(one, other) for one, other in zip(fresh, cached, strict=True))
    for at in (4, 5):
        np.testing.assert_array_equal(fresh[at].prompt_logprobs_np, cached[at].prompt_logprobs_np)


def test_old_prompts_make_room_for_new_ones_and_closed_samplers_leave_none(models) -> None:
    async def body(engine: LocalEngine):
        await trained_run(engine, "run", "tiny-llama")
        hits = []
        for name in ("s", "t"):
            await engine.open_sampler(name, "tiny-llama", run_id="run")
            for seed in (1, 2, 1, 3, 2, 1):
                hits.append(
                    (await engine.sample(name, job(tokens(40, seed), max_tokens=1))).prompt_cache_hit_tokens
                )
            await engine.close_sampler(name)
            assert not batch_of(engine)._prefixes._entries
        return hits

    assert with_engine(models, body, prefix_tokens=80) == [0, 0, 39, 0, 0, 0] * 2


def test_a_prompt_in_pieces_is_the_whole_prompt(models, model: str) -> None:
    prompt = tokens(200, 4)
    targets = TensorData.from_numpy(np.arange(199)[:, None] % 512)

    async def body(engine: LocalEngine):
        await trained_run(engine, "run", model)
        await engine.open_sampler("s", model, run_id="run")
        request = job(
            prompt, seed=1, max_tokens=10, stop=[], prompt_logprobs=True, target_prompt_logprobs=targets
        )
        answer = await engine.sample("s", request)
        trainer = await logprobs_of(engine, "run", prompt + answer.sequences[0].tokens)
        np.testing.assert_allclose(answer.prompt_logprobs_np[1:], trainer[:199], atol=1e-5)
        np.testing.assert_allclose(answer.sequences[0].logprobs_np, trainer[199:], atol=1e-5)
        return answer

    whole, *pieces = (with_engine(models, body, prefill_tokens=n) for n in (1024, 7, 64, 100))
    for answer in pieces:
        assert same(whole, answer)
        np.testing.assert_array_equal(whole.prompt_logprobs_np, answer.prompt_logprobs_np)


def test_weights_that_may_not_be_laid_out_twice_give_the_same_bits(models, model: str) -> None:
    async def body(engine: LocalEngine):
        await engine.open_sampler("s", model)
        return await engine.sample("s", job(tokens(20, 1), n=3, seed=2, max_tokens=30, stop=[]))

    assert same(*(with_engine(models, body, packed_bytes=size) for size in (0, 2**30)))


def test_a_failing_step_is_told_to_all_who_waited_and_the_next_request_works(models) -> None:
    async def body(engine: LocalEngine):
        await engine.open_sampler("s", "tiny-llama")
        await engine.sample("s", job([5], max_tokens=1))
        batch = batch_of(engine)
        waiting = [
            asyncio.create_task(engine.sample("s", job([5], max_tokens=250, stop=[]))) for _ in range(2)
        ]
        await until(lambda: batch.sequences() == 2)

        def fail() -> None:
            del batch.step
            raise ArithmeticError("broken")

        batch.step = fail  # type: ignore[method-assign]
        for outcome in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(outcome, ArithmeticError)
        assert batch.sequences() == 0
        assert len((await engine.sample("s", job([5], max_tokens=3, stop=[]))).sequences[0].tokens) == 3

    with_engine(models, body)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_samples_as_transformers_does(family: str, tmp_path) -> None:
    reference = tiny(family)
    reference.generation_config.eos_token_id = reference.config.eos_token_id = None
    reference.save_pretrained(tmp_path)
    prompts = [
        np.random.default_rng(at).integers(3, 128, length).tolist() for at, length in enumerate((1, 30, 90))
    ]

    async def body(engine: LocalEngine):
        await engine.open_sampler("s", "tiny")
        request = {"temperature": 0.0, "max_tokens": 50, "stop": [], "prompt_logprobs": True}
        return await asyncio.gather(*(engine.sample("s", job(prompt, **request)) for prompt in prompts))

    model = BaseModel("tiny", tmp_path, family, 128, 512)
    for prompt, answer in zip(prompts, with_engine({"tiny": model}, body), strict=True):
        ids = torch.tensor([prompt])
        expected = reference.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=50, do_sample=False, pad_token_id=0
        )
        path = answer.sequences[0].tokens
        assert path == expected[0, len(prompt) :].tolist()
        logits = reference(expected).logits[0, :-1]
        logprobs = torch.log_softmax(logits, -1).gather(1, expected[0, 1:, None])[:, 0]
        np.testing.assert_allclose(answer.prompt_logprobs_np[1:], logprobs[: len(prompt) - 1], atol=1e-4)
        np.testing.assert_allclose(answer.sequences[0].logprobs_np, logprobs[len(prompt) - 1 :], atol=1e-4)
