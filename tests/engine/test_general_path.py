"""A model the fast path does not know gets the same answers from its own modules."""

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from engine_support import cross_entropy, gradients_of, sft_datum, with_engine

from tinsmith.engine import base as base_module
from tinsmith.engine.interface import BaseModel
from tinsmith.engine.local import LocalEngine
from tinsmith.types import LoraConfig

DATA = [sft_datum(20, 1, [0.0] * 9 + [0.5] * 11), sft_datum(33, 2), sft_datum(5, 3)]


@pytest.mark.parametrize(
    "layers", [{}, {"train_unembed": False}, {"train_attn": False, "train_mlp": False}], ids=str
)
def test_both_paths_agree(
    models: Mapping[str, BaseModel], model: str, layers: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(engine: LocalEngine):
        await engine.create_adapter("run", model, LoraConfig(rank=4, seed=1, **layers))
        generator = torch.Generator().manual_seed(3)
        for tensor in engine._adapters["run"].weights.tensors().values():
            tensor.copy_(0.1 * torch.randn(tensor.shape, generator=generator))
        (loaded,) = engine._bases.values()
        forward = await engine.forward_backward("run", cross_entropy(*DATA), False)
        await engine.forward_backward("run", cross_entropy(*DATA), True)
        return loaded.decoder, forward, gradients_of(engine, "run")

    decoder, fast, fast_gradients = with_engine(models, body, train_tokens=64)
    assert decoder is not None
    monkeypatch.setattr(base_module, "why_not_fast", lambda _model: "of this test")
    decoder, general, gradients = with_engine(models, body, train_tokens=64)
    assert decoder is None
    assert fast.metrics["loss:sum"] == pytest.approx(general.metrics["loss:sum"], rel=1e-5)
    for one, other in zip(fast.loss_fn_outputs, general.loss_fn_outputs, strict=True):
        np.testing.assert_allclose(one["logprobs"].to_numpy(), other["logprobs"].to_numpy(), atol=1e-4)
    assert gradients is not None and fast_gradients is not None and gradients.keys() == fast_gradients.keys()
    for name, gradient in gradients.items():
        difference = torch.linalg.vector_norm(fast_gradients[name] - gradient)
        assert difference <= 1e-4 * torch.linalg.vector_norm(gradient), name
