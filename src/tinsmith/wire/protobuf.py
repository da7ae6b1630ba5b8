"""The protobuf dialect: training batches, their results and samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message

from tinsmith.types import (
    Datum,
    DmelChunk,
    EncodedTextChunk,
    ForwardBackwardInput,
    ForwardBackwardOutput,
    ImageChunk,
    LossFnOutput,
    ModelInput,
    ModelInputChunk,
    PromptAltTokens,
    PromptProvenanceSpan,
    SampledProvenanceSpan,
    SampledSequence,
    SampleResponse,
    TensorData,
    TensorDtype,
    TopkLogprobs,
    UserError,
)
from tinsmith.types.datum import ProvenanceSpan
from tinsmith.types.model_input import token_array
from tinsmith.types.validation import shape_of

from . import messages_pb2 as pb
from .arrays import F32, I32, I64, U16, from_bytes, to_bytes, widen_bfloat16
from .counting import check_datums, check_protobuf
from .pieces import Pieces, array_piece, in_field, in_map_key, in_map_value
from .refusal import build, check_sequence

CONTENT_TYPE = "application/x-protobuf"

# Wire dtype -> (layout of the bytes, the noun's dtype).
_DTYPES: dict[int, tuple[np.dtype[Any], TensorDtype]] = {
    pb.DTYPE_FLOAT32: (F32, "float32"),
    pb.DTYPE_INT64: (I64, "int64"),
    pb.DTYPE_INT32: (I32, "int64"),
    pb.DTYPE_BFLOAT16: (U16, "float32"),
}
_WIRE_DTYPES: dict[TensorDtype, tuple[pb.DType, np.dtype[Any]]] = {
    "float32": (pb.DTYPE_FLOAT32, F32),
    "int64": (pb.DTYPE_INT64, I64),
}

# Spans by their name on the wire, in both dialects.
SPANS: dict[str, Callable[..., ProvenanceSpan]] = {
    "prompt_tokens": PromptProvenanceSpan,
    "sampled_tokens": SampledProvenanceSpan,
}
# Datums without tensors take no bytes, so a few bytes could claim any number of them.
_MAX_EMPTY_DATUMS = 2**16


@dataclass(frozen=True, slots=True)
class ForwardBackwardCall:
    """One forward_backward submit: the batch and where it belongs."""

    model_id: str
    seq_id: int | None
    batch: ForwardBackwardInput
    forward_only: bool = False


# ---- requests ----------------------------------------------------------------------------------


def encode_forward_backward(call: ForwardBackwardCall) -> bytes:
    """The body of a forward_backward request.

    It is put together from pieces, since a message made of messages would copy every array three times.
    """
    message = pb.ForwardBackwardRequest(
        model_id=call.model_id,
        seq_id=call.seq_id or 0,
        loss_fn=call.batch.loss_fn,
        forward_only=call.forward_only,
    )
    for key, value in (call.batch.loss_fn_config or {}).items():
        if isinstance(value, str):
            message.loss_fn_config_v2[key].text = value
        else:
            message.loss_fn_config[key] = value
            message.loss_fn_config_v2[key].number = value
    pieces: Pieces = [message.SerializeToString(deterministic=True)]
    for at, datum in enumerate(call.batch.data):
        pieces += in_field(pb.ForwardBackwardRequest, "data", _datum_pieces(datum, f"data[{at}]"))
    return b"".join(pieces)


def decode_forward_backward(body: bytes) -> ForwardBackwardCall:
    """A forward_backward request out of its body."""
    message = _parse(pb.ForwardBackwardRequest(), body)
    for name in ("model_id", "loss_fn"):
        if not getattr(message, name):
            raise UserError("missing", field=name)
    if message.seq_id < 0:
        raise UserError(f"{message.seq_id} is not a whole number >= 0", field="seq_id")
    check_datums(len(message.data), "data")
    config: dict[str, float | str] = _in_order(message.loss_fn_config)
    for key, value in _in_order(message.loss_fn_config_v2).items():
        which = value.WhichOneof("value")
        if which is None:
            raise UserError("neither a number nor text", field=f"loss_fn_config[{key!r}]")
        config[key] = value.text if which == "text" else value.number
    data = [_datum_from_pb(datum, f"data[{at}]") for at, datum in enumerate(message.data)]
    return ForwardBackwardCall(
        model_id=message.model_id,
        seq_id=message.seq_id or None,
        batch=ForwardBackwardInput(data, message.loss_fn, config or None),
        forward_only=message.forward_only,
    )


def check_size(body: bytes) -> None:
    """Refuse a forward_backward request of too many parts before it is taken apart."""
    check_protobuf(body, pb.ForwardBackwardRequest.DESCRIPTOR)


def peek_address(body: bytes) -> tuple[str | None, int | None]:
    """The run and seq id of a request whose batch may be wrong; None if even they cannot be read."""
    try:
        check_size(body)
        message = _parse(pb.ForwardBackwardRequest(), body)
    except UserError:
        return None, None
    return message.model_id or None, message.seq_id or None


def _datum_pieces(datum: Datum, field: str) -> Pieces:
    pieces: Pieces = []
    for at, chunk in enumerate(datum.model_input.chunks):
        pieces += in_field(pb.Datum, "model_input", _chunk_pieces(chunk, f"{field}.model_input.chunks[{at}]"))
    for key, tensor in datum.loss_fn_inputs.items():
        entry = [*in_map_key(key), *in_map_value(_tensor_pieces(tensor))]
        pieces += in_field(pb.Datum, "loss_fn_inputs", entry)
    if datum.model_input_spans or datum.loss_fn_input_spans:
        spans = pb.Datum(
            model_input_spans=[_span_to_pb(span) for span in datum.model_input_spans or ()],
            loss_fn_input_spans=[_span_to_pb(span) for span in datum.loss_fn_input_spans or ()],
        )
        pieces.append(spans.SerializeToString())
    return pieces


def _datum_from_pb(message: pb.Datum, field: str) -> Datum:
    spans, loss_spans = (
        [_span_from_pb(span, f"{field}.{name}[{at}]") for at, span in enumerate(getattr(message, name))]
        for name in ("model_input_spans", "loss_fn_input_spans")
    )
    chunks = [
        _chunk_from_pb(chunk, f"{field}.model_input.chunks[{at}]")
        for at, chunk in enumerate(message.model_input)
    ]
    inputs = {
        key: tensor_from_pb(value, f"{field}.loss_fn_inputs[{key!r}]")
        for key, value in _in_order(message.loss_fn_inputs).items()
    }
    either = bool(spans or loss_spans)
    return Datum(ModelInput(chunks), inputs, spans if either else None, loss_spans if either else None)


def _chunk_pieces(chunk: ModelInputChunk, field: str) -> Pieces:
    if not isinstance(chunk, EncodedTextChunk):
        return [_chunk_to_pb(chunk, field).SerializeToString()]
    tokens = in_field(pb.EncodedTextChunk, "tokens", [array_piece(chunk.array, I32)])
    return in_field(pb.Chunk, "encoded_text", tokens)


def _chunk_to_pb(chunk: ModelInputChunk, field: str) -> pb.Chunk:
    if isinstance(chunk, ImageChunk):
        # Old clients say `tokens`; their height and width only repeat what the image itself says.
        expected = chunk.tokens if chunk.expected_tokens is None else chunk.expected_tokens
        image = pb.ImageChunk(data=chunk.data, format=chunk.format, expected_tokens=expected)
        return pb.Chunk(image=image)
    if isinstance(chunk, DmelChunk):
        return pb.Chunk(dmel=pb.DmelChunk(dmel=chunk.dmel))
    raise UserError("a pointer to an image cannot be trained on; send the image itself", field=field)


def _chunk_from_pb(message: pb.Chunk, field: str) -> ModelInputChunk:
    which = message.WhichOneof("chunk")
    if which == "encoded_text":
        return build(
            field, EncodedTextChunk, tokens=from_bytes(message.encoded_text.tokens, I32, f"{field}.tokens")
        )
    if which == "image":
        image = message.image
        if image.HasField("override_dimensions"):
            raise UserError("images are taken as they are", field=f"{field}.override_dimensions")
        expected = image.expected_tokens if image.HasField("expected_tokens") else None
        return build(field, ImageChunk, data=image.data, format=image.format, expected_tokens=expected)
    if which == "dmel":
        return DmelChunk(dmel=message.dmel.dmel)
    raise UserError("an empty chunk; send encoded_text", field=field)


def _span_to_pb(span: ProvenanceSpan) -> pb.ProvenanceSpan:
    body = pb.SpanBody(sequence_id=span.sequence_id, offset=span.offset, length=span.length)
    if isinstance(span, PromptProvenanceSpan):
        return pb.ProvenanceSpan(prompt_tokens=body)
    return pb.ProvenanceSpan(sampled_tokens=body)


def _span_from_pb(message: pb.ProvenanceSpan, field: str) -> ProvenanceSpan:
    which = message.WhichOneof("span")
    if which is None:
        raise UserError(f"an empty span; send {' or '.join(SPANS)}", field=field)
    body: pb.SpanBody = getattr(message, which)
    return build(field, SPANS[which], sequence_id=body.sequence_id, offset=body.offset, length=body.length)


# ---- tensors -----------------------------------------------------------------------------------


def _tensor_pieces(tensor: TensorData) -> Pieces:
    if tensor.is_sparse:
        return [tensor_to_pb(tensor).SerializeToString()]
    dtype, layout = _WIRE_DTYPES[tensor.dtype]
    rest = pb.Tensor(dtype=dtype, shape=shape_of(tensor)).SerializeToString()
    return [rest, *in_field(pb.Tensor, "dense", [array_piece(tensor.data, layout)])]


def tensor_to_pb(tensor: TensorData) -> pb.Tensor:
    """A tensor message; the shape is always written."""
    dtype, layout = _WIRE_DTYPES[tensor.dtype]
    shape = shape_of(tensor)
    values = to_bytes(tensor.data, layout)
    if not tensor.is_sparse:
        return pb.Tensor(dense=values, dtype=dtype, shape=shape)
    assert tensor.sparse_crow_indices is not None and tensor.sparse_col_indices is not None
    csr = pb.SparseCsr(
        values=values,
        crow_indices=to_bytes(tensor.sparse_crow_indices, I64),
        col_indices=to_bytes(tensor.sparse_col_indices, I64),
    )
    return pb.Tensor(sparse_csr=csr, dtype=dtype, shape=shape)


def tensor_from_pb(message: pb.Tensor, field: str) -> TensorData:
    """A tensor out of its message; integers widen to int64, bfloat16 to float32."""
    which = message.WhichOneof("encoding")
    if which is None:
        raise UserError("no values; send dense or sparse_csr", field=field)
    sparse = which == "sparse_csr"
    raw = message.sparse_csr.values if sparse else message.dense
    values, dtype = _decode_values(raw, message.dtype, field)
    indices = {}
    if sparse:
        csr = message.sparse_csr
        indices = {
            "sparse_crow_indices": from_bytes(csr.crow_indices, I64, f"{field}.crow_indices"),
            "sparse_col_indices": from_bytes(csr.col_indices, I64, f"{field}.col_indices"),
        }
    shape = list(message.shape) or None
    if shape is None and values.size == 1:
        shape = []
    return build(field, TensorData, data=values, dtype=dtype, shape=shape, **indices)


def _decode_values(raw: bytes, wire_dtype: int, field: str) -> tuple[np.ndarray[Any, Any], TensorDtype]:
    if wire_dtype not in _DTYPES:
        raise UserError(f"{wire_dtype} is not one of float32, int64, int32, bfloat16", field=f"{field}.dtype")
    layout, dtype = _DTYPES[wire_dtype]
    values = from_bytes(raw, layout, field)
    return (widen_bfloat16(values) if wire_dtype == pb.DTYPE_BFLOAT16 else values), dtype


# ---- training results --------------------------------------------------------------------------


def encode_forward_backward_output(output: ForwardBackwardOutput) -> bytes:
    """Result bytes; neighbouring datums of one layout share a record."""
    records = [
        _record_to_pb(output.loss_fn_output_type, list(group))
        for _, group in groupby(output.loss_fn_outputs, key=_layout)
    ]
    return pb.ForwardBackwardOutput(
        loss_fn_output_type=output.loss_fn_output_type, loss_fn_outputs=records, metrics=output.metrics
    ).SerializeToString(deterministic=True)


def _layout(datum: LossFnOutput) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
    return tuple(sorted((key, value.dtype, tuple(shape_of(value)[1:])) for key, value in datum.items()))


def _record_to_pb(type_tag: str, datums: Sequence[LossFnOutput]) -> pb.ArrayRecord:
    fields = {key: _batched_to_pb([datum[key] for datum in datums]) for key in datums[0]}
    return pb.ArrayRecord(type_tag=type_tag, fields=fields, num_datums=len(datums))


def _batched_to_pb(tensors: Sequence[TensorData]) -> pb.BatchedTensor:
    dtype, layout = _WIRE_DTYPES[tensors[0].dtype]
    parts = [to_bytes(tensor.to_numpy() if tensor.is_sparse else tensor.data, layout) for tensor in tensors]
    offsets = np.concatenate(([0], np.cumsum([len(part) for part in parts])))
    return pb.BatchedTensor(
        data=b"".join(parts),
        offsets=to_bytes(offsets, I64),
        dtype=dtype,
        trailing_shape=shape_of(tensors[0])[1:],
    )


def decode_forward_backward_output(body: bytes) -> ForwardBackwardOutput:
    """A training result out of its bytes."""
    message = _parse(pb.ForwardBackwardOutput(), body)
    outputs: list[LossFnOutput] = []
    for at, record in enumerate(message.loss_fn_outputs):
        outputs.extend(_record_from_pb(record, f"loss_fn_outputs[{at}]"))
    return ForwardBackwardOutput(
        message.loss_fn_output_type.rpartition(":")[2], outputs, _in_order(message.metrics)
    )


def _record_from_pb(record: pb.ArrayRecord, field: str) -> list[LossFnOutput]:
    columns = {
        key: _batched_from_pb(batched, f"{field}.fields[{key!r}]")
        for key, batched in _in_order(record.fields).items()
    }
    count = record.num_datums or (len(next(iter(columns.values()))) if columns else 0)
    if count < 0 or (not columns and count > _MAX_EMPTY_DATUMS):
        raise UserError(f"{count} is not a possible number of datums", field=f"{field}.num_datums")
    for key, column in columns.items():
        if len(column) != count:
            raise UserError(f"{len(column)} tensors for {count} datums", field=f"{field}.fields[{key!r}]")
    return [{key: column[at] for key, column in columns.items()} for at in range(count)]


def _batched_from_pb(message: pb.BatchedTensor, field: str) -> list[TensorData]:
    data, trailing = message.data, list(message.trailing_shape)
    values, dtype = _decode_values(data, message.dtype, field)
    bounds = _item_bounds(message.offsets, len(data), _DTYPES[message.dtype][0].itemsize, f"{field}.offsets")
    if any(size < 0 for size in trailing):
        raise UserError(f"{trailing} has a size below 0", field=f"{field}.trailing_shape")
    width = math.prod(trailing)
    return [
        build(
            field,
            TensorData,
            data=values[start:end],
            dtype=dtype,
            shape=[(end - start) // width if width else 0, *trailing],
        )
        for start, end in pairwise(bounds)
    ]


def _item_bounds(raw: bytes, size: int, itemsize: int, field: str) -> list[int]:
    """Where each tensor begins and the last one ends, counted in items; the offsets count bytes."""
    offsets = from_bytes(raw, I64, field)
    if not offsets.size and not size:
        return []
    if not offsets.size or offsets[0] != 0 or offsets[-1] != size:
        raise UserError(f"must go from 0 to {size}, the length of data", field=field)
    if np.any(offsets[1:] < offsets[:-1]):
        raise UserError("must not decrease", field=field)
    if np.any(offsets % itemsize):
        raise UserError(f"must be multiples of {itemsize}, the size of a value", field=field)
    bounds: list[int] = (offsets // itemsize).tolist()
    return bounds


# ---- samples -----------------------------------------------------------------------------------


def encode_sample_response(response: SampleResponse) -> bytes:
    """Sample bytes."""
    message = pb.SampleResponse(
        sequences=[_sequence_to_pb(sequence) for sequence in response.sequences],
        prompt_cache_hit_tokens=response.prompt_cache_hit_tokens,
        topk_prompt_logprobs=_topk_to_pb(response.topk_prompt_logprobs_np),
    )
    if response.prompt_logprobs_np is not None:
        message.prompt_logprobs = to_bytes(response.prompt_logprobs_np, F32)
    if response.target_prompt_logprobs is not None:
        message.target_prompt_logprobs.CopyFrom(tensor_to_pb(response.target_prompt_logprobs))
    if response.prompt_alt_tokens is not None:
        message.prompt_alt_tokens.tokens.CopyFrom(_as_int32(response.prompt_alt_tokens.tokens))
        message.prompt_alt_tokens.logprobs.CopyFrom(tensor_to_pb(response.prompt_alt_tokens.logprobs))
    return message.SerializeToString()


def _as_int32(tokens: TensorData) -> pb.Tensor:
    """Token ids travel as int32 here, as they do everywhere but in loss inputs."""
    ids = token_array(tokens.to_numpy().reshape(-1), "prompt_alt_tokens.tokens")
    return pb.Tensor(dense=to_bytes(ids, I32), dtype=pb.DTYPE_INT32, shape=shape_of(tokens))


def _sequence_to_pb(sequence: SampledSequence) -> pb.SampledSequence:
    reason = pb.STOP_REASON_STOP if sequence.stop_reason == "stop" else pb.STOP_REASON_LENGTH
    return pb.SampledSequence(
        stop_reason=reason,
        tokens=to_bytes(sequence.tokens_np, I32),
        logprobs=None if sequence.logprobs_np is None else to_bytes(sequence.logprobs_np, F32),
        topk_sampled_logprobs=_topk_to_pb(sequence.topk_logprobs_np),
    )


def _topk_to_pb(topk: TopkLogprobs | None) -> pb.TopkLogprobs | None:
    if topk is None:
        return None
    length, k = topk.token_ids.shape
    return pb.TopkLogprobs(
        token_ids=to_bytes(topk.token_ids, I32), logprobs=to_bytes(topk.logprobs, F32), k=k, length=length
    )


def decode_sample_response(body: bytes) -> SampleResponse:
    """A sample out of its bytes. Sequence ids are not part of them: the submit's answer had them."""
    message = _parse(pb.SampleResponse(), body)
    alt = message.prompt_alt_tokens if message.HasField("prompt_alt_tokens") else None
    return SampleResponse(
        sequences=[
            _sequence_from_pb(sequence, f"sequences[{at}]") for at, sequence in enumerate(message.sequences)
        ],
        prompt_logprobs_np=from_bytes(message.prompt_logprobs, F32, "prompt_logprobs")
        if message.HasField("prompt_logprobs")
        else None,
        topk_prompt_logprobs_np=_topk_from_pb(message.topk_prompt_logprobs, "topk_prompt_logprobs"),
        target_prompt_logprobs=tensor_from_pb(message.target_prompt_logprobs, "target_prompt_logprobs")
        if message.HasField("target_prompt_logprobs")
        else None,
        prompt_alt_tokens=PromptAltTokens(
            tensor_from_pb(alt.tokens, "prompt_alt_tokens.tokens"),
            tensor_from_pb(alt.logprobs, "prompt_alt_tokens.logprobs"),
        )
        if alt
        else None,
        prompt_cache_hit_tokens=message.prompt_cache_hit_tokens,
    )


def _sequence_from_pb(message: pb.SampledSequence, field: str) -> SampledSequence:
    if message.stop_reason not in (pb.STOP_REASON_STOP, pb.STOP_REASON_LENGTH):
        raise UserError(f"{message.stop_reason} is neither stop nor length", field=f"{field}.stop_reason")
    ids = from_bytes(message.tokens, I32, f"{field}.tokens")
    sequence = SampledSequence(
        stop_reason="stop" if message.stop_reason == pb.STOP_REASON_STOP else "length",
        tokens_np=build(field, token_array, tokens=ids, field="tokens"),
        logprobs_np=from_bytes(message.logprobs, F32, f"{field}.logprobs") if message.logprobs else None,
        topk_logprobs_np=_topk_from_pb(message.topk_sampled_logprobs, f"{field}.topk_sampled_logprobs"),
    )
    check_sequence(sequence, field)
    return sequence


def _topk_from_pb(message: pb.TopkLogprobs, field: str) -> TopkLogprobs | None:
    if not (message.k and message.length):
        return None
    ids = from_bytes(message.token_ids, I32, f"{field}.token_ids")
    logprobs = from_bytes(message.logprobs, F32, f"{field}.logprobs")
    shape = (message.length, message.k)
    if ids.size != message.length * message.k or logprobs.size != ids.size:
        raise UserError(
            f"{ids.size} ids and {logprobs.size} logprobs for {shape[0]} × {shape[1]}", field=field
        )
    return TopkLogprobs(ids.reshape(shape), logprobs.reshape(shape))


_M = TypeVar("_M", bound=Message)
_V = TypeVar("_V")


def _in_order(mapping: Mapping[str, _V]) -> dict[str, _V]:
    """A protobuf map, which otherwise comes in an order of this process's own."""
    return dict(sorted(mapping.items()))


def _parse(message: _M, body: bytes) -> _M:
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise UserError(f"not a protobuf {type(message).__name__}: {error}", field="body") from error
    return message
