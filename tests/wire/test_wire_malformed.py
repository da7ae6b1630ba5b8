"""What is malformed ends in a refusal that names the field: never another exception, never silence."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinsmith.types import (
    Datum,
    ForwardBackwardInput,
    ForwardBackwardOutput,
    ImageChunk,
    ModelInput,
    PromptAltTokens,
    PromptProvenanceSpan,
    SampledSequence,
    SampleResponse,
    SaveWeightsRequest,
    TensorData,
    TopkLogprobs,
    UserError,
)
from tinsmith.types.requests import SampleRequest
from tinsmith.wire import json, protobuf
from tinsmith.wire import messages_pb2 as pb
from tinsmith.wire.protobuf import ForwardBackwardCall


@contextlib.contextmanager
def refused(field: str, message: str | None = None) -> Iterator[None]:
    """A refusal that names exactly this field."""
    with pytest.raises(UserError, match=message) as refusal:
        yield
    assert refusal.value.field == field
    assert str(refusal.value).startswith(f"{field}: ")


def brief(value: Any) -> str:
    """A test's name: what is read, as far as it can be told in a few letters."""
    return f"{len(value)} bytes" if isinstance(value, bytes) else " ".join(repr(value).split())[:60]


def int64(*values: int) -> bytes:
    return np.array(values, "<i8").tobytes()


def float32(*values: float) -> bytes:
    return np.array(values, "<f4").tobytes()


# -- JSON: text ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"{}{}", b"nul", b"[1,]", b'"\xff"', b'"\xed\xa0\x80"', b'"\\ud800"', b"NaN", b"[Infinity]",
     b"[1e999]", b"[1" + b"0" * 400 + b"]", b"\x28\xb5\x2f\xfd", b"[" * 100_000, b"[" * 5000 + b"]" * 5000,
     b'{"a":' * 5000 + b"1" + b"}" * 5000],
    ids=lambda body: repr(body[:12]),
)  # fmt: skip
def test_what_is_not_json(body: bytes) -> None:
    with refused("body", "not JSON"):
        json.loads(body)
    assert json.peek_address(body) == (None, None)


@pytest.mark.parametrize("body", [b"[]", b"5", b'"x"', b"null"])
def test_json_without_an_address(body: bytes) -> None:
    assert json.peek_address(body) == (None, None)


# -- JSON: control requests ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "value", "field"),
    [
        (SaveWeightsRequest, [], "body"),
        (SaveWeightsRequest, None, "body"),
        (SaveWeightsRequest, {"model_id": "m"}, "path"),
        (SaveWeightsRequest, {"model_id": 5, "path": "n"}, "model_id"),
        (SaveWeightsRequest, {"model_id": "m", "path": "n", "sequence": 1}, "sequence"),
        (SaveWeightsRequest, {"model_id": "m", "path": "n", "seq_id": 1e30}, "seq_id"),
        (
            SampleRequest,
            {"prompt": {}, "sampling_params": {"temperature": None}},
            "sampling_params.temperature",
        ),
        (SampleRequest, {"prompt": {}, "sampling_params": {"min_p": 0.1}}, "sampling_params.min_p"),
        (SampleRequest, {"prompt": {}, "sampling_params": []}, "sampling_params"),
        (SampleRequest, {"prompt": {}, "sampling_params": {}, "seq_id": 2**63}, "seq_id"),
    ],
    ids=brief,
)
def test_a_control_request_names_what_is_wrong(model: Any, value: Any, field: str) -> None:
    with refused(field):
        json.parse_model(model, value)


# -- JSON: inputs --------------------------------------------------------------------------------------

IMAGE = {"data": "eA==", "format": "png"}


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (None, "p"),
        ([], "p"),
        ({}, "p.chunks"),
        ({"chunks": None}, "p.chunks"),
        ({"chunks": {}}, "p.chunks"),
        ({"chunks": "ab"}, "p.chunks"),
        ({"chunks": [], "images": [1]}, "p.images"),
        ({"chunks": [[1]]}, "p.chunks[0]"),
        ({"chunks": [{"tokens": []}, None]}, "p.chunks[1]"),
        ({"chunks": [{}]}, "p.chunks[0].type"),
        ({"chunks": [{"type": "video"}]}, "p.chunks[0].type"),
        ({"chunks": [{"type": ["image"]}]}, "p.chunks[0].type"),
        ({"chunks": [{"type": {"a": 1}}]}, "p.chunks[0].type"),
        ({"chunks": [{"type": "encoded_text"}]}, "p.chunks[0].tokens"),
        ({"chunks": [{"type": "encoded_text", "tokens": None}]}, "p.chunks[0].tokens"),
        ({"chunks": [{"tokens": 5}]}, "p.chunks[0].tokens"),
        ({"chunks": [{"tokens": "12"}]}, "p.chunks[0].tokens"),
        ({"chunks": [{"tokens": {"a": 1}}]}, "p.chunks[0].tokens"),
        ({"chunks": [{"tokens": [1], "field": 1}]}, "p.chunks[0].field"),
        ({"chunks": [{"tokens": [1], "self": 1}]}, "p.chunks[0].self"),
        ({"chunks": [IMAGE | {"image_data": "x"}]}, "p.chunks[0].image_data"),
        ({"chunks": [IMAGE | {"make": 1}]}, "p.chunks[0].make"),
        ({"chunks": [IMAGE | {"self": 1}]}, "p.chunks[0].self"),
        ({"chunks": [IMAGE | {"format": "gif"}]}, "p.chunks[0].format"),
        ({"chunks": [IMAGE | {"data": "%%%"}]}, "p.chunks[0].data"),
        ({"chunks": [IMAGE | {"data": [1]}]}, "p.chunks[0].data"),
        ({"chunks": [IMAGE | {"expected_tokens": -1}]}, "p.chunks[0].expected_tokens"),
        ({"chunks": [IMAGE | {"tokens": [1, 2]}]}, "p.chunks[0].tokens"),
        ({"chunks": [{"location": 5, "format": "png"}]}, "p.chunks[0].location"),
        ({"chunks": [{"dmel": 5}]}, "p.chunks[0].dmel"),
    ],
    ids=brief,
)
def test_a_malformed_input(value: Any, field: str) -> None:
    with refused(field):
        json.model_input_from_json(value, "p")


@pytest.mark.parametrize(
    "tokens",
    [[-1], [2**31], [1e30], [2**64 - 1], [1.5], [None], ["1"], [[1]], [True], [[[]]], [{}], [1, "1"]],
)
def test_malformed_token_ids(tokens: Any) -> None:
    with refused("p.chunks[0]", "tokens"):
        json.model_input_from_json({"chunks": [{"tokens": tokens}]}, "p")


TENSOR = {"data": [1, 2], "dtype": "int64"}


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (None, "t"),
        ([1], "t"),
        ({"dtype": "int64"}, "t.data"),
        ({"data": None, "dtype": "int64"}, "t.data"),
        ({"data": [1]}, "t.dtype"),
        (TENSOR | {"dtype": "int32"}, "t"),
        (TENSOR | {"dtype": ["int64"]}, "t"),
        (TENSOR | {"dtype": 1}, "t"),
        (TENSOR | {"data": 5}, "t.data"),
        (TENSOR | {"data": "12"}, "t.data"),
        (TENSOR | {"data": {"0": 1}}, "t.data"),
        (TENSOR | {"data": [1, None]}, "t.data"),
        (TENSOR | {"data": [[1, 2]], "shape": [1, 2]}, "t.data"),
        (TENSOR | {"data": [1, [2]]}, "t"),
        (TENSOR | {"data": ["1"]}, "t"),
        (TENSOR | {"data": [1.5]}, "t"),
        (TENSOR | {"data": [1e30]}, "t"),
        (TENSOR | {"data": [2**63]}, "t"),
        (TENSOR | {"data": [1e300], "dtype": "float32"}, "t"),
        (TENSOR | {"shape": 2}, "t.shape"),
        (TENSOR | {"shape": {}}, "t.shape"),
        (TENSOR | {"shape": [None]}, "t.shape"),
        (TENSOR | {"shape": [[2]]}, "t.shape"),
        (TENSOR | {"shape": [3]}, "t"),
        (TENSOR | {"shape": [-2, -1]}, "t"),
        (TENSOR | {"shape": [2.0]}, "t"),
        (TENSOR | {"shape": ["2"]}, "t"),
        (TENSOR | {"shape": [2**63, 2]}, "t"),
        (TENSOR | {"shape": [2**32, 2**32]}, "t"),
        (TENSOR | {"shape": [0]}, "t"),
        (TENSOR | {"shape": [1] * 99 + [2]}, "t"),
        (TENSOR | {"layout": "csr"}, "t.layout"),
        (TENSOR | {"self": 1}, "t.self"),
        (TENSOR | {"shape": [1, 3], "sparse_crow_indices": [0, 2]}, "t"),
        (TENSOR | {"shape": [1, 3], "sparse_crow_indices": [0, 2], "sparse_col_indices": [0, 3]}, "t"),
        (TENSOR | {"shape": [1, 3], "sparse_crow_indices": [0, 2], "sparse_col_indices": "01"},
         "t.sparse_col_indices"),
        (TENSOR | {"shape": [1, 3], "sparse_crow_indices": [0, None], "sparse_col_indices": [0, 1]},
         "t.sparse_crow_indices"),
    ],
    ids=brief,
)  # fmt: skip
def test_a_malformed_tensor(value: Any, field: str) -> None:
    with refused(field):
        json.tensor_from_json(value, "t")


TEXT = {"chunks": [{"tokens": [1]}]}
SPAN = {"type": "prompt_tokens", "sequence_id": "s", "offset": 0, "length": 1}


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (None, "d"),
        ({}, "d.model_input"),
        ({"model_input": TEXT, "inputs": {}}, "d.inputs"),
        ({"model_input": TEXT, "loss_fn_inputs": []}, "d.loss_fn_inputs"),
        ({"model_input": TEXT, "loss_fn_inputs": ""}, "d.loss_fn_inputs"),
        ({"model_input": TEXT, "loss_fn_inputs": {"weights": [1]}}, "d.loss_fn_inputs['weights']"),
        ({"model_input": TEXT, "loss_fn_inputs": {"weights": None}}, "d.loss_fn_inputs['weights']"),
        ({"model_input": TEXT, "model_input_spans": [SPAN]}, "d"),
        ({"model_input": TEXT, "model_input_spans": 5}, "d.model_input_spans"),
        ({"model_input": TEXT, "model_input_spans": [5]}, "d.model_input_spans[0]"),
        ({"model_input": TEXT, "model_input_spans": [SPAN | {"type": "x"}]}, "d.model_input_spans[0].type"),
        ({"model_input": TEXT, "model_input_spans": [SPAN | {"type": []}]}, "d.model_input_spans[0].type"),
        ({"model_input": TEXT, "model_input_spans": [SPAN | {"x": 1}]}, "d.model_input_spans[0].x"),
        ({"model_input": TEXT, "model_input_spans": [SPAN | {"length": "1"}]}, "d.model_input_spans[0]"),
        ({"model_input": TEXT, "model_input_spans": [SPAN | {"offset": -1}]}, "d.model_input_spans[0]"),
        ({"model_input": TEXT, "model_input_spans": [SPAN | {"length": None}]}, "d.model_input_spans[0]"),
    ],
    ids=brief,
)
def test_a_malformed_datum(value: Any, field: str) -> None:
    with refused(field):
        json.datum_from_json(value, "d")


BATCH: dict[str, Any] = {"data": [{"model_input": TEXT}], "loss_fn": "ppo"}
CALL: dict[str, Any] = {"forward_backward_input": BATCH, "model_id": "m"}
KEY = "forward_backward_input"


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ([], "body"),
        ({"model_id": "m"}, f"body.{KEY}"),
        ({KEY: BATCH}, "body.model_id"),
        (CALL | {"model_id": 5}, "model_id"),
        (CALL | {"seq_id": -1}, "seq_id"),
        (CALL | {"seq_id": 2**31}, "seq_id"),
        (CALL | {"seq_id": "1"}, "seq_id"),
        (CALL | {"seq_id": True}, "seq_id"),
        (CALL | {"seq_id": 1.0}, "seq_id"),
        (CALL | {"forward_input": BATCH}, "body.forward_input"),
        (CALL | {KEY: []}, KEY),
        (CALL | {KEY: {"loss_fn": "ppo"}}, f"{KEY}.data"),
        (CALL | {KEY: BATCH | {"data": {}}}, f"{KEY}.data"),
        (CALL | {KEY: BATCH | {"data": [5]}}, "data[0]"),
        (CALL | {KEY: BATCH | {"loss_fn": 5}}, "loss_fn"),
        (CALL | {KEY: BATCH | {"loss_fn": None}}, f"{KEY}.loss_fn"),
        (CALL | {KEY: BATCH | {"loss": "ppo"}}, f"{KEY}.loss"),
        (CALL | {KEY: BATCH | {"loss_fn_config": []}}, f"{KEY}.loss_fn_config"),
        (CALL | {KEY: BATCH | {"loss_fn_config": {"a": [1]}}}, f"{KEY}.loss_fn_config['a']"),
        (CALL | {KEY: BATCH | {"loss_fn_config": {"a": True}}}, f"{KEY}.loss_fn_config['a']"),
        (CALL | {KEY: BATCH | {"loss_fn_config": {"a": None}}}, f"{KEY}.loss_fn_config['a']"),
    ],
    ids=brief,
)
def test_a_malformed_batch(value: Any, field: str) -> None:
    with refused(field):
        json.forward_backward_from_json(value, forward_only=False)


# -- JSON: results -------------------------------------------------------------------------------------

OUTPUT: dict[str, Any] = {"loss_fn_output_type": "x", "loss_fn_outputs": [], "metrics": {}}


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (None, "result"),
        ([], "result"),
        ({}, "result.loss_fn_outputs"),
        (OUTPUT | {"loss_fn_output_type": 5}, "loss_fn_output_type"),
        (OUTPUT | {"loss_fn_outputs": {}}, "loss_fn_outputs"),
        (OUTPUT | {"loss_fn_outputs": [5]}, "loss_fn_outputs[0]"),
        (OUTPUT | {"loss_fn_outputs": [{"a": [1]}]}, "loss_fn_outputs[0]['a']"),
        (OUTPUT | {"metrics": None}, "result.metrics"),
        (OUTPUT | {"metrics": []}, "metrics"),
        (OUTPUT | {"metrics": {"a": "1"}}, "metrics['a']"),
        (OUTPUT | {"metrics": {"a": True}}, "metrics['a']"),
        (OUTPUT | {"metrics": {"a": [1]}}, "metrics['a']"),
    ],
    ids=brief,
)
def test_a_malformed_training_result(value: Any, field: str) -> None:
    with refused(field):
        json.forward_backward_output_from_json(value)


ONE: dict[str, Any] = {"stop_reason": "stop", "tokens": [1, 2]}
FLOATS = {"data": [1.0], "dtype": "float32"}


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (None, "result"),
        ({}, "result.sequences"),
        ({"sequences": 5}, "sequences"),
        ({"sequences": [5]}, "sequences[0]"),
        ({"sequences": [ONE, {"tokens": []}]}, "sequences[1].stop_reason"),
        ({"sequences": [ONE | {"stop_reason": "max_tokens"}]}, "sequences[0].stop_reason"),
        ({"sequences": [ONE | {"stop_reason": []}]}, "sequences[0].stop_reason"),
        ({"sequences": [{"stop_reason": "stop"}]}, "sequences[0].tokens"),
        ({"sequences": [ONE | {"tokens": "12"}]}, "sequences[0].tokens"),
        ({"sequences": [ONE | {"tokens": [1.5]}]}, "sequences[0]"),
        ({"sequences": [ONE | {"tokens": [2**31]}]}, "sequences[0]"),
        ({"sequences": [ONE | {"tokens": [-1]}]}, "sequences[0]"),
        ({"sequences": [ONE | {"logprobs": [1.0]}]}, "sequences[0].logprobs"),
        ({"sequences": [ONE | {"logprobs": ["1", "2"]}]}, "sequences[0].logprobs"),
        ({"sequences": [ONE | {"logprobs": 5}]}, "sequences[0].logprobs"),
        ({"sequences": [ONE | {"logprobs": [[1.0, 2.0]]}]}, "sequences[0].logprobs"),
        ({"sequences": [ONE | {"topk_logprobs": [None]}]}, "sequences[0].topk_logprobs"),
        ({"sequences": [], "prompt_logprobs": "abc"}, "prompt_logprobs"),
        ({"sequences": [], "prompt_logprobs": ["a"]}, "prompt_logprobs"),
        ({"sequences": [], "topk_prompt_logprobs": 5}, "topk_prompt_logprobs"),
        ({"sequences": [], "topk_prompt_logprobs": [5]}, "topk_prompt_logprobs[0]"),
        ({"sequences": [], "topk_prompt_logprobs": [[5]]}, "topk_prompt_logprobs[0][0]"),
        ({"sequences": [], "topk_prompt_logprobs": [None, [[1, -1.0], [2]]]}, "topk_prompt_logprobs[1][1]"),
        ({"sequences": [], "topk_prompt_logprobs": [[[2**31, -1.0]]]}, "topk_prompt_logprobs[0][0]"),
        ({"sequences": [], "topk_prompt_logprobs": [[["1", -1.0]]]}, "topk_prompt_logprobs[0][0]"),
        ({"sequences": [], "topk_prompt_logprobs": [[[True, -1.0]]]}, "topk_prompt_logprobs[0][0]"),
        ({"sequences": [], "topk_prompt_logprobs": [[[1, 1e300]]]}, "topk_prompt_logprobs[0][0]"),
        ({"sequences": [], "target_prompt_logprobs": []}, "target_prompt_logprobs"),
        ({"sequences": [], "prompt_alt_tokens": []}, "prompt_alt_tokens"),
        ({"sequences": [], "prompt_alt_tokens": {"tokens": TENSOR}}, "prompt_alt_tokens.logprobs"),
        (
            {"sequences": [], "prompt_alt_tokens": {"tokens": 5, "logprobs": FLOATS}},
            "prompt_alt_tokens.tokens",
        ),
        ({"sequences": [], "prompt_cache_hit_tokens": "5"}, "prompt_cache_hit_tokens"),
        ({"sequences": [], "prompt_cache_hit_tokens": 1.5}, "prompt_cache_hit_tokens"),
    ],
    ids=brief,
)
def test_a_malformed_sample(value: Any, field: str) -> None:
    with refused(field):
        json.sample_response_from_json(value)


# -- protobuf: tensors ---------------------------------------------------------------------------------


def csr(values: bytes, crow: bytes, col: bytes, shape: list[int]) -> pb.Tensor:
    layout = pb.SparseCsr(values=values, crow_indices=crow, col_indices=col)
    return pb.Tensor(sparse_csr=layout, dtype=pb.DTYPE_FLOAT32, shape=shape)


F32, I64 = pb.DTYPE_FLOAT32, pb.DTYPE_INT64


@pytest.mark.parametrize(
    ("message", "field", "says"),
    [
        (pb.Tensor(), "t", "no values"),
        (pb.Tensor(dtype=F32, shape=[0]), "t", "no values"),
        (pb.Tensor(dense=b"1234"), "t.dtype", "0 is not one of"),
        (pb.Tensor(dense=b"1234", dtype=99), "t.dtype", "99 is not one of"),  # type: ignore[arg-type]
        (pb.Tensor(dense=b"12345", dtype=F32), "t", "whole number of 4-byte items"),
        (pb.Tensor(dense=b"1234", dtype=I64), "t", "whole number of 8-byte items"),
        (pb.Tensor(dense=b"123", dtype=pb.DTYPE_BFLOAT16), "t", "whole number of 2-byte items"),
        (pb.Tensor(dense=float32(1, 2), dtype=F32, shape=[3]), "t", "shape"),
        (pb.Tensor(dense=float32(1, 2), dtype=F32, shape=[-1, -2]), "t", "shape"),
        (pb.Tensor(dense=float32(1, 2), dtype=F32, shape=[-1]), "t", "shape"),
        (pb.Tensor(dense=float32(1, 2), dtype=F32, shape=[2**62, 2**62]), "t", "shape"),
        (pb.Tensor(dense=b"", dtype=F32, shape=[2**32, 2**32]), "t", "shape"),
        (pb.Tensor(dense=b"", dtype=F32, shape=[0, 2**62, 2**62]), "t", "shape"),
        (pb.Tensor(dense=float32(1), dtype=F32, shape=[1] * 99), "t", "shape"),
        (csr(float32(1), b"123", int64(0), [1, 1]), "t.crow_indices", "8-byte items"),
        (csr(float32(1), int64(0, 1), b"123", [1, 1]), "t.col_indices", "8-byte items"),
        (csr(float32(1), int64(0, 1), int64(0), [1]), "t", "shape"),
        (csr(float32(1), int64(0, 1), int64(0), []), "t", "shape"),
        (csr(float32(1), int64(0, 1), int64(5), [1, 5]), "t", "sparse_col_indices"),
        (csr(float32(1), int64(0, 1), int64(-1), [1, 5]), "t", "sparse_col_indices"),
        (csr(float32(1), int64(0, 2), int64(0), [1, 5]), "t", "sparse_crow_indices"),
        (csr(float32(1), int64(0, -1, 1), int64(0), [2, 5]), "t", "sparse_crow_indices"),
        (csr(b"", b"", b"", [-1, 5]), "t", "shape"),
        (csr(b"", int64(0), b"", [0, 2**63 - 1]), "t", "shape"),
        (csr(float32(1), int64(0, 1), int64(0), [1, 2**63 - 1]), "t", "shape"),
    ],
    ids=brief,
)
def test_a_malformed_tensor_message(message: pb.Tensor, field: str, says: str) -> None:
    with refused(field, says):
        protobuf.tensor_from_pb(message, "t")


# -- protobuf: requests --------------------------------------------------------------------------------


def request(**fields: Any) -> bytes:
    return pb.ForwardBackwardRequest(**{"model_id": "m", "loss_fn": "ppo"} | fields).SerializeToString()


def chunk(**fields: Any) -> bytes:
    return request(data=[pb.Datum(), pb.Datum(model_input=[pb.Chunk(), pb.Chunk(**fields)][1:])])


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"", "model_id"),
        (request(model_id=""), "model_id"),
        (request(loss_fn=""), "loss_fn"),
        (request(seq_id=-1), "seq_id"),
        (request(loss_fn_config_v2={"a": pb.LossConfigValue()}), "loss_fn_config['a']"),
        (chunk(), "data[1].model_input.chunks[0]"),
        (chunk(encoded_text=pb.EncodedTextChunk(tokens=b"123")), "data[1].model_input.chunks[0].tokens"),
        (chunk(encoded_text=pb.EncodedTextChunk(tokens=b"\xff" * 4)), "data[1].model_input.chunks[0]"),
        (chunk(image=pb.ImageChunk(data=b"x", format="gif")), "data[1].model_input.chunks[0].format"),
        (chunk(image=pb.ImageChunk(data=b"x", format="png", expected_tokens=-1)),
         "data[1].model_input.chunks[0].expected_tokens"),
        (chunk(image=pb.ImageChunk(data=b"x", format="png", override_dimensions=pb.ImageDimensions(width=1))),
         "data[1].model_input.chunks[0].override_dimensions"),
        (request(data=[pb.Datum(loss_fn_inputs={"w": pb.Tensor()})]), "data[0].loss_fn_inputs['w']"),
        (request(data=[pb.Datum(model_input_spans=[pb.ProvenanceSpan()])]), "data[0].model_input_spans[0]"),
        (request(data=[pb.Datum(loss_fn_input_spans=[
            pb.ProvenanceSpan(sampled_tokens=pb.SpanBody(offset=-1))])]), "data[0].loss_fn_input_spans[0]"),
    ],
    ids=brief,
)  # fmt: skip
def test_a_malformed_request_message(body: bytes, field: str) -> None:
    with refused(field):
        protobuf.decode_forward_backward(body)


# -- protobuf: results ---------------------------------------------------------------------------------


def result(num_datums: int = 0, **column: Any) -> bytes:
    fields = {"a": pb.BatchedTensor(**{"dtype": F32} | column)} if column else {}
    record = pb.ArrayRecord(fields=fields, num_datums=num_datums)
    return pb.ForwardBackwardOutput(loss_fn_outputs=[record]).SerializeToString()


COLUMN = "loss_fn_outputs[0].fields['a']"
DATA = float32(1, 2, 3)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (result(2, data=DATA, offsets=int64(0, 12)), COLUMN),
        (result(data=DATA, offsets=b"123"), f"{COLUMN}.offsets"),
        (result(data=DATA, offsets=b""), f"{COLUMN}.offsets"),
        (result(data=DATA, offsets=int64(0)), f"{COLUMN}.offsets"),
        (result(data=DATA, offsets=int64(0, 8)), f"{COLUMN}.offsets"),
        (result(data=DATA, offsets=int64(0, 16)), f"{COLUMN}.offsets"),
        (result(data=DATA, offsets=int64(4, 12)), f"{COLUMN}.offsets"),
        (result(data=DATA, offsets=int64(-12, 12)), f"{COLUMN}.offsets"),
        (result(data=DATA, offsets=int64(0, -8, 12)), f"{COLUMN}.offsets"),
        (result(data=DATA, offsets=int64(0, 8, 4, 12)), f"{COLUMN}.offsets"),
        (result(data=DATA, offsets=int64(0, 100, 12)), f"{COLUMN}.offsets"),
        (result(data=DATA, offsets=int64(0, -(2**63), 2**63 - 1, 12)), f"{COLUMN}.offsets"),
        (result(data=DATA, offsets=int64(0, 6, 12)), f"{COLUMN}.offsets"),
        (result(data=DATA + b"1", offsets=int64(0, 13)), COLUMN),
        (result(data=DATA, offsets=int64(0, 12), dtype=0), f"{COLUMN}.dtype"),
        (result(data=DATA, offsets=int64(0, 12), trailing_shape=[2]), COLUMN),
        (result(data=DATA, offsets=int64(0, 12), trailing_shape=[0]), COLUMN),
        (result(data=DATA, offsets=int64(0, 12), trailing_shape=[-3]), f"{COLUMN}.trailing_shape"),
        (result(data=DATA, offsets=int64(0, 12), trailing_shape=[-1, -3]), f"{COLUMN}.trailing_shape"),
        (result(data=DATA, offsets=int64(0, 12), trailing_shape=[2**62, 2**62]), COLUMN),
        (result(-1), "loss_fn_outputs[0].num_datums"),
        (result(2**62), "loss_fn_outputs[0].num_datums"),
    ],
    ids=brief,
)
def test_a_malformed_training_result_message(body: bytes, field: str) -> None:
    with refused(field):
        protobuf.decode_forward_backward_output(body)


def sample(**fields: Any) -> bytes:
    return pb.SampleResponse(**fields).SerializeToString()


def sequence(**fields: Any) -> bytes:
    return sample(sequences=[pb.SampledSequence(tokens=np.array([1, 2], "<i4").tobytes(), **fields)])


def topk(ids: int, logprobs: int, k: int, length: int) -> pb.TopkLogprobs:
    return pb.TopkLogprobs(token_ids=bytes(ids), logprobs=bytes(logprobs), k=k, length=length)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (sequence(stop_reason=7), "sequences[0].stop_reason"),
        (sequence(logprobs=b"123"), "sequences[0].logprobs"),
        (sequence(logprobs=float32(1)), "sequences[0].logprobs"),
        (sequence(topk_sampled_logprobs=topk(4, 4, 1, 1)), "sequences[0].topk_logprobs"),
        (sample(sequences=[pb.SampledSequence(tokens=b"12345")]), "sequences[0].tokens"),
        (sample(sequences=[pb.SampledSequence(tokens=b"\xff" * 4)]), "sequences[0]"),
        (sample(prompt_logprobs=b"123"), "prompt_logprobs"),
        (sample(topk_prompt_logprobs=topk(4, 4, 2, 1)), "topk_prompt_logprobs"),
        (sample(topk_prompt_logprobs=topk(8, 4, 2, 1)), "topk_prompt_logprobs"),
        (sample(topk_prompt_logprobs=topk(3, 4, 1, 1)), "topk_prompt_logprobs.token_ids"),
        (sample(topk_prompt_logprobs=topk(4, 4, 2**32 - 1, 2**32 - 1)), "topk_prompt_logprobs"),
        (sample(target_prompt_logprobs=pb.Tensor()), "target_prompt_logprobs"),
        (sample(prompt_alt_tokens=pb.PromptAltTokens()), "prompt_alt_tokens.tokens"),
    ],
    ids=brief,
)
def test_a_malformed_sample_message(body: bytes, field: str) -> None:
    with refused(field):
        protobuf.decode_sample_response(body)


# -- bytes at random -----------------------------------------------------------------------------------

GRID = TensorData([1.0, 2.0], "float32", [1, 2])
IDS = TensorData([1, 2], "int64", [1, 2])
TOPK = TopkLogprobs(np.array([[1], [2]], np.int32), np.array([[-1], [-2]], np.float32))
SPANS = [PromptProvenanceSpan(sequence_id="ü", length=1)]
INPUT = ModelInput.from_ints([1, 2]).append(ImageChunk(data=b"x", format="png", expected_tokens=1))
WHOLE: list[tuple[Callable[[bytes], object], bytes]] = [
    (
        protobuf.decode_forward_backward,
        protobuf.encode_forward_backward(
            ForwardBackwardCall(
                "ü", 1,
                ForwardBackwardInput(
                    [Datum(INPUT, {"w": GRID, "s": IDS.to_sparse()}, SPANS, SPANS)],
                    "ppo", {"a": 1.0, "b": "c"},
                ),
            )
        ),
    ),
    (
        protobuf.decode_forward_backward_output,
        protobuf.encode_forward_backward_output(
            ForwardBackwardOutput("ü", [{"a": GRID, "b": IDS}] * 3, {"m:sum": 1.0})
        ),
    ),
    (
        protobuf.decode_sample_response,
        protobuf.encode_sample_response(
            SampleResponse(
                [SampledSequence("length", np.array([1, 2], np.int32), np.array([-1, -2], np.float32), TOPK)],
                np.array([np.nan, -1], np.float32), TOPK, GRID, PromptAltTokens(IDS, GRID), 1,
            )
        ),
    ),
]  # fmt: skip
decoders = pytest.mark.parametrize(("decode", "whole"), WHOLE, ids=[decode.__name__ for decode, _ in WHOLE])


@decoders
def test_invalid_utf8_and_nonsense_are_not_the_message(
    decode: Callable[[bytes], object], whole: bytes
) -> None:
    assert decode(whole)
    nonsense = [whole[:-1], b"\x0a\xff", b"\x07", b"\xff" * 20]
    if "ü".encode() in whole:
        nonsense.append(whole.replace("ü".encode(), b"\xc3\x28"))
    for body in nonsense:
        with refused("body", "not a protobuf"):
            decode(body)


@decoders
def test_a_message_cut_anywhere_is_refused_or_whole_in_itself(
    decode: Callable[[bytes], object], whole: bytes
) -> None:
    for size in range(len(whole)):
        with contextlib.suppress(UserError):
            decode(whole[:size])


@decoders
def test_no_single_changed_byte_causes_anything_but_a_refusal(
    decode: Callable[[bytes], object], whole: bytes
) -> None:
    for at in range(len(whole)):
        for change in (0x01, 0x80, 0xFF):
            with contextlib.suppress(UserError):
                decode(whole[:at] + bytes([whole[at] ^ change]) + whole[at + 1 :])


@decoders
def test_no_bytes_at_all_cause_anything_but_a_refusal(
    decode: Callable[[bytes], object], whole: bytes
) -> None:
    @given(st.binary(max_size=60))
    def check(body: bytes) -> None:
        with contextlib.suppress(UserError):
            decode(body)
            decode(whole + body)

    check()


@given(st.binary(max_size=60))
def test_an_address_is_read_or_not(body: bytes) -> None:
    for peek in (protobuf.peek_address, json.peek_address):
        model_id, _ = peek(body)
        assert model_id is None or isinstance(model_id, str)


leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "x", "int64", "float32", "image", "encoded_text", "stop"])
)
keys = st.sampled_from(
    [
        "chunks",
        "tokens",
        "type",
        "data",
        "dtype",
        "shape",
        "format",
        "model_input",
        "loss_fn_inputs",
        "model_id",
        "forward_backward_input",
        "loss_fn",
        "loss_fn_config",
        "sequences",
        "stop_reason",
        "logprobs",
        "metrics",
        "topk_prompt_logprobs",
        "prompt_logprobs",
        "loss_fn_outputs",
        "loss_fn_output_type",
        "self",
        "field",
    ]
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)
READERS: list[Callable[[Any], object]] = [
    lambda value: json.model_input_from_json(value, "p"),
    lambda value: json.model_input_from_json({"chunks": [value]}, "p"),
    lambda value: json.model_input_from_json({"chunks": [{"tokens": value}]}, "p"),
    lambda value: json.tensor_from_json(value, "t"),
    lambda value: json.tensor_from_json({"data": value, "dtype": "float32"}, "t"),
    lambda value: json.tensor_from_json({"data": [1], "dtype": "int64", "shape": value}, "t"),
    lambda value: json.datum_from_json(value, "d"),
    lambda value: json.datum_from_json({"model_input": TEXT, "model_input_spans": value}, "d"),
    lambda value: json.forward_backward_from_json(value, forward_only=False),
    json.forward_backward_output_from_json,
    lambda value: json.forward_backward_output_from_json(OUTPUT | {"loss_fn_outputs": [value]}),
    json.sample_response_from_json,
    lambda value: json.sample_response_from_json({"sequences": [], "topk_prompt_logprobs": value}),
    lambda value: json.sample_response_from_json({"sequences": [value]}),
    lambda value: json.parse_model(SampleRequest, value),
]


@pytest.mark.parametrize("read", READERS, ids=range(len(READERS)))
def test_no_json_causes_anything_but_a_refusal(read: Callable[[Any], object]) -> None:
    @given(values)
    def check(value: Any) -> None:
        with contextlib.suppress(UserError):
            read(value)

    check()
