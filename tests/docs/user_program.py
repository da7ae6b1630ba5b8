"""A program as a user writes it: mypy --strict has nothing to say to it, and it runs."""

from __future__ import annotations

import asyncio
import sys

import tinsmith as tinker
from tinsmith import types


def datum(tokens: list[int]) -> tinker.Datum:
    """The next token is to be learnt everywhere."""
    inputs = {"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)}
    return tinker.Datum(model_input=tinker.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)


def train(service: tinker.ServiceClient, steps: int) -> tuple[tinker.TrainingClient, list[float]]:
    """A run, and its losses."""
    training = service.create_lora_training_client("tiny-llama", rank=4, seed=1).result()
    losses: list[float] = []
    for _ in range(steps):
        output: tinker.APIFuture[tinker.ForwardBackwardOutput] = training.forward_backward(
            [datum([1, 2, 3, 4])], "cross_entropy"
        )
        training.optim_step(types.AdamParams(learning_rate=1e-2))
        losses.append(output.result().metrics["loss:sum"])
    return training, losses


async def sample(sampler: tinker.SamplingClient, count: int) -> list[list[int]]:
    """Several at once."""
    prompt = tinker.ModelInput.from_ints([1, 2])
    params = tinker.SamplingParams(max_tokens=4, temperature=0.7, seed=1, stop=[])
    asked = [sampler.sample(prompt, 1, params) for _ in range(count)]
    responses: list[tinker.SampleResponse] = list(await asyncio.gather(*asked))
    return [sequence.tokens for response in responses for sequence in response.sequences]


async def stream(sampler: tinker.SamplingClient) -> list[int]:
    """One, token by token."""
    tokens: list[int] = []
    params = tinker.SamplingParams(max_tokens=4, seed=1, stop=[])
    async with sampler.stream(tinker.ModelInput.from_ints([1, 2]), params) as arriving:
        async for token in arriving:
            tokens.append(token.token_id)
    return tokens


def main(url: str) -> None:
    """Train a little, sample, and look at what was kept."""
    with tinker.ServiceClient(base_url=url, api_key="tml-test") as service:
        training, losses = train(service, 3)
        assert losses[-1] < losses[0]
        path: str = training.save_state("program").result().path
        sampler = training.save_weights_and_get_sampling_client()
        assert asyncio.run(sample(sampler, 3))[0] == asyncio.run(sample(sampler, 1))[0]
        assert len(asyncio.run(stream(sampler))) == 4
        logprobs: list[float | None] = sampler.compute_logprobs(tinker.ModelInput.from_ints([1, 2])).result()
        assert logprobs[0] is None
        kept = service.create_rest_client().list_checkpoints(training.model_id).result().checkpoints
        assert [checkpoint.tinker_path for checkpoint in kept] == [path]
        try:
            service.create_training_client_from_state("tinker://none/weights/none").result()
        except tinker.RequestFailedError as error:
            print(error.category is tinker.RequestErrorCategory.User)
        except tinker.APIStatusError as error:
            print(error.status_code, error.retryable)


if __name__ == "__main__":
    main(sys.argv[1])
