"""Log-probabilities and gradients against transformers and autograd."""

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
    reference_model,
    same,
    sft_datum,
    tokens,
    trained_run,
    weights_of,
    with_engine,
)

from tinsmith.engine.interface import BaseModel
from tinsmith.engine.local import LocalEngine
from tinsmith.types import (
    AdamParams,
    Datum,
    ForwardBackwardInput,
    LoraConfig,
    ModelInput,
    TensorData,
    UserError,
)

Models = Mapping[str, BaseModel]


def test_logprobs_are_those_of_transformers(models: Models, model: str) -> None:
    ids = [tokens(length, seed) for seed, length in enumerate((40, 3, 17))]

    async def body(engine: LocalEngine):
        await engine.create_adapter("run", model, LoraConfig(rank=4, seed=1))
        data = [
            Datum(
                ModelInput.from_ints(row[:-1]), {"target_tokens": row[1:], "weights": [2.0] * (len(row) - 1)}
            )
            for row in ids
        ]
        return await engine.forward_backward("run", cross_entropy(*data), True)

    output = with_engine(models, body)
    total = 0.0
    for row, found in zip(ids, output.loss_fn_outputs, strict=True):
        expected = reference_logprobs(models[model].folder, row)
        np.testing.assert_allclose(found["logprobs"].to_numpy(), expected, atol=1e-4)
        np.testing.assert_allclose(found["elementwise_loss"].to_numpy(), -2 * expected, atol=2e-4)
        total -= 2 * expected.sum()
    assert output.metrics["loss:sum"] == pytest.approx(total, rel=1e-5)
    assert output.loss_fn_output_type == "CrossEntropyLossReturn"


@pytest.mark.parametrize("layers", [{}, {"train_unembed": False}, {"train_attn": False, "train_mlp": False}])
def test_gradients_are_those_of_the_merged_model(models: Models, model: str, layers: dict[str, bool]) -> None:
    data = [sft_datum(20, 1, [0.0] * 9 + [0.5] * 11), sft_datum(33, 2)]

    async def body(engine: LocalEngine):
        await trained_run(engine, "run", model, rank=4, **layers)
        weights = weights_of(engine, "run")
        await engine.forward_backward("run", cross_entropy(*data), True)
        return weights, gradients_of(engine, "run")

    weights, found = with_engine(models, body)
    expected = merged_gradients(models[model].folder, weights, data, scale=32 / 4)
    assert found is not None
    assert max(gradient_error(found, expected).values()) <= 1e-4


def test_cutting_into_micro_batches_changes_nothing(models: Models) -> None:
    data = [sft_datum(length, length) for length in (5, 60, 7, 31, 30, 64)]

    async def body(engine: LocalEngine):
        await trained_run(engine, "run", "tiny-llama")
        output = await engine.forward_backward("run", cross_entropy(*data), True)
        return output, gradients_of(engine, "run")

    whole, whole_gradients = with_engine(models, body, train_tokens=4096)
    cut, cut_gradients = with_engine(models, body, train_tokens=32)
    assert whole_gradients is not None and cut_gradients is not None
    assert cut.metrics["loss:sum"] == pytest.approx(whole.metrics["loss:sum"], rel=1e-4)
    for one, other in zip(whole.loss_fn_outputs, cut.loss_fn_outputs, strict=True):
        np.testing.assert_allclose(one["logprobs"].to_numpy(), other["logprobs"].to_numpy(), atol=1e-4)
    for name, gradient in whole_gradients.items():
        torch.testing.assert_close(cut_gradients[name], gradient, rtol=1e-3, atol=1e-3)


def test_top_k_targets_dense_and_sparse(models: Models) -> None:
    ids, rng = tokens(10, 1), np.random.default_rng(3)
    targets = rng.integers(1, 512, (10, 3))
    weights = rng.random((10, 3)).astype(np.float32)
    targets[4:, 2] = weights[4:, 2] = 0  # cells a sparse tensor leaves out
    dense = Datum(ModelInput.from_ints(ids), {"target_tokens": targets, "weights": weights})
    sparse_inputs = {key: tensor.to_sparse() for key, tensor in dense.loss_fn_inputs.items()}
    sparse = Datum(ModelInput.from_ints(ids), sparse_inputs)
    narrow = sft_datum(6, 9)

    async def body(engine: LocalEngine):
        await engine.create_adapter("run", "tiny-llama", LoraConfig(rank=4, seed=1))
        return await engine.forward_backward("run", cross_entropy(dense, narrow, sparse), True)

    output = with_engine(models, body)
    with torch.no_grad():
        logits = reference_model(models["tiny-llama"].folder)(torch.tensor([ids])).logits[0]
    expected = torch.log_softmax(logits, -1).gather(1, torch.from_numpy(targets)).numpy()
    for at in (0, 2):
        found = output.loss_fn_outputs[at]
        assert found["logprobs"].shape == [10, 3]
        np.testing.assert_allclose(found["logprobs"].to_numpy(), expected, atol=1e-4)
        np.testing.assert_allclose(found["elementwise_loss"].to_numpy(), -expected * weights, atol=1e-4)
    assert output.loss_fn_outputs[1]["logprobs"].shape == [6]


def test_forward_leaves_no_gradient_and_calls_add_up(models: Models) -> None:
    first, second = sft_datum(10, 1), sft_datum(14, 2)

    async def body(engine: LocalEngine):
        await trained_run(engine, "run", "tiny-llama")
        forward = await engine.forward_backward("run", cross_entropy(first), False)
        assert gradients_of(engine, "run") is None
        backward = await engine.forward_backward("run", cross_entropy(first), True)
        assert forward.metrics == backward.metrics
        await engine.forward_backward("run", cross_entropy(second), True)
        apart = gradients_of(engine, "run")
        await engine.optim_step("run", AdamParams(learning_rate=0.0))
        assert gradients_of(engine, "run") is None
        await engine.forward_backward("run", cross_entropy(first, second), True)
        return apart, gradients_of(engine, "run")

    apart, together = with_engine(models, body)
    assert apart is not None and together is not None
    for name, gradient in together.items():
        torch.testing.assert_close(apart[name], gradient, rtol=1e-3, atol=1e-4)


def test_a_failed_call_leaves_nothing_behind(models: Models) -> None:
    good = sft_datum(20, 1)
    inputs = {"target_tokens": [5, 6], "logprobs": [-1e6, -1.0], "advantages": [1.0, 1.0]}
    overflow = Datum(ModelInput.from_ints([4, 5]), inputs)
    fine = Datum(ModelInput.from_ints([4, 5]), {**inputs, "logprobs": [-1.0, -1.0]})

    async def body(engine: LocalEngine):
        await trained_run(engine, "run", "tiny-llama")
        await engine.forward_backward("run", cross_entropy(good), True)
        before, weights = gradients_of(engine, "run"), weights_of(engine, "run")
        assert before is not None
        before = {name: gradient.clone() for name, gradient in before.items()}
        # The last datum fails, after the others have been through the backward pass.
        batch = ForwardBackwardInput([fine] * 8 + [overflow], "importance_sampling")
        with pytest.raises(UserError, match=r"data\[8\].*not finite"):
            await engine.forward_backward("run", batch, True)
        after = gradients_of(engine, "run")
        assert after is not None and same(before, after)
        assert same(weights, weights_of(engine, "run"))

    with_engine(models, body, train_tokens=2)


def test_the_seed_alone_decides_the_weights(models: Models) -> None:
    async def body(engine: LocalEngine):
        await trained_run(engine, "other", "tiny-llama", rank=2, seed=9)
        await engine.create_adapter("a", "tiny-llama", LoraConfig(rank=4, seed=7))
        await engine.create_adapter("b", "alias", LoraConfig(rank=4, seed=7, train_mlp=False))
        await engine.create_adapter("c", "tiny-llama", LoraConfig(rank=4, seed=8))
        assert len(engine._bases) == 1, "two names of one folder share its weights"
        return [weights_of(engine, run) for run in "abc"]

    a, b, c = with_engine(models, body)
    assert b.keys() < a.keys() and all(torch.equal(a[name], tensor) for name, tensor in b.items())
    name = "model.layers.0.self_attn.q_proj.lora_A"
    assert not torch.equal(a[name], c[name])
    assert 0.9 < float(a[name].abs().max()) * 64**0.5 <= 1
    assert all(not tensor.any() for name, tensor in a.items() if name.endswith("lora_B"))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            {"train_attn": True, "train_mlp": False, "train_unembed": False},
            {"q_proj", "k_proj", "v_proj", "o_proj"},
        ),
        (
            {"train_attn": False, "train_mlp": True, "train_unembed": False},
            {"gate_proj", "up_proj", "down_proj"},
        ),
        ({"train_attn": False, "train_mlp": False, "train_unembed": True}, {"lm_head"}),
    ],
)
def test_layers_are_chosen_by_the_config(models: Models, model: str, config, expected) -> None:
    async def body(engine: LocalEngine):
        await engine.create_adapter("run", model, LoraConfig(rank=1, seed=0, **config))
        return weights_of(engine, "run")

    found = with_engine(models, body)
    assert {name.split(".")[-2] for name in found} == expected


def test_adapters_of_different_ranks_do_not_touch_each_other_or_the_base(models: Models) -> None:
    ids = tokens(20, 4)

    async def body(engine: LocalEngine):
        await engine.create_adapter("plain", "tiny-llama", LoraConfig(rank=1, seed=1))
        base = await logprobs_of(engine, "plain", ids)
        await trained_run(engine, "a", "tiny-llama", rank=3, seed=2)
        a = await logprobs_of(engine, "a", ids)
        a_weights = weights_of(engine, "a")
        await trained_run(engine, "b", "tiny-llama", rank=16, seed=3)
        assert same(a_weights, weights_of(engine, "a"))
        b = await logprobs_of(engine, "b", ids)
        np.testing.assert_array_equal(await logprobs_of(engine, "a", ids), a)
        np.testing.assert_array_equal(await logprobs_of(engine, "plain", ids), base)
        assert np.abs(a - base).max() > 1e-2 and np.abs(a - b).max() > 1e-2
        await engine.drop_adapter("a")
        await engine.drop_adapter("never there")
        np.testing.assert_array_equal(await logprobs_of(engine, "b", ids), b)

    with_engine(models, body)


def test_a_model_that_scales_its_logits_is_refused(models: Models, tmp_path) -> None:
    from transformers import CohereConfig, CohereForCausalLM

    from tinsmith.engine.base import LoadedBase, UnsupportedModel

    config = CohereConfig(
        vocab_size=512, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, logit_scale=0.0625,
    )  # fmt: skip
    CohereForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match="logits"):
        LoadedBase(tmp_path, torch.float32, torch.device("cpu"))


def test_a_model_whose_layers_cannot_be_told_apart_is_refused(tmp_path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    from tinsmith.engine.base import LoadedBase, UnsupportedModel

    GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=16, n_layer=1, n_head=2)).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match=r"transformer\.h\.0\.attn\.c_attn .*outside linear layers"):
        LoadedBase(tmp_path, torch.float32, torch.device("cpu"))


def test_outputs_have_the_shape_of_targets_without_a_shape(models: Models) -> None:
    """A flat tensor may come without a shape."""
    flat = {"target_tokens": TensorData([5, 6], "int64"), "weights": TensorData([1.0, 1.0], "float32")}

    async def body(engine: LocalEngine):
        await engine.create_adapter("run", "tiny-llama", LoraConfig(rank=1, seed=1))
        batch = cross_entropy(Datum(ModelInput.from_ints([4, 5]), flat))
        return await engine.forward_backward("run", batch, True)

    assert with_engine(models, body).loss_fn_outputs[0]["logprobs"].shape == [2]
