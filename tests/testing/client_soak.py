"""Many samples and training steps through a service that fails one request in twenty.

    python tests/testing/client_soak.py [--samples 20000] [--steps 200]

The service is a process of its own, so that what the client leaves behind can be counted here. Every future
must resolve, the engine must have done each thing once, training must end where it ends without faults, and
when the client is closed no task, thread or file descriptor of it may be left.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tinsmith
from tinsmith.client.loop import background
from tinsmith.testing import Drop, FaultyService, Pending, RetryAfter, Slow, Status, Truncate
from tinsmith.types import SampleJob

RATE = 0.05
IN_FLIGHT = 500
SOON = RetryAfter("ms", 30)
ANYWHERE = [
    Status(503, retry_after=SOON),
    Status(500),
    Drop("before"),
    Drop("after"),
    Truncate(0.5),
    Slow(before=0.05, pieces=3, between=0.01),
]
POLLS = [*ANYWHERE, Pending("408"), Pending("try_again", "paused_capacity")]
PROMPT = tinsmith.ModelInput.from_ints([10, 20, 30])
DATUM = tinsmith.Datum(PROMPT, {"target_tokens": [20, 30, 40], "weights": [1.0, 1.0, 1.0]})


# ---- the service, in a process of its own -------------------------------------------------------------


def serve(rate: float) -> None:
    """Print the address; at a line on standard input, what was done and what went wrong."""
    done: dict[str, Counter[str]] = {
        "sample": Counter(),
        "forward_backward": Counter(),
        "optim_step": Counter(),
    }
    with tempfile.TemporaryDirectory() as folder, FaultyService(Path(folder)) as faulty:
        engine: Any = faulty.service._engine
        for name, counter in done.items():
            setattr(engine, name, _counted(getattr(engine, name), counter))
        faulty.faults.on("retrieve_future*", *POLLS, rate=rate, seed=1)
        faulty.faults.on("*", *ANYWHERE, rate=rate, seed=2)
        print(faulty.url, flush=True)
        sys.stdin.readline()
        told = {
            "most_often": max(done["sample"].values()),
            "done": {name: counter.total() for name, counter in done.items()},
            "requests": faulty.faults.requests.total(),
            "faults": dict(Counter(type(fault).__name__ for _, fault in faulty.faults.played)),
        }
        print(json.dumps(told), flush=True)


def _counted(method: Any, counter: Counter[str]) -> Any:
    """Counts by what is asked: a sample by its id, a training operation by its run."""

    async def counted(where: str, what: Any, *rest: Any) -> Any:
        counter[what.sequence_ids[0] if isinstance(what, SampleJob) else where] += 1
        return await method(where, what, *rest)

    return counted


@contextmanager
def service(rate: float) -> Iterator[subprocess.Popen[str]]:
    """The process; its ``url`` is its first line."""
    command = [sys.executable, __file__, "--serve", str(rate)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


# ---- the client ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Held:
    """What this process holds."""

    tasks: tuple[str, ...]
    threads: tuple[str, ...]
    files: int

    @classmethod
    def now(cls) -> Held:
        gc.collect()
        loop = background()
        found: list[str] = []
        seen = threading.Event()

        def look() -> None:
            found.extend(sorted(task.get_name() for task in asyncio.all_tasks()))
            seen.set()

        loop.call(look)
        assert seen.wait(60)
        return cls(
            tuple(found),
            tuple(sorted(thread.name for thread in threading.enumerate())),
            len(os.listdir("/proc/self/fd")),
        )


def train(client: tinsmith.ServiceClient, steps: int) -> list[float]:
    """The losses of a run that is always the same."""
    training = client.create_lora_training_client("tiny-llama", rank=4, seed=1).result(600)
    outputs = []
    for _ in range(steps):
        outputs.append(training.forward_backward([DATUM], "cross_entropy"))
        training.optim_step(tinsmith.AdamParams(learning_rate=1e-3))
    return [output.result(600).metrics["loss:sum"] for output in outputs]


async def sample(client: tinsmith.ServiceClient, count: int) -> int:
    """How many different answers; the seed decides them, so there are two."""
    sampler = await client.create_sampling_client(base_model="tiny-llama")
    numbers = iter(range(count))
    answers: Counter[tuple[int, ...]] = Counter()

    async def work() -> None:
        for number in numbers:
            params = tinsmith.SamplingParams(max_tokens=2, seed=number % 2, stop=[])
            response = await sampler.sample(PROMPT, 1, params)
            answers[tuple(response.sequences[0].tokens)] += 1

    await asyncio.gather(*(work() for _ in range(min(IN_FLIGHT, count))))
    assert answers.total() == count
    return len(answers)


def soak(samples: int, steps: int, rate: float = RATE) -> dict[str, Any]:
    """Run it all; what the service tells of it."""
    with service(0.0) as calm:
        assert calm.stdout is not None
        with tinsmith.ServiceClient(base_url=calm.stdout.readline().strip()) as client:
            expected = train(client, steps)
    with service(rate) as process:
        assert process.stdin is not None and process.stdout is not None
        url = process.stdout.readline().strip()
        before = Held.now()
        with tinsmith.ServiceClient(base_url=url) as client:
            losses: list[float] = []
            training = threading.Thread(target=lambda: losses.extend(train(client, steps)), name="training")
            training.start()
            kinds = asyncio.run(sample(client, samples))
            training.join()
            assert client.metrics()["sample"].in_flight == 0
            assert client.metrics()["sample"].errors == 0
        after = Held.now()
        process.stdin.write("\n")
        process.stdin.flush()
        told: dict[str, Any] = json.loads(process.stdout.readline())
    assert losses == expected, "training came out differently"
    assert kinds <= 2
    assert told["most_often"] == 1, told
    assert told["done"] == {"sample": samples, "forward_backward": steps, "optim_step": steps}, told
    assert after == before, f"left behind: {before} -> {after}"
    return told


def main() -> None:
    """The long form."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--serve", type=float, metavar="RATE", help="be the service")
    arguments = parser.parse_args()
    if arguments.serve is not None:
        serve(arguments.serve)
        return
    began = time.perf_counter()
    told = soak(arguments.samples, arguments.steps)
    print(f"{arguments.samples} samples and {arguments.steps} steps in {time.perf_counter() - began:.0f} s")
    print(json.dumps(told, indent=2))


if __name__ == "__main__":
    main()
