"""What is saved: PEFT loads it, a run resumes from it bit by bit, and what does not fit is refused."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_support import (
    cross_entropy,
    gradients_of,
    job,
    logprobs_of,
    reference_model,
    same,
    sft_datum,
    tokens,
    train_a_little,
    trained_run,
    weights_of,
    with_engine,
)
from peft import PeftModel
from safetensors.torch import load_file, save_file

from tinsmith.engine.local import LocalEngine
from tinsmith.engine.peft_files import CONFIG, OPTIMIZER, WEIGHTS
from tinsmith.types import LoraConfig, UserError


# PEFT's own use of transformers, and its advice against adapting a tied output matrix, which is wanted here.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")
@pytest.mark.parametrize("layers", [{}, {"train_unembed": False}])
def test_peft_computes_the_same_from_our_files(models, model, layers, tmp_path: Path) -> None:
    ids = tokens(30, 3)

    async def body(engine: LocalEngine):
        await trained_run(engine, "run", model, rank=5, **layers)
        await engine.save_adapter("run", tmp_path, False)
        return await logprobs_of(engine, "run", ids)

    ours = with_engine(models, body)
    assert sorted(path.name for path in tmp_path.iterdir()) == [CONFIG, WEIGHTS]
    keys = load_file(tmp_path / WEIGHTS).keys()
    assert "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight" in keys
    assert ("base_model.model.lm_head.lora_B.weight" in keys) == (not layers)
    theirs = PeftModel.from_pretrained(reference_model(models[model].folder), tmp_path).eval()
    with torch.no_grad():
        logits = theirs(torch.tensor([ids[:-1]])).logits[0]
    expected = torch.log_softmax(logits, -1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    np.testing.assert_allclose(ours, expected.numpy(), atol=1e-4)


def test_a_run_goes_on_from_its_files_as_if_it_had_never_stopped(models, tmp_path: Path) -> None:
    async def body(engine: LocalEngine):
        await trained_run(engine, "run", "tiny-llama")
        await engine.save_adapter("run", tmp_path, True)
        saved = engine._adapters["run"].optimizer.copy()
        await train_a_little(engine, "run", seed=90)

        await engine.create_adapter("again", "tiny-llama", LoraConfig(rank=4, seed=99))
        await engine.forward_backward("again", cross_entropy(sft_datum(9, 9)), True)
        await engine.load_adapter("again", tmp_path, True)
        assert gradients_of(engine, "again") is None, "loading clears the accumulated gradient"
        loaded = engine._adapters["again"].optimizer
        assert loaded.step == saved.step == 3
        assert same(loaded.exp_avg, saved.exp_avg) and same(loaded.exp_avg_sq, saved.exp_avg_sq)
        await train_a_little(engine, "again", seed=90)
        assert same(weights_of(engine, "run"), weights_of(engine, "again"))

        await engine.load_adapter("again", tmp_path, False)
        assert engine._adapters["again"].optimizer.step == 0, "weights alone come with a fresh optimizer"
        await train_a_little(engine, "again", seed=90)
        assert not same(weights_of(engine, "run"), weights_of(engine, "again"))

    with_engine(models, body)


def test_a_run_that_never_stepped_resumes_too(models, tmp_path: Path) -> None:
    async def body(engine: LocalEngine):
        for run in "ab":
            await engine.create_adapter(run, "tiny-llama", LoraConfig(rank=4, seed=1))
        await engine.save_adapter("a", tmp_path, True)
        await train_a_little(engine, "b")
        await engine.load_adapter("b", tmp_path, True)
        for run in "ab":
            await train_a_little(engine, run)
        assert same(weights_of(engine, "a"), weights_of(engine, "b"))

    with_engine(models, body)


def _edit_config(folder: Path, **changes) -> None:
    path = folder / CONFIG
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def _edit_tensors(folder: Path, change, name: str = WEIGHTS) -> None:
    tensors = load_file(folder / name)
    save_file(change(tensors), folder / name)


Q = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
SPOILED = {
    "no config": (lambda f: (f / CONFIG).unlink(), "adapter_config.json is missing"),
    "no weights": (lambda f: (f / WEIGHTS).unlink(), "adapter_model.safetensors is missing"),
    "no optimizer": (lambda f: (f / OPTIMIZER).unlink(), "no optimizer state"),
    "cut short": (lambda f: (f / WEIGHTS).write_bytes((f / WEIGHTS).read_bytes()[:500]), "damaged"),
    "no json": (lambda f: (f / CONFIG).write_text("{"), "not JSON"),
    "rslora": (lambda f: _edit_config(f, use_rslora=True), "use_rslora"),
    "other rank": (lambda f: _edit_config(f, r=8), "has rank 8, the run 4"),
    "no rank": (lambda f: _edit_config(f, r=None), "needs r"),
    "a layer less": (
        lambda f: _edit_tensors(f, lambda t: {k: v for k, v in t.items() if "q_proj" not in k}),
        "lacks model.layers.0.self_attn.q_proj and 1 more",
    ),
    "half a layer": (
        lambda f: _edit_tensors(f, lambda t: {k: v for k, v in t.items() if k != Q}),
        "only one of two matrices of model.layers.0.self_attn.q_proj",
    ),
    "foreign layer": (
        lambda f: _edit_tensors(f, lambda t: {k.replace("layers.1.", "layers.7."): v for k, v in t.items()}),
        "holds model.layers.7",
    ),
    "foreign key": (lambda f: _edit_tensors(f, lambda t: {**t, "x": torch.ones(1)}), "'x'"),
    "other shape": (
        lambda f: _edit_tensors(f, lambda t: {**t, Q: torch.ones(4, 3)}),
        r"q_proj has the shapes",
    ),
    "other moments": (
        lambda f: _edit_tensors(f, lambda t: {"step": t["step"]}, OPTIMIZER),
        "does not fit its weights",
    ),
}


@pytest.mark.parametrize("case", SPOILED)
def test_what_does_not_fit_is_refused_before_anything_changes(models, case, tmp_path: Path) -> None:
    spoil, message = SPOILED[case]

    async def body(engine: LocalEngine):
        await trained_run(engine, "run", "tiny-llama")
        await engine.save_adapter("run", tmp_path, True)
        await engine.forward_backward("run", cross_entropy(sft_datum(9, 9)), True)
        spoil(tmp_path)
        weights, gradients = weights_of(engine, "run"), gradients_of(engine, "run")
        with pytest.raises(UserError, match=message) as caught:
            await engine.load_adapter("run", tmp_path, True)
        assert caught.value.field == "path"
        assert same(weights, weights_of(engine, "run")) and gradients is gradients_of(engine, "run")
        assert engine._adapters["run"].optimizer.step == 3

    with_engine(models, body)


def test_a_run_of_other_layers_is_refused(models, tmp_path: Path) -> None:
    async def body(engine: LocalEngine):
        await trained_run(engine, "all", "tiny-llama")
        await engine.save_adapter("all", tmp_path, False)
        await engine.create_adapter("some", "tiny-llama", LoraConfig(rank=4, seed=1, train_unembed=False))
        with pytest.raises(UserError, match="holds lm_head"):
            await engine.load_adapter("some", tmp_path, False)
        await engine.create_adapter("qwen", "tiny-qwen3", LoraConfig(rank=4, seed=1))
        with pytest.raises(UserError, match="shapes"):
            await engine.load_adapter("qwen", tmp_path, False)
        with pytest.raises(UserError, match="shapes"):
            await engine.open_sampler("qwen", "tiny-qwen3", folder=tmp_path)

    with_engine(models, body)


def test_samplers_never_change(models, tmp_path: Path) -> None:
    """Not by training on, not when the files go, not when the run goes."""
    ask = job(tokens(20, 1), prompt_logprobs=True, max_tokens=1)

    async def body(engine: LocalEngine):
        await trained_run(engine, "run", "tiny-llama")
        await engine.save_adapter("run", tmp_path, False)
        trainer = await logprobs_of(engine, "run", tokens(20, 1))
        await engine.open_sampler("copy", "tiny-llama", run_id="run")
        await engine.open_sampler("file", "alias", folder=tmp_path)
        await engine.open_sampler("base", "tiny-llama")
        before = {
            name: (await engine.sample(name, ask)).prompt_logprobs_np for name in ("copy", "file", "base")
        }
        await train_a_little(engine, "run")
        shutil.rmtree(tmp_path)
        await engine.drop_adapter("run")
        for name, logprobs in before.items():
            np.testing.assert_array_equal((await engine.sample(name, ask)).prompt_logprobs_np, logprobs)
        np.testing.assert_allclose(before["copy"][1:], trainer, atol=1e-5)
        np.testing.assert_array_equal(before["copy"], before["file"])
        assert np.abs(before["copy"] - before["base"])[1:].max() > 1e-2

    with_engine(models, body)
