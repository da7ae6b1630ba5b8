"""What every probe needs: the table of probes, the world they act in, waiting for whatever an SDK returns.

Imported only by the interpreter of an official SDK.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tinker
from tinker import types

TOKENS = [10, 20, 30, 40, 50, 60, 70, 80]
RANK = 4


@dataclass(frozen=True)
class Probe:
    """What is called, and in words what is checked about the result."""

    checks: str
    function: Callable[..., None]


PROBES: dict[str, Probe] = {}


def probe(*names: str, checks: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a probe of methods (``Class.method``, which covers its ``_async`` twin) or commands."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        for name in names:
            assert name not in PROBES, f"two probes of {name}"
            PROBES[name] = Probe(checks, function)
        return function

    return register


def settled(value: Any) -> Any:
    """The value behind any future or coroutine, as synchronous code gets it."""
    while True:
        if inspect.iscoroutine(value):
            value = asyncio.run(_awaited(value))
        elif callable(getattr(value, "result", None)):
            value = value.result()
        else:
            return value


async def _awaited(value: Any) -> Any:
    while inspect.isawaitable(value):
        value = await value
    return value


def awaited(method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """The value behind anything awaitable, as asynchronous code gets it."""

    async def call() -> Any:
        return await _awaited(method(*arguments, **named))

    return asyncio.run(call())


@contextmanager
def refused(*words: str, by: type[Exception] = Exception) -> Iterator[None]:
    """The call inside must fail with a message that has all these words."""
    try:
        yield
    except by as error:
        said = str(error)
    else:
        raise AssertionError(f"was not refused; expected {words}")
    missing = [word for word in words if word not in said]
    assert not missing, f"{missing} not in {said}"


class World:
    """A live service, reached through this interpreter's SDK."""

    def __init__(self, model: str, folder: Path) -> None:
        self.model, self.folder = model, folder
        self.version = tinker.__version__
        options = {} if self.old else {"project_id": "probes"}
        self.service = tinker.ServiceClient(user_metadata={"made_by": "probe"}, **options)
        self.rest = settled(self.service.create_rest_client())
        self._names = 0

    @property
    def old(self) -> bool:
        """Whether this is the dialect of 2025."""
        return not hasattr(tinker, "AdminClient")

    @property
    def key(self) -> str:
        """The key the probes present."""
        return os.environ["TINKER_API_KEY"]

    def name(self) -> str:
        """A name nobody has used."""
        self._names += 1
        return f"probe-{self._names}"

    def folder_of_its_own(self) -> Path:
        """An empty folder."""
        folder = self.folder / self.name()
        folder.mkdir()
        return folder

    def training(self, **lora: Any) -> Any:
        """A new run."""
        return settled(self.training_future(**lora))

    def training_future(self, **lora: Any) -> Any:
        """A new run, as the SDK hands it out."""
        return self.service.create_lora_training_client(self.model, **{"rank": RANK, "seed": 1} | lora)

    def trained(self) -> Any:
        """A new run that has taken a step, so that it differs from its base model."""
        training = self.training()
        settled(training.forward_backward([datum()], "cross_entropy"))
        settled(training.optim_step(types.AdamParams(learning_rate=0.05)))
        return training

    def sampling(self) -> Any:
        """A sampler of the base model."""
        return settled(self.sampling_future())

    def sampling_future(self) -> Any:
        """A sampler of the base model, as the SDK hands it out."""
        return self.service.create_sampling_client(base_model=self.model)

    def saved(self, training: Any = None) -> str:
        """The path of a new training checkpoint."""
        training = training or self.training()
        return settled(training.save_state(self.name())).path

    def session_id(self) -> str:
        """The session all of this happens in."""
        return self.training().model_id.partition(":")[0]

    def cli(self, *arguments: str, ok: bool = True, answer: str = "", **environment: str) -> str:
        """Run a command of this SDK; its output. The home folder is the probes' own."""
        said, code = _run_command(arguments, answer, {"HOME": str(self.folder)} | environment)
        assert (code == 0) == ok, f"{arguments}: {said[-3000:]}"
        return said

    def cli_process(self, *arguments: str, **environment: str) -> str:
        """The same in a process of its own, which reads its environment anew."""
        command = [sys.executable, "-m", "tinker.cli", *arguments]
        done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def _run_command(arguments: Sequence[str], answer: str, environment: Mapping[str, str]) -> tuple[str, int]:
    """The SDK's own entry point, in this process: starting an interpreter for each takes far longer.

    Gives what it printed, where it failed with what it said about that, and its exit code.
    """
    main = importlib.import_module("tinker.cli.__main__").main
    output, errors, code = io.StringIO(), io.StringIO(), 0
    before = {name: os.environ.get(name) for name in environment}
    argv, stdin = sys.argv, sys.stdin
    sys.argv, sys.stdin = ["tinker", *arguments], io.StringIO(answer)
    os.environ.update(environment)
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.argv, sys.stdin = argv, stdin
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    return output.getvalue() + (errors.getvalue() if code else ""), code


def datum(tokens: list[int] | None = None) -> types.Datum:
    """One example with all its tokens trained on."""
    tokens = tokens or TOKENS
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)},
    )


def loss_of(training: Any) -> float:
    """The loss of one example; leaves no gradient."""
    return settled(training.forward([datum()], "cross_entropy")).metrics["loss:sum"]


def prompt(length: int = 4) -> types.ModelInput:
    """The first tokens of the example."""
    return types.ModelInput.from_ints(TOKENS[:length])


def close(first: float, second: float) -> bool:
    """Equal to what float32 can tell apart after another order of sums."""
    return abs(first - second) <= 1e-4 * max(1.0, abs(first))


def parts(tinker_path: str) -> tuple[str, str]:
    """Run id and checkpoint id of a path."""
    run_id, _, checkpoint_id = tinker_path.removeprefix("tinker://").partition("/")
    return run_id, checkpoint_id
