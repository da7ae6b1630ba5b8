"""Every refusal names its field, before anything is computed."""

import math

import numpy as np
import pytest
from engine_support import cross_entropy, job, sft_datum, tokens, with_engine

from tinsmith.engine.local import LocalEngine
from tinsmith.types import (
    Datum,
    ForwardBackwardInput,
    ImageChunk,
    LoraConfig,
    ModelInput,
    NotFound,
    SampleJob,
    SamplingParams,
    TensorData,
    UserError,
)
from tinsmith.types.validation import check_batch, check_sample_job, check_sampling_params

IMAGE = ModelInput([ImageChunk(data=b"x", format="png", expected_tokens=3)])
THREE = ModelInput.from_ints([4, 5, 6])
SFT = {"target_tokens": [5, 6, 7], "weights": [1.0, 1.0, 1.0]}
RL = {"target_tokens": [5, 6, 7], "logprobs": [-1.0, -1.0, -1.0], "advantages": [1.0, 0.0, 1.0]}
GSPO = {**RL, "sequence_ratio_mask": [1.0, 0.0, 1.0]}
F32 = np.float32


def batch(loss_fn, inputs, config=None, model_input=THREE):
    good = sft_datum(3, 1) if loss_fn == "cross_entropy" else Datum(THREE, GSPO if loss_fn == "gspo" else RL)
    return ForwardBackwardInput([good, Datum(model_input, inputs)], loss_fn, config)


def column(name: str) -> str:
    return f"data[1].loss_fn_inputs[{name!r}]"


BATCHES = {
    "unknown loss": (batch("mse", SFT), "loss_fn", "use one of cross_entropy"),
    "stable_reinforce": (batch("stable_reinforce", RL), "loss_fn", "importance_sampling, ppo or cispo"),
    "custom": (batch("custom", RL), "loss_fn", "create_custom_loss"),
    "no data": (ForwardBackwardInput([], "ppo"), "data", "empty"),
    "image": (batch("ppo", RL, model_input=IMAGE), "data[1].model_input.chunks[0]", "'image'"),
    "no input": (batch("ppo", RL, model_input=ModelInput.empty()), "data[1].model_input", "empty"),
    "too long": (
        batch("cross_entropy", SFT, model_input=ModelInput.from_ints([5] * 257)),
        "data[1].model_input",
        "257 tokens.*at most 256",
    ),
    "no such token": (
        batch("ppo", RL, model_input=ModelInput.from_ints([1, 512, 3])),
        "data[1].model_input",
        r"value 1 is 512.*0\.\.511",
    ),
    "weights missing": (batch("cross_entropy", {"target_tokens": [5, 6, 7]}), column("weights"), "missing"),
    "advantages missing": (
        batch("ppo", {k: RL[k] for k in ("target_tokens", "logprobs")}),
        column("advantages"),
        "missing",
    ),
    "mask missing": (batch("gspo", RL), column("sequence_ratio_mask"), "missing"),
    "unknown input": (batch("ppo", {**RL, "weights": [1.0, 1, 1]}), column("weights"), "would ignore"),
    "clips for dro": (
        batch("dro", {**RL, "clip_low_threshold": [0.1] * 3}),
        column("clip_low_threshold"),
        "would ignore",
    ),
    "targets short": (
        batch("cross_entropy", {**SFT, "target_tokens": [5, 6]}),
        column("target_tokens"),
        "must be 3",
    ),
    "weights short": (batch("cross_entropy", {**SFT, "weights": [1.0]}), column("weights"), "must be 3"),
    "weights wide": (
        batch("cross_entropy", {**SFT, "weights": np.ones((3, 2), F32)}),
        column("weights"),
        "target_tokens has",
    ),
    "rl wide": (
        batch("ppo", {key: np.ones((3, 2), np.int64 if key == "target_tokens" else F32) for key in RL}),
        column("target_tokens"),
        r"use \[3\]",
    ),
    "3-d": (
        batch(
            "cross_entropy",
            {"target_tokens": np.ones((3, 1, 1), np.int64), "weights": np.ones((3, 1, 1), F32)},
        ),
        column("target_tokens"),
        r"\[3, K\]",
    ),
    "very wide": (
        batch(
            "cross_entropy",
            {
                key: TensorData([1], dtype, [3, 10**9], [0, 1, 1, 1], [7])
                for key, dtype in (("target_tokens", "int64"), ("weights", "float32"))
            },
        ),
        column("target_tokens"),
        "1 to 4096",
    ),
    "float targets": (
        batch("ppo", {**RL, "target_tokens": np.ones(3, F32)}),
        column("target_tokens"),
        "int64",
    ),
    "ignore index": (
        batch("ppo", {**RL, "target_tokens": [5, -100, 6]}),
        column("target_tokens"),
        "-100.*to mask",
    ),
    "target too big": (
        batch("ppo", {**RL, "target_tokens": [5, 6, 512]}),
        column("target_tokens"),
        "value 2 is 512",
    ),
    "nan": (
        batch("cross_entropy", {**SFT, "weights": [1.0, math.nan, 1.0]}),
        column("weights"),
        "value 1 is nan",
    ),
    "inf": (batch("ppo", {**RL, "logprobs": [-1.0, -math.inf, 0.0]}), column("logprobs"), "value 1 is -inf"),
    "mask of zeros": (
        batch("gspo", {**GSPO, "sequence_ratio_mask": [0.0] * 3}),
        column("sequence_ratio_mask"),
        "all zero",
    ),
    "negative bound": (
        batch("ppo", {**RL, "clip_low_threshold": [-0.1, 0, 0]}),
        column("clip_low_threshold"),
        ">= 0",
    ),
    "crossed bounds": (
        batch("ppo", {**RL, "clip_high_threshold": [2.0, 0.5, 2.0]}),
        column("clip_high_threshold"),
        "above",
    ),
    "unknown key": (batch("ppo", RL, {"clip_low": 0.1}), "loss_fn_config", "'clip_low'.*clip_low_threshold"),
    "no keys at all": (
        batch("cross_entropy", SFT, {"beta": 0.1}),
        "loss_fn_config",
        "takes no configuration",
    ),
    "text": (batch("dro", RL, {"beta": "high"}), "loss_fn_config['beta']", "'high'"),
    "nan config": (batch("dro", RL, {"beta": math.nan}), "loss_fn_config['beta']", "nan"),
    "negative beta": (batch("dro", RL, {"beta": -1.0}), "loss_fn_config['beta']", ">= 0"),
    "crossed config": (
        batch("ppo", RL, {"clip_low_threshold": 2.0, "clip_high_threshold": 1.0}),
        "loss_fn_config",
        "above",
    ),
}


@pytest.mark.parametrize("case", BATCHES)
def test_a_batch_is_refused(case: str) -> None:
    request, field, message = BATCHES[case]
    with pytest.raises(UserError, match=message) as caught:
        check_batch(request, vocab_size=512, max_context_length=256)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")


def test_forward_lets_a_custom_loss_keep_its_columns() -> None:
    """SDK 0.4.1 sends all of a datum's inputs in the forward call of forward_backward_custom."""
    request = batch("cross_entropy", {**SFT, "preferred": np.ones(1, F32)})
    check_batch(request, vocab_size=512, max_context_length=256, backward=False)
    with pytest.raises(UserError, match="preferred"):
        check_batch(request, vocab_size=512, max_context_length=256, backward=True)


JOBS = {
    "empty prompt": (job([]), "prompt", "at least one token"),
    "image": (SampleJob(IMAGE, SamplingParams()), "prompt.chunks[0]", "'image'"),
    "no such token": (job([5, 512]), "prompt", "512"),
    "no room": (job([5] * 256), "prompt", "no room"),
    "no samples": (job([5], n=0), "num_samples", "1 to 1024"),
    "too many samples": (job([5], n=1025), "num_samples", "1 to 1024"),
    "seed": (job([5], seed=-1), "sampling_params.seed", "0 to"),
    "ids": (job([5], n=2, sequence_ids=("a",)), "sequence_ids", "1 ids for 2"),
    "topk prompt": (job([5], topk_prompt_logprobs=-1), "topk_prompt_logprobs", "0 to 512"),
    "topk sample": (job([5], topk_sample_logprobs=513), "topk_sample_logprobs", "0 to 512"),
    "alt": (job([5], prompt_alt_tokens_k=-2), "prompt_alt_tokens_k", "0 to 1024"),
    "last without": (job([5], prompt_logprobs_last_n=1), "prompt_logprobs_last_n", "needs prompt_logprobs"),
    "last zero": (
        job([5], prompt_logprobs=True, prompt_logprobs_last_n=0),
        "prompt_logprobs_last_n",
        "1 or more",
    ),
    "targets float": (
        job([5, 6], target_prompt_logprobs=TensorData.from_numpy(np.ones((1, 1)))),
        "target_prompt_logprobs",
        "int64",
    ),
    "targets flat": (
        job([5, 6], target_prompt_logprobs=TensorData([1], "int64")),
        "target_prompt_logprobs",
        r"\[1, K\]",
    ),
    "targets long": (
        job([5, 6], target_prompt_logprobs=TensorData([1, 1], "int64", [2, 1])),
        "target_prompt_logprobs",
        "one row less",
    ),
    "targets wide": (
        job([5, 6], target_prompt_logprobs=TensorData([1], "int64", [1, 9999], [0, 1], [0])),
        "target_prompt_logprobs",
        "1 to 4096",
    ),
    "targets below": (
        job([5, 6], target_prompt_logprobs=TensorData([-2], "int64", [1, 1])),
        "target_prompt_logprobs",
        "-1 for none",
    ),
    "targets above": (
        job([5, 6], target_prompt_logprobs=TensorData([512], "int64", [1, 1])),
        "target_prompt_logprobs",
        "512",
    ),
}


@pytest.mark.parametrize("case", JOBS)
def test_a_sample_job_is_refused(case: str) -> None:
    request, field, message = JOBS[case]
    with pytest.raises(UserError, match=message) as caught:
        check_sample_job(request, vocab_size=512, max_context_length=256)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1), ("temperature", 1e-30), ("top_p", 0.0), ("top_p", 1.01), ("top_k", 0),
        ("top_k", -2), ("max_tokens", 0), ("seed", -1), ("seed", 2**63),
    ],
)  # fmt: skip
def test_sampling_parameters_are_refused(field: str, value: float) -> None:
    with pytest.raises(UserError) as caught:
        check_sampling_params(SamplingParams(**{field: value}), vocab_size=512)
    assert caught.value.field == f"sampling_params.{field}"


@pytest.mark.parametrize(("stop", "at"), [("", 0), (["a", ""], 1), ([5, 512], 1), ([-1], 0)])
def test_stops_are_refused(stop, at: int) -> None:
    with pytest.raises(UserError) as caught:
        check_sampling_params(SamplingParams(stop=stop), vocab_size=512)
    assert caught.value.field == f"sampling_params.stop[{at}]"


def test_mixed_stops_are_refused() -> None:
    params = SamplingParams.model_construct(stop=["a", 5])
    with pytest.raises(UserError) as caught:
        check_sampling_params(params, vocab_size=512)
    assert caught.value.field == "sampling_params.stop"


def test_the_engine_refuses_through_the_same_checks(models) -> None:
    async def body(engine: LocalEngine):
        for rank in (0, 257):
            with pytest.raises(UserError, match=r"^lora_config\.rank: .*1 to 256"):
                await engine.create_adapter("run", "tiny-llama", LoraConfig(rank=rank, seed=1))
        with pytest.raises(UserError, match=r"^lora_config\.seed"):
            await engine.create_adapter("run", "tiny-llama", LoraConfig(rank=1))
        with pytest.raises(NotFound, match=r"^base_model: 'gpt-5' .*tiny-llama"):
            await engine.create_adapter("run", "gpt-5", LoraConfig(rank=1, seed=1))
        with pytest.raises(NotFound, match=r"^model_id"):
            await engine.forward_backward("run", cross_entropy(sft_datum(3, 1)), True)
        with pytest.raises(NotFound, match=r"^sampling_session_id"):
            await engine.sample("s", job([5]))
        with pytest.raises(NotFound, match=r"^model_id"):
            await engine.open_sampler("s", "tiny-llama", run_id="run")
        await engine.create_adapter("run", "tiny-llama", LoraConfig(rank=1, seed=1))
        with pytest.raises(UserError, match=r"^base_model: the run trains tiny-llama"):
            await engine.open_sampler("s", "tiny-qwen3", run_id="run")
        with pytest.raises(UserError, match=r"^data\[0\]\.loss_fn_inputs\['weights'\]"):
            await engine.forward_backward("run", cross_entropy(sft_datum(3, 1, [math.inf] * 3)), False)
        await engine.open_sampler("s", "tiny-llama")
        with pytest.raises(UserError, match=r"^prompt: "):
            await engine.sample("s", job(tokens(256, 1)))
        await engine.close_sampler("s")
        await engine.close_sampler("s")
        with pytest.raises(NotFound):
            await engine.sample("s", job([5]))

    with_engine(models, body)


def test_names_come_to_mean_one_model_only(models) -> None:
    import dataclasses

    async def body(engine: LocalEngine):
        more = dataclasses.replace(models["tiny-llama"], name="late")
        engine.add_base_model(more)
        engine.add_base_model(more)
        assert engine.base_models()["late"] == more
        await engine.create_adapter("run", "late", LoraConfig(rank=1, seed=1))
        with pytest.raises(ValueError, match="'late' is offered already"):
            engine.add_base_model(dataclasses.replace(models["tiny-qwen3"], name="late"))

    with_engine(models, body)
