"""Training speed and memory of the engine, side by side with transformers + PEFT in one run.

    python bench/engine.py                  all sections, float32, a quarter of each batch
    python bench/engine.py speed --scale 1 --dtype bfloat16

Both sides do forward and backward of the same rows, with LoRA of rank 32 on all linear layers of the blocks,
each in a process of its own: ours as `tinsmith serve` runs it.
PEFT runs at its best setting here: sdpa attention, no gradient checkpointing, padded micro-batches of 8 rows
sorted by length, logits of the completion only where there is a prompt. The limit is the time of the base
model's products alone, 4 N flops a token, at the best float32 or bfloat16 rate measured in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from picture import curves

from tinsmith.engine.child import ChildEngine
from tinsmith.engine.fast.layout import micro_batches
from tinsmith.engine.host import describe
from tinsmith.engine.interface import EngineOptions
from tinsmith.engine.local import Limits
from tinsmith.engine.models import Catalogue
from tinsmith.types import Datum, ForwardBackwardInput, LoraConfig, ModelInput

MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
RANK = 32
GOALS = {"32x128": 2.5, "8x256": 2.0, "ragged": 4.0, "rl": 5.0}
WORKLOADS = tuple(GOALS)


@dataclass(frozen=True)
class Workload:
    """Rows of tokens; the first `prompt` of each carry no loss."""

    name: str
    rows: list[np.ndarray]
    prompt: int = 0

    @property
    def tokens(self) -> int:
        return sum(len(row) for row in self.rows)

    @property
    def computed(self) -> int:
        """Tokens left once shared prompts are computed once, per portion of the default size."""
        lengths = [len(row) for row in self.rows]
        return sum(
            g.slots(lengths) for portion in micro_batches(self.rows, Limits().train_tokens) for g in portion
        )


def workload(name: str, scale: float) -> Workload:
    rng = np.random.default_rng(0)

    def row(length: int) -> np.ndarray:
        return rng.integers(10, 49000, length)

    def count(whole: int) -> int:
        return max(1, round(whole * scale))

    if name == "rl":  # 8 prompts of 200 tokens, 8 samples of each, about 100 tokens long
        prompts = [row(200) for _ in range(count(8))]
        lengths = rng.integers(60, 141, (len(prompts), 8))
        rows = [np.concatenate([p, row(n)]) for p, ns in zip(prompts, lengths, strict=True) for n in ns]
        return Workload(name, rows, 200)
    if name == "ragged":  # lognormal with mean 200: exp(mu + sigma^2 / 2)
        sigma = 0.8
        lengths = rng.lognormal(np.log(200) - sigma**2 / 2, sigma, count(64)).clip(8, 1024).astype(int)
        return Workload(name, [row(n) for n in lengths])
    rows_, length = map(int, name.split("x"))
    return Workload(name, [row(length) for _ in range(count(rows_))])


class Ours:
    """The engine as the service calls it: in a process of its own."""

    def __init__(self, dtype: str, folder: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._engine = self._loop.run_until_complete(_start(dtype, folder))
        self._runs: list[str] = []

    @property
    def process_id(self) -> int:
        """Whose memory and processor time count."""
        return self._engine.process_id

    def run(self, work: Workload, adapters: int = 1) -> None:
        """One forward_backward; with several adapters, a part of the rows for each, all at once."""
        while len(self._runs) < adapters:
            self._runs.append(f"run{len(self._runs)}")
            lora = LoraConfig(rank=RANK, seed=1, train_unembed=False)
            self._loop.run_until_complete(self._engine.create_adapter(self._runs[-1], MODEL, lora))

        async def calls() -> None:
            parts = [work.rows[at::adapters] for at in range(adapters)]
            await asyncio.gather(
                *(
                    self._engine.forward_backward(run, _batch(part, work.prompt), True)
                    for run, part in zip(self._runs, parts, strict=False)
                    if part
                )
            )

        self._loop.run_until_complete(calls())

    def close(self) -> None:
        self._loop.run_until_complete(self._engine.close())


async def _start(dtype: str, folder: Any) -> ChildEngine:
    return ChildEngine({MODEL: describe(MODEL, folder)}, EngineOptions(device="cpu", dtype=dtype))


def _batch(rows: Sequence[np.ndarray], prompt: int) -> ForwardBackwardInput:
    data = []
    for row in rows:
        ids, targets = ModelInput.from_ints(row[:-1].tolist()), row[1:].astype(np.int64)
        carries = (np.arange(len(targets)) >= prompt - 1).astype(np.float32)
        if prompt:
            sampled = np.where(carries, -10.0, 0.0).astype(np.float32)
            inputs: dict[str, Any] = {"target_tokens": targets, "logprobs": sampled, "advantages": carries}
        else:
            inputs = {"target_tokens": targets, "weights": carries}
        data.append(Datum(ids, inputs))
    return ForwardBackwardInput(data, "importance_sampling" if prompt else "cross_entropy")


class Peft:
    """transformers + PEFT, written as its users write it."""

    def __init__(self, dtype: str, folder: Any) -> None:
        from peft import LoraConfig as PeftConfig
        from peft import get_peft_model
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), attn_implementation="sdpa"
        )
        config = PeftConfig(r=RANK, lora_alpha=32, target_modules="all-linear", lora_dropout=0.0)
        self._model = get_peft_model(model, config)

    def run(self, work: Workload) -> None:
        rows = sorted(work.rows, key=len)
        for start in range(0, len(rows), 8):
            self._step(rows[start : start + 8], work.prompt)
        self._model.zero_grad()

    def _step(self, rows: Sequence[np.ndarray], prompt: int) -> None:
        longest = max(map(len, rows)) - 1
        ids, mask = (torch.zeros(len(rows), longest, dtype=torch.long) for _ in range(2))
        targets = torch.full((len(rows), longest), -100)
        for at, row in enumerate(rows):
            ids[at, : len(row) - 1], mask[at, : len(row) - 1] = torch.from_numpy(row[:-1]), 1
            targets[at, max(0, prompt - 1) : len(row) - 1] = torch.from_numpy(row[max(1, prompt) :])
        keep = longest - max(0, prompt - 1)
        padded = bool((mask == 0).any())
        logits = self._model(
            input_ids=ids, attention_mask=mask if padded else None, logits_to_keep=keep, use_cache=False
        ).logits
        losses = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), targets[:, -keep:].flatten(), reduction="none"
        )
        (torch.exp(10 - losses) if prompt else losses).sum().backward()


def gemm_rate(dtype: str) -> float:
    """The best flops/s of any product at hand, on this model's largest layer."""
    from tinsmith.engine.fast.kernels import CANDIDATES

    x, w = (torch.randn(n, 576).to(getattr(torch, dtype)) for n in (1024, 3072))
    best = min(_seconds(lambda k=kernel: k.linear(x, w)) for kernel in CANDIDATES for _ in range(10))
    return 2 * 1024 * 576 * 3072 / best


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def speed(names: Sequence[str], dtype: str, scale: float, rounds: int, folder: Any, params: int) -> None:
    ours, peft = Ours(dtype, folder), Peft(dtype, folder)
    for side in (ours, peft):
        side.run(workload("32x128", 1 / 16))  # the first pass pays for memory
    print(f"\n{dtype}, tokens/s (best of {rounds} rounds, the two sides in turns)")
    print(f"{'':10}{'tokens':>8}{'ours':>8}{'PEFT':>8}{'ratio':>8}{'goal':>7}{'of limit':>10}")
    for name in names:
        work = workload(name, scale)
        times: dict[str, list[float]] = {"ours": [], "peft": []}
        rates = []
        for _ in range(rounds):
            times["ours"].append(_seconds(lambda work=work: ours.run(work)))
            rates.append(gemm_rate(dtype))
            times["peft"].append(_seconds(lambda work=work: peft.run(work)))
        mine, theirs = min(times["ours"]), min(times["peft"])
        limit = 4 * params * work.computed / max(rates)
        print(
            f"{name:10}{work.tokens:8}{work.tokens / mine:8.0f}{work.tokens / theirs:8.0f}"
            f"{theirs / mine:7.2f}x{GOALS[name]:6.1f}x{limit / mine:10.0%}"
            f"   limit {work.tokens / limit:.0f} tokens/s at {max(rates) / 1e9:.0f} GFLOP/s",
            flush=True,
        )
    ours.close()


def adapters(dtype: str, scale: float, rounds: int, folder: Any) -> None:
    ours, work = Ours(dtype, folder), workload("32x128", max(scale, 0.5))  # a row or two for each
    ours.run(work, 16)
    ratios = []
    for _ in range(rounds):
        one, sixteen = (_seconds(lambda n=n: ours.run(work, n)) for n in (1, 16))
        ratios.append(one / sixteen)
    print(
        f"\n16 adapters in one batch: {statistics.median(ratios):.0%} of the throughput of one (goal 85%); "
        f"rounds {', '.join(f'{ratio:.0%}' for ratio in ratios)}"
    )
    ours.close()


def pictures(dtype: str, rounds: int, folder: Any, into: Path) -> None:
    """Throughput against the tokens of a batch, and against the adapters its rows are divided between."""
    ours, peft = Ours(dtype, folder), Peft(dtype, folder)
    sizes = [1, 2, 4, 8, 16, 32]  # rows of 128 tokens
    seconds: dict[str, list[float]] = {"tinsmith": [], "transformers + PEFT": []}
    for rows in sizes:
        work = workload("32x128", rows / 32)
        sides = (lambda work=work: ours.run(work)), (lambda work=work: peft.run(work))
        best = [
            min(times) for times in zip(*([_seconds(s) for s in sides] for _ in range(rounds)), strict=True)
        ]
        for name, time_ in zip(seconds, best, strict=True):
            seconds[name].append(work.tokens / time_)
    tokens = [128 * rows for rows in sizes]
    picture = curves(tokens, seconds, x="tokens of a batch, in rows of 128", y=f"tokens/s, {dtype}")
    (into / "throughput-tokens.svg").write_text(picture)

    counts, work = [1, 2, 4, 8, 16], workload("32x64", 0.5)
    ours.run(work, max(counts))
    together, apart = [], []
    for count in counts:
        parts = [Workload(work.name, work.rows[at::count]) for at in range(count)]
        together.append(min(_seconds(lambda n=count: ours.run(work, n)) for _ in range(rounds)))
        apart.append(min(_seconds(lambda parts=parts: [peft.run(p) for p in parts]) for _ in range(rounds)))
    rates = {
        "tinsmith, all adapters in one batch": [work.tokens / time_ for time_ in together],
        "transformers + PEFT, one adapter after the other": [work.tokens / time_ for time_ in apart],
    }
    picture = curves(counts, rates, x="adapters, 16 rows of 64 tokens in all", y=f"tokens/s, {dtype}")
    (into / "throughput-adapters.svg").write_text(picture)
    for label, at, series in (("tokens", tokens, seconds), ("adapters", counts, rates)):
        print(f"\n{label:50}" + "".join(f"{value:8}" for value in at))
        for name, values in series.items():
            print(f"{name:50}" + "".join(f"{value:8.0f}" for value in values))
    ours.close()


def memory(names: Sequence[str], dtype: str, scale: float) -> None:
    print(f"\n{dtype}, peak memory of a process of its own, MiB (goal: 60 %)")
    print(f"{'':10}{'ours':>8}{'PEFT':>8}{'ratio':>8}")
    for name in names:
        mine, theirs = (
            json.loads(
                subprocess.run(
                    [sys.executable, __file__, "child", side, name, dtype, str(scale)],
                    check=True, capture_output=True, text=True,
                ).stdout
            )
            for side in ("ours", "peft")
        )  # fmt: skip
        print(f"{name:10}{mine:8}{theirs:8}{mine / theirs:8.0%}", flush=True)


def child(side: str, name: str, dtype: str, scale: str) -> None:
    folder = Catalogue().resolve(MODEL).folder
    runner = Ours(dtype, folder) if side == "ours" else Peft(dtype, folder)
    runner.run(workload(name, float(scale)))
    print(_peak_memory(runner.process_id if isinstance(runner, Ours) else os.getpid()))
    if isinstance(runner, Ours):
        runner.close()


def _peak_memory(process_id: int) -> int:
    """MiB, as the kernel tells it."""
    status = Path(f"/proc/{process_id}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) // 1024


def main() -> None:
    if sys.argv[1:2] == ["child"]:
        return child(*sys.argv[2:])
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "section", nargs="*", default=["speed", "adapters", "memory"], help="these, or `pictures` for docs/"
    )
    parser.add_argument("--workload", nargs="*", default=WORKLOADS, choices=WORKLOADS)
    parser.add_argument("--dtype", nargs="*", default=["float32"], choices=["float32", "bfloat16"])
    parser.add_argument("--scale", type=float, default=0.25, help="share of each batch's rows")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--into", type=Path, default=Path("docs"), help="where `pictures` puts them")
    args = parser.parse_args()
    folder = Catalogue().resolve(MODEL).folder
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {MODEL}, LoRA rank {RANK}")
    for dtype in args.dtype:
        if "speed" in args.section:
            speed(args.workload, dtype, args.scale, args.rounds, folder, params=134_479_872)
        if "adapters" in args.section:
            adapters(dtype, args.scale, args.rounds, folder)
        if "pictures" in args.section:
            pictures(dtype, args.rounds, folder, args.into)
        if "memory" in args.section:
            memory(args.workload, dtype, args.scale)


if __name__ == "__main__":
    main()
