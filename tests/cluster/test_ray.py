"""The engine on Ray gives what the engine in this process gives, and refuses what it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import ray

from tinsmith.cluster import RayEngine
from tinsmith.engine.host import offer, open_engine
from tinsmith.engine.interface import Engine
from tinsmith.engine.models import Catalogue
from tinsmith.types import (
    AdamParams,
    Datum,
    ForwardBackwardInput,
    LoraConfig,
    ModelInput,
    SampleJob,
    SamplingParams,
    UserError,
)

pytestmark = [
    # Ray's own, while it starts and stops its processes.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

DATUM = Datum(ModelInput.from_ints([1, 2, 3]), {"target_tokens": [2, 3, 4], "weights": [1.0, 1.0, 1.0]})


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A cluster of one node."""
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    yield
    ray.shutdown()


async def _use(engine: Engine, folder: Path) -> list[object]:
    """Train, save, load, sample."""
    folder.mkdir()
    batch = ForwardBackwardInput([DATUM], "cross_entropy")
    await engine.create_adapter("run", "tiny-llama", LoraConfig(rank=4, seed=1))
    seen: list[object] = []
    for _ in range(2):
        seen.append(await engine.forward_backward("run", batch, True))
        seen.append(await engine.optim_step("run", AdamParams(learning_rate=0.01)))
    await engine.save_adapter("run", folder, True)
    await engine.load_adapter("run", folder, True)
    await engine.open_sampler("sampler", "tiny-llama", folder=folder)
    job = SampleJob(ModelInput.from_ints([1, 2]), SamplingParams(max_tokens=8, stop=[]), seed=1)
    seen.append((await engine.sample("sampler", job)).sequences[0].tokens)
    streamed = [delta async for delta in engine.stream_sample("sampler", job)]
    seen.append([token for delta in streamed for part in delta.sequences for token in part.tokens_np])
    assert seen[-1] == seen[-2]
    with pytest.raises(UserError, match="loss_fn: 'mse' is not a loss"):
        await engine.forward_backward("run", ForwardBackwardInput([DATUM], "mse"), True)
    with pytest.raises(UserError, match="num_samples"):
        await anext(engine.stream_sample("sampler", replace(job, num_samples=0)))
    await engine.close()
    return seen


def test_ray_and_local_agree(cluster: None, tmp_path: Path) -> None:
    models = offer(Catalogue(), ["tiny-llama"])
    here = asyncio.run(_use(open_engine(models), tmp_path / "here"))
    there = asyncio.run(_use(RayEngine(models), tmp_path / "there"))
    assert here == there


def test_cancelling_the_caller_stops_the_sample(cluster: None) -> None:
    async def main() -> None:
        engine = RayEngine(offer(Catalogue(), ["tiny-llama"]))
        await engine.open_sampler("sampler", "tiny-llama")
        endless = SampleJob(ModelInput.from_ints([1]), SamplingParams(stop=[]), num_samples=8, seed=1)
        task = asyncio.create_task(engine.sample("sampler", endless))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        short = SampleJob(ModelInput.from_ints([1]), SamplingParams(max_tokens=1), seed=1)
        assert len((await engine.sample("sampler", short)).sequences) == 1
        await engine.close()

    asyncio.run(main())
