"""Run by an official SDK's own interpreter: finds every public method and command, and calls its probe.

Prints one JSON row each: what was called, what was checked, and what was wrong.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import os
import re
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import tinker
from probing import PROBES, World, awaited, datum, settled

CLIENTS = (
    "ServiceClient",
    "TrainingClient",
    "SamplingClient",
    "RestClient",
    "AdminClient",
    "BackcompatTrainingClientFuture",
    "BackcompatSamplingClientFuture",
    "APIFuture",
    "LossHandle",
)
# A future of a client forwards that client's methods.
SAME_AS = {
    "BackcompatTrainingClientFuture": "TrainingClient",
    "BackcompatSamplingClientFuture": "SamplingClient",
}


def client_class(name: str) -> type | None:
    """A class of the SDK, wherever this version keeps it."""
    places = (tinker, importlib.import_module("tinker.lib.public_interfaces.rest_client"))
    return next((getattr(place, name) for place in places if hasattr(place, name)), None)


def methods() -> Iterator[str]:
    """``Class.method`` for all that is public."""
    for name in CLIENTS:
        if kind := client_class(name):
            yield from (f"{name}.{member}" for member in dir(kind) if not member.startswith("_"))


def commands() -> Iterator[str]:
    """``tinker group command`` for all there are."""

    def walk(command: click.Command, path: tuple[str, ...]) -> Iterator[str]:
        context = click.Context(command)
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                found = command.get_command(context, name)
                assert found is not None
                yield from walk(found, (*path, name))
        else:
            yield " ".join(path)

    yield from walk(importlib.import_module("tinker.cli.__main__").main_cli, ("tinker",))


def make(world: World, kind: str) -> Any:
    """A fresh object whose method is called."""
    if kind == "LossHandle":
        return _loss_handle(world)
    makers: dict[str, Callable[[], Any]] = {
        "ServiceClient": lambda: world.service,
        "TrainingClient": world.training,
        "SamplingClient": world.sampling,
        "RestClient": lambda: world.rest,
        "AdminClient": lambda: tinker.AdminClient(),
        "BackcompatTrainingClientFuture": world.training_future,
        "BackcompatSamplingClientFuture": world.sampling_future,
        "APIFuture": lambda: world.training().forward([datum()], "cross_entropy"),
    }
    return makers[kind]()


def _loss_handle(world: World) -> Any:
    names = iter("abcdefgh")

    def loss(logprobs, weights):  # type: ignore[no-untyped-def]
        total = (logprobs * weights).sum() * world._names
        return total, {f"custom/{next(names)}:sum": total}

    world.name()  # a session takes each loss once
    return settled(world.service.create_custom_loss(loss, {"logprobs": 1, "weights": 1}))


def caller(it: Any, member: str) -> Callable[..., Any]:
    """Calls the method under test the way its users do, and waits for what comes of it."""
    if not callable(inspect.getattr_static(type(it), member, None)) and not callable(getattr(it, member)):
        return lambda: getattr(it, member)
    method = getattr(it, member)
    if member.endswith("_async") or member in ("coroutine",):
        return functools.partial(awaited, method)
    return lambda *arguments, **named: settled(method(*arguments, **named))


def run(world: World, name: str) -> dict[str, Any]:
    """One row."""
    kind, _, member = name.partition(".")
    wanted = [f"{owner}.{member.removesuffix('_async')}" for owner in (kind, SAME_AS.get(kind)) if owner]
    probe = next((PROBES[key] for key in (name, *wanted) if key in PROBES), None)
    if probe is None:
        return {"name": name, "checks": "", "error": "there is no probe of it"}
    try:
        if member:
            it = make(world, kind)
            probe.function(world, it, caller(it, member))
        else:
            probe.function(world, None, None)
    except Exception:
        return {"name": name, "checks": probe.checks, "error": traceback.format_exc(limit=-4)}
    return {"name": name, "checks": probe.checks, "error": None}


def main() -> None:
    """All rows, or those whose name matches the second argument."""
    warnings.simplefilter("ignore")
    for module in ("service", "training", "sampling", "rest", "account", "cli"):
        importlib.import_module(f"probe_{module}")
    only = sys.argv[2] if len(sys.argv) > 2 else ""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        world = World(sys.argv[1], Path(folder))
        for name in sorted({*methods(), *commands()}):
            if re.search(only, name):
                print(json.dumps({"version": tinker.__version__} | run(world, name)), flush=True)


if __name__ == "__main__":
    main()
    # All is done. The newest SDK's native threads now and then abort an interpreter that shuts down.
    sys.stdout.flush()
    os._exit(0)
