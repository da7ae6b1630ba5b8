"""The JSON dialect: the same nouns as plain objects, as SDK 0.4.1 writes and reads them.

Old clients write only what was set, without any ``type``, so the kind of a chunk is inferred from its fields.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import orjson
from pydantic import BaseModel, ValidationError

from tinsmith.types import (
    Datum,
    DmelChunk,
    EncodedTextChunk,
    ForwardBackwardInput,
    ForwardBackwardOutput,
    ImageAssetPointerChunk,
    ImageChunk,
    ModelInput,
    ModelInputChunk,
    PromptAltTokens,
    PromptProvenanceSpan,
    SampledSequence,
    SampleResponse,
    TensorData,
    TopkLogprobs,
    UserError,
)
from tinsmith.types.datum import ProvenanceSpan
from tinsmith.types.model_input import token_array
from tinsmith.types.sampling import TOPK_EMPTY_LOGPROB, FloatArray

from .counting import check_datums, check_json
from .protobuf import SPANS, ForwardBackwardCall
from .refusal import build, check_sequence, first_wrong

CONTENT_TYPE = "application/json"

Json = dict[str, Any]

_MAX_FLOAT32 = float(np.finfo(np.float32).max)

# Chunk classes by their wire type, and the field that gives a chunk away when the type is left out.
_CHUNKS: dict[str, tuple[Callable[..., ModelInputChunk], str]] = {
    "encoded_text": (EncodedTextChunk, "tokens"),
    "image": (ImageChunk, "data"),
    "image_asset_pointer": (ImageAssetPointerChunk, "location"),
    "dmel": (DmelChunk, "dmel"),
}
_INFERENCE_ORDER = ("dmel", "image_asset_pointer", "image", "encoded_text")  # images carry `tokens` too
_TENSOR_FIELDS = ("data", "dtype", "shape", "sparse_crow_indices", "sparse_col_indices")


def dumps(value: Any) -> bytes:
    """JSON bytes; numpy arrays are written as lists."""
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def loads(body: bytes) -> Any:
    """A JSON value, or a refusal that says where the text goes wrong."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise UserError(f"not JSON: {error}", field="body") from error


def loads_request(body: bytes) -> Any:
    """What somebody sent: refused before it is read if there is too much of it."""
    check_json(body)
    return loads(body)


_M = TypeVar("_M", bound=BaseModel)


def parse_model(model: type[_M], value: Any) -> _M:
    """A control request or reply out of a JSON value; the first thing wrong is named by its field."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        where, message = first_wrong(error)
        raise UserError(message, field=where or (None if isinstance(value, dict) else "body")) from error


# ---- inputs ------------------------------------------------------------------------------------


def model_input_to_json(model_input: ModelInput) -> Json:
    """``{"chunks": [...]}`` with every type named."""
    return {"chunks": [_chunk_to_json(chunk) for chunk in model_input.chunks]}


def _chunk_to_json(chunk: ModelInputChunk) -> Json:
    if isinstance(chunk, EncodedTextChunk):
        return {"tokens": chunk.tokens, "type": chunk.type}
    return chunk.model_dump(mode="json", exclude_none=True)


def model_input_from_json(value: Any, field: str) -> ModelInput:
    """A model input of any generation of the wire format."""
    fields = _object(value, field)
    _only(fields, ("chunks",), field)
    chunks = _list(_get(fields, "chunks", field), f"{field}.chunks")
    return ModelInput([_chunk_from_json(chunk, f"{field}.chunks[{at}]") for at, chunk in enumerate(chunks)])


def _chunk_from_json(value: Any, field: str) -> ModelInputChunk:
    fields = {key: item for key, item in _object(value, field).items() if item is not None}
    kind = fields.pop("type", None)
    if kind is None:
        kind = next((name for name in _INFERENCE_ORDER if _CHUNKS[name][1] in fields), None)
    if not isinstance(kind, str) or kind not in _CHUNKS:
        raise UserError(
            f"{kind!r:.80} is not a kind of chunk; use one of {', '.join(_CHUNKS)}", field=f"{field}.type"
        )
    if kind == "encoded_text":
        _only(fields, ("tokens",), field)
        tokens = _list(_get(fields, "tokens", field), f"{field}.tokens")
        return build(field, EncodedTextChunk, tokens=tokens)
    return build(field, _CHUNKS[kind][0], **fields)


def tensor_to_json(tensor: TensorData) -> Json:
    """Flat data, dtype and shape (and the CSR indices)."""
    value: Json = {"data": tensor.data, "dtype": tensor.dtype}
    if tensor.shape is not None:
        value["shape"] = tensor.shape
    if tensor.is_sparse:
        value["sparse_crow_indices"] = tensor.sparse_crow_indices
        value["sparse_col_indices"] = tensor.sparse_col_indices
    return value


def tensor_from_json(value: Any, field: str) -> TensorData:
    """A tensor; a null inside (a NaN, on its way through JSON) is refused."""
    fields = {key: item for key, item in _object(value, field).items() if item is not None}
    _only(fields, _TENSOR_FIELDS, field)
    for name in ("data", "dtype"):
        _get(fields, name, field)
    for name in _TENSOR_FIELDS:
        if name != "dtype" and name in fields:
            _flat(fields[name], f"{field}.{name}")
    return build(field, TensorData, **fields)


def _flat(values: Any, field: str) -> None:
    """Refuse anything but a flat list; the tensor itself looks at what is in it."""
    if isinstance(values, np.ndarray):
        return
    _list(values, field)
    if None in values:
        raise UserError(
            f"value {values.index(None)} is null; every value must be a finite number", field=field
        )
    if values and isinstance(values[0], list):
        raise UserError("a flat list is needed; the dimensions go into shape", field=field)


def datum_to_json(datum: Datum) -> Json:
    """One training example."""
    value: Json = {
        "model_input": model_input_to_json(datum.model_input),
        "loss_fn_inputs": {key: tensor_to_json(tensor) for key, tensor in datum.loss_fn_inputs.items()},
    }
    for name in ("model_input_spans", "loss_fn_input_spans"):
        if (spans := getattr(datum, name)) is not None:
            value[name] = [_span_to_json(span) for span in spans]
    return value


def datum_from_json(value: Any, field: str) -> Datum:
    """One training example."""
    fields = _object(value, field)
    _only(fields, ("model_input", "loss_fn_inputs", "model_input_spans", "loss_fn_input_spans"), field)
    inputs = fields.get("loss_fn_inputs")
    inputs = {} if inputs is None else _object(inputs, f"{field}.loss_fn_inputs")
    spans = {
        name: [
            _span_from_json(span, f"{field}.{name}[{at}]")
            for at, span in enumerate(_list(fields[name], f"{field}.{name}"))
        ]
        for name in ("model_input_spans", "loss_fn_input_spans")
        if fields.get(name) is not None
    }
    return build(
        field,
        Datum,
        model_input=model_input_from_json(_get(fields, "model_input", field), f"{field}.model_input"),
        loss_fn_inputs={
            key: tensor_from_json(item, f"{field}.loss_fn_inputs[{key!r}]") for key, item in inputs.items()
        },
        **spans,
    )


def _span_to_json(span: ProvenanceSpan) -> Json:
    kind = "prompt_tokens" if isinstance(span, PromptProvenanceSpan) else "sampled_tokens"
    return {"type": kind, "sequence_id": span.sequence_id, "offset": span.offset, "length": span.length}


def _span_from_json(value: Any, field: str) -> ProvenanceSpan:
    fields = dict(_object(value, field))
    kind = fields.pop("type", None)
    if not isinstance(kind, str) or kind not in SPANS:
        raise UserError(
            f"{kind!r:.80} is not a kind of span; use one of {', '.join(SPANS)}", field=f"{field}.type"
        )
    _only(fields, ("sequence_id", "offset", "length"), field)
    return build(field, SPANS[kind], **{name: item for name, item in fields.items() if item is not None})


# ---- forward and forward_backward --------------------------------------------------------------


def forward_backward_to_json(call: ForwardBackwardCall) -> Json:
    """The body for ``/forward`` or ``/forward_backward``."""
    batch = {
        "data": [datum_to_json(datum) for datum in call.batch.data],
        "loss_fn": call.batch.loss_fn,
        "loss_fn_config": None if call.batch.loss_fn_config is None else dict(call.batch.loss_fn_config),
    }
    key = "forward_input" if call.forward_only else "forward_backward_input"
    return {key: batch, "model_id": call.model_id, "seq_id": call.seq_id}


def forward_backward_from_json(value: Any, *, forward_only: bool) -> ForwardBackwardCall:
    """A call from the body of ``/forward`` or ``/forward_backward``."""
    fields = _object(value, "body")
    key = "forward_input" if forward_only else "forward_backward_input"
    _only(fields, (key, "model_id", "seq_id", "type"), "body")
    batch = _object(_get(fields, key, "body"), key)
    _only(batch, ("data", "loss_fn", "loss_fn_config"), key)
    data = _list(_get(batch, "data", key), f"{key}.data")
    check_datums(len(data), f"{key}.data")
    model_id, loss_fn = _get(fields, "model_id", "body"), _get(batch, "loss_fn", key)
    for name, text in (("model_id", model_id), ("loss_fn", loss_fn)):
        if not isinstance(text, str):
            raise UserError("text is needed", field=name)
    seq_id = fields.get("seq_id")
    if seq_id is not None and (type(seq_id) is not int or not 0 <= seq_id < 2**31):
        raise UserError("a whole number from 0 to 2147483647 is needed", field="seq_id")
    return ForwardBackwardCall(
        model_id=model_id,
        seq_id=seq_id,
        batch=ForwardBackwardInput(
            [datum_from_json(datum, f"data[{at}]") for at, datum in enumerate(data)],
            loss_fn,
            _loss_config_from_json(batch.get("loss_fn_config"), f"{key}.loss_fn_config"),
        ),
        forward_only=forward_only,
    )


def _loss_config_from_json(value: Any, field: str) -> dict[str, float | str] | None:
    if value is None:
        return None
    config = _object(value, field)
    for key, item in config.items():
        if isinstance(item, bool) or not isinstance(item, (int, float, str)):
            raise UserError(f"{item!r:.80} is neither a number nor text", field=f"{field}[{key!r}]")
    return config


def forward_backward_output_to_json(output: ForwardBackwardOutput) -> Json:
    """A training result."""
    return {
        "loss_fn_output_type": output.loss_fn_output_type,
        "loss_fn_outputs": [
            {key: tensor_to_json(tensor) for key, tensor in datum.items()} for datum in output.loss_fn_outputs
        ],
        "metrics": output.metrics,
    }


def forward_backward_output_from_json(value: Any) -> ForwardBackwardOutput:
    """A training result."""
    fields = _object(value, "result")
    outputs = _list(_get(fields, "loss_fn_outputs", "result"), "loss_fn_outputs")
    type_name = _get(fields, "loss_fn_output_type", "result")
    if not isinstance(type_name, str):
        raise UserError("text is needed", field="loss_fn_output_type")
    return ForwardBackwardOutput(
        type_name,
        [
            {
                key: tensor_from_json(item, f"loss_fn_outputs[{at}][{key!r}]")
                for key, item in _object(datum, f"loss_fn_outputs[{at}]").items()
            }
            for at, datum in enumerate(outputs)
        ],
        {
            key: _metric(item, f"metrics[{key!r}]")
            for key, item in _object(_get(fields, "metrics", "result"), "metrics").items()
        },
    )


def _metric(value: Any, field: str) -> float:
    """A number; JSON writes a NaN as null, and a broken loss should not hide the rest of the result."""
    if value is None:
        return float("nan")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UserError(f"{value!r:.80} is not a number", field=field)
    return float(value)


# ---- samples -----------------------------------------------------------------------------------


def sample_response_to_json(response: SampleResponse) -> Json:
    """A sample; NaN is written as null."""
    value: Json = {
        "sequences": [_sequence_to_json(sequence) for sequence in response.sequences],
        "type": "sample",
        "prompt_cache_hit_tokens": response.prompt_cache_hit_tokens,
    }
    target, alt = response.target_prompt_logprobs, response.prompt_alt_tokens
    optional: dict[str, Any] = {
        "prompt_logprobs": response.prompt_logprobs,
        "topk_prompt_logprobs": response.topk_prompt_logprobs,
        "target_prompt_logprobs": None if target is None else tensor_to_json(target),
        "prompt_alt_tokens": None
        if alt is None
        else {"tokens": tensor_to_json(alt.tokens), "logprobs": tensor_to_json(alt.logprobs)},
    }
    return value | {key: item for key, item in optional.items() if item is not None}


def _sequence_to_json(sequence: SampledSequence) -> Json:
    value: Json = {"stop_reason": sequence.stop_reason, "tokens": sequence.tokens}
    if sequence.logprobs is not None:
        value["logprobs"] = sequence.logprobs
    if sequence.topk_logprobs is not None:
        value["topk_logprobs"] = sequence.topk_logprobs
    return value


def sample_response_from_json(value: Any) -> SampleResponse:
    """A sample."""
    fields = _object(value, "result")
    sequences = _list(_get(fields, "sequences", "result"), "sequences")
    target = fields.get("target_prompt_logprobs")
    hits = fields.get("prompt_cache_hit_tokens")
    if hits is not None and type(hits) is not int:
        raise UserError("a whole number is needed", field="prompt_cache_hit_tokens")
    return SampleResponse(
        sequences=[_sequence_from_json(item, f"sequences[{at}]") for at, item in enumerate(sequences)],
        prompt_logprobs_np=_logprobs_from_json(fields.get("prompt_logprobs"), "prompt_logprobs"),
        topk_prompt_logprobs_np=_topk_from_json(fields.get("topk_prompt_logprobs"), "topk_prompt_logprobs"),
        target_prompt_logprobs=None if target is None else tensor_from_json(target, "target_prompt_logprobs"),
        prompt_alt_tokens=_alt_tokens_from_json(fields.get("prompt_alt_tokens"), "prompt_alt_tokens"),
        prompt_cache_hit_tokens=hits or 0,
    )


def _sequence_from_json(value: Any, field: str) -> SampledSequence:
    fields = _object(value, field)
    reason = _get(fields, "stop_reason", field)
    if reason not in ("stop", "length"):
        raise UserError(f"{reason!r:.80} is neither stop nor length", field=f"{field}.stop_reason")
    tokens = _list(_get(fields, "tokens", field), f"{field}.tokens")
    sequence = SampledSequence(
        stop_reason=reason,
        tokens_np=build(field, token_array, tokens=tokens, field="tokens"),
        logprobs_np=_logprobs_from_json(fields.get("logprobs") or None, f"{field}.logprobs"),
        topk_logprobs_np=_topk_from_json(fields.get("topk_logprobs"), f"{field}.topk_logprobs"),
    )
    check_sequence(sequence, field)
    return sequence


def _alt_tokens_from_json(value: Any, field: str) -> PromptAltTokens | None:
    if value is None:
        return None
    fields = _object(value, field)
    return PromptAltTokens(
        *(tensor_from_json(_get(fields, name, field), f"{field}.{name}") for name in ("tokens", "logprobs"))
    )


def _logprobs_from_json(values: Any, field: str) -> FloatArray | None:
    """Numbers, with NaN where a null says that one is unknown."""
    if values is None:
        return None
    known = [float("nan") if value is None else value for value in _list(values, field)]
    return build(field, TensorData, data=known, dtype="float32").data


def _topk_from_json(rows: Any, field: str) -> TopkLogprobs | None:
    """Per position a list of [token id, logprob], or null; short rows are filled up with empty cells."""
    if rows is None:
        return None
    cells = [[] if row is None else _list(row, f"{field}[{at}]") for at, row in enumerate(_list(rows, field))]
    k = max(map(len, cells), default=0)
    ids = np.zeros((len(cells), k), dtype=np.int32)
    logprobs = np.full((len(cells), k), TOPK_EMPTY_LOGPROB, dtype=np.float32)
    for at, row in enumerate(cells):
        for column, cell in enumerate(row):
            ids[at, column], logprobs[at, column] = _topk_cell(cell, f"{field}[{at}][{column}]")
    return TopkLogprobs(ids, logprobs)


def _is_float32(value: Any) -> bool:
    return type(value) in (int, float) and not abs(value) > _MAX_FLOAT32


def _topk_cell(cell: Any, field: str) -> tuple[int, float]:
    if isinstance(cell, (list, tuple)) and len(cell) == 2:
        token, logprob = cell[0], float("nan") if cell[1] is None else cell[1]
        if type(token) is int and 0 <= token < 2**31 and _is_float32(logprob):
            return token, logprob
    raise UserError("a token id and its logprob are needed", field=field)


# ---- small helpers -----------------------------------------------------------------------------


def _object(value: Any, field: str) -> Json:
    if not isinstance(value, dict):
        raise UserError(f"an object is needed, not {type(value).__name__}", field=field)
    return value


def _list(value: Any, field: str) -> list[Any]:
    if not isinstance(value, list):
        raise UserError(f"a list is needed, not {type(value).__name__}", field=field)
    return value


def _get(fields: Json, key: str, field: str) -> Any:
    if fields.get(key) is None:
        raise UserError("missing", field=f"{field}.{key}")
    return fields[key]


def _only(fields: Json, known: tuple[str, ...], field: str) -> None:
    for key, value in fields.items():
        if key not in known and value is not None:
            raise UserError(f"unknown field; known are {', '.join(known)}", field=f"{field}.{key}")


def peek_address(body: bytes) -> tuple[Any, Any]:
    """The run and seq id of a body that may be wrong in every other way; None for what cannot be found."""
    try:
        value = loads_request(body)
    except UserError:
        return None, None
    return (value.get("model_id"), value.get("seq_id")) if isinstance(value, dict) else (None, None)
