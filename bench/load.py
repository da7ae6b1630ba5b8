"""A crowd on one service: thousands of samples at once, trainers beside them, and one who takes all he can.

    python bench/load.py [--samples 2000] [--trainers 4] [--keys 6] [--seconds 40]

Starts `tinsmith serve` with a tiny model on a free port of this machine, a key for each tenant, and their
clients in processes of their own, all with the SDK. Nothing may be lost: every sample and step must have
its answer, and a greedy tenant may not keep a modest one waiting more than twice as long as he waits alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import numpy as np

import tinsmith
from tinsmith.service.keys import Keys
from tinsmith.store import Database
from tinsmith.testing import ServiceProcess

MODEL = "tiny-llama"
NEW_TOKENS = 16
Figures = dict[str, Any]


# -- the clients, each in a process of its own -----------------------------------------------------------


async def ready() -> float:
    """Say so, and wait until everybody is; gives the moment to stop at."""
    print("ready", flush=True)
    return float(await asyncio.to_thread(sys.stdin.readline))


async def crowd(service: tinsmith.ServiceClient, at_once: int) -> Figures:
    """So many samples in flight all the time; every one must come back with its tokens."""
    sampler = await service.create_sampling_client_async(base_model=MODEL)
    until = await ready()
    params = tinsmith.SamplingParams(max_tokens=NEW_TOKENS, stop=[])
    sent, seconds = 0, []

    async def one(number: int) -> None:
        nonlocal sent
        prompts = random.Random(number)
        while not seconds or time.time() < until:
            prompt = tinsmith.ModelInput.from_ints([prompts.randrange(20, 200) for _ in range(24)])
            sent += 1
            began = time.perf_counter()
            answer = await sampler.sample_async(prompt, 1, params)
            assert len(answer.sequences[0].tokens) == NEW_TOKENS
            seconds.append(time.perf_counter() - began)

    await asyncio.gather(*(one(number) for number in range(at_once)))
    return {"sent": sent, "answered": len(seconds), "seconds": seconds}


async def trainer(service: tinsmith.ServiceClient, _at_once: int) -> Figures:
    """Steps, one after the other; each loss must be there."""
    training = await service.create_lora_training_client_async(MODEL, rank=8, seed=1)
    tokens = list(range(30, 95))
    inputs = {"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)}
    batch = [tinsmith.Datum(tinsmith.ModelInput.from_ints(tokens[:-1]), inputs)] * 4
    sent, losses, seconds = 0, [], []
    until = await ready()
    while not losses or time.time() < until:
        began = time.perf_counter()
        sent += 1
        result = await training.forward_backward_async(batch, "cross_entropy")
        step = await training.optim_step_async(tinsmith.AdamParams(learning_rate=1e-3))
        losses.append((await result).metrics["loss:sum"])
        await step
        seconds.append(time.perf_counter() - began)
    assert losses[-1] < losses[0] or len(losses) < 5, losses
    return {"sent": sent, "answered": len(losses), "seconds": seconds}


async def heart(url: str, key: str) -> Figures:
    """Heartbeats of one session, twenty a second, by plain HTTP."""
    seconds, sent = [], 0
    async with httpx.AsyncClient(
        base_url=f"{url}/api/v1/",
        headers={"X-API-Key": key},
        timeout=60,
        limits=httpx.Limits(),
    ) as http:
        opened = await http.post("create_session", json={"tags": [], "user_metadata": {}})
        session = {"session_id": opened.raise_for_status().json()["session_id"]}

        async def beat() -> None:
            began = time.perf_counter()
            (await http.post("session_heartbeat", json=session)).raise_for_status()
            seconds.append(time.perf_counter() - began)

        until = await ready()
        async with asyncio.TaskGroup() as beats:
            while time.time() < until:
                sent += 1
                beats.create_task(beat())
                await asyncio.sleep(0.05)
    return {"sent": sent, "answered": len(seconds), "seconds": seconds}


async def client(role: str, url: str, key: str, at_once: int) -> Figures:
    if role == "heart":
        return await heart(url, key)
    async with tinsmith.ServiceClient(base_url=url, api_key=key) as service:
        return await {"crowd": crowd, "trainer": trainer}[role](service, at_once)


# -- bringing them together --------------------------------------------------------------------------------


class Load:
    """A service with keys, and clients set upon it."""

    def __init__(self, service: ServiceProcess, keys: Sequence[str]) -> None:
        self._service = service
        self.keys = keys

    async def run(self, seconds: float, clients: Sequence[tuple[str, str, int]]) -> list[Figures]:
        """Each (role, key, samples at once) in its process; the figures in the same order."""
        processes = [await self._start(*each) for each in clients]
        for process in processes:
            assert process.stdout is not None
            while (line := await process.stdout.readline()) != b"ready\n":
                if not line:
                    raise RuntimeError(f"a client could not start; the service said:\n{self._service.output}")
        until = f"{time.time() + seconds}\n".encode()
        said = await asyncio.gather(*(process.communicate(until) for process in processes))
        if any(process.returncode for process in processes):
            raise RuntimeError(f"a client failed; the service said:\n{self._service.output}")
        return [dict(json.loads(out.splitlines()[-1])) for out, _ in said]

    async def _start(self, role: str, key: str, at_once: int) -> asyncio.subprocess.Process:
        # The crowd's clients would be on other machines: here they must not take the service's own time.
        yielding = ("nice", "-n", "15") if at_once > 1 else ()
        return await asyncio.create_subprocess_exec(
            *(*yielding, sys.executable, __file__, "--client", role, self._service.url, key, str(at_once)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=2**26,
        )


def summed(figures: Sequence[Figures]) -> Figures:
    seconds = [each for one in figures for each in one["seconds"]]
    return {
        "sent": sum(one["sent"] for one in figures),
        "answered": sum(one["answered"] for one in figures),
        "median": statistics.median(seconds),
        "p99": float(np.quantile(seconds, 0.99)),
        "worst": max(seconds),
    }


def told(what: str, figures: Sequence[Figures]) -> Figures:
    """One line of the report."""
    all_ = summed(figures)
    print(
        f"{what:32} sent {all_['sent']:6} lost {all_['sent'] - all_['answered']:3}"
        f"   median {all_['median']:7.3f} s   p99 {all_['p99']:7.3f} s   worst {all_['worst']:7.3f} s",
        flush=True,
    )
    return all_


async def full_house(load: Load, samples: int, trainers: int, seconds: float) -> list[str]:
    """Everybody at once."""
    shares = [samples // len(load.keys) + (at < samples % len(load.keys)) for at in range(len(load.keys))]
    clients = [("crowd", key, share) for key, share in zip(load.keys, shares, strict=True)]
    clients += [("trainer", load.keys[at % len(load.keys)], 0) for at in range(trainers)]
    figures = await load.run(seconds, [*clients, ("heart", load.keys[0], 0)])
    all_ = {
        "samples": told(f"{samples} samples at once, {len(load.keys)} keys", figures[: len(load.keys)]),
        "steps": told(f"steps of {trainers} trainers", figures[len(load.keys) : -1]),
        "heartbeats": told("heartbeats", figures[-1:]),
    }
    missed = [f"{what}: some are lost" for what, each in all_.items() if each["sent"] != each["answered"]]
    return missed + ["heartbeats: p99 is over 1 s"] * (all_["heartbeats"]["p99"] >= 1)


async def greed(load: Load, samples: int, seconds: float) -> list[str]:
    """A modest tenant with one sample at a time: alone, then beside one with all he may have."""
    modest, greedy = ("crowd", load.keys[0], 1), ("crowd", load.keys[1], samples)
    alone = told("modest, alone", await load.run(seconds, [modest]))
    both = await load.run(seconds, [modest, greedy])
    beside = told("modest, beside the greedy", both[:1])
    told(f"greedy, {samples} at once", both[1:])
    ratio = beside["median"] / alone["median"]
    print(f"the modest one's median beside the greedy, against alone: {ratio:.2f}×")
    return ["the greedy tenant more than doubles the modest one's median"] * (ratio > 2)


async def bench(options: argparse.Namespace) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        data.mkdir()
        with closing(Database.in_folder(data)) as database:
            keys = [await Keys(database, data).create(f"tenant-{at}") for at in range(options.keys)]
        service = ServiceProcess(data, models=[MODEL])
        with service:
            load = Load(service, keys)
            missed = (
                []
                if options.only == "greed"
                else await full_house(load, options.samples, options.trainers, options.seconds)
            )
            return (
                missed
                if options.only == "house"
                else missed + await greed(load, options.samples // 2, options.seconds / 2)
            )


def main() -> None:
    if sys.argv[1:2] == ["--client"]:
        role, url, key, at_once = sys.argv[2:]
        print(json.dumps(asyncio.run(client(role, url, key, int(at_once)))))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--trainers", type=int, default=4)
    parser.add_argument("--keys", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--only", choices=["house", "greed"])
    missed = asyncio.run(bench(parser.parse_args()))
    sys.exit("\n".join(missed) or None)


if __name__ == "__main__":
    main()
