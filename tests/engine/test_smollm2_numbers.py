"""The embedded model itself: log-probabilities against transformers, gradients against merged weights."""

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from engine_support import (
    cross_entropy,
    gradient_error,
    gradients_of,
    logprobs_of,
    merged_gradients,
    reference_logprobs,
    trained_run,
    weights_of,
    with_engine,
)

from tinsmith.engine.interface import BaseModel
from tinsmith.engine.local import LocalEngine
from tinsmith.engine.models import Catalogue
from tinsmith.types import Datum, LoraConfig, ModelInput

NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
IDS = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198]


@pytest.fixture(scope="module")
def base() -> BaseModel:
    folder = Catalogue().resolve(NAME).folder  # in the user's cache: the second run downloads nothing
    return BaseModel(NAME, folder, "llama", 49152, 8192)


def test_logprobs_and_gradients(base: BaseModel) -> None:
    weights = np.linspace(0.5, 1.5, len(IDS) - 1, dtype=np.float32)
    datum = Datum(ModelInput.from_ints(IDS[:-1]), {"target_tokens": IDS[1:], "weights": weights})

    async def body(engine: LocalEngine):
        await engine.create_adapter("fresh", NAME, LoraConfig(rank=2, seed=1))
        fresh = await logprobs_of(engine, "fresh", IDS)
        await trained_run(engine, "run", NAME, rank=2)
        adapter = weights_of(engine, "run")
        await engine.forward_backward("run", cross_entropy(datum), True)
        return fresh, adapter, gradients_of(engine, "run")

    fresh, adapter, found = with_engine({NAME: base}, body)
    np.testing.assert_allclose(fresh, reference_logprobs(base.folder, IDS), atol=1e-4)
    assert found is not None
    # Thirty layers of float32 rounding: the reference is computed in float64, or it would be the less exact.
    exact = {name: tensor.double() for name, tensor in adapter.items()}
    expected = merged_gradients(base.folder, exact, [datum], scale=32 / 2)
    assert max(gradient_error(found, expected).values()) <= 1e-3
    assert gradient_error({"": _whole(found)}, {"": _whole(expected)})[""] <= 1e-4


def _whole(gradients: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([gradients[name].flatten() for name in sorted(gradients)])
