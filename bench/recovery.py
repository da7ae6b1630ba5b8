"""How long a run takes to come back, against how much was done before the service died; with a picture.

    python bench/recovery.py [--lengths 0 64 128 256 512 1024 2048] [--rounds 3] [--plot docs/recovery.svg]

One run does operations (512 tokens each, forward_backward and optimizer steps in turn), once under the
default snapshot policy and once without snapshots. At each length the data directory is copied as a crash
would leave it. Then a service is started over each copy; measured is the time from its start to the answer of
a first forward, the best of several rounds in turn. The engine is in this process: bringing in torch is not
counted.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
from picture import curves

from tinsmith.engine.host import offer, open_engine
from tinsmith.engine.models import Catalogue
from tinsmith.service import Service, Settings
from tinsmith.types import (
    AdamParams,
    CreateModelRequest,
    CreateSessionRequest,
    Datum,
    ForwardBackwardInput,
    LoraConfig,
    ModelInput,
    OptimStepRequest,
)
from tinsmith.wire.protobuf import ForwardBackwardCall

OWNER, MODEL = "local", "tiny-llama"
NEVER = {"snapshot_operations": 10**9, "snapshot_bytes": 10**15, "snapshot_seconds": 1e9}
POLICIES = {"default policy": {}, "no snapshots": NEVER}


def random_batch() -> ForwardBackwardInput:
    draw = np.random.default_rng(1)
    rows = [draw.integers(10, 400, 129).tolist() for _ in range(4)]
    data = [
        Datum(ModelInput.from_ints(row[:-1]), {"target_tokens": row[1:], "weights": [1.0] * 128})
        for row in rows
    ]
    return ForwardBackwardInput(data, "cross_entropy")


def service_over(folder: Path, policy: str) -> Service:
    return Service(open_engine(offer(Catalogue(), [MODEL])), Settings(data_dir=folder, **POLICIES[policy]))


async def answer(service: Service, request_id: str) -> None:
    outcome = await service.futures.wait(request_id, OWNER, 600)
    assert outcome is not None and outcome.error is None, outcome


async def prepare(folder: Path, policy: str, lengths: list[int]) -> str:
    """Train, with a copy of the directory at each length; gives the run's id."""
    service = service_over(folder / policy / "live", policy)
    await service.start()
    session = await service.sessions.create(OWNER, CreateSessionRequest())
    request = CreateModelRequest(
        session_id=session.session_id,
        model_seq_id=0,
        base_model=MODEL,
        lora_config=LoraConfig(rank=32, seed=1),
    )
    created = await service.runs.create(session, request)
    await answer(service, created)
    run_id = created.rpartition(":")[0]
    batch = ForwardBackwardCall(run_id, None, random_batch())
    step = OptimStepRequest(model_id=run_id, adam_params=AdamParams(learning_rate=1e-4))
    for done in range(max(lengths) + 1):
        if done in lengths:
            await service.futures.settle()
            shutil.copytree(service.settings.data_dir, folder / policy / str(done))
        kind, payload = (("forward_backward", batch), ("optim_step", step))[done % 2]
        await answer(service, await service.runs.submit(OWNER, run_id, None, kind, payload))
    await service.stop()
    return run_id


async def recovery(crashed: Path, run_id: str, policy: str) -> float:
    """Seconds from the start of a service to the first answer about the run."""
    again = crashed.with_name("again")
    shutil.copytree(crashed, again)
    started = time.perf_counter()
    service = service_over(again, policy)
    await service.start()
    call = ForwardBackwardCall(run_id, None, random_batch(), forward_only=True)
    await answer(service, await service.runs.submit(OWNER, run_id, None, "forward", call))
    seconds = time.perf_counter() - started
    await service.stop()
    shutil.rmtree(again)
    return seconds


async def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=[0, 64, 128, 256, 512, 1024, 2048])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--plot", type=Path, default=Path("docs/recovery.svg"))
    options = parser.parse_args()
    lengths = sorted(options.lengths)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        runs = {policy: await prepare(folder, policy, lengths) for policy in POLICIES}
        seconds = {policy: [float("inf")] * len(lengths) for policy in POLICIES}
        for _ in range(options.rounds):
            for at, length in enumerate(lengths):
                for policy, run_id in runs.items():
                    took = await recovery(folder / policy / str(length), run_id, policy)
                    seconds[policy][at] = min(seconds[policy][at], took)
    print("| operations | " + " | ".join(f"{policy}, s" for policy in POLICIES) + " |\n|---|---|---|")
    for at, length in enumerate(lengths):
        print(f"| {length} | " + " | ".join(f"{seconds[policy][at]:.2f}" for policy in POLICIES) + " |")
    axes = {"x": "operations before the crash", "y": "seconds until a run is back"}
    options.plot.write_text(curves(lengths, seconds, **axes))


if __name__ == "__main__":
    asyncio.run(main())
