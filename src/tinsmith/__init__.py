"""Tinsmith: the open training API. The names people import, each loaded when it is first used."""

from importlib import import_module as _import_module

TYPE_CHECKING = False  # type checkers take it for true; importing `typing` would cost more than all of this
if TYPE_CHECKING:
    from . import auth, regularizers, types
    from .client.admin_client import AdminClient
    from .client.client_futures import BackcompatSamplingClientFuture, BackcompatTrainingClientFuture
    from .client.config import EMBEDDED, ClientConfig, Timeout
    from .client.conversation import datum_from_messages, prompt_from_messages
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
        DeadlineError,
        DownloadError,
        ExperimentalWarning,
        ForkedProcessError,
        InternalServerError,
        NotFoundError,
        PermissionDeniedError,
        RateLimitError,
        RequestFailedError,
        ResultExpiredError,
        RetrieveError,
        StreamConsumedError,
        StreamingUnsupportedError,
        TinkerError,
        UnprocessableEntityError,
    )
    from .client.futures import APIFuture
    from .client.loss_handle import LossHandle, PerDatumLossFn
    from .client.observe import OperationEvent, OperationStats
    from .client.recovery import ResumedRun
    from .client.rest_client import RestClient
    from .client.retry import RetryConfig
    from .client.sampling_client import SamplingClient
    from .client.service_client import ServiceClient
    from .client.stream import StreamedToken, TokenStream
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
    "AdminClient": "tinsmith.client.admin_client",
    "APIFuture": "tinsmith.client.futures",
    "BackcompatSamplingClientFuture": "tinsmith.client.client_futures",
    "BackcompatTrainingClientFuture": "tinsmith.client.client_futures",
    "ClientConfig": "tinsmith.client.config",
    "datum_from_messages": "tinsmith.client.conversation",
    "EMBEDDED": "tinsmith.client.config",
    "LossHandle": "tinsmith.client.loss_handle",
    "OperationEvent": "tinsmith.client.observe",
    "OperationStats": "tinsmith.client.observe",
    "PerDatumLossFn": "tinsmith.client.loss_handle",
    "prompt_from_messages": "tinsmith.client.conversation",
    "RestClient": "tinsmith.client.rest_client",
    "ResumedRun": "tinsmith.client.recovery",
    "RetryConfig": "tinsmith.client.retry",
    "SamplingClient": "tinsmith.client.sampling_client",
    "ServiceClient": "tinsmith.client.service_client",
    "StreamedToken": "tinsmith.client.stream",
    "Timeout": "tinsmith.client.config",
    "TokenStream": "tinsmith.client.stream",
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
    "AdminClient",
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
    "DeadlineError",
    "DimuonOptimizerConfig",
    "DimuonParams",
    "DmelChunk",
    "DownloadError",
    "EncodedTextChunk",
    "ExperimentalWarning",
    "ForkedProcessError",
    "ForwardBackwardOutput",
    "InternalServerError",
    "LoraConfig",
    "LossHandle",
    "ModelID",
    "ModelInput",
    "ModelInputChunk",
    "NotFoundError",
    "OperationEvent",
    "OperationStats",
    "OptimParams",
    "OptimStepRequest",
    "OptimStepResponse",
    "ParsedCheckpointTinkerPath",
    "PerDatumLossFn",
    "PermissionDeniedError",
    "PromptProvenanceSpan",
    "RateLimitError",
    "RequestErrorCategory",
    "RequestFailedError",
    "RestClient",
    "ResultExpiredError",
    "ResumedRun",
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
    "StreamConsumedError",
    "StreamedToken",
    "StreamingUnsupportedError",
    "TensorData",
    "TensorDtype",
    "Timeout",
    "TinkerError",
    "TokenStream",
    "TrainingClient",
    "TrainingRun",
    "UnprocessableEntityError",
    "UserError",
    "__title__",
    "__version__",
    "auth",
    "datum_from_messages",
    "prompt_from_messages",
    "regularizers",
    "types",
]


if not TYPE_CHECKING:  # else every name would be right

    def __getattr__(name):
        if name in ("auth", "regularizers", "types"):
            value = _import_module(f"tinsmith.{name}")
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
