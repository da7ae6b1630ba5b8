"""The `tinsmith` command, run as a person runs it."""

from __future__ import annotations

import os
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


def test_a_second_service_on_the_same_data_is_refused(tinsmith_service, tmp_path: Path) -> None:
    shown = tinsmith("serve", "--model", "tiny-llama", "--data-dir", str(tinsmith_service.data_dir))
    assert shown.returncode == 1
    assert "in use by another Tinsmith" in shown.stderr


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
