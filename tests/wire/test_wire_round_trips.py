"""Whatever can be said survives both dialects: batches, results and samples, written and read again."""

import json as text
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tinsmith.types import (
    Datum,
    DmelChunk,
    EncodedTextChunk,
    ForwardBackwardInput,
    ForwardBackwardOutput,
    ImageAssetPointerChunk,
    ImageChunk,
    ModelInput,
    PromptAltTokens,
    PromptProvenanceSpan,
    SampledProvenanceSpan,
    SampledSequence,
    SampleResponse,
    TensorData,
    TopkLogprobs,
    UserError,
)
from tinsmith.wire import json, protobuf
from tinsmith.wire import messages_pb2 as pb
from tinsmith.wire.protobuf import ForwardBackwardCall

# -- what there is to say ------------------------------------------------------------------------------

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
numbers = st.floats(allow_nan=False, allow_infinity=False)
token_ids = st.integers(0, 2**31 - 1)
counts = st.none() | st.integers(0, 2**31 - 1)


def arrays(shape: Any, whole: bool) -> st.SearchStrategy[np.ndarray[Any, Any]]:
    if whole:
        return hnp.arrays(np.int64, shape, elements=st.integers(-(2**63), 2**63 - 1))
    return hnp.arrays(np.float32, shape, elements=finite)


@st.composite
def tensors(draw: st.DrawFn) -> TensorData:
    whole, sparse = draw(st.booleans()), draw(st.booleans())
    dims = {"min_dims": 2, "max_dims": 2} if sparse else {"min_dims": 0, "max_dims": 3}
    tensor = TensorData.from_numpy(draw(arrays(hnp.array_shapes(**dims, min_side=0, max_side=3), whole)))
    return tensor.to_sparse() if sparse else tensor


spans = st.builds(
    lambda make, name, offset, length: make(sequence_id=name, offset=offset, length=length),
    st.sampled_from([PromptProvenanceSpan, SampledProvenanceSpan]),
    names,
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 1),
)
texts = st.builds(EncodedTextChunk, st.lists(token_ids, max_size=5))
images = st.builds(
    ImageChunk, data=st.binary(max_size=9), format=st.sampled_from(["png", "jpeg"]), expected_tokens=counts
)
sounds = st.builds(DmelChunk, dmel=st.binary(max_size=9))
chunks = texts | images | sounds
span_lists = st.lists(spans, min_size=1, max_size=2)


@st.composite
def datums(draw: st.DrawFn) -> Datum:
    both = draw(st.none() | st.tuples(span_lists, span_lists))
    return Datum(
        ModelInput(draw(st.lists(chunks, max_size=3))),
        draw(st.dictionaries(names, tensors(), max_size=3)),
        *(both or ()),
    )


calls = st.builds(
    ForwardBackwardCall,
    model_id=names,
    seq_id=st.none() | st.integers(1, 2**31 - 1),
    batch=st.builds(
        ForwardBackwardInput,
        st.lists(datums(), max_size=3),
        names,
        st.none() | st.dictionaries(names, numbers | names, min_size=1, max_size=3),
    ),
    forward_only=st.booleans(),
)


@st.composite
def outputs(draw: st.DrawFn) -> ForwardBackwardOutput:
    """Tensors of at least one dimension: a result is one row per position."""
    keys = draw(st.lists(names, max_size=2, unique=True))
    shapes = hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=3)
    datum = st.fixed_dictionaries(
        {key: st.booleans().flatmap(lambda w: arrays(shapes, w)).map(TensorData.from_numpy) for key in keys}
    )
    metrics = st.dictionaries(names, numbers, max_size=3)
    return ForwardBackwardOutput("ArrayRecord", draw(st.lists(datum, max_size=4)), draw(metrics))


@st.composite
def topks(draw: st.DrawFn, length: int) -> TopkLogprobs | None:
    k = draw(st.integers(1, 3))
    if not length or draw(st.booleans()):
        return None
    ids = draw(hnp.arrays(np.int32, (length, k), elements=st.integers(1, 2**31 - 1)))
    logprobs = draw(hnp.arrays(np.float32, (length, k), elements=st.floats(-100, 0, width=32)))
    return TopkLogprobs(ids, logprobs)


@st.composite
def sequences(draw: st.DrawFn) -> SampledSequence:
    ids = np.array(draw(st.lists(token_ids, max_size=4)), dtype=np.int32)
    logprobs = draw(hnp.arrays(np.float32, ids.size, elements=finite))
    reason = draw(st.sampled_from(["stop", "length"]))
    some = ids.size > 0 and draw(st.booleans())
    return SampledSequence(reason, ids, logprobs if some else None, draw(topks(ids.size)))


@st.composite
def responses(draw: st.DrawFn) -> SampleResponse:
    length, k = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    prompt = draw(st.none() | hnp.arrays(np.float32, length, elements=finite | st.just(np.float32("nan"))))
    grid = (length - 1, k)
    alternatives = st.builds(
        PromptAltTokens,
        hnp.arrays(np.int64, grid, elements=token_ids).map(TensorData.from_numpy),
        arrays(grid, False).map(TensorData.from_numpy),
    )
    target = arrays(grid, False).map(TensorData.from_numpy)
    return SampleResponse(
        draw(st.lists(sequences(), max_size=3)),
        prompt,
        draw(topks(length)),
        draw(st.none() | target | target.map(TensorData.to_sparse)),
        draw(st.none() | alternatives),
        draw(st.integers(0, 2**31 - 1)),
    )


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def said(response: SampleResponse) -> Any:
    """Everything a sample says, as plain values (NaN as None, so that equal is equal)."""
    alternatives = response.prompt_alt_tokens
    return [
        [(one.stop_reason, one.tokens, one.logprobs, one.topk_logprobs) for one in response.sequences],
        response.prompt_logprobs,
        response.topk_prompt_logprobs,
        response.target_prompt_logprobs,
        alternatives and (alternatives.tokens, alternatives.logprobs),
        response.prompt_cache_hit_tokens,
    ]


# -- and back ------------------------------------------------------------------------------------------


@given(calls)
def test_batches_survive_protobuf(call: ForwardBackwardCall) -> None:
    assert protobuf.decode_forward_backward(protobuf.encode_forward_backward(call)) == call


@given(calls)
def test_batches_survive_json(call: ForwardBackwardCall) -> None:
    value = through_json(json.forward_backward_to_json(call))
    assert json.forward_backward_from_json(value, forward_only=call.forward_only) == call


@given(calls)
def test_the_address_can_be_read_without_the_batch(call: ForwardBackwardCall) -> None:
    address = (call.model_id, call.seq_id)
    assert protobuf.peek_address(protobuf.encode_forward_backward(call)) == address
    assert json.peek_address(json.dumps(json.forward_backward_to_json(call))) == address


def test_protobuf_says_the_same_in_every_process() -> None:
    """Its maps have an order of each process's own; a journal is read by another one than wrote it."""
    keys = [f"name {at:02}" for at in range(30)]
    tensor = TensorData([1.0], "float32", [1])
    numbers = dict.fromkeys(keys, 1.0)
    datum = Datum(ModelInput.from_ints([1]), dict.fromkeys(keys, tensor))
    call = ForwardBackwardCall("run", 1, ForwardBackwardInput([datum], "custom", numbers))
    output = ForwardBackwardOutput("ArrayRecord", [dict.fromkeys(keys, tensor)], numbers)
    said = protobuf.encode_forward_backward(call), protobuf.encode_forward_backward_output(output)
    for body in said:
        places = [body.index(key.encode()) for key in keys]
        assert places == sorted(places)
    batch, result = (
        protobuf.decode_forward_backward(said[0]).batch,
        protobuf.decode_forward_backward_output(said[1]),
    )
    for mapping in (
        batch.data[0].loss_fn_inputs,
        batch.loss_fn_config,
        result.loss_fn_outputs[0],
        result.metrics,
    ):
        assert list(mapping) == keys


@given(tensors())
def test_tensors_survive_both(tensor: TensorData) -> None:
    for back in (
        json.tensor_from_json(through_json(json.tensor_to_json(tensor)), "t"),
        protobuf.tensor_from_pb(protobuf.tensor_to_pb(tensor), "t"),
    ):
        assert (back, back.shape, back.is_sparse) == (tensor, tensor.shape, tensor.is_sparse)


@pytest.mark.parametrize("size", [0, 1, 3])
def test_flat_tensors_without_a_shape_stay_flat(size: int) -> None:
    tensor = TensorData(range(size), "int64")  # type: ignore[arg-type]
    assert json.tensor_from_json(through_json(json.tensor_to_json(tensor)), "t").shape is None
    assert protobuf.tensor_from_pb(protobuf.tensor_to_pb(tensor), "t") == tensor


@given(outputs())
def test_results_survive_protobuf(output: ForwardBackwardOutput) -> None:
    back = protobuf.decode_forward_backward_output(protobuf.encode_forward_backward_output(output))
    assert back == output
    assert [{k: t.shape for k, t in d.items()} for d in back.loss_fn_outputs] == [
        {k: t.shape for k, t in d.items()} for d in output.loss_fn_outputs
    ]


@given(outputs())
def test_results_survive_json(output: ForwardBackwardOutput) -> None:
    value = through_json(json.forward_backward_output_to_json(output))
    assert json.forward_backward_output_from_json(value) == output


def test_neighbours_of_one_layout_share_a_record() -> None:
    row, grid = TensorData([1.0], "float32", [1]), TensorData([1.0, 2.0], "float32", [1, 2])
    longer = TensorData([1.0, 2.0], "float32", [2])
    output = ForwardBackwardOutput("x", [{"a": row}, {"a": longer}, {"a": grid}, {"a": row}])
    message = pb.ForwardBackwardOutput.FromString(protobuf.encode_forward_backward_output(output))
    assert [record.num_datums for record in message.loss_fn_outputs] == [2, 1, 1]


def test_a_single_number_comes_back_as_a_row_of_one() -> None:
    """The wire has a row per position in results, so it cannot say "no dimension"."""
    output = ForwardBackwardOutput("x", [{"a": TensorData([5.0], "float32", [])}])
    back = protobuf.decode_forward_backward_output(protobuf.encode_forward_backward_output(output))
    assert back.loss_fn_outputs[0]["a"].shape == [1]


def test_sparse_results_come_back_dense() -> None:
    tensor = TensorData([5.0], "float32", [2, 2], [0, 1, 1], [1])
    output = ForwardBackwardOutput("x", [{"a": tensor}])
    back = protobuf.decode_forward_backward_output(protobuf.encode_forward_backward_output(output))
    assert back.loss_fn_outputs[0]["a"].tolist() == [[0.0, 5.0], [0.0, 0.0]]


def test_a_broken_metric_does_not_hide_the_others() -> None:
    output = ForwardBackwardOutput("x", [], {"loss:sum": float("nan"), "tokens:sum": 3.0})
    for back in (
        protobuf.decode_forward_backward_output(protobuf.encode_forward_backward_output(output)),
        json.forward_backward_output_from_json(through_json(json.forward_backward_output_to_json(output))),
    ):
        assert np.isnan(back.metrics["loss:sum"])
        assert (back.metrics["tokens:sum"], back.loss is None) == (3.0, False)


@given(responses())
@example(SampleResponse([]))
def test_samples_survive_protobuf(response: SampleResponse) -> None:
    back = protobuf.decode_sample_response(protobuf.encode_sample_response(response))
    assert said(back) == said(response)


@given(responses())
@example(SampleResponse([]))
def test_samples_survive_json(response: SampleResponse) -> None:
    back = json.sample_response_from_json(through_json(json.sample_response_to_json(response)))
    assert said(back) == said(response)


def test_rows_of_top_k_may_be_short_or_empty() -> None:
    rows = [None, [[5, -0.5]], [[6, -1.0], [7, -2.0]]]
    value = {"sequences": [], "topk_prompt_logprobs": rows}
    response = json.sample_response_from_json(value)
    expected = [None, [(5, -0.5)], [(6, -1.0), (7, -2.0)]]
    assert response.topk_prompt_logprobs == expected
    again = protobuf.decode_sample_response(protobuf.encode_sample_response(response))
    assert again.topk_prompt_logprobs == expected


# -- chunks of every generation ------------------------------------------------------------------------

IMAGE = {"data": "+//+", "format": "png"}
POINTER = {"location": "x://y", "format": "jpeg"}


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"tokens": [1]}, "encoded_text"),
        (IMAGE | {"height": 4, "width": 5, "tokens": 6}, "image"),
        (IMAGE | {"expected_tokens": 6}, "image"),
        (IMAGE, "image"),
        (POINTER | {"height": 4, "width": 5, "tokens": 6}, "image_asset_pointer"),
        (POINTER | {"expected_tokens": 6}, "image_asset_pointer"),
        ({"dmel": "BAEF"}, "dmel"),
    ],
)
def test_a_chunk_is_known_with_and_without_its_type(fields: dict[str, Any], kind: str) -> None:
    for extra in ({}, {"type": None}, {"type": kind}, {"expected_tokens": None, **fields}):
        (chunk,) = json.model_input_from_json({"chunks": [fields | extra]}, "prompt").chunks
        assert chunk.type == kind
    again = through_json(json.model_input_to_json(ModelInput([chunk])))
    assert again == {"chunks": [fields | {"type": kind}]}


def test_the_length_of_an_old_image_survives_protobuf() -> None:
    old = ImageChunk(data=b"x", format="png", height=4, width=5, tokens=6)
    call = ForwardBackwardCall("m", 1, ForwardBackwardInput([Datum(ModelInput([old]))], "l"))
    back = protobuf.decode_forward_backward(protobuf.encode_forward_backward(call))
    assert back.batch.data[0].model_input.length == 6


def test_a_pointer_cannot_be_trained_on() -> None:
    pointer = ImageAssetPointerChunk(location="x", format="png", expected_tokens=1)
    batch = ForwardBackwardInput([Datum(ModelInput([pointer]))], "l")
    with pytest.raises(UserError, match=r"^data\[0\]\.model_input\.chunks\[0\]"):
        protobuf.encode_forward_backward(ForwardBackwardCall("m", 1, batch))


# -- wire types nobody here writes ---------------------------------------------------------------------


def test_narrow_tensors_widen_exactly() -> None:
    ints = pb.Tensor(dense=np.array([-(2**31), 5], "<i4").tobytes(), dtype=pb.DTYPE_INT32, shape=[2])
    assert protobuf.tensor_from_pb(ints, "t") == TensorData([-(2**31), 5], "int64", [2])
    bits = np.array([0x3F80, 0xC0A0, 0x0001, 0x7F80, 0x8000], "<u2")  # 1, -5, the least, infinity, -0
    floats = pb.Tensor(dense=bits.tobytes(), dtype=pb.DTYPE_BFLOAT16, shape=[5])
    expected = np.array([1, -5, 2.0**-133, np.inf, -0.0], np.float32)
    assert protobuf.tensor_from_pb(floats, "t").data.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("dtype", "layout", "values"),
    [(pb.DTYPE_INT32, "<i4", [1, 2, 3]), (pb.DTYPE_BFLOAT16, "<u2", [0x3F80, 0x4000, 0x4040])],
)
def test_offsets_count_bytes_of_the_narrow_form(dtype: Any, layout: str, values: list[int]) -> None:
    size = np.dtype(layout).itemsize
    column = pb.BatchedTensor(
        data=np.array(values, layout).tobytes(),
        offsets=np.array([0, size, size, 3 * size], "<i8").tobytes(),
        dtype=dtype,
    )
    record = pb.ArrayRecord(fields={"a": column}, num_datums=3)
    body = pb.ForwardBackwardOutput(
        loss_fn_output_type="ns:Record", loss_fn_outputs=[record]
    ).SerializeToString()
    output = protobuf.decode_forward_backward_output(body)
    assert output.loss_fn_output_type == "Record"
    assert [datum["a"].tolist() for datum in output.loss_fn_outputs] == [[1], [], [2, 3]]


def test_numbers_of_a_loss_may_come_in_either_map() -> None:
    old = pb.ForwardBackwardRequest(model_id="m", loss_fn="ppo", loss_fn_config={"beta": 0.5})
    call = protobuf.decode_forward_backward(old.SerializeToString())
    assert (call.batch.loss_fn_config, call.seq_id) == ({"beta": 0.5}, None)
    old.loss_fn_config_v2["beta"].number = 0.75
    old.loss_fn_config_v2["kind"].text = "k3"
    call = protobuf.decode_forward_backward(old.SerializeToString())
    assert call.batch.loss_fn_config == {"beta": 0.75, "kind": "k3"}


UNKNOWN = b"\xfa\x07\x03abc" + b"\xf8\x07\x05"  # field 127, once as bytes and once as a number


def test_fields_of_a_newer_peer_are_ignored() -> None:
    call = ForwardBackwardCall("m", 1, ForwardBackwardInput([Datum(ModelInput.from_ints([1]))], "ppo"))
    assert protobuf.decode_forward_backward(protobuf.encode_forward_backward(call) + UNKNOWN) == call
    output = ForwardBackwardOutput("x", [{"a": TensorData([1.0], "float32", [1])}], {"m:sum": 1.0})
    body = protobuf.encode_forward_backward_output(output)
    assert protobuf.decode_forward_backward_output(body + UNKNOWN) == output
    sample = SampleResponse([SampledSequence("stop", np.array([1], np.int32))])
    back = protobuf.decode_sample_response(protobuf.encode_sample_response(sample) + UNKNOWN)
    assert said(back) == said(sample)
    json_reply = json.sample_response_to_json(sample) | {"novelty": 1}
    json_reply["sequences"][0]["novelty"] = {"x": 1}
    assert said(json.sample_response_from_json(text.loads(json.dumps(json_reply)))) == said(sample)
