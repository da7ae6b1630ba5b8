"""Training and sampling on a GPU, side by side with transformers + PEFT and `generate()` in one run.

    python bench/gpu.py [--device cuda] [--dtype bfloat16] [--layers 16] [--rounds 3]

The model has the shape of a 1.2-billion-parameter Llama and random weights, so nothing needs to be fetched.
Adapters have rank 32 on all linear layers of the blocks. The two sides take turns; the best of each counts.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tinsmith.engine.host import describe, open_engine
from tinsmith.engine.interface import EngineOptions
from tinsmith.engine.models import Catalogue
from tinsmith.types import (
    AdamParams,
    Datum,
    ForwardBackwardInput,
    LoraConfig,
    ModelInput,
    SampleJob,
    SamplingParams,
)

RANK = 32
SHAPE = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128_256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
Rows = list[np.ndarray]


def make_model(folder: Path, layers: int) -> None:
    """Random weights of the shape above, and some tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(num_hidden_layers=layers, bos_token_id=1, eos_token_id=2, pad_token_id=0, **SHAPE)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    tiny = Catalogue().resolve("tiny-llama").folder
    for file in tiny.glob("tokenizer*"):
        shutil.copy(file, folder)


def workloads() -> dict[str, tuple[Rows, int]]:
    """Rows of tokens, and how many of each row's are a prompt without loss."""
    rng = np.random.default_rng(0)

    def row(length: int) -> np.ndarray:
        return rng.integers(10, SHAPE["vocab_size"], length)

    sigma = 0.8
    lengths = rng.lognormal(np.log(400) - sigma**2 / 2, sigma, 64).clip(8, 2048).astype(int)
    rl = [
        np.concatenate([prompt, row(n)])
        for prompt in (row(512) for _ in range(4))
        for n in rng.integers(100, 401, 16)
    ]
    return {
        "32x512": ([row(512) for _ in range(32)], 0),
        "ragged": ([row(n) for n in lengths], 0),
        "rl 4x16": (rl, 512),
    }


class Ours:
    """The engine as the service calls it."""

    def __init__(self, folder: Path, device: str, dtype: str) -> None:
        self.engine = open_engine({"model": describe("model", folder)}, EngineOptions(device, dtype))

    async def open(self, runs: int) -> None:
        for run in range(runs):
            lora = LoraConfig(rank=RANK, seed=1, train_unembed=False)
            await self.engine.create_adapter(f"run{run}", "model", lora)
        await self.engine.open_sampler("s", "model", run_id="run0")

    async def train(self, rows: Rows, prompt: int, runs: int = 1) -> None:
        parts = [rows[at::runs] for at in range(runs)]
        await asyncio.gather(
            *(
                self.engine.forward_backward(f"run{at}", _batch(part, prompt), True)
                for at, part in enumerate(parts)
            )
        )

    async def sample(self, prompts: Rows, new: int) -> None:
        params = SamplingParams(max_tokens=new, stop=[])
        jobs = [
            SampleJob(ModelInput.from_ints(p.tolist()), params, 1, seed=at) for at, p in enumerate(prompts)
        ]
        await asyncio.gather(*(self.engine.sample("s", job) for job in jobs))


def _batch(rows: Rows, prompt: int) -> ForwardBackwardInput:
    data = []
    for row in rows:
        targets = row[1:].astype(np.int64)
        weights = (np.arange(len(targets)) >= prompt - 1).astype(np.float32)
        data.append(
            Datum(ModelInput.from_ints(row[:-1].tolist()), {"target_tokens": targets, "weights": weights})
        )
    return ForwardBackwardInput(data, "cross_entropy")


async def exactness(folder: Path, device: str) -> None:
    """How far the numbers are from float32 on the CPU: log-probabilities before and after a step."""
    rng = np.random.default_rng(3)
    rows = [rng.integers(10, SHAPE["vocab_size"], n) for n in (120, 40, 200)]
    found = {}
    for where, dtype in (("cpu", "float32"), (device, "float32"), (device, "bfloat16")):
        side = Ours(folder, where, dtype)
        await side.open(1)
        steps = []
        for _ in range(2):
            output = await side.engine.forward_backward("run0", _batch(rows, 0), True)
            steps.append(np.concatenate([out["logprobs"].to_numpy() for out in output.loss_fn_outputs]))
            norm = (await side.engine.optim_step("run0", AdamParams(learning_rate=1e-3)))[
                "unclipped_grad_l2:mean"
            ]
        await side.engine.open_sampler("after", "model", run_id="run0")
        params = SamplingParams(max_tokens=64, stop=[])
        job = SampleJob(ModelInput.from_ints(rows[0].tolist()), params, 1, seed=1, prompt_logprobs=True)
        answer = await side.engine.sample("after", job)
        new = answer.sequences[0]
        sampled = np.concatenate([answer.prompt_logprobs[1:], new.logprobs])
        whole = np.concatenate([rows[0], new.tokens])
        output = await side.engine.forward_backward("run0", _batch([whole], 0), False)
        trained = output.loss_fn_outputs[0]["logprobs"].to_numpy()
        await side.engine.close()
        found[where, dtype] = steps, norm, float(np.abs(sampled - trained).max())
    print(
        "\n| logprobs against float32 on the CPU | largest | mean | after a step: largest | mean "
        "| gradient norm, relative | sampler against trainer |\n|---|---|---|---|---|---|---|"
    )
    (first, second), norm, _ = found["cpu", "float32"]
    for (where, dtype), ((one, two), other, agreement) in found.items():
        apart, later = np.abs(one - first), np.abs(two - second)
        print(
            f"| {where} {dtype} | {apart.max():.1e} | {apart.mean():.1e} | {later.max():.1e} "
            f"| {later.mean():.1e} | {abs(other / norm - 1):.1e} | {agreement:.1e} |",
            flush=True,
        )


class Theirs:
    """transformers + PEFT as its users write it: sorted by length, at most 16,384 padded tokens at once."""

    def __init__(self, folder: Path, device: str, dtype: str) -> None:
        from peft import LoraConfig as PeftConfig
        from peft import get_peft_model
        from transformers import AutoModelForCausalLM

        model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), attn_implementation="sdpa"
        ).to(device)
        model.generation_config.eos_token_id = None
        config = PeftConfig(r=RANK, lora_alpha=32, target_modules="all-linear", lora_dropout=0.0)
        self.device, self.model = device, get_peft_model(model, config)

    async def train(self, rows: Rows, prompt: int) -> None:
        waiting: Rows = []
        for row in sorted(rows, key=len):
            if waiting and (len(waiting) + 1) * len(row) > 16_384:
                self._step(waiting, prompt)
                waiting = []
            waiting.append(row)
        self._step(waiting, prompt)
        self.model.zero_grad()

    def _step(self, rows: Rows, prompt: int) -> None:
        ids, mask = _padded([row[:-1] for row in rows], left=False)
        targets = torch.full_like(ids, -100)
        for at, row in enumerate(rows):
            targets[at, max(0, prompt - 1) : len(row) - 1] = torch.from_numpy(row[max(1, prompt) :])
        keep = ids.shape[1] - max(0, prompt - 1)
        logits = self.model(
            input_ids=ids.to(self.device),
            attention_mask=None if bool(mask.all()) else mask.to(self.device),
            logits_to_keep=keep,
            use_cache=False,
        ).logits
        torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), targets[:, -keep:].flatten().to(self.device), reduction="sum"
        ).backward()

    async def sample(self, prompts: Rows, new: int) -> None:
        ids, mask = _padded(prompts, left=True)
        with torch.inference_mode():
            self.model.generate(
                input_ids=ids.to(self.device), attention_mask=mask.to(self.device), max_new_tokens=new,
                do_sample=True, top_k=0, top_p=1.0, temperature=1.0, pad_token_id=0, use_cache=True,
            )  # fmt: skip


def _padded(rows: Rows, left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, rows))
    ids, mask = (torch.zeros(len(rows), width, dtype=torch.long) for _ in range(2))
    for at, row in enumerate(rows):
        place = slice(width - len(row), width) if left else slice(0, len(row))
        ids[at, place], mask[at, place] = torch.from_numpy(row), 1
    return ids, mask


async def best(rounds: int, *sides: Callable[[], Awaitable[None]]) -> list[float]:
    """The shortest time of each side, the sides taking turns; the first round warms up and does not count."""
    seconds = [float("inf")] * len(sides)
    for turn in range(rounds + 1):
        for at, side in enumerate(sides):
            started = time.perf_counter()
            await side()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if turn:
                seconds[at] = min(seconds[at], time.perf_counter() - started)
    return seconds


async def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 32, 128])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make_model(folder, options.layers)
        await exactness(folder, options.device)
        ours = Ours(folder, options.device, options.dtype)
        theirs = Theirs(folder, options.device, options.dtype)
        await ours.open(16)
        name = torch.cuda.get_device_name() if options.device.startswith("cuda") else options.device
        print(f"{name}, {options.dtype}, {options.layers} layers, torch {torch.__version__}")
        print("\n| training | tokens | PEFT tokens/s | ours tokens/s | ratio |\n|---|---|---|---|---|")
        for label, (rows, prompt) in workloads().items():
            total = sum(map(len, rows))
            a, b = await best(
                options.rounds, partial(theirs.train, rows, prompt), partial(ours.train, rows, prompt)
            )
            print(f"| {label} | {total} | {total / a:.0f} | {total / b:.0f} | {a / b:.2f} |", flush=True)
        rows, prompt = workloads()["32x512"]
        one, sixteen = await best(
            options.rounds, partial(ours.train, rows, prompt), partial(ours.train, rows, prompt, runs=16)
        )
        print(f"\n16 adapters in one batch: {one / sixteen:.0%} of the throughput of one")
        print("\n| concurrent requests | generate() tokens/s | ours tokens/s | ratio |\n|---|---|---|---|")
        rng = np.random.default_rng(1)
        for count in options.requests:
            prompts = [rng.integers(10, SHAPE["vocab_size"], rng.integers(100, 400)) for _ in range(count)]
            new, total = 64, 64 * count
            a, b = await best(
                options.rounds, partial(theirs.sample, prompts, new), partial(ours.sample, prompts, new)
            )
            print(f"| {count} | {total / a:.0f} | {total / b:.0f} | {a / b:.2f} |", flush=True)
        await ours.engine.close()


if __name__ == "__main__":
    asyncio.run(main())
