"""Sampling speed beside transformers' generate() and the memory-bandwidth limit, all measured in one run.

    python bench/sampling.py [model name or folder] [--requests 1 8 32 128] [--rounds 1]

Both sides get the same ragged requests (prompts of 20-120 tokens, 16-64 new ones), float32, temperature 1.
generate() runs them as one left-padded batch with its key-value cache, the quickest way it has; only tokens
that were asked for count. The sides, in processes of their own, take turns and the best of each is compared:
noise only slows down.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from tinsmith.engine.child import ChildEngine
from tinsmith.engine.host import describe
from tinsmith.engine.interface import BaseModel, EngineOptions
from tinsmith.engine.models import Catalogue
from tinsmith.types import ModelInput, SampleJob, SamplingParams

DEFAULT = "HuggingFaceTB/SmolLM2-135M-Instruct"


@dataclass(frozen=True)
class Ask:
    prompt: list[int]
    new: int


def ragged(count: int, vocabulary: int, seed: int = 0) -> list[Ask]:
    random = np.random.default_rng([seed, count])
    return [
        Ask(random.integers(20, vocabulary, random.integers(20, 121)).tolist(), int(random.integers(16, 65)))
        for _ in range(count)
    ]


def job(ask: Ask, *, n: int = 1, seed: int = 0) -> SampleJob:
    return SampleJob(
        ModelInput.from_ints(ask.prompt), SamplingParams(max_tokens=ask.new, stop=[]), n, seed=seed
    )


class Ours:
    """The engine as the service uses it, in a process of its own; each time its prompts are new to it."""

    def __init__(self, model: BaseModel) -> None:
        self._engine = ChildEngine({"model": model}, EngineOptions(device="cpu", dtype="float32"))
        self._times = itertools.count(20)

    async def open(self) -> None:
        await self._engine.open_sampler("s", "model")
        await self.together([Ask([20], 2)])

    async def together(self, asks: list[Ask], n: int = 1) -> None:
        first = next(self._times)  # a token that makes the prompts others than those kept from before
        asks = [Ask([first, *ask.prompt[1:]], ask.new) for ask in asks]
        await asyncio.gather(
            *(self._engine.sample("s", job(ask, n=n, seed=at)) for at, ask in enumerate(asks))
        )

    async def close(self) -> None:
        await self._engine.close()


class Theirs:
    """transformers' generate()."""

    def __init__(self, model: BaseModel) -> None:
        loader: Any = AutoModelForCausalLM
        self._model = loader.from_pretrained(
            model.folder, dtype=torch.float32, attn_implementation="sdpa"
        ).eval()
        self._model.generation_config.eos_token_id = None

    async def together(self, asks: list[Ask]) -> None:
        width = max(len(ask.prompt) for ask in asks)
        ids = torch.zeros(len(asks), width, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, ask in enumerate(asks):
            ids[row, width - len(ask.prompt) :] = torch.tensor(ask.prompt)
            mask[row, width - len(ask.prompt) :] = 1
        with torch.inference_mode():
            self._model.generate(
                ids, attention_mask=mask, max_new_tokens=max(ask.new for ask in asks), do_sample=True,
                top_k=0, top_p=1.0, temperature=1.0, pad_token_id=0, use_cache=True,
            )  # fmt: skip


async def best(rounds: int, *sides: Callable[[], Awaitable[None]]) -> list[float]:
    """The shortest time of each side, the sides taking turns."""
    seconds = [float("inf")] * len(sides)
    for _ in range(rounds):
        for at, side in enumerate(sides):
            started = time.perf_counter()
            await side()
            seconds[at] = min(seconds[at], time.perf_counter() - started)
    return seconds


async def throughput(ours: Ours, theirs: Theirs, counts: list[int], vocabulary: int, rounds: int) -> None:
    print("| concurrent requests | generate() tokens/s | ours tokens/s | ratio |\n|---|---|---|---|")
    for count in counts:
        asks = ragged(count, vocabulary)
        total = sum(ask.new for ask in asks)
        again = rounds * 3 if count == 1 else rounds
        a, b = await best(again, lambda: theirs.together(asks), lambda: ours.together(asks))  # noqa: B023
        print(f"| {count} | {total / a:.1f} | {total / b:.1f} | {a / b:.2f} |", flush=True)


async def first_token(ours: Ours, theirs: Theirs, vocabulary: int, rounds: int) -> None:
    ask = Ask(np.random.default_rng(1).integers(20, vocabulary, 512).tolist(), 1)
    a, b = await best(rounds * 2, lambda: theirs.together([ask]), lambda: ours.together([ask]))
    print(f"\nfirst token of a 512-token prompt: generate() {a:.3f} s, ours {b:.3f} s, ratio {a / b:.2f}")


async def many_samples(ours: Ours, vocabulary: int, rounds: int) -> None:
    ask = Ask(np.random.default_rng(2).integers(20, vocabulary, 256).tolist(), 16)

    async def separately() -> None:
        for _ in range(16):
            await ours.together([ask])

    a, b = await best(rounds, separately, lambda: ours.together([ask], n=16))
    print("n = 16 samples of a 256-token prompt, 16 tokens each: ", end="")
    print(f"one call {b:.2f} s, sixteen calls {a:.2f} s, ratio {a / b:.1f}")


async def bandwidth(ours: Ours, weight_bytes: int, rounds: int) -> None:
    """Time per token of one sequence against one reading of all weights."""
    block, times = torch.ones(weight_bytes // 4), []
    short, long = Ask([20] * 20, 4), Ask([20] * 20, 36)

    async def read() -> None:
        block.sum()

    for _ in range(rounds * 3):
        times.append(await best(1, read, lambda: ours.together([short]), lambda: ours.together([long])))
    limit = min(one for one, _, _ in times)
    token = (min(long for _, _, long in times) - min(short for _, short, _ in times)) / 32
    print(
        f"one sequence: {token * 1e3:.1f} ms a token; reading the weights once: {limit * 1e3:.1f} ms "
        f"({weight_bytes / limit / 1e9:.1f} GB/s); {limit / token:.0%} of the limit"
    )


async def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default=DEFAULT)
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    logging.disable_progress_bar()
    model = describe("model", Catalogue().resolve(options.model).folder)
    ours, theirs = Ours(model), Theirs(model)
    await ours.open()
    weight_bytes = sum(p.nbytes for p in theirs._model.parameters())
    print(f"{options.model}, float32, {torch.get_num_threads()} threads, torch {torch.__version__}\n")
    await throughput(ours, theirs, options.requests, model.vocab_size, options.rounds)
    await first_token(ours, theirs, model.vocab_size, options.rounds)
    await many_samples(ours, model.vocab_size, options.rounds)
    await bandwidth(ours, weight_bytes, options.rounds)
    await ours.close()


if __name__ == "__main__":
    asyncio.run(main())
