"""Mixed load for a long time: does the service, or its engine, grow?

    python bench/soak.py [--minutes 60] [--trainers 2] [--samplers 50]      (make soak, make soak MINUTES=5)

Trainers train, save and sample their own weights; samplers ask the base model and the trainers' checkpoints.
Each ends its session now and then and opens another; some just fall silent and expire. After the first third,
which is for warming up, memory (resident set), descriptors and threads of both processes are looked at every
two seconds. The medians of the first and the last third of what is left are compared: memory may have grown
by 5 %, descriptors and threads not at all, but for the few that are open for a moment. Ends with 1 if not so.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tinsmith.testing import ServiceProcess

MODEL = "tiny-llama"
HEARTBEAT = 3.0
EVERY, MAY_GROW, MOMENTARY = 2.0, 1.05, 3
FRESH = 60  # seconds a checkpoint is good to begin sampling from; it lives twice as long
# Everything that is kept for a time is kept for a short one, so that a few minutes show what an hour would.
QUICK = {
    "TINSMITH_SESSION_TTL": "30",
    "TINSMITH_RESULT_TTL": "20",
    "TINSMITH_HOUSEKEEPING_INTERVAL": "2",
    "TINSMITH_SNAPSHOT_OPERATIONS": "32",
}


@dataclass(frozen=True)
class Look:
    """One process at one moment."""

    kilobytes: int
    descriptors: int
    threads: int

    @classmethod
    def at(cls, process_id: int) -> Look:
        proc = Path(f"/proc/{process_id}")
        status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
        return cls(
            int(status["VmRSS"].split()[0]), len(list((proc / "fd").iterdir())), int(status["Threads"])
        )


class Load:
    """What everybody does, and how often it was done."""

    def __init__(self, http: httpx.AsyncClient, seed: int) -> None:
        self._http = http
        self._draw = random.Random(seed)
        self._newest = ("", float("-inf"))  # the last checkpoint, and when it was made
        self._sessions: set[str] = set()
        self.done: Counter[str] = Counter()

    async def _post(self, path: str, /, **body: Any) -> Any:
        answer = await self._http.post(path, json=body)
        answer.raise_for_status()
        return answer.json()

    async def _do(self, path: str, /, **body: Any) -> Any:
        request_id = (await self._post(path, **body))["request_id"]
        while (
            answer := await self._http.post("retrieve_future", json={"request_id": request_id})
        ).status_code == 408:
            pass
        answer.raise_for_status()
        result = answer.json()
        if "error" in result:
            raise RuntimeError(f"{path}: {result}")
        self.done[path] += 1
        return result

    async def _session(self) -> str:
        self.done["sessions"] += 1
        session = str((await self._post("create_session", sdk_version="soak"))["session_id"])
        self._sessions.add(session)
        return session

    async def say_that_they_live(self) -> None:
        """As every SDK does, beside all else."""
        while True:
            await asyncio.sleep(HEARTBEAT)
            for session in list(self._sessions):
                if session in self._sessions:
                    await self._post("session_heartbeat", session_id=session)

    async def _leave(self, session: str) -> None:
        """In three of four cases as one should."""
        self._sessions.discard(session)
        if self._draw.random() < 0.75:
            await self._post(f"sessions/{session}/finish", reason={"type": "success"})

    def _tokens(self, count: int) -> list[int]:
        return [self._draw.randrange(10, 400) for _ in range(count)]

    def _batch(self) -> dict[str, Any]:
        rows = [self._tokens(self._draw.randrange(8, 64)) for _ in range(4)]
        data = [
            {
                "model_input": {"chunks": [{"tokens": row[:-1]}]},
                "loss_fn_inputs": {
                    "target_tokens": {"data": row[1:], "dtype": "int64"},
                    "weights": {"data": [1.0] * (len(row) - 1), "dtype": "float32"},
                },
            }
            for row in rows
        ]
        return {"data": data, "loss_fn": "cross_entropy"}

    async def train(self) -> None:
        """One run after the other, of twenty to sixty steps."""
        while True:
            session = await self._session()
            run = (
                await self._do(
                    "create_model", session_id=session, model_seq_id=0, base_model=MODEL,
                    lora_config={"rank": 8},
                )
            )["model_id"]  # fmt: skip
            seq = itertools.count(1)
            for step in range(self._draw.randrange(20, 60)):
                await self._do(
                    "forward_backward", model_id=run, seq_id=next(seq), forward_backward_input=self._batch()
                )
                await self._do(
                    "optim_step", model_id=run, seq_id=next(seq), adam_params={"learning_rate": 1e-4}
                )
                if step % 10 == 9:
                    saved = await self._do(
                        "save_weights_for_sampler", model_id=run, seq_id=next(seq), path=f"step-{step}",
                        ttl_seconds=2 * FRESH,
                    )  # fmt: skip
                    self._newest = saved["path"], time.monotonic()
                    number = step // 10
                    await self._do(
                        "save_weights_for_sampler", model_id=run, seq_id=next(seq),
                        sampling_session_seq_id=number,
                    )  # fmt: skip
                    await self._sample(f"{session}:sample:{number}", 0)
            await self._leave(session)

    async def sample(self) -> None:
        """One sampler after the other, five to fifteen samples from each."""
        while True:
            session = await self._session()
            source = {"base_model": MODEL}
            path, made_at = self._newest
            if self._draw.random() < 0.5 and time.monotonic() - made_at < FRESH:
                source = {"model_path": path}
            opened = await self._post(
                "create_sampling_session", session_id=session, sampling_session_seq_id=0, **source
            )
            for seq in range(self._draw.randrange(5, 15)):
                await self._sample(opened["sampling_session_id"], seq)
                await asyncio.sleep(self._draw.random())
            await self._leave(session)

    async def _sample(self, sampler: str, seq: int) -> None:
        await self._do(
            "asample",
            sampling_session_id=sampler,
            seq_id=seq,
            prompt={"chunks": [{"tokens": self._tokens(self._draw.randrange(4, 40))}]},
            sampling_params={"max_tokens": self._draw.randrange(4, 24)},
            num_samples=self._draw.randrange(1, 4),
        )


async def soak(service: ServiceProcess, options: argparse.Namespace) -> dict[str, list[Look]]:
    """The looks at both processes, from the end of the warm-up on."""
    looks: dict[str, list[Look]] = {"service": [], "engine": []}
    everybody = options.trainers + options.samplers
    connections = httpx.Limits(
        max_connections=everybody, max_keepalive_connections=everybody, keepalive_expiry=2
    )  # before the service gives them up
    async with (
        httpx.AsyncClient(base_url=f"{service.url}/api/v1/", timeout=120, limits=connections) as http,
        asyncio.TaskGroup() as group,
    ):
        load = Load(http, options.seed)
        actors = [group.create_task(load.say_that_they_live())]
        actors += [group.create_task(load.train()) for _ in range(options.trainers)]
        actors += [group.create_task(load.sample()) for _ in range(options.samplers)]
        started = time.monotonic()
        while (passed := time.monotonic() - started) < options.minutes * 60:
            await asyncio.sleep(EVERY)
            if int(passed) % 60 < EVERY:
                at = [Look.at(one) for one in (service.process_id, service.engine_process_id)]
                print(f"{passed:5.0f} s  service {at[0]}  engine {at[1]}  {dict(load.done)}", flush=True)
            for name, process_id in (("service", service.process_id), ("engine", service.engine_process_id)):
                if passed > options.minutes * 20:
                    looks[name].append(Look.at(process_id))
        for actor in actors:
            actor.cancel()
    print(
        f"{options.minutes:g} minutes: " + ", ".join(f"{n} {what}" for what, n in sorted(load.done.items()))
    )
    return looks


def judge(name: str, looks: list[Look]) -> bool:
    """Say how a process has grown; whether it may."""
    third = len(looks) // 3
    fine = True
    for what, allowed in (
        ("kilobytes", lambda before: before * MAY_GROW),
        ("descriptors", lambda before: before + MOMENTARY),
        ("threads", lambda before: before + MOMENTARY),
    ):
        before, after = (
            statistics.median(getattr(look, what) for look in part)
            for part in (looks[:third], looks[-third:])
        )
        verdict = "" if after <= allowed(before) else "  TOO MUCH"
        fine = fine and not verdict
        print(f"{name:8} {what:12} {before:10.0f} -> {after:10.0f}  {after / before - 1:+.1%}{verdict}")
    return fine


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--trainers", type=int, default=2)
    parser.add_argument("--samplers", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        with ServiceProcess(Path(folder), models=[MODEL], environment=QUICK) as service:
            looks = asyncio.run(soak(service, options))
            output = service.output
        if "Traceback" in output:
            print(output)
        fine = [judge(name, of_process) for name, of_process in looks.items()]
    sys.exit(0 if all(fine) and "Traceback" not in output else 1)


if __name__ == "__main__":
    main()
