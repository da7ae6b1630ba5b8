"""Run under an official SDK: one question in JSON a line on standard input, one answer a line.

Errors are answers too: ``{"error": ""}``, for what counts is that there is one.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import tinker
from tinker import types
from tinker._base_client import BaseClient
from tinker.lib.chunked_fwdbwd_helpers import combine_fwd_bwd_output_results
from tinker.lib.public_interfaces import training_client
from tinker.lib.telemetry import is_user_error

OLD = not hasattr(training_client, "_estimate_datum_bytes_count_proto")


def combine(chunks: list[dict[str, Any]]) -> Any:
    """Metrics and outputs of several chunks as of one."""
    results = [
        types.ForwardBackwardOutput(
            loss_fn_output_type=chunk["type"],
            loss_fn_outputs=[{"at": tensor(at, "int64")} for at in chunk["outputs"]],
            metrics=chunk["metrics"],
        )
        for chunk in chunks
    ]
    whole = combine_fwd_bwd_output_results(results)
    outputs = [list(output["at"].data) for output in whole.loss_fn_outputs]
    return [whole.loss_fn_output_type, outputs, whole.metrics]


def tensor(value: Any, dtype: str) -> types.TensorData:
    """From numpy."""
    return types.TensorData.from_numpy(np.array([value], dtype))


def from_numpy(values: list[float], dtype: str, shape: list[int]) -> Any:
    """What becomes of an array."""
    made = types.TensorData.from_numpy(np.array(values).astype(dtype).reshape(shape))
    return [made.dtype, list(made.data), list(made.shape or []), made.to_numpy().tolist()]


def datum(key: str, values: list[float]) -> Any:
    """What becomes of a list under a key."""
    made = types.Datum(model_input=types.ModelInput.from_ints([1]), loss_fn_inputs={key: values})
    kept = made.loss_fn_inputs[key]
    return [kept.dtype, list(kept.data), list(kept.shape or [])]


def retry_after(headers: dict[str, str]) -> Any:
    """The hint as it is used: within (0, 60] seconds."""
    asked = BaseClient._parse_retry_after_header(SimpleNamespace(), httpx.Headers(headers))
    return asked if asked is not None and 0 < asked <= 60 else None


def user_error(status: int) -> Any:
    """Whose mistake a status is."""
    request = httpx.Request("GET", "http://test")
    error = tinker.APIStatusError("m", response=httpx.Response(status, request=request), body=None)
    return is_user_error(error)


def chunks(sizes: list[list[int]], most: int, largest: int) -> Any:
    """How many datums go into each request."""
    data = [
        types.Datum(
            model_input=types.ModelInput.from_ints([1] * tokens),
            loss_fn_inputs={
                "weights": types.TensorData(data=[1.0] * weights, dtype="float32", shape=[weights])
            },
        )
        for tokens, weights in sizes
    ]
    client = object.__new__(training_client.TrainingClient)
    if OLD:
        training_client.MAX_CHUNK_LEN, training_client.MAX_CHUNK_NUMBER_COUNT = most, largest
    else:
        config = SimpleNamespace(fwdbwd_max_chunk_len=most, fwdbwd_max_chunk_bytes_count=largest)
        client.holder = SimpleNamespace(_client_config=config)
    found = client._chunked_requests_generator(data)
    return [len(getattr(chunk, "data", chunk)) for chunk in found]


QUESTIONS = {
    function.__name__: function for function in (combine, from_numpy, datum, retry_after, user_error, chunks)
}

if __name__ == "__main__":
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            answer = QUESTIONS[name](*arguments)
        except Exception:
            answer = {"error": ""}
        print(json.dumps(answer), flush=True)
