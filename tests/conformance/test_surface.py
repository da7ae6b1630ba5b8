"""Whatever can be imported from, called on or given to the official packages, can be with ours.

Found by introspection of the unmodified packages, so a name, method or parameter that a newer one adds fails
here. Where ours differs on purpose, it says so below and why.
"""

from __future__ import annotations

import functools
import json
import re
import subprocess
import warnings
from pathlib import Path
from typing import Any

import pytest
from official import interpreter
from surface import describe

VERSIONS = ("0.4.1", "0.38.0")

# Full names, as regular expressions, and why they are not or not the same here.
DIFFERENT = {
    r"RequestOptions(\..*)?": "options of the generated low-level resources, which are not here",
    r"Timeout\..*": "a class of our own, with httpx's arguments",
    r".*\.model_config": "a plain dataclass here: bulk data is not pydantic's",
    r"\w+\.(serialize|validate)_\w+|Datum\.convert_tensors": "pydantic's hooks, not meant to be called",
    r"(TrainingClient|Backcompat\w+)\.__init__ \w+": "made by a ServiceClient or TrainingClient, not by hand",
    r"(SampleResponse|SampledSequence)\.(__init__|field|default) .*": "made by the service, from arrays",
    r"SaveWeights\w*Response\.get_(console|playground)_url": (
        "a response does not know its service; TrainingClient.get_console_url does"
    ),
    r"RestClient\.__init__ holder": "called _holder, as in 0.38; positional in both",
    r"TrainingClient\.get_tokenizer self": "functools.cache shows it there",
    r"OptimStepRequest\.(__init__|field) optim_params": "on the wire: adam_params or optimizer_params",
    r"ServiceClient\.create_training_client_from_state(_async)? order": (
        "0.4.1's second argument is user_metadata: a dict there is taken for it"
    ),
    r"TrainingClient\.optim_step(_async)? order": "0.4.1's adam_params is our first argument, by name too",
    r"RetryConfig\.__init__ order": "retryable_exceptions last in one, in the middle in the other",
    r"RetryConfig\.default max_connections": "None: what the service asks for",
    r"RetryConfig\.default progress_timeout": "that of 0.38",
    r"\w+Response\.default type|GetInfoResponse\.default type": "always said",
    r"\w+\.default optimizer_config": "left out: the service's own",
    r"(CreateSession|LoadWeights|OptimStep|SaveWeights|Sample)Request\.default \w+": (
        "one type for all versions of the wire: what one of them requires, another leaves out"
    ),
    r"Image\w*Chunk\.default (height|tokens|width)": "newer images say expected_tokens instead",
    r"types\.(\w*(Event|Batch)|Forward\w*Request|FutureRetrieveResponse|\w*Internal|RequestFailedResponse)": (
        "read and written inside the client"
    ),
    r"types\.(ClientSessionFinish(Errored|Interrupted|Success)|SessionFailed\w+Reason|SessionFailedReason)": (
        "one type, told apart by its field"
    ),
    r"types\.(Create|Unload)ModelResponse": "a client comes of it, or nothing",
    r"types\.[a-z_]+": "modules",
}


@functools.cache
def theirs(version: str) -> dict[str, Any]:
    script = Path(__file__).with_name("surface.py")
    done = subprocess.run(
        [str(interpreter(version)), str(script), "tinker"], check=True, capture_output=True, timeout=120
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@functools.cache
def ours() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return describe("tinsmith")


def missing(version: str) -> list[str]:
    """Full names of what they have and we have not."""
    found = [name for name in theirs(version)["names"] if name not in ours()["names"]]
    found += [f"types.{name}" for name in theirs(version)["types"] if name not in ours()["types"]]
    for kind, members in theirs(version)["members"].items():
        if kind not in ours()["members"]:
            continue  # among the names above
        mine = ours()["members"][kind]
        for member, parameters in members.items():
            if member not in mine:
                found.append(f"{kind}.{member}")
            elif parameters is not None and mine[member] is not None:
                found += [f"{kind}.{member} {gap}" for gap in gaps(parameters, mine[member])]
    for kind, fields in theirs(version)["fields"].items():
        known = ours()["fields"].get(kind)
        if known is not None:
            found += [f"{kind}.field {name}" for name in fields if name not in known]
            found += [
                f"{kind}.default {name}"
                for name, default in fields.items()
                if name in known and known[name] != default
            ]
    return found


def gaps(parameters: list[str], mine: list[str]) -> list[str]:
    """Parameters ours does not take, and whether those given by position stand elsewhere."""
    names = [name.lstrip("*") for name in mine]
    absent = [name.lstrip("*") for name in parameters if name.lstrip("*") not in names]
    positional = [name for name in parameters if not name.startswith("*")]
    if not absent and mine[: len(positional)] != positional:
        return ["order"]
    return absent


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_is_missing(version: str) -> None:
    unexplained = [
        name for name in missing(version) if not any(re.fullmatch(known, name) for known in DIFFERENT)
    ]
    assert not unexplained


def test_every_difference_is_real() -> None:
    names = {name for version in VERSIONS for name in missing(version)}
    stale = [known for known in DIFFERENT if not any(re.fullmatch(known, name) for name in names)]
    assert not stale
