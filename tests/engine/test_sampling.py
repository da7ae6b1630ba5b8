"""Sampling: agreement with the trainer, randomness, stops, and everything a request may ask of its prompt."""

import asyncio

import numpy as np
import pytest
import torch
from engine_support import job, logprobs_of, reference_model, tokens, trained_run, with_engine

from tinsmith.engine.draw import draw, uniform
from tinsmith.engine.local import LocalEngine
from tinsmith.types import SamplingParams, TensorData

PROMPT = tokens(12, 5)


def sampled(models, *jobs, model: str = "tiny-llama", **limits):
    """The answers to some jobs, from the bare base."""

    async def body(engine: LocalEngine):
        await engine.open_sampler("s", model)
        return [await engine.sample("s", each) for each in jobs]

    return with_engine(models, body, **limits)


def lists(response) -> list[list[int]]:
    return [sequence.tokens for sequence in response.sequences]


def test_sampler_and_trainer_agree(models, model: str) -> None:
    async def body(engine: LocalEngine):
        await trained_run(engine, "run", model)
        await engine.open_sampler("s", model, run_id="run")
        request = job(PROMPT, n=3, seed=1, max_tokens=40, stop=[], prompt_logprobs=True)
        answer = await engine.sample("s", request)
        for sequence in answer.sequences:
            trainer = await logprobs_of(engine, "run", PROMPT + sequence.tokens)
            np.testing.assert_allclose(answer.prompt_logprobs_np[1:], trainer[: len(PROMPT) - 1], atol=1e-5)
            np.testing.assert_allclose(sequence.logprobs_np, trainer[len(PROMPT) - 1 :], atol=1e-5)
        return answer

    # Small pieces: the prompt is read in three steps, the three samples decode in two groups.
    answer = with_engine(models, body, prefill_tokens=5, sample_rows=2)
    assert answer.prompt_logprobs[0] is None
    assert len({tuple(sequence) for sequence in lists(answer)}) == 3


def test_greedy_is_that_of_transformers(models, model: str) -> None:
    (answer,) = sampled(models, job(PROMPT, temperature=0.0, max_tokens=30, stop=[]), model=model)
    reference, ids = reference_model(models[model].folder), list(PROMPT)
    for _ in range(30):
        with torch.no_grad():
            ids.append(int(reference(torch.tensor([ids])).logits[0, -1].argmax()))
    assert lists(answer) == [ids[len(PROMPT) :]]


def test_a_sample_depends_on_its_seed_and_number_alone(models) -> None:
    async def body(engine: LocalEngine):
        await engine.open_sampler("s", "tiny-llama")
        ask = {"max_tokens": 20, "stop": []}
        eight = lists(await engine.sample("s", job(PROMPT, n=8, seed=7, **ask)))
        assert len({tuple(tokens) for tokens in eight}) == 8
        assert lists(await engine.sample("s", job(PROMPT, n=1, seed=7, **ask))) == eight[:1]
        assert lists(await engine.sample("s", job(PROMPT, n=3, seed=8, **ask))) != eight[:3]
        others = [engine.sample("s", job(tokens(9, seed), n=2, seed=seed, **ask)) for seed in range(6)]
        crowded = await asyncio.gather(*others, engine.sample("s", job(PROMPT, n=3, seed=7, **ask)))
        assert lists(crowded[-1]) == eight[:3]

    with_engine(models, body)


def test_logprobs_are_of_the_scaled_distribution_before_the_filters(models) -> None:
    options = {
        "max_tokens": 5,
        "stop": [],
        "temperature": 0.7,
        "top_k": 5,
        "top_p": 0.9,
        "topk_sample_logprobs": 4,
    }
    (answer,) = sampled(models, job(PROMPT, seed=3, **options))
    sequence = answer.sequences[0]
    with torch.no_grad():
        ids = torch.tensor([PROMPT + sequence.tokens])
        logits = reference_model(models["tiny-llama"].folder)(ids).logits[0, len(PROMPT) - 1 : -1]
    expected = torch.log_softmax(logits / 0.7, -1)
    chosen = expected.gather(1, torch.tensor(sequence.tokens)[:, None])[:, 0]
    np.testing.assert_allclose(sequence.logprobs_np, chosen, atol=1e-4)
    top, indices = expected.topk(5)
    assert all(token in row for token, row in zip(sequence.tokens, indices.tolist(), strict=True))
    np.testing.assert_allclose(sequence.topk_logprobs_np.logprobs, top[:, :4], atol=1e-4)
    np.testing.assert_array_equal(sequence.topk_logprobs_np.token_ids, indices[:, :4])


def test_draws_follow_the_distribution_and_its_filters() -> None:
    probabilities = torch.tensor([0.4, 0.3, 0.2, 0.1])

    def counts(**params) -> np.ndarray:
        rows = probabilities.log().expand(4000, 4)
        drawn = draw(rows, SamplingParams(**params), 5, range(4000), 0)
        return np.bincount(drawn.tokens.numpy(), minlength=4) / 4000

    np.testing.assert_allclose(counts(), [0.4, 0.3, 0.2, 0.1], atol=0.03)
    np.testing.assert_allclose(counts(temperature=0.5), np.array([16, 9, 4, 1]) / 30, atol=0.03)
    np.testing.assert_allclose(counts(top_k=2), [4 / 7, 3 / 7, 0, 0], atol=0.03)
    np.testing.assert_allclose(counts(top_p=0.75), [4 / 9, 3 / 9, 2 / 9, 0], atol=0.03)
    np.testing.assert_allclose(counts(top_p=0.7), [4 / 7, 3 / 7, 0, 0], atol=0.03)
    # top_p is a share of what top_k left: 0.4 / 0.7 is less than 0.6, so both stay.
    np.testing.assert_allclose(counts(top_k=2, top_p=0.6), [4 / 7, 3 / 7, 0, 0], atol=0.03)
    np.testing.assert_array_equal(counts(top_p=1e-9), [1, 0, 0, 0])
    np.testing.assert_array_equal(counts(temperature=0), [1, 0, 0, 0])
    np.testing.assert_array_equal(counts(temperature=1e-6), [1, 0, 0, 0])


def test_random_numbers_are_spread_over_seeds_samples_and_steps() -> None:
    places = [(seed, sample, step) for seed in range(10) for sample in range(10) for step in range(10)]
    numbers = np.array([uniform(*place) for place in places])
    assert len(set(numbers)) == 1000
    assert abs(numbers.mean() - 0.5) < 0.03 and numbers.min() < 0.01 and numbers.max() > 0.99
    assert uniform(2**63 - 1, 1023, 2**31) < 1


# -- ends ---------------------------------------------------------------------------------------------


def test_stop_tokens_end_a_sequence_and_are_part_of_it(models) -> None:
    greedy = {"temperature": 0.0, "max_tokens": 12}
    free, *_ = sampled(models, job(PROMPT, **greedy, stop=[]))
    (path,) = lists(free)
    assert free.sequences[0].stop_reason == "length" and len(path) == 12
    stop = next(token for at, token in enumerate(path) if at >= 3 and token not in path[:at])
    (stopped,) = sampled(models, job(PROMPT, **greedy, stop=[stop]))
    assert lists(stopped) == [path[: path.index(stop) + 1]]
    assert stopped.sequences[0].stop_reason == "stop"


def test_the_end_token_stops_unless_the_list_is_empty(models) -> None:
    """Over many samples <|im_end|> (id 2) comes up now and then."""
    common = {"n": 64, "seed": 2, "max_tokens": 60, "temperature": 1.5}
    default, listed, text, free = sampled(
        models, *(job(PROMPT, stop=stop, **common) for stop in (None, [3], "zzzzzz", []))
    )
    for response in (default, listed, text):
        ended = [sequence for sequence in response.sequences if 2 in sequence.tokens]
        assert ended
        for sequence in ended:
            assert sequence.tokens.index(2) == len(sequence.tokens) - 1 and sequence.stop_reason == "stop"
    assert any(2 in sequence.tokens for sequence in free.sequences)
    assert all(len(s.tokens) == 60 and s.stop_reason == "length" for s in free.sequences)


def test_stop_strings_are_found_across_token_borders(models) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(models["tiny-llama"].folder)
    common = {"n": 16, "seed": 4, "max_tokens": 30, "temperature": 1.0}
    (free,) = sampled(models, job(PROMPT, stop=[], **common))
    checked = 0
    for index, path in enumerate(lists(free)):
        text = tokenizer.decode(path)
        middle = len(tokenizer.decode(path[:15]))
        stop = text[middle - 2 : middle + 2]  # two characters either side of a token border
        if "\N{REPLACEMENT CHARACTER}" in stop or 2 in path:
            continue
        end = next(n for n in range(1, 31) if stop in tokenizer.decode(path[:n]))
        (stopped,) = sampled(models, job(PROMPT, stop=["never occurs", stop], **common))
        assert lists(stopped)[index] == path[:end]
        assert stopped.sequences[index].stop_reason == "stop"
        checked += 1
        if checked == 3:
            return
    raise AssertionError("the samples hold no text to stop at")


def test_characters_of_several_tokens_are_found(models) -> None:
    from tinsmith.engine.base import LoadedBase
    from tinsmith.engine.stops import StopRule

    base = LoadedBase(models["tiny-llama"].folder, torch.float32, torch.device("cpu"))
    ids = base.tokenizer.encode("Grüße aus Köln: 你好!", add_special_tokens=False)
    assert len(ids) > 15
    for stop in ("ße", "Köln", "你好", "!", "aus K"):
        watcher = StopRule(base, SamplingParams(stop=stop)).watcher()
        seen = next(n for n, token in enumerate(ids, 1) if watcher.ends_with(token))
        decoded = base.tokenizer.decode(ids[:seen])
        assert stop in decoded and stop not in base.tokenizer.decode(ids[: seen - 1])


def test_the_context_is_a_limit(models) -> None:
    prompt = tokens(250, 1)
    unlimited, beyond = sampled(models, job(prompt, stop=[]), job(prompt, stop=[], max_tokens=1000))
    for answer in (unlimited, beyond):
        assert len(answer.sequences[0].tokens) == 6 and answer.sequences[0].stop_reason == "length"


def test_sequence_ids_go_with_their_sequences(models) -> None:
    (answer,) = sampled(models, job(PROMPT, n=2, max_tokens=2, sequence_ids=("x", "y")))
    assert [sequence.sequence_id for sequence in answer.sequences] == ["x", "y"]


# -- the prompt ---------------------------------------------------------------------------------------


def prompt_distribution(models) -> np.ndarray:
    """log p of what follows each prompt position but the last."""
    with torch.no_grad():
        logits = reference_model(models["tiny-llama"].folder)(torch.tensor([PROMPT])).logits[0, :-1]
    return torch.log_softmax(logits, -1).numpy()


def test_everything_about_the_prompt(models) -> None:
    targets = np.full((len(PROMPT) - 1, 3), -1)
    targets[2] = [7, 0, 500]
    targets[5, 1] = 9
    ask = {
        "temperature": 0.3,  # the prompt's logprobs do not heed it
        "max_tokens": 1,
        "prompt_logprobs": True,
        "topk_prompt_logprobs": 2,
        "prompt_alt_tokens_k": 3,
        "target_prompt_logprobs": TensorData.from_numpy(targets),
    }
    (answer,) = sampled(models, job(PROMPT, **ask), prefill_tokens=5)
    expected = prompt_distribution(models)
    own = expected[np.arange(len(PROMPT) - 1), PROMPT[1:]]
    assert np.isnan(answer.prompt_logprobs_np[0])
    np.testing.assert_allclose(answer.prompt_logprobs_np[1:], own, atol=1e-4)

    order = np.argsort(-expected, axis=1)
    top = answer.topk_prompt_logprobs_np
    assert answer.topk_prompt_logprobs[0] is None
    np.testing.assert_array_equal(top.token_ids[1:], order[:, :2])
    np.testing.assert_allclose(top.logprobs[1:], np.take_along_axis(expected, order[:, :2], 1), atol=1e-4)
    alternatives = answer.prompt_alt_tokens
    assert alternatives.tokens.shape == [len(PROMPT) - 1, 3]
    drawn = alternatives.tokens.to_numpy()
    np.testing.assert_allclose(
        alternatives.logprobs.to_numpy(), np.take_along_axis(expected, drawn, 1), atol=1e-4
    )
    asked = np.where(targets >= 0, np.take_along_axis(expected, np.maximum(targets, 0), 1), 0.0)
    assert answer.target_prompt_logprobs.shape == list(targets.shape)
    np.testing.assert_allclose(answer.target_prompt_logprobs.to_numpy(), asked, atol=1e-4)

    sparse = TensorData.from_numpy(targets).to_sparse(pad_value=-1)
    (answer,) = sampled(models, job(PROMPT, max_tokens=1, target_prompt_logprobs=sparse))
    assert answer.target_prompt_logprobs.is_sparse and answer.prompt_logprobs is None
    np.testing.assert_allclose(answer.target_prompt_logprobs.to_numpy(), asked, atol=1e-4)


def alternatives(models, **how) -> np.ndarray:
    (answer,) = sampled(models, job(PROMPT, max_tokens=1, **how), prefill_tokens=5)
    return answer.prompt_alt_tokens.tokens.to_numpy()


def test_alternatives_to_the_prompt_are_independent_draws_at_the_temperature(models) -> None:
    draws, temperature = 1000, 0.5
    sharpened = prompt_distribution(models) / temperature
    expected = np.exp(sharpened) / np.exp(sharpened).sum(1, keepdims=True)
    # Neither top_k nor top_p narrows them, and the same token comes as often as its probability says.
    drawn = alternatives(models, prompt_alt_tokens_k=draws, temperature=temperature, seed=3, top_k=1)
    for row, probabilities in zip(drawn, expected, strict=True):
        found = np.bincount(row, minlength=len(probabilities)) / draws
        allowed = 5 * np.sqrt(probabilities * (1 - probabilities) / draws) + 2 / draws
        assert (np.abs(found - probabilities) <= allowed).all()
    again = alternatives(models, prompt_alt_tokens_k=4, temperature=temperature, seed=3)
    np.testing.assert_array_equal(again, drawn[:, :4])
    assert (alternatives(models, prompt_alt_tokens_k=4, temperature=temperature, seed=4) != again).any()


def test_alternatives_at_temperature_0_are_the_most_likely_token(models) -> None:
    best = prompt_distribution(models).argmax(1)
    np.testing.assert_array_equal(
        alternatives(models, prompt_alt_tokens_k=2, temperature=0.0), np.stack([best, best], 1)
    )


@pytest.mark.parametrize("last", [1, 4, 11, 12, 100])
def test_only_the_last_prompt_logprobs(models, last: int) -> None:
    ask = job(PROMPT, max_tokens=1, prompt_logprobs=True, prompt_logprobs_last_n=last, topk_prompt_logprobs=2)
    (answer,) = sampled(models, ask, prefill_tokens=5)
    own = np.append(np.nan, prompt_distribution(models)[np.arange(len(PROMPT) - 1), PROMPT[1:]])
    own[: max(0, len(PROMPT) - last)] = np.nan
    np.testing.assert_allclose(answer.prompt_logprobs_np, own, atol=1e-4)
    unknown = [row is None for row in answer.topk_prompt_logprobs]
    assert unknown == np.isnan(own).tolist()


def test_a_prompt_of_one_token(models) -> None:
    targets = TensorData(np.zeros((0, 2)), "int64", [0, 2])
    ask = job([5], max_tokens=1, prompt_logprobs=True, topk_prompt_logprobs=1, prompt_alt_tokens_k=1,
              target_prompt_logprobs=targets)  # fmt: skip
    (answer,) = sampled(models, ask)
    assert answer.prompt_logprobs == [None] and answer.topk_prompt_logprobs == [None]
    assert answer.prompt_alt_tokens.tokens.shape == [0, 1]
    assert answer.target_prompt_logprobs.shape == [0, 2]
