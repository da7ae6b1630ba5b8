"""Every kind of operation: how its payload and its result are written down, and whether it changes a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from tinsmith.types import (
    CreateModelRequest,
    LoadWeightsRequest,
    OptimStepRequest,
    SampleRequest,
    SaveWeightsForSamplerRequest,
    SaveWeightsRequest,
)
from tinsmith.types.custom_loss import CreateCustomLossRequest
from tinsmith.types.requests import UnloadModelRequest
from tinsmith.types.transfer import SaveWeightsExternalRequest
from tinsmith.wire import json, protobuf


@dataclass(frozen=True, slots=True)
class Codec:
    """Two pure functions, there and back."""

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """One row of the table."""

    payload: Codec
    result: Codec
    changes_run: bool = False  # replayed after a restart to bring the run back to where it was
    kept: bool = False  # what was asked is looked up again later
    needs_adapter: bool = True  # of the run it is of
    reads_checkpoint: bool = False  # which may be gone when the operation would have to be repeated
    frees: bool = False  # accepted even where there is no room for new work
    bulk_result: bool = False  # written as protobuf to a client that accepts it

    @property
    def lasting(self) -> bool:
        """Whether the payload is needed after the operation has been answered."""
        return self.changes_run or self.kept


class AcceptedLoad(LoadWeightsRequest):
    """A load as the journal keeps it: with whose rights it reads, instead of the token that gave them."""

    reader: str | None = None


def _model(model: type[BaseModel]) -> Codec:
    def encode(request: BaseModel) -> bytes:
        return request.model_dump_json(exclude_none=True).encode()

    def decode(body: bytes) -> BaseModel:
        return json.parse_model(model, json.loads(body))

    return Codec(encode, decode)


_JSON = Codec(json.dumps, json.loads)
_BATCH = Codec(protobuf.encode_forward_backward, protobuf.decode_forward_backward)
_BATCH_RESULT = Codec(protobuf.encode_forward_backward_output, protobuf.decode_forward_backward_output)
_SAMPLE_RESULT = Codec(protobuf.encode_sample_response, protobuf.decode_sample_response)

KINDS: dict[str, Kind] = {
    "create_model": Kind(_model(CreateModelRequest), _JSON, changes_run=True),
    "forward": Kind(_BATCH, _BATCH_RESULT, bulk_result=True),
    "forward_backward": Kind(_BATCH, _BATCH_RESULT, changes_run=True, bulk_result=True),
    "optim_step": Kind(_model(OptimStepRequest), _JSON, changes_run=True),
    "save_weights": Kind(_model(SaveWeightsRequest), _JSON),
    "load_weights": Kind(_model(AcceptedLoad), _JSON, changes_run=True, reads_checkpoint=True),
    "create_custom_loss": Kind(_model(CreateCustomLossRequest), _JSON, kept=True),
    "save_weights_external": Kind(_model(SaveWeightsExternalRequest), _JSON),
    "save_weights_for_sampler": Kind(_model(SaveWeightsForSamplerRequest), _JSON),
    "unload_model": Kind(
        _model(UnloadModelRequest), _JSON, changes_run=True, needs_adapter=False, frees=True
    ),
    "sample": Kind(_model(SampleRequest), _SAMPLE_RESULT, bulk_result=True),
}

# A bulk result in the JSON dialect.
BULK_TO_JSON: dict[str, Callable[[Any], Any]] = {
    "forward": json.forward_backward_output_to_json,
    "forward_backward": json.forward_backward_output_to_json,
    "sample": json.sample_response_to_json,
}
