"""The engine on Ray gives what the engine in this process gives, and refuses what it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from remote_support import use

from tinsmith.cluster import RayEngine
from tinsmith.engine.host import offer, open_engine
from tinsmith.engine.interface import EngineLost
from tinsmith.engine.models import Catalogue
from tinsmith.types import ModelInput, SampleJob, SamplingParams

pytestmark = [
    # Ray's own, while it starts and stops its processes.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A cluster of one node."""
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    yield
    ray.shutdown()


def test_ray_and_local_agree(cluster: None, tmp_path: Path) -> None:
    models = offer(Catalogue(), ["tiny-llama"])
    here = asyncio.run(use(open_engine(models), tmp_path / "here"))
    there = asyncio.run(use(RayEngine(models), tmp_path / "there"))
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


def test_an_actor_that_dies_is_placed_again(cluster: None) -> None:
    async def main() -> None:
        engine = RayEngine(offer(Catalogue(), ["tiny-llama"]))
        await engine.open_sampler("sampler", "tiny-llama")
        ray.kill(engine._actor)
        short = SampleJob(ModelInput.from_ints([1]), SamplingParams(max_tokens=1), seed=1)
        with pytest.raises(EngineLost):
            await engine.sample("sampler", short)
        assert engine.generation == 1
        await engine.open_sampler("sampler", "tiny-llama")
        assert len((await engine.sample("sampler", short)).sequences) == 1
        await engine.close()

    asyncio.run(main())
