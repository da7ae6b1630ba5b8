"""Several targets at one position are as many datums of the same tokens with one target each."""

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from engine_support import cross_entropy, gradients_of, tokens, trained_run, with_engine

from tinsmith.engine.interface import BaseModel
from tinsmith.engine.local import LocalEngine
from tinsmith.types import Datum, ModelInput, TensorData


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("model", ["tiny-llama", "tiny-qwen3"])
def test_values_and_gradients(models: Mapping[str, BaseModel], model: str, sparse: bool) -> None:
    ids = tokens(20, seed=4)
    targets = np.stack([tokens(20, seed=seed) for seed in (5, 6, 7)], axis=1)
    weights = np.random.default_rng(8).uniform(0, 1, targets.shape).astype(np.float32)
    weights[:5] = 0.0
    together = {"target_tokens": TensorData.from_numpy(targets), "weights": TensorData.from_numpy(weights)}
    if sparse:
        together = {key: value.to_sparse() for key, value in together.items()}
    apart = [
        Datum(
            ModelInput.from_ints(ids),
            {"target_tokens": targets[:, k].copy(), "weights": weights[:, k].copy()},
        )
        for k in range(3)
    ]

    async def body(engine: LocalEngine):
        seen = []
        for run, data in (("together", [Datum(ModelInput.from_ints(ids), together)]), ("apart", apart)):
            await trained_run(engine, run, model)
            output = await engine.forward_backward(run, cross_entropy(*data), True)
            seen.append((output.metrics["loss:sum"], gradients_of(engine, run)))
        return seen

    (loss, gradients), (sum_of_losses, sum_of_gradients) = with_engine(models, body)
    assert loss == pytest.approx(sum_of_losses, rel=1e-5)
    for name, gradient in gradients.items():
        torch.testing.assert_close(
            gradient, sum_of_gradients[name], rtol=1e-3, atol=1e-4 * float(gradient.abs().max())
        )
