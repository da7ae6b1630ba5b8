"""Bulk bodies and results, described by hand: the code reads and writes them without a model class."""

from __future__ import annotations

from typing import Any

from tinsmith.types.losses import LOSSES
from tinsmith.wire import json, protobuf, sse

Schema = dict[str, Any]
_NULL: Schema = {"type": "null"}
_INTEGER: Schema = {"type": "integer"}
_NUMBER: Schema = {"type": "number"}


def _list(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, _NULL]}


def _object(required: Schema, optional: Schema | None = None) -> Schema:
    return {"type": "object", "properties": required | (optional or {}), "required": list(required)}


_TENSOR = _object(
    {"data": _list(_or_null(_NUMBER)), "dtype": {"enum": ["float32", "int64"]}},
    {
        "shape": _or_null(_list(_INTEGER)),
        "sparse_crow_indices": _or_null(_list(_INTEGER)),
        "sparse_col_indices": _or_null(_list(_INTEGER)),
    },
)
_CHUNK = _object({}, {"type": {"type": "string"}, "tokens": _list(_INTEGER)})
_DATUM = _object(
    {
        "model_input": _object({"chunks": _list(_CHUNK)}),
        "loss_fn_inputs": {"type": "object", "additionalProperties": _TENSOR},
    }
)
_BATCH = _object(
    {"data": _list(_DATUM), "loss_fn": {"type": "string", "examples": sorted(LOSSES)}},
    {"loss_fn_config": _or_null({"type": "object"})},
)
_BINARY = {protobuf.CONTENT_TYPE: {"schema": {"type": "string", "format": "binary"}}}


def _batch_body(key: str) -> Schema:
    address = {"model_id": {"type": "string"}, "seq_id": {"type": "integer", "minimum": 0}}
    return {json.CONTENT_TYPE: {"schema": _object({key: _BATCH, **address})}}


# Path -> what it takes, by content type.
BODIES: dict[str, Schema] = {
    "forward": _batch_body("forward_input"),
    "forward_backward": _batch_body("forward_backward_input") | _BINARY,
}

_PAIRS = _list(_list(_NUMBER) | {"minItems": 2, "maxItems": 2})  # token id, logprob
_SAMPLE = _object(
    {
        "sequences": _list(
            _object(
                {"stop_reason": {"enum": ["length", "stop"]}, "tokens": _list(_INTEGER)},
                {"logprobs": _or_null(_list(_or_null(_NUMBER)))},
            )
        )
    },
    {
        "prompt_logprobs": _or_null(_list(_or_null(_NUMBER))),
        "topk_prompt_logprobs": _or_null(_list(_or_null(_PAIRS))),
    },
)
_LOSS = _object(
    {
        "loss_fn_output_type": {"type": "string"},
        "loss_fn_outputs": _list({"type": "object", "additionalProperties": _TENSOR}),
        "metrics": {"type": "object", "additionalProperties": _or_null(_NUMBER)},
    }
)
_FAILURE = _object({"error": {"type": "string"}, "category": {"enum": ["user", "server", "unknown"]}})
_METADATA = _object({"status": {"const": "complete_metadata"}, "response_payload_size": _INTEGER})
_OTHER = {"type": "object", "description": "The result of an operation that is neither a batch nor a sample."}

_EVENTS = """\
Server-sent events. `tokens`: {sequence, tokens, logprobs, stop_reason}, what one of the request's sequences
gained; stop_reason with its last. Then either `done`, or `error`: {error, category}. Comments keep the
connection alive while there is nothing to tell. Hanging up ends the sample; it cannot be taken up again."""

_BYTES: Schema = {"schema": {"type": "string", "contentEncoding": "binary"}}

# Path -> what it gives, by content type.
RESULTS: dict[str, Schema] = {
    "retrieve_future": {
        json.CONTENT_TYPE: {"schema": {"anyOf": [_FAILURE, _METADATA, _LOSS, _SAMPLE, _OTHER]}}
    }
    | _BINARY,
    "sample_stream": {sse.CONTENT_TYPE: {"schema": {"type": "string", "description": _EVENTS}}},
    "downloads/checkpoints/{run_id}/{kind}/{name}/archive.tar.gz": {"application/gzip": _BYTES},
    "downloads/checkpoints/{run_id}/{kind}/{name}/files/{file}": {"application/octet-stream": _BYTES},
    "downloads/traces/{session_id}": {
        json.CONTENT_TYPE: {"schema": _object({"traceEvents": _list({"type": "object"})})}
    },
}
