"""What `bench/sdk.py` runs with each of the two SDKs, word for word the same: one measurement, as JSON.

python sdk_client.py PACKAGE URL samples IN_FLIGHT COUNT
python sdk_client.py PACKAGE URL submit
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

PROMPT = 100  # tokens
DATUMS, LENGTH = 256, 4096


async def samples(tinker: Any, service: Any, in_flight: int, count: int) -> dict[str, float]:
    """So many samples, never more than so many without an answer."""
    sampler = await service.create_sampling_client_async(base_model="m")
    prompt = tinker.ModelInput.from_ints(list(range(PROMPT)))
    params = tinker.SamplingParams(max_tokens=32)
    left = iter(range(count))

    async def work() -> int:
        tokens = 0
        for _ in left:
            response = await sampler.sample_async(prompt=prompt, num_samples=1, sampling_params=params)
            tokens += len(response.sequences[0].tokens)
        return tokens

    async def all_of(number: int) -> None:
        nonlocal left
        left = iter(range(number))
        await asyncio.gather(*(work() for _ in range(in_flight)))

    await all_of(in_flight)  # connections are open from here on
    began, cpu = time.perf_counter(), time.process_time()
    await all_of(count)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    return {"samples_per_second": count / seconds, "cpu_per_1000": 1000 * cpu / count}


def submit(tinker: Any, service: Any) -> dict[str, float]:
    """One large batch: from the call to its result, which the stub has at once."""
    training = service.create_lora_training_client("m", rank=8)
    if hasattr(training, "result"):
        training = training.result()
    rng = np.random.default_rng(0)

    def batch(count: int) -> list[Any]:
        made = []
        for _ in range(count):
            tokens = rng.integers(0, 100_000, LENGTH + 1)
            inputs = {
                "target_tokens": tinker.TensorData.from_numpy(tokens[1:]),
                "weights": tinker.TensorData.from_numpy(rng.random(LENGTH, dtype=np.float32)),
            }
            prompt = tinker.ModelInput.from_ints(tokens[:-1].tolist())
            made.append(tinker.Datum(model_input=prompt, loss_fn_inputs=inputs))
        return made

    training.forward_backward(batch(1), "cross_entropy").result()
    data = batch(DATUMS)
    before = _forget_peak()
    began, cpu = time.perf_counter(), time.process_time()
    training.forward_backward(data, "cross_entropy").result()
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    return {"seconds": seconds, "cpu": cpu, "peak_mib": (_peak() - before) / 1024}


def _forget_peak() -> int:
    """From here on the peak of memory is counted anew; what is in use now, in KiB."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _peak() -> int:
    return _status("VmHWM")


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def main() -> None:
    package, url, what, *numbers = sys.argv[1:]
    tinker = importlib.import_module(package)
    service = tinker.ServiceClient(base_url=url, api_key="tml-bench")
    if what == "submit":
        measured = submit(tinker, service)
    else:
        measured = asyncio.run(samples(tinker, service, *map(int, numbers)))
    print(json.dumps(measured), flush=True)
    os._exit(0)  # the official SDK now and then aborts while its interpreter shuts down


if __name__ == "__main__":
    main()
