"""The requests a service understands, field by field. Bulk ones (forward_backward) are in `training`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from .base import Request
from .sampling import SamplingParams
from .training import AdamParams, LoraConfig

_UINT31 = 2**31 - 1
_INT63 = 2**63 - 1  # samples: a cloned client counts on from a large random number
_MAX_DEPTH = 64  # of values that are kept as they are; what is nested deeper could not be written down again


def _not_too_deep(value: dict[str, Any]) -> dict[str, Any]:
    level: list[Any] = [value]
    for _ in range(_MAX_DEPTH):
        if not level:
            return value
        inside = [list(item.values()) if isinstance(item, dict) else item for item in level]
        level = [item for items in inside for item in items if isinstance(item, (dict, list))]
    raise ValueError(f"nested more than {_MAX_DEPTH} levels deep")


# Anything the caller likes, in JSON.
Free = Annotated[dict[str, Any], AfterValidator(_not_too_deep)]


class ClientConfigRequest(Request):
    """Asks how the service wants to be used."""

    sdk_version: str | None = None


class AuthTokenRequest(Request):
    """Asks for a short-lived token in exchange for the key of the call."""


class CreateSessionRequest(Request):
    """Opens a session: the scope of a client's runs and samplers."""

    tags: list[str] = []
    user_metadata: Free = {}
    sdk_version: str | None = None
    project_id: str | None = None
    display_name: str | None = None
    type: Literal["create_session"] = "create_session"


class SessionHeartbeatRequest(Request):
    """Says that a session's client is still there."""

    session_id: str
    type: Literal["session_heartbeat"] = "session_heartbeat"


class FinishReason(Request):
    """How a client's work ended."""

    type: Literal["success", "errored", "interrupted"]


class FinishSessionRequest(Request):
    """Says that a session's client is done."""

    reason: FinishReason
    detail: str | None = None


class CreateModelRequest(Request):
    """Makes a run: a fresh adapter on a base model."""

    session_id: str
    model_seq_id: int = Field(ge=0, le=_UINT31)
    base_model: str
    user_metadata: Free | None = None
    lora_config: LoraConfig | None = None
    optimizer_config: Free | None = None
    type: Literal["create_model"] = "create_model"


class GetInfoRequest(Request):
    """Asks what a run is."""

    model_id: str
    type: Literal["get_info"] = "get_info"


class UnloadModelRequest(Request):
    """Ends a run; its checkpoints stay."""

    model_id: str
    type: Literal["unload_model"] = "unload_model"


class OptimStepRequest(Request):
    """Applies the accumulated gradient.

    >>> OptimStepRequest(model_id="run", adam_params=AdamParams()).adam_params.beta2
    0.95
    """

    model_id: str
    seq_id: int | None = Field(None, ge=0, le=_UINT31)
    adam_params: AdamParams | None = None
    optimizer_params: Free | None = None
    type: Literal["optim_step"] = "optim_step"

    @model_validator(mode="after")
    def _one_optimizer(self) -> OptimStepRequest:
        if (self.adam_params is None) == (self.optimizer_params is None):
            raise ValueError("adam_params: give exactly one of adam_params and optimizer_params")
        return self


class SaveWeightsRequest(Request):
    """Saves a checkpoint to resume training from."""

    model_id: str
    path: str
    seq_id: int | None = Field(None, ge=0, le=_UINT31)
    ttl_seconds: int | None = None
    overwrite: bool = False
    user_metadata: Free | None = None
    type: Literal["save_weights"] = "save_weights"


class LoadWeightsRequest(Request):
    """Loads a checkpoint into a run, or (with session_id and model_seq_id) makes a run from it.

    ``optimizer`` left out is what SDK 0.4.1 sends, which has no other way to resume: it loads the
    optimizer too.
    """

    path: str
    model_id: str | None = None
    seq_id: int | None = Field(None, ge=0, le=_UINT31)
    session_id: str | None = None
    model_seq_id: int | None = Field(None, ge=0, le=_UINT31)
    base_model: str | None = None
    user_metadata: Free | None = None
    optimizer: bool | None = None
    optimizer_config: Free | None = None
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

    model_id: str
    path: str | None = None
    seq_id: int | None = Field(None, ge=0, le=_UINT31)
    sampling_session_seq_id: int | None = Field(None, ge=0, le=_UINT31)
    kind: Literal["snapshot", "inflight"] = "snapshot"
    ttl_seconds: int | None = None
    user_metadata: Free | None = None
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

    session_id: str
    sampling_session_seq_id: int = Field(ge=0, le=_UINT31)
    base_model: str | None = None
    model_path: str | None = None
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

    prompt: Any
    sampling_params: SamplingParams
    num_samples: int = 1
    sampling_session_id: str | None = None
    seq_id: int | None = Field(None, ge=0, le=_INT63)
    base_model: str | None = None
    model_path: str | None = None
    prompt_logprobs: bool | None = None
    topk_prompt_logprobs: int = 0
    topk_sample_logprobs: int = 0
    target_prompt_logprobs: Any = None
    prompt_alt_tokens_k: int = 0
    prompt_logprobs_last_n: int | None = None
    record_stability_info: bool = False
    type: Literal["sample"] = "sample"


class RetrieveFutureRequest(Request):
    """Asks for the result of an operation."""

    request_id: str
    allow_metadata_only: bool = False


class WeightsInfoRequest(Request):
    """Asks what a checkpoint holds."""

    tinker_path: str


class TelemetryRequest(Request):
    """Events from a client."""

    events: list[Free]
    platform: str | None = None
    sdk_version: str | None = None
    session_id: str | None = None
    process_uuid: str | None = None


class CancelFutureRequest(Request):
    """Says that nobody waits for an operation any more."""

    request_id: str


class SetTtlRequest(Request):
    """Says how long a checkpoint is kept from now on; null: for ever."""

    ttl_seconds: int | None = None
