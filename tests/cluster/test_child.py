"""The engine in a process of its own: the same numbers, and a death is heard, survived and not outlived."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from remote_support import DATUM, use

from tinsmith.engine.child import ChildEngine
from tinsmith.engine.host import offer, open_engine
from tinsmith.engine.interface import EngineLost
from tinsmith.engine.models import Catalogue
from tinsmith.types import ForwardBackwardInput, LoraConfig, ModelInput, SampleJob, SamplingParams

ENDLESS = SampleJob(ModelInput.from_ints([1]), SamplingParams(stop=[]), num_samples=8, seed=1)
SHORT = SampleJob(ModelInput.from_ints([1]), SamplingParams(max_tokens=1), seed=1)


def test_child_and_local_agree_and_a_child_is_gone_when_closed(tmp_path: Path) -> None:
    models = offer(Catalogue(), ["tiny-llama"])
    here = asyncio.run(use(open_engine(models), tmp_path / "here"))
    child = ChildEngine(models)
    there = asyncio.run(use(child, tmp_path / "there"))
    assert here == there
    with pytest.raises(ProcessLookupError):
        os.kill(child.process_id, 0)


@pytest.mark.parametrize(("how", "patience"), [(signal.SIGKILL, 600), (signal.SIGSTOP, 15)])
def test_a_killed_or_wedged_engine_is_lost_and_another_one_comes(
    how: signal.Signals, patience: float
) -> None:
    async def main() -> None:
        engine = ChildEngine({}, patience=patience)
        for model in offer(Catalogue(), ["tiny-llama"]).values():
            engine.add_base_model(model)
        await engine.create_adapter("run", "tiny-llama", LoraConfig(rank=4, seed=1))
        await engine.open_sampler("sampler", "tiny-llama")
        under_way = asyncio.create_task(engine.sample("sampler", ENDLESS))
        deltas = engine.stream_sample("sampler", ENDLESS)
        await anext(deltas)
        os.kill(engine.process_id, how)
        with pytest.raises(EngineLost):
            await under_way
        with pytest.raises(EngineLost):
            async for _ in deltas:
                pass
        assert engine.generation == 1
        await engine.drop_adapter("run")  # gone already
        await engine.create_adapter("run", "tiny-llama", LoraConfig(rank=4, seed=1))
        await engine.forward_backward("run", ForwardBackwardInput([DATUM], "cross_entropy"), True)
        await engine.close()

    asyncio.run(main())


def test_an_engine_killed_before_it_was_ready_has_lost_nothing() -> None:
    async def main() -> None:
        engine = ChildEngine(offer(Catalogue(), ["tiny-llama"]))
        os.kill(engine.process_id, signal.SIGKILL)
        with pytest.raises(EngineLost):
            await engine.open_sampler("sampler", "tiny-llama")
        assert engine.generation == 0
        await engine.open_sampler("sampler", "tiny-llama")
        assert len((await engine.sample("sampler", SHORT)).sequences) == 1
        await engine.close()

    asyncio.run(main())


def test_cancelling_the_caller_stops_the_work_there() -> None:
    async def main() -> None:
        engine = ChildEngine(offer(Catalogue(), ["tiny-llama"]))
        await engine.open_sampler("sampler", "tiny-llama")
        async for _ in (deltas := engine.stream_sample("sampler", ENDLESS)):
            break
        await deltas.aclose()
        task = asyncio.create_task(engine.sample("sampler", ENDLESS))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len((await engine.sample("sampler", SHORT)).sequences) == 1
        await engine.close()

    asyncio.run(main())


def test_a_child_does_not_outlive_its_parent() -> None:
    script = (
        "import time; from tinsmith.engine.child import ChildEngine;"
        "print(ChildEngine({}).process_id, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        child = os.pidfd_open(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    try:
        assert select.select([child], [], [], 60)[0]  # readable once it has ended
    finally:
        os.close(child)
