"""Bytes the official SDKs wrote, kept in ``samples/``, and what they mean.

0.38.0 wrote the ``.pb`` files and one JSON file with all defaults; 0.4.1 the other, with only what was set.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tinsmith.types import (
    AdamParams,
    CreateModelRequest,
    LoadWeightsRequest,
    LoraConfig,
    OptimStepRequest,
    PromptProvenanceSpan,
    SampledProvenanceSpan,
    SampleRequest,
    SamplingParams,
    SaveWeightsRequest,
    TensorData,
)
from tinsmith.wire import compression, json, protobuf
from tinsmith.wire.protobuf import ForwardBackwardCall

SAMPLES = Path(__file__).parent / "samples"
MAX = 2**31 - 1


def call(name: str) -> ForwardBackwardCall:
    return protobuf.decode_forward_backward((SAMPLES / name).read_bytes())


def requests(version: str) -> dict[str, Any]:
    return dict(json.loads((SAMPLES / f"sdk_{version}_requests.json").read_bytes()))


# -- 0.38, protobuf ------------------------------------------------------------------------------------


def test_a_batch_of_lists() -> None:
    read = call("sdk_0_38_cross_entropy.pb")
    assert (read.model_id, read.seq_id, read.forward_only) == ("S1:train:0", 7, False)
    assert (read.batch.loss_fn, read.batch.loss_fn_config) == ("cross_entropy", None)
    assert len(read.batch.data) == 2
    for datum in read.batch.data:
        assert datum.model_input.to_ints() == [1, 2, MAX]
        assert datum.loss_fn_inputs == {
            "target_tokens": TensorData([2, 3, 4], "int64", [3]),
            "weights": TensorData([0.0, 1.0, 0.5], "float32", [3]),
        }


def test_the_same_batch_compressed() -> None:
    packed = (SAMPLES / "sdk_0_38_cross_entropy.pb.zst").read_bytes()
    plain = (SAMPLES / "sdk_0_38_cross_entropy.pb").read_bytes()
    assert compression.decompress(packed, "zstd", 1 << 20) == plain


def test_sparse_targets_and_weights() -> None:
    (datum,) = call("sdk_0_38_sparse.pb").batch.data
    targets, weights = datum.loss_fn_inputs["target_tokens"], datum.loss_fn_inputs["weights"]
    assert targets.is_sparse
    assert weights.is_sparse
    assert targets.tolist() == [[5, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 6]]
    assert weights.tolist() == [[0.5, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0.25]]


def test_every_kind_of_chunk_with_spans_and_configuration() -> None:
    read = call("sdk_0_38_rl_mixed.pb")
    (datum,) = read.batch.data
    assert read.forward_only
    assert read.batch.loss_fn_config == {"clip_high_threshold": 1.5, "mode": "text"}
    assert [(chunk.type, chunk.length) for chunk in datum.model_input.chunks] == [
        ("encoded_text", 1), ("image", 5), ("dmel", 3),
    ]  # fmt: skip
    assert datum.model_input_spans == (
        PromptProvenanceSpan(sequence_id="q", offset=0, length=4),
        SampledProvenanceSpan(sequence_id="q", offset=4, length=5),
    )
    assert datum.loss_fn_input_spans == (SampledProvenanceSpan(sequence_id="q", offset=1, length=9),)
    assert datum.loss_fn_inputs["target_tokens"].tolist() == list(range(9))
    np.testing.assert_array_equal(
        datum.loss_fn_inputs["clip_low_threshold"].to_numpy(), np.full(9, 0.8, "f4")
    )


def test_nothing_at_all_and_a_single_number() -> None:
    (datum,) = call("sdk_0_38_empty_tensor.pb").batch.data
    assert datum.model_input.chunks == []
    assert (datum.loss_fn_inputs["weights"].shape, datum.loss_fn_inputs["weights"].tolist()) == ([0], [])
    assert (datum.loss_fn_inputs["logprobs"].shape, datum.loss_fn_inputs["logprobs"].tolist()) == ([], 1.5)


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.pb")), ids=lambda path: path.stem)
def test_what_we_write_means_the_same(path: Path) -> None:
    read = call(path.name)
    assert protobuf.decode_forward_backward(protobuf.encode_forward_backward(read)) == read


# -- JSON of both --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0_38", "0_4_1"])
@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("create_model", CreateModelRequest),
        ("optim_step", OptimStepRequest),
        ("load_weights", LoadWeightsRequest),
        ("save_weights", SaveWeightsRequest),
        ("sample", SampleRequest),
    ],
)
def test_control_requests_are_understood(version: str, name: str, model: Any) -> None:
    sample = requests(version).get(name)
    if sample is None:
        assert (version, name) == ("0_38", "save_weights")
        return
    request = json.parse_model(model, sample)
    said = request.model_dump(mode="json")
    for field, value in sample.items():
        if value is not None and not isinstance(value, dict):
            assert said[field] == value


def test_defaults_the_old_client_leaves_out() -> None:
    old = requests("0_4_1")
    assert old["optim_step"]["adam_params"] == {}
    assert json.parse_model(OptimStepRequest, old["optim_step"]).adam_params == AdamParams()
    sample = json.parse_model(SampleRequest, old["sample"])
    assert (sample.sampling_params, sample.num_samples, sample.prompt_logprobs) == (
        SamplingParams(),
        1,
        False,
    )
    assert json.model_input_from_json(sample.prompt, "prompt").to_ints() == [5, 6]
    assert json.parse_model(CreateModelRequest, old["create_model"]).lora_config == LoraConfig(
        rank=16, seed=1
    )


def test_defaults_the_new_client_spells_out() -> None:
    new = requests("0_38")
    sample = json.parse_model(SampleRequest, new["sample"])
    assert sample.sampling_params == SamplingParams(max_tokens=3, stop=["a"], temperature=0.5)
    prompt = json.model_input_from_json(sample.prompt, "prompt")
    assert [(chunk.type, chunk.length) for chunk in prompt.chunks] == [
        ("encoded_text", 1),
        ("image", 5),
        ("dmel", 3),
    ]
    pointer = json.model_input_from_json(new["pointer_prompt"], "prompt")
    assert [(chunk.type, chunk.length) for chunk in pointer.chunks] == [("image_asset_pointer", 7)]
    adam = json.parse_model(OptimStepRequest, new["optim_step"]).adam_params
    assert adam == AdamParams(learning_rate=0.001)


def test_training_batches_of_the_old_client() -> None:
    old = requests("0_4_1")
    read = json.forward_backward_from_json(old["forward_backward"], forward_only=False)
    assert (read.model_id, read.seq_id, len(read.batch.data)) == ("S1:train:0", 2, 2)
    for datum in read.batch.data:
        assert datum.model_input.to_ints() == [1, 2]
        assert datum.loss_fn_inputs == {
            "target_tokens": TensorData([2, 3], "int64", [2]),
            "weights": TensorData([0.0, 1.0], "float32", [2]),
        }


def test_old_images_without_a_type() -> None:
    read = json.forward_backward_from_json(requests("0_4_1")["forward"], forward_only=True)
    (datum,) = read.batch.data
    assert read.forward_only
    assert read.seq_id is None
    assert read.batch.loss_fn_config == {"clip_high_threshold": 1.5}
    assert [(chunk.type, chunk.length) for chunk in datum.model_input.chunks] == [
        ("encoded_text", 2), ("image", 5), ("image_asset_pointer", 6),
    ]  # fmt: skip
