"""The nouns both halves share. No I/O, no torch.

Names that only code written for the official package uses are loaded from `official_names` on first use.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

from .base import Params, Reply, Request
from .checkpoint import (
    Checkpoint,
    CheckpointsListResponse,
    CheckpointType,
    Cursor,
    GetSamplerResponse,
    GetSessionResponse,
    ListSessionsResponse,
    ParsedCheckpointTinkerPath,
    TrainingRun,
    TrainingRunsResponse,
    WeightsInfoResponse,
)
from .datum import Datum, PromptProvenanceSpan, SampledProvenanceSpan
from .errors import (
    Forbidden,
    Gone,
    NotFound,
    OutOfSpace,
    RequestErrorCategory,
    Unavailable,
    UserError,
)
from .model_input import (
    DmelChunk,
    EncodedTextChunk,
    ImageAssetPointerChunk,
    ImageChunk,
    ModelInput,
    ModelInputChunk,
)
from .requests import (
    CreateModelRequest,
    CreateSamplingSessionRequest,
    CreateSessionRequest,
    LoadWeightsRequest,
    OptimStepRequest,
    SampleRequest,
    SaveWeightsForSamplerRequest,
    SaveWeightsRequest,
)
from .sampling import (
    PromptAltTokens,
    SampleDelta,
    SampledSequence,
    SampleJob,
    SampleResponse,
    SamplingParams,
    SequenceDelta,
    StopReason,
    TopkLogprobs,
)
from .tensor import TensorData, TensorDtype
from .training import (
    AdamOptimizerConfig,
    AdamParams,
    DimuonOptimizerConfig,
    DimuonParams,
    ForwardBackwardInput,
    ForwardBackwardOutput,
    GetInfoResponse,
    GetServerCapabilitiesResponse,
    LoadWeightsResponse,
    LoraConfig,
    LossFnOutput,
    LossFnType,
    ModelData,
    ModelID,
    OptimParams,
    OptimStepResponse,
    SaveWeightsForSamplerResponse,
    SaveWeightsResponse,
    SupportedModel,
)

__all__ = [
    "AdamOptimizerConfig",
    "AdamParams",
    "Checkpoint",
    "CheckpointType",
    "CheckpointsListResponse",
    "CreateModelRequest",
    "CreateSamplingSessionRequest",
    "CreateSessionRequest",
    "Cursor",
    "Datum",
    "DimuonOptimizerConfig",
    "DimuonParams",
    "DmelChunk",
    "EncodedTextChunk",
    "Forbidden",
    "ForwardBackwardInput",
    "ForwardBackwardOutput",
    "GetInfoResponse",
    "GetSamplerResponse",
    "GetServerCapabilitiesResponse",
    "GetSessionResponse",
    "Gone",
    "ImageAssetPointerChunk",
    "ImageChunk",
    "ListSessionsResponse",
    "LoadWeightsRequest",
    "LoadWeightsResponse",
    "LoraConfig",
    "LossFnOutput",
    "LossFnType",
    "ModelData",
    "ModelID",
    "ModelInput",
    "ModelInputChunk",
    "NotFound",
    "OptimParams",
    "OptimStepRequest",
    "OptimStepResponse",
    "OutOfSpace",
    "Params",
    "ParsedCheckpointTinkerPath",
    "PromptAltTokens",
    "PromptProvenanceSpan",
    "Reply",
    "Request",
    "RequestErrorCategory",
    "SampleDelta",
    "SampleJob",
    "SampleRequest",
    "SampleResponse",
    "SampledProvenanceSpan",
    "SampledSequence",
    "SamplingParams",
    "SaveWeightsForSamplerRequest",
    "SaveWeightsForSamplerResponse",
    "SaveWeightsRequest",
    "SaveWeightsResponse",
    "SequenceDelta",
    "StopReason",
    "SupportedModel",
    "TensorData",
    "TensorDtype",
    "TopkLogprobs",
    "TrainingRun",
    "TrainingRunsResponse",
    "Unavailable",
    "UserError",
    "WeightsInfoResponse",
]

if TYPE_CHECKING:
    from .official_names import *  # noqa: F403


def __getattr__(name: str) -> Any:
    if not name.startswith("_"):
        others = _import_module("tinsmith.types.official_names")
        if name in others.__all__:
            return getattr(others, name)
    raise AttributeError(f"module 'tinsmith.types' has no attribute {name!r}")
