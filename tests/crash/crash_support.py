"""The same piece of work, done by a client that always asks again, on a service that may die under it."""

from __future__ import annotations

import asyncio
import hashlib
import multiprocessing
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tinsmith import failpoints
from tinsmith.engine.host import offer, open_engine
from tinsmith.engine.interface import Engine
from tinsmith.engine.models import Catalogue
from tinsmith.service import Service, Settings
from tinsmith.service.futures import Outcome
from tinsmith.service.kinds import KINDS, AcceptedLoad
from tinsmith.types import (
    AdamParams,
    CreateModelRequest,
    CreateSessionRequest,
    Datum,
    ForwardBackwardInput,
    LoraConfig,
    ModelInput,
    OptimStepRequest,
    SampleRequest,
    SamplingParams,
    SaveWeightsForSamplerRequest,
    SaveWeightsRequest,
    Unavailable,
)
from tinsmith.wire import json
from tinsmith.wire.protobuf import ForwardBackwardCall

OWNER = "local"
MODEL = "tiny-llama"
_PATIENCE = 60.0
_processes = multiprocessing.get_context("forkserver")  # torch is brought in once, not in each of them
_processes.set_forkserver_preload(["tinsmith.engine.local", "tinsmith.service"])


@asynccontextmanager
async def service_over(
    data_dir: Path, make_engine: Callable[..., Engine] = open_engine, **settings: Any
) -> AsyncIterator[Service]:
    """A service with its engine in this process; ending the block stops it in good order."""
    engine = make_engine(offer(Catalogue(), [MODEL]))
    service = Service(engine, Settings(data_dir=data_dir, **settings))
    await service.start()
    try:
        yield service
    finally:
        await service.drain()
        await service.stop()


def batch(seed: int) -> ForwardBackwardInput:
    """Two ragged rows."""
    rows = [[(seed * 7 + at * 3) % 50 + 10 for at in range(length)] for length in (5, 8)]
    data = [
        Datum(ModelInput.from_ints(row[:-1]), {"target_tokens": row[1:], "weights": [1.0] * (len(row) - 1)})
        for row in rows
    ]
    return ForwardBackwardInput(data, "cross_entropy")


@dataclass
class Client:
    """Numbers its operations and asks again, as every SDK does; ``tell`` hears what was acknowledged."""

    service: Service
    tell: Callable[[str], None]
    session_id: str = ""
    results: list[Any] = field(default_factory=list)  # what must be the same in every history
    refusals: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    run_id: str = ""
    number: int = 0  # of the last operation

    async def work(self) -> list[Any]:
        """Training, checkpoints and samples. In a session that did it before, all of it is found again."""
        if not self.session_id:
            await self.open()
        await self.create()
        await self.step(1)
        await self.save("a")
        path = f"tinker://{self.run_id}/weights/a"
        await self.do("load_weights", AcceptedLoad(model_id=self.run_id, path=path, optimizer=True))
        await self.train(2)
        await self.step(3)
        await self.save("a", overwrite=True)
        await self._sample()
        await self.step(4)
        await self.save("final")
        self.results.append(await self.files("final"))
        return self.results

    async def open(self) -> None:
        """A session."""
        session = await self._insist(lambda: self.service.sessions.create(OWNER, CreateSessionRequest()))
        self.session_id = session.session_id
        self.tell(f"session {self.session_id}")

    async def create(self, number: int = 0) -> None:
        """A run."""
        lora = LoraConfig(rank=4, seed=1)
        request = CreateModelRequest(
            session_id=self.session_id, model_seq_id=number, base_model=MODEL, lora_config=lora
        )
        session = self.service.sessions.active(OWNER, self.session_id)
        request_id = await self._insist(lambda: self.service.runs.create(session, request))
        await self._answer(request_id)
        self.run_id = request_id.rpartition(":")[0]

    async def train(self, seed: int) -> None:
        """One batch."""
        call = ForwardBackwardCall(self.run_id, None, batch(seed))
        body = (await self.do("forward_backward", call)).body
        output = KINDS["forward_backward"].result.decode(body)
        self.results.append(json.dumps(json.forward_backward_output_to_json(output)))

    async def step(self, seed: int) -> None:
        """One batch and one step of the optimizer."""
        await self.train(seed)
        request = OptimStepRequest(model_id=self.run_id, adam_params=AdamParams(learning_rate=0.01))
        self.results.append((await self.do("optim_step", request)).body)

    async def save(self, name: str, *, overwrite: bool = False, once: bool = False) -> None:
        """A checkpoint."""
        request = SaveWeightsRequest(model_id=self.run_id, path=name, overwrite=overwrite)
        await self.do("save_weights", request, once=once)

    async def _sample(self) -> None:
        request = SaveWeightsForSamplerRequest(model_id=self.run_id, sampling_session_seq_id=0)
        sampler_id = f"{self.session_id}:sample:0"
        await self.do("save_weights_for_sampler", request)
        asked = []
        for seq in range(2):
            sample = SampleRequest(
                prompt={"chunks": [{"type": "encoded_text", "tokens": [10, 20, 30 + seq]}]},
                sampling_params=SamplingParams(max_tokens=4, seed=seq),
                sampling_session_id=sampler_id,
                seq_id=seq,
            )
            asked.append(self._insist(lambda sample=sample: self.service.samplers.submit(OWNER, sample)))
        for request_id, _ in await asyncio.gather(*asked):
            outcome = await self._answer(request_id)
            assert outcome.error is None, outcome.error
            (sequence,) = KINDS["sample"].result.decode(outcome.body).sequences
            self.results.append((list(sequence.tokens), list(sequence.logprobs)))

    async def do(self, kind: str, payload: Any, *, once: bool = False) -> Outcome:
        """Submit and wait; what failed on the service's side is asked again under the next number."""
        while True:
            self.number += 1
            arguments = OWNER, self.run_id, self.number, kind, payload
            request_id = await self._insist(lambda these=arguments: self.service.runs.submit(*these))
            outcome = await self._answer(request_id)
            if outcome.category != "server":
                assert outcome.error is None, outcome.error
                return outcome
            assert outcome.error is not None
            self.failures.append(outcome.error)
            if once:
                return outcome

    async def _insist(self, ask: Callable[[], Any]) -> Any:
        """Until it is taken. What is refused is told to nobody and must leave nothing behind."""
        while True:
            try:
                return await ask()
            except Unavailable as refusal:
                self.refusals.append(str(refusal))
                await asyncio.sleep(0.02)

    async def _answer(self, request_id: str) -> Outcome:
        self.tell(request_id)
        return await answer(self.service, request_id)

    async def files(self, name: str) -> dict[str, str]:
        """What a checkpoint holds, to the bit."""
        row = await self.service.checkpoints.find(OWNER, f"tinker://{self.run_id}/weights/{name}")
        folder = self.service.checkpoints.folder(row)
        return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}


async def answer(service: Service, request_id: str) -> Outcome:
    """The outcome of an accepted operation, which must come."""
    outcome = await service.futures.wait(request_id, OWNER, _PATIENCE)
    assert outcome is not None, f"{request_id} was never answered"
    return outcome


def undisturbed(data_dir: Path) -> list[Any]:
    """The results when nothing happens."""

    async def main() -> list[Any]:
        async with service_over(data_dir) as service:
            return await Client(service, lambda _: None).work()

    return asyncio.run(main())


# -- dying ------------------------------------------------------------------------------------------------


class Diary:
    """What a client was told, kept where it outlives the process of the service."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def tell(self, what: str) -> None:
        with self._path.open("a") as file:
            file.write(f"{what}\n")

    @property
    def session_id(self) -> str:
        return next((line.split()[1] for line in self._lines() if line.startswith("session ")), "")

    @property
    def acknowledged(self) -> list[str]:
        return [line for line in self._lines() if not line.startswith("session ")]

    def _lines(self) -> list[str]:
        return self._path.read_text().splitlines() if self._path.exists() else []


def dies(data_dir: Path, diary: Diary, failpoint: str, settings: dict[str, Any]) -> bool:
    """Do the work in another process until the failpoint kills it; whether it did."""
    process = _processes.Process(target=_work, args=(data_dir, diary, failpoint, settings))
    process.start()
    process.join()
    if process.exitcode not in (0, -signal.SIGKILL):
        raise AssertionError(f"the service ended with {process.exitcode} at {failpoint}")
    return process.exitcode != 0


def _work(data_dir: Path, diary: Diary, failpoint: str, settings: dict[str, Any]) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"

    async def main() -> None:
        async with service_over(data_dir, **settings) as service:
            await Client(service, diary.tell, diary.session_id).work()

    failpoints.arm(failpoint)
    asyncio.run(main())


def comes_back(data_dir: Path, diary: Diary, settings: dict[str, Any]) -> list[Any]:
    """Start again: every acknowledged operation is answered; then the client goes on to the end."""

    async def main() -> list[Any]:
        async with service_over(data_dir, **settings) as service:
            for request_id in diary.acknowledged:
                assert (await answer(service, request_id)).error is None
            return await Client(service, diary.tell, diary.session_id).work()

    return asyncio.run(main())
