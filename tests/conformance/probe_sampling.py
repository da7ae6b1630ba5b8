"""Probes of SamplingClient, and of the futures everything returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tinker
from probing import World, close, datum, probe, prompt, refused, settled
from tinker import types

Call = Callable[..., Any]


@probe(
    "SamplingClient.sample",
    checks="count, length, seed, stops, log-probabilities, top-k; refusals",
)
def sample(world: World, it: Any, call: Call) -> None:
    params = types.SamplingParams(max_tokens=5, seed=11, temperature=0.7)
    first = call(prompt(), 3, params, include_prompt_logprobs=True, topk_prompt_logprobs=2)
    again = call(prompt(), 3, params)
    tokens = [list(s.tokens) for s in first.sequences]
    assert tokens == [list(s.tokens) for s in again.sequences]
    assert len(tokens) == 3 and len({tuple(t) for t in tokens}) > 1
    for sequence in first.sequences:
        assert len(sequence.logprobs) == len(sequence.tokens) <= 5
        assert all(value <= 0 for value in sequence.logprobs)
    assert first.prompt_logprobs[0] is None and len(first.prompt_logprobs) == 4
    assert [len(row) for row in first.topk_prompt_logprobs[1:]] == [2, 2, 2]
    greedy = call(prompt(), 1, types.SamplingParams(max_tokens=4, temperature=0.0, stop=[])).sequences[0]
    stopped = call(prompt(), 1, types.SamplingParams(max_tokens=4, temperature=0.0, stop=[greedy.tokens[1]]))
    assert list(stopped.sequences[0].tokens) == list(greedy.tokens[:2])
    assert stopped.sequences[0].stop_reason == "stop"
    if not world.old:
        sample_more(call, params)
    with refused("temperature"):
        call(prompt(), 1, types.SamplingParams(max_tokens=1, temperature=-1.0))


def sample_more(call: Call, params: types.SamplingParams) -> None:
    """What only the new SDK can ask for."""
    targets = types.TensorData(data=[20, 5, 30, 5, 40, 5], dtype="int64", shape=[3, 2])
    result = call(
        prompt(),
        1,
        params,
        include_prompt_logprobs=True,
        topk_sample_logprobs=3,
        target_prompt_logprobs=targets,
        prompt_alt_tokens_k=2,
    )
    asked = result.target_prompt_logprobs.to_numpy()
    assert asked.shape == (3, 2)
    assert all(close(a, b) for a, b in zip(asked[:, 0], result.prompt_logprobs[1:], strict=True))
    assert all(len(row) == 3 for row in result.sequences[0].topk_logprobs)
    assert result.prompt_alt_tokens.tokens.to_numpy().shape == (3, 2)
    assert result.sequences[0].sequence_id
    last = call(prompt(), 1, params, include_prompt_logprobs=True, prompt_logprobs_last_n=1)
    assert last.prompt_logprobs[:3] == [None] * 3 and close(
        last.prompt_logprobs[3], result.prompt_logprobs[3]
    )


@probe("SamplingClient.compute_logprobs", checks="one per prompt token, as sample reports them")
def compute_logprobs(world: World, it: Any, call: Call) -> None:
    values = call(prompt())
    params = types.SamplingParams(max_tokens=1)
    reported = settled(it.sample(prompt(), 1, params, include_prompt_logprobs=True)).prompt_logprobs
    assert values[0] is None and len(values) == 4
    assert all(close(a, b) for a, b in zip(values[1:], reported[1:], strict=True))
    if not world.old:
        assert call(prompt(), prompt_logprobs_last_n=2)[:2] == [None, None]


@probe("SamplingClient.get_base_model", checks="the base model's name, of a sampler of saved weights too")
def get_base_model(world: World, it: Any, call: Call) -> None:
    assert call() == world.model
    path = settled(world.training().save_weights_for_sampler(world.name())).path
    assert settled(world.service.create_sampling_client(model_path=path)).get_base_model() == world.model


@probe("SamplingClient.create", checks="a sampler made from a session samples")
def create(world: World, it: Any, call: Call) -> None:
    sampler = call(world.service.holder, base_model=world.model)
    assert len(settled(sampler.compute_logprobs(prompt()))) == 4


@probe(
    "SamplingClient.get_sampler_handle",
    "SamplingClient.from_sampler_handle",
    checks="a client made from the handle samples the same",
)
def sampler_handle(world: World, it: Any, call: Call) -> None:
    handle = settled(it).get_sampler_handle()
    other = tinker.SamplingClient.from_sampler_handle(handle, api_key=world.key)
    params = types.SamplingParams(max_tokens=4, seed=5)
    results = [settled(client.sample(prompt(), 1, params)) for client in (it, other)]
    assert list(results[0].sequences[0].tokens) == list(results[1].sequences[0].tokens)


@probe(
    "BackcompatSamplingClientFuture.result",
    "BackcompatSamplingClientFuture.future",
    "BackcompatSamplingClientFuture.coroutine",
    checks="becomes the sampling client",
)
def becomes_sampling_client(world: World, it: Any, call: Call) -> None:
    assert len(settled(call().compute_logprobs(prompt()))) == 4


@probe(
    "APIFuture.result",
    "APIFuture.future",
    "APIFuture.coroutine",
    checks="the result, as often as it is asked for; a failure names the field",
)
def api_future(world: World, it: Any, call: Call) -> None:
    assert call().metrics["loss:sum"] > 0
    bad = world.training().forward_backward([datum([1, 2, 10**9])], "cross_entropy")
    with refused("target_tokens", by=tinker.RequestFailedError):
        bad.result()


@probe("LossHandle.input_names", "LossHandle.key", "LossHandle.loss_id", checks="tells what was traced")
def loss_handle(world: World, it: Any, call: Call) -> None:
    assert it.input_names == ("weights",) and len(it.key) == 64
    assert call() in (it.input_names, it.key, it.loss_id)
