"""What an engine that is somewhere else must do as the engine in this process does it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tinsmith.engine.interface import Engine
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

DATUM = Datum(ModelInput.from_ints([1, 2, 3]), {"target_tokens": [2, 3, 4], "weights": [1.0, 1.0, 1.0]})


async def use(engine: Engine, folder: Path) -> list[object]:
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
    seen.append(await _there_and_back(engine, folder))
    await engine.close()
    return seen


async def _there_and_back(engine: Engine, folder: Path) -> object:
    """A run with an accumulated gradient goes on from its saved state as if nothing had been."""
    lora = LoraConfig(rank=4, seed=1)
    await engine.forward_backward("run", ForwardBackwardInput([DATUM], "cross_entropy"), True)
    folders = [folder / name for name in ("state", "went on", "came back")]
    for each in folders:
        each.mkdir()
    state, went_on, came_back = folders
    await engine.save_state("run", state)
    clipped = AdamParams(learning_rate=0.01, grad_clip_norm=1e-3)
    metrics = await engine.optim_step("run", clipped)
    await engine.save_adapter("run", went_on, True)
    await engine.drop_adapter("run")
    await engine.load_state("run", "tiny-llama", lora, state)
    assert await engine.optim_step("run", clipped) == metrics
    await engine.save_adapter("run", came_back, True)
    for file in went_on.iterdir():
        assert file.read_bytes() == (came_back / file.name).read_bytes(), file.name
    assert await engine.adapter_bytes("run") > 0
    return metrics
