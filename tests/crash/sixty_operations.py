"""Run by an official SDK's own interpreter: sixty operations of training, sampling beside them.

Says `step N` on standard output as each step is done; then one JSON object with all it was told.
"""

import json
import os
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import tinker
from tinker import types

BASE_MODEL = sys.argv[1]
STEPS, IN_FLIGHT, SAMPLES = 30, 3, 40


def datum(step: int, row: int) -> types.Datum:
    """One row of a batch; every batch is another."""
    tokens = [(step * 31 + row * 17 + at * at) % 300 + 10 for at in range(40 + 7 * row)]
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)},
    )


def train(training: tinker.TrainingClient) -> list:
    """Thirty steps, a few of them always on their way."""
    under_way, told = deque(), []

    def collect() -> None:
        forward_backward, step = under_way.popleft()
        told.append([forward_backward.result().metrics["loss:sum"], step.result().metrics])
        print(f"step {len(told)}", flush=True)

    for step in range(STEPS):
        if len(under_way) == IN_FLIGHT:
            collect()
        forward_backward = training.forward_backward([datum(step, row) for row in range(8)], "cross_entropy")
        under_way.append((forward_backward, training.optim_step(types.AdamParams(learning_rate=1e-2))))
    while under_way:
        collect()
    return told


def sample(sampler: tinker.SamplingClient) -> list:
    """One sample after the other."""
    told = []
    for seed in range(SAMPLES):
        params = types.SamplingParams(max_tokens=24, seed=seed, stop=[])
        result = sampler.sample(types.ModelInput.from_ints([10, 20, 30 + seed]), 2, params).result()
        told.append([[list(one.tokens), one.stop_reason] for one in result.sequences])
    return told


def main() -> None:
    """Both at the same time, and a checkpoint at the end."""
    service = tinker.ServiceClient()
    training = service.create_lora_training_client(base_model=BASE_MODEL, rank=8, seed=1).result()
    sampler = service.create_sampling_client(base_model=BASE_MODEL).result()
    with ThreadPoolExecutor(1) as beside:
        samples = beside.submit(sample, sampler)
        told = train(training)
        path = training.save_state("final").result().path
        print(json.dumps({"path": path, "steps": told, "samples": samples.result()}), flush=True)
    os._exit(0)  # all is said; this SDK's threads now and then abort the interpreter's own end


if __name__ == "__main__":
    main()
