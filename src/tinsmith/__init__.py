"""Tinsmith: the open training API. The names people import, each loaded when it is first used."""

from importlib import import_module as _import_module

TYPE_CHECKING = False  # type checkers take it for true; importing `typing` would cost more than all of this
if TYPE_CHECKING:
    from typing import Any

    from httpx import Timeout

    from . import types
    from .client.client_futures import BackcompatSamplingClientFuture, BackcompatTrainingClientFuture
    from .client.config import EMBEDDED, ClientConfig
    from .client.errors import (
        APIConnectionError,
        APIError,
        APIResponseValidationError,
        APIStatusError,
        APITimeoutError,
        AuthenticationError,
        BadRequestError,
        BillingError,
        ClientClosedError,
        ConflictError,
        ForkedProcessError,
        InternalServerError,
        NotFoundError,
        PermissionDeniedError,
        RateLimitError,
        RequestFailedError,
        ResultExpiredError,
        RetrieveError,
        TinkerError,
        UnprocessableEntityError,
    )
    from .client.futures import APIFuture
    from .client.rest_client import RestClient
    from .client.retry import RetryConfig
    from .client.sampling_client import SamplingClient
    from .client.service_client import ServiceClient
    from .client.training_client import TrainingClient
    from .types import (
        AdamOptimizerConfig,
        AdamParams,
        Checkpoint,
        CheckpointType,
        Datum,
        DimuonOptimizerConfig,
        DimuonParams,
        DmelChunk,
        EncodedTextChunk,
        ForwardBackwardOutput,
        LoraConfig,
        ModelID,
        ModelInput,
        ModelInputChunk,
        OptimParams,
        OptimStepRequest,
        OptimStepResponse,
        ParsedCheckpointTinkerPath,
        PromptProvenanceSpan,
        RequestErrorCategory,
        SampledProvenanceSpan,
        SampledSequence,
        SampleRequest,
        SampleResponse,
        SamplingParams,
        StopReason,
        TensorData,
        TensorDtype,
        TrainingRun,
        UserError,
    )

    __version__: str

__title__ = "tinsmith"

# Where the clients live; every other name is a noun or an error.
_HOMES = {
    "APIFuture": "tinsmith.client.futures",
    "BackcompatSamplingClientFuture": "tinsmith.client.client_futures",
    "BackcompatTrainingClientFuture": "tinsmith.client.client_futures",
    "ClientConfig": "tinsmith.client.config",
    "EMBEDDED": "tinsmith.client.config",
    "RestClient": "tinsmith.client.rest_client",
    "RetryConfig": "tinsmith.client.retry",
    "SamplingClient": "tinsmith.client.sampling_client",
    "ServiceClient": "tinsmith.client.service_client",
    "Timeout": "httpx",
    "TrainingClient": "tinsmith.client.training_client",
}

__all__ = [
    "EMBEDDED",
    "APIConnectionError",
    "APIError",
    "APIFuture",
    "APIResponseValidationError",
    "APIStatusError",
    "APITimeoutError",
    "AdamOptimizerConfig",
    "AdamParams",
    "AuthenticationError",
    "BackcompatSamplingClientFuture",
    "BackcompatTrainingClientFuture",
    "BadRequestError",
    "BillingError",
    "Checkpoint",
    "CheckpointType",
    "ClientClosedError",
    "ClientConfig",
    "ConflictError",
    "Datum",
    "DimuonOptimizerConfig",
    "DimuonParams",
    "DmelChunk",
    "EncodedTextChunk",
    "ForkedProcessError",
    "ForwardBackwardOutput",
    "InternalServerError",
    "LoraConfig",
    "ModelID",
    "ModelInput",
    "ModelInputChunk",
    "NotFoundError",
    "OptimParams",
    "OptimStepRequest",
    "OptimStepResponse",
    "ParsedCheckpointTinkerPath",
    "PermissionDeniedError",
    "PromptProvenanceSpan",
    "RateLimitError",
    "RequestErrorCategory",
    "RequestFailedError",
    "RestClient",
    "ResultExpiredError",
    "RetrieveError",
    "RetryConfig",
    "SampleRequest",
    "SampleResponse",
    "SampledProvenanceSpan",
    "SampledSequence",
    "SamplingClient",
    "SamplingParams",
    "ServiceClient",
    "StopReason",
    "TensorData",
    "TensorDtype",
    "Timeout",
    "TinkerError",
    "TrainingClient",
    "TrainingRun",
    "UnprocessableEntityError",
    "UserError",
    "__title__",
    "__version__",
    "types",
]


def __getattr__(name: str) -> "Any":
    if name == "types":
        value: Any = _import_module("tinsmith.types")
    elif name == "__version__":
        value = _import_module("importlib.metadata").version("tinsmith")
    elif name in __all__:
        home = _import_module(_HOMES.get(name, "tinsmith.types"))
        value = getattr(home if hasattr(home, name) else _import_module("tinsmith.client.errors"), name)
    else:
        raise AttributeError(f"module 'tinsmith' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
