"""The adapters of many runs in grouped products, as on a GPU: each run gets what it gets without them."""

import asyncio

import numpy as np
import pytest
from engine_support import cross_entropy, gradients_of, sft_datum, trained_run, with_engine

from tinsmith.engine.fast import packed
from tinsmith.engine.fast.grouped_adapters import GroupedAdapters
from tinsmith.engine.local import LocalEngine

RUNS = {
    "a": {"rank": 4},
    "b": {"rank": 1, "train_mlp": False},
    "c": {"rank": 16, "train_attn": False, "train_unembed": True},
    "d": {"rank": 9},
}


@pytest.mark.parametrize("model", ["tiny-llama", "tiny-qwen3"])
def test_grouped_products_give_the_same_gradients(
    models, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[int] = []

    class Counted(GroupedAdapters):
        def __init__(self, kernel, spans, dtype):
            passes.append(len(spans))
            super().__init__(kernel, spans, dtype)

    async def body(engine: LocalEngine, grouped: bool):
        for run, lora in RUNS.items():
            await trained_run(engine, run, model, **lora)
        monkeypatch.setattr(packed, "available", lambda like: grouped)
        monkeypatch.setattr(packed, "GroupedAdapters", Counted)
        data = {run: cross_entropy(sft_datum(9, at), sft_datum(30, at)) for at, run in enumerate(RUNS)}
        outputs = await asyncio.gather(*(engine.forward_backward(run, data[run], True) for run in RUNS))
        logprobs = [out["logprobs"].to_numpy() for output in outputs for out in output.loss_fn_outputs]
        return logprobs, {run: gradients_of(engine, run) for run in RUNS}

    logprobs, gradients = with_engine(models, lambda engine: body(engine, False))
    assert not passes
    grouped_logprobs, grouped_gradients = with_engine(models, lambda engine: body(engine, True))
    assert max(passes) > 1
    for one, other in zip(logprobs, grouped_logprobs, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)
    for run in RUNS:
        assert gradients[run].keys() == grouped_gradients[run].keys()
        for name, tensor in gradients[run].items():
            apart = (grouped_gradients[run][name] - tensor).norm()
            assert apart <= 1e-5 * tensor.norm(), (run, name)
