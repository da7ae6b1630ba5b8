"""Every public name says what it is, with an example that works: all of them on one real, tiny service.

In the examples ``service`` is a client of it, ``once`` one that never tries again, ``training`` a fresh run,
``sampler`` a sampler, ``tokenizer`` the model's, PROMPT and DATUM what they are called, and ``faults`` what
goes wrong with the service (`tinsmith.testing`).
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinsmith
import tinsmith.client
from tinsmith import testing

PROMPT = tinsmith.ModelInput.from_ints([10, 20, 30])
DATUM = tinsmith.Datum(PROMPT, {"target_tokens": [20, 30, 40], "weights": [1.0, 1.0, 1.0]})

# Names for types that are not classes of ours, and texts: Python keeps no docstring of them.
PLAIN = {
    "CheckpointType",
    "EMBEDDED",
    "ModelID",
    "ModelInputChunk",
    "OptimParams",
    "PerDatumLossFn",
    "StopReason",
    "TensorDtype",
    "__title__",
    "__version__",
}
NAMES = [name for name in tinsmith.__all__ if name not in PLAIN]
OPTIONS = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL | doctest.NORMALIZE_WHITESPACE
# Modules whose functions have examples of their own, beyond the public names.
MODULES = [
    "tinsmith.regularizers",
    *(f"tinsmith.client.{module.name}" for module in pkgutil.iter_modules(tinsmith.client.__path__)),
    *(f"tinsmith.wire.{name}" for name in ("pieces", "sample_events", "sse")),
]


@pytest.fixture(scope="module")
def known(tinsmith_faulty_service: testing.FaultyService) -> Iterator[dict[str, Any]]:
    """What examples may use."""
    with pytest.MonkeyPatch.context() as environment, warnings.catch_warnings():
        environment.setenv("TINKER_BASE_URL", tinsmith_faulty_service.url)
        environment.delenv("TINKER_API_KEY", raising=False)
        environment.setenv("TINKER_TELEMETRY", "0")
        with tinsmith.ServiceClient() as service, tinsmith.ServiceClient(max_retries=0) as once:
            sampler = service.create_sampling_client(base_model="tiny-llama").result()
            once.get_server_capabilities()
            names = {name: getattr(tinsmith, name) for name in tinsmith.__all__}
            names |= {name: getattr(testing, name) for name in testing.__all__}
            yield names | {
                "tinsmith": tinsmith,
                "np": np,
                "service": service,
                "once": once,
                "sampler": sampler,
                "tokenizer": sampler.get_tokenizer(),
                "PROMPT": PROMPT,
                "DATUM": DATUM,
            }


def run(example: doctest.DocTest) -> None:
    told: list[str] = []
    with warnings.catch_warnings():
        tried = doctest.DocTestRunner(optionflags=OPTIONS).run(example, out=told.append)
    assert tried.attempted
    assert not tried.failed, "".join(told)


def examples(name: str) -> doctest.DocTest:
    value = getattr(tinsmith, name)
    said = inspect.getdoc(value) if not inspect.ismodule(value) else _of_module(value)
    assert said, f"{name} has no docstring"
    if inspect.isclass(value):
        assert value.__doc__, f"{name} has only the docstring of its base"
    test = doctest.DocTestParser().get_doctest(said, {}, name, None, 0)
    assert test.examples, f"{name} has no example"
    return test


def _of_module(module: Any) -> str:
    """A module's own example, or those of what it offers."""
    offered = [getattr(module, name) for name in module.__all__]
    said = [module.__doc__, *(value.__doc__ for value in offered if inspect.isfunction(value))]
    return "\n\n".join(inspect.cleandoc(text) for text in said if text)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("auth", "types")])
def test_a_public_name_has_an_example_that_works(
    name: str, known: dict[str, Any], tinsmith_faults: testing.Faults
) -> None:
    test = examples(name)
    source = "".join(example.source for example in test.examples)
    names = known | {"faults": tinsmith_faults}
    if inspect.ismodule(getattr(tinsmith, name)):
        names |= vars(getattr(tinsmith, name))
    if "training" in source:
        made = known["service"].create_lora_training_client("tiny-llama", rank=2, seed=1)
        names["training"] = made.result()
    test.globs = names
    run(test)
    assert tinsmith_faults.left == 0


def test_auth_finds_the_embedded_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TINKER_BASE_URL", raising=False)
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    monkeypatch.setenv("TINSMITH_DATA_DIR", str(tmp_path))
    test = examples("auth")
    test.globs = vars(tinsmith.auth).copy()
    run(test)


def test_every_noun_has_a_docstring() -> None:
    for name in tinsmith.types.__all__:
        value = getattr(tinsmith.types, name)
        if inspect.isclass(value):
            assert value.__doc__, name


@pytest.mark.parametrize("name", MODULES)
def test_examples_inside_work(name: str, known: dict[str, Any], tinsmith_faults: testing.Faults) -> None:
    module = importlib.import_module(name)
    for test in doctest.DocTestFinder(exclude_empty=True).find(module, globs=known | vars(module)):
        if test.examples and test.name.rpartition(".")[2] not in tinsmith.__all__:
            run(test)
