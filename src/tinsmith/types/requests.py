"""The requests a service understands, field by field. Bulk ones (forward_backward) are in `training`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from .base import Request
from .sampling import SamplingParams
from .training import AdamParams, LoraConfig

_UINT31 = 2**31 - 1
_INT63 = 2**63 - 1  # samples: a cloned client counts on from a large random number
_MAX_DEPTH = 64  # of values that are kept as they are; what is nested deeper could not be written down again
_MOST_METADATA = 2**16  # values, and characters of their text, that may be kept beside a session or a run


def _not_too_deep(value: Any) -> Any:
    for _ in _levels(value):
        pass
    return value


def _not_too_much(value: dict[str, Any]) -> dict[str, Any]:
    values = characters = 0
    for level in _levels(value):
        values += len(level)
        characters += sum(len(each) for each in level if isinstance(each, str))
    if max(values, characters) > _MOST_METADATA:
        raise ValueError(f"at most {_MOST_METADATA} values or characters are kept")
    return value


def _levels(value: Any) -> Iterator[list[Any]]:
    """All there is in a value, level by level, the keys of objects included."""
    level = [value]
    for _ in range(_MAX_DEPTH):
        yield level
        if not {dict, list} & set(map(type, level)):
            return
        inside = [each for each in level if isinstance(each, (dict, list))]
        level = [item for each in inside for item in _items(each)]
    raise ValueError(f"nested more than {_MAX_DEPTH} levels deep")


def _items(value: dict[str, Any] | list[Any]) -> Iterator[Any]:
    return chain(value, value.values()) if isinstance(value, dict) else iter(value)


# Anything the caller likes, in JSON: where it is kept, and where it is read by others or dropped.
Metadata = Annotated[dict[str, Any], AfterValidator(_not_too_much)]
Free = Annotated[dict[str, Any], AfterValidator(_not_too_deep)]
FreeValue = Annotated[Any, AfterValidator(_not_too_deep)]
Text = Annotated[str, Field(max_length=1000)]  # a name, an id or a path


class ClientConfigRequest(Request):
    """Asks how the service wants to be used."""

    sdk_version: Text | None = None


class AuthTokenRequest(Request):
    """Asks for a short-lived token in exchange for the key of the call."""


class CreateSessionRequest(Request):
    """Opens a session: the scope of a client's runs and samplers."""

    tags: list[Text] = Field([], max_length=100)
    user_metadata: Metadata = {}
    sdk_version: Text | None = None
    project_id: Text | None = None
    display_name: Text | None = None
    type: Literal["create_session"] = "create_session"


class SessionHeartbeatRequest(Request):
    """Says that a session's client is still there."""

    session_id: Text
    type: Literal["session_heartbeat"] = "session_heartbeat"


class FinishReason(Request):
    """How a client's work ended."""

    type: Literal["success", "errored", "interrupted"]


class FinishSessionRequest(Request):
    """Says that a session's client is done."""

    reason: FinishReason
    detail: Annotated[str, Field(max_length=_MOST_METADATA)] | None = None


class CreateModelRequest(Request):
    """Makes a run: a fresh adapter on a base model."""

    session_id: Text
    model_seq_id: int = Field(ge=0, le=_UINT31)
    base_model: Text
    user_metadata: Metadata | None = None
    lora_config: LoraConfig | None = None
    optimizer_config: Metadata | None = None
    type: Literal["create_model"] = "create_model"


class GetInfoRequest(Request):
    """Asks what a run is."""

    model_id: Text
    type: Literal["get_info"] = "get_info"


class UnloadModelRequest(Request):
    """Ends a run; its checkpoints stay."""

    model_id: Text
    type: Literal["unload_model"] = "unload_model"


class OptimStepRequest(Request):
    """Applies the accumulated gradient.

    >>> OptimStepRequest(model_id="run", adam_params=AdamParams()).adam_params.beta2
    0.95
    """

    model_id: Text
    seq_id: int | None = Field(None, ge=0, le=_UINT31)
    adam_params: AdamParams | None = None
    optimizer_params: Metadata | None = None
    type: Literal["optim_step"] = "optim_step"

    @model_validator(mode="after")
    def _one_optimizer(self) -> OptimStepRequest:
        if (self.adam_params is None) == (self.optimizer_params is None):
            raise ValueError("adam_params: give exactly one of adam_params and optimizer_params")
        return self


class SaveWeightsRequest(Request):
    """Saves a checkpoint to resume training from."""

    model_id: Text
    path: Text
    seq_id: int | None = Field(None, ge=0, le=_UINT31)
    ttl_seconds: int | None = None
    overwrite: bool = False
    user_metadata: Metadata | None = None
    type: Literal["save_weights"] = "save_weights"


class LoadWeightsRequest(Request):
    """Loads a checkpoint into a run, or (with session_id and model_seq_id) makes a run from it.

    ``optimizer`` left out is what SDK 0.4.1 sends, which has no other way to resume: it loads the
    optimizer too.
    """

    path: Text
    model_id: Text | None = None
    seq_id: int | None = Field(None, ge=0, le=_UINT31)
    session_id: Text | None = None
    model_seq_id: int | None = Field(None, ge=0, le=_UINT31)
    base_model: Text | None = None
    user_metadata: Metadata | None = None
    optimizer: bool | None = None
    optimizer_config: Metadata | None = None
    weights_access_token: str | None = None
    type: Literal["load_weights"] = "load_weights"

    @model_validator(mode="after")
    def _one_address(self) -> LoadWeightsRequest:
        makes_new = self.model_id is None
        if any((part is not None) != makes_new for part in (self.session_id, self.model_seq_id)):
            raise ValueError(
                "model_id: give either model_id, or session_id and model_seq_id to make a new run"
            )
        return self


class SaveWeightsForSamplerRequest(Request):
    """Takes an immutable snapshot to sample from: named (``path``) or only for a new sampler."""

    model_id: Text
    path: Text | None = None
    seq_id: int | None = Field(None, ge=0, le=_UINT31)
    sampling_session_seq_id: int | None = Field(None, ge=0, le=_UINT31)
    kind: Literal["snapshot", "inflight"] = "snapshot"
    ttl_seconds: int | None = None
    user_metadata: Metadata | None = None
    type: Literal["save_weights_for_sampler"] = "save_weights_for_sampler"

    @model_validator(mode="after")
    def _named_or_ephemeral(self) -> SaveWeightsForSamplerRequest:
        if (self.path is None) == (self.sampling_session_seq_id is None):
            raise ValueError(
                "path: give either path (a named snapshot) or sampling_session_seq_id (a new sampler)"
            )
        return self


class CreateSamplingSessionRequest(Request):
    """Makes a sampler of a base model or of saved weights."""

    session_id: Text
    sampling_session_seq_id: int = Field(ge=0, le=_UINT31)
    base_model: Text | None = None
    model_path: Text | None = None
    type: Literal["create_sampling_session"] = "create_sampling_session"

    @model_validator(mode="after")
    def _something_to_sample(self) -> CreateSamplingSessionRequest:
        if self.base_model is None and self.model_path is None:
            raise ValueError("base_model: give base_model or model_path")
        return self


class SampleRequest(Request):
    """Samples continuations of a prompt; ``prompt`` is read by `wire.json`.

    >>> request = {"prompt": {"chunks": []}, "sampling_params": {}, "base_model": "tiny-llama"}
    >>> SampleRequest.model_validate(request).num_samples
    1
    """

    prompt: FreeValue
    sampling_params: SamplingParams
    num_samples: int = 1
    sampling_session_id: Text | None = None
    seq_id: int | None = Field(None, ge=0, le=_INT63)
    base_model: Text | None = None
    model_path: Text | None = None
    prompt_logprobs: bool | None = None
    topk_prompt_logprobs: int = 0
    topk_sample_logprobs: int = 0
    target_prompt_logprobs: FreeValue = None
    prompt_alt_tokens_k: int = 0
    prompt_logprobs_last_n: int | None = None
    record_stability_info: bool = False
    type: Literal["sample"] = "sample"


class RetrieveFutureRequest(Request):
    """Asks for the result of an operation."""

    request_id: Text
    allow_metadata_only: bool = False


class WeightsInfoRequest(Request):
    """Asks what a checkpoint holds."""

    tinker_path: Text


class TelemetryRequest(Request):
    """Events from a client."""

    events: list[Free]
    platform: Text | None = None
    sdk_version: Text | None = None
    session_id: Text | None = None
    process_uuid: Text | None = None


class CancelFutureRequest(Request):
    """Says that nobody waits for an operation any more."""

    request_id: Text


class SetTtlRequest(Request):
    """Says how long a checkpoint is kept from now on; null: for ever."""

    ttl_seconds: int | None = None
