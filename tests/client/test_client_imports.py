"""`import tinsmith` is light, and every promised name is there."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tinsmith

HEAVY = ("torch", "transformers", "httpx", "aiohttp", "pydantic", "numpy", "google.protobuf", "asyncio")

PROMISED = [
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
    "ConflictError",
    "Datum",
    "DimuonOptimizerConfig",
    "DimuonParams",
    "DmelChunk",
    "EncodedTextChunk",
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
    "RequestFailedError",
    "RestClient",
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
    "types",
    "__version__",
    "__title__",
]


def fresh(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_importing_loads_nothing_heavy():
    loaded = fresh("import sys, tinsmith; print(*sys.modules)").split()
    assert not [name for name in HEAVY if name in loaded]


def test_a_client_needs_neither_torch_nor_transformers():
    code = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'tokenizers'): sys.modules[name] = None\n"
        "import tinsmith\n"
        "client = tinsmith.ServiceClient(base_url='http://localhost:1')\n"
        "tinsmith.Datum(tinsmith.ModelInput.from_ints([1]), {'weights': [1.0]})\n"
        "print(type(client).__name__)"
    )
    assert fresh(code) == "ServiceClient\n"


@pytest.mark.parametrize("name", PROMISED)
def test_name(name):
    assert name in tinsmith.__all__
    assert getattr(tinsmith, name) is not None


def test_every_name_loads_and_the_list_is_whole():
    assert all(hasattr(tinsmith, name) for name in tinsmith.__all__)
    assert set(tinsmith.__all__) <= set(dir(tinsmith))
    with pytest.raises(AttributeError, match="nonsense"):
        _ = tinsmith.nonsense


def test_star_import():
    namespace: dict[str, object] = {}
    exec("from tinsmith import *", namespace)
    assert namespace["ServiceClient"] is tinsmith.ServiceClient
