"""What durability costs: training with the journal against training without one, in turns in one run.

    python bench/journal.py [--seconds 8] [--rounds 5] [--rows 8] [--length 1024]

Two services in this process, over one engine in a process of its own (two engines are never equally fast).
One is as it comes: payloads encoded, compressed and synced to the disk before the acknowledgement, answers
journalled, states of the run saved under the default policy. The other forgets: its journal writes nothing
and it takes no snapshot, so the difference is the price of all of it, serialisation included. Each side keeps
four operations in flight: a forward_backward of 8k tokens and an optimizer step in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from tinsmith.engine.child import ChildEngine
from tinsmith.engine.host import offer
from tinsmith.engine.models import Catalogue
from tinsmith.service import Service, Settings
from tinsmith.service import service as construction
from tinsmith.service.futures import Futures, Outcome
from tinsmith.service.journal import Journal, Operation
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
IN_FLIGHT = 4


class NoJournal(Journal):
    """Accepts without writing."""

    async def accept(self, operation: Operation, beside: Any = None) -> Any:
        if beside is not None:  # the catalogue's row of a run is no journal
            await self._database.write(beside)
        ticket = self._futures.open(
            operation.request_id, operation.owner, operation.kind, operation.stream_id
        )
        ticket.accepted.set_result(None)
        return ticket


class NoAnswers(Futures):
    """Answers stay in memory."""

    async def known(self, request_id: str, owner: str) -> bool:
        return await self._known_here(request_id, owner)

    async def _journal(self, row: dict[str, Any], outcome: Outcome) -> None:
        self._cache(row["request_id"])


class SharedEngine(ChildEngine):
    """Stays when one of its two services goes."""

    users = 2

    async def close(self) -> None:
        self.users -= 1
        if self.users == 0:
            await super().close()


class Side:
    """A service with one run."""

    def __init__(self, engine: SharedEngine, folder: Path, durable: bool) -> None:
        settings = Settings(data_dir=folder)
        if durable:
            self.service = Service(engine, settings)
        else:
            with patch.multiple(construction, Journal=NoJournal, Futures=NoAnswers):
                self.service = Service(engine, settings, private=True)
        self.rates: list[float] = []

    async def open(self, batch: ForwardBackwardInput) -> None:
        await self.service.start()
        session = await self.service.sessions.create(OWNER, CreateSessionRequest())
        request = CreateModelRequest(
            session_id=session.session_id, model_seq_id=0, base_model=MODEL, lora_config=LoraConfig(rank=32)
        )
        created = await self.service.runs.create(session, request)
        await self._answer(created)
        run_id = created.rpartition(":")[0]
        step = OptimStepRequest(model_id=run_id, adam_params=AdamParams(learning_rate=1e-4))
        self._asks = ("forward_backward", ForwardBackwardCall(run_id, None, batch)), ("optim_step", step)
        self._run_id = run_id

    async def _answer(self, request_id: str) -> None:
        outcome = await self.service.futures.wait(request_id, OWNER, 600)
        assert outcome is not None and outcome.error is None, outcome

    async def work(self, seconds: float) -> None:
        """Operations a second, all of them answered."""
        under_way: deque[str] = deque()
        started, count = time.perf_counter(), 0
        while time.perf_counter() - started < seconds or count % 2:
            kind, payload = self._asks[count % 2]
            under_way.append(await self.service.runs.submit(OWNER, self._run_id, None, kind, payload))
            count += 1
            if len(under_way) == IN_FLIGHT:
                await self._answer(under_way.popleft())
        while under_way:
            await self._answer(under_way.popleft())
        self.rates.append(count / (time.perf_counter() - started))


def random_batch(rows: int, length: int) -> ForwardBackwardInput:
    draw = np.random.default_rng(1)
    data = []
    for _ in range(rows):
        tokens = draw.integers(10, 400, length + 1).tolist()
        inputs = {"target_tokens": tokens[1:], "weights": [1.0] * length}
        data.append(Datum(ModelInput.from_ints(tokens[:-1]), inputs))
    return ForwardBackwardInput(data, "cross_entropy")


async def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--length", type=int, default=1024)
    options = parser.parse_args()
    batch = random_batch(options.rows, options.length)
    with tempfile.TemporaryDirectory() as folder:
        engine = SharedEngine(offer(Catalogue(), [MODEL]))
        on, off = Side(engine, Path(folder) / "on", True), Side(engine, Path(folder) / "off", False)
        for side in (on, off):
            await side.open(batch)
            await side.work(options.seconds / 4)  # warm
            side.rates.clear()
        for at in range(options.rounds):
            for side in (off, on) if at % 2 else (on, off):
                await side.work(options.seconds)
        for side in (on, off):
            await side.service.stop()
    pairs = list(zip(on.rates, off.rates, strict=True))
    for with_journal, without in pairs:
        print(
            f"with {with_journal:.2f}, without {without:.2f} operations/s, ratio {with_journal / without:.3f}"
        )
    ratio = statistics.median(a / b for a, b in pairs)
    print(
        f"{options.rows * options.length} tokens a forward_backward; "
        f"median ratio {ratio:.3f}: the journal costs {1 - ratio:.1%}"
    )


if __name__ == "__main__":
    asyncio.run(main())
