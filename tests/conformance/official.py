"""Environments for the official SDKs: the unmodified package, over the libraries installed here."""

from __future__ import annotations

import os
import site
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock

ROOT = Path(__file__).parents[2]
# What the SDKs need beyond what is installed for the tests anyway.
EXTRA = ("distro", "sniffio", "h2", "hpack", "hyperframe", "pyqwest", "opentelemetry-api", "zstandard")


def interpreter(version: str) -> Path:
    """A Python that has ``tinker`` of this version."""
    return make_environment(version, (f"tinker=={version}", *EXTRA))


def make_environment(name: str, packages: Sequence[str], libraries: Sequence[str] = ()) -> Path:
    """A Python with these packages alone, and these libraries with all they need; made once and kept."""
    wanted = "\n".join([*packages, *libraries])
    folder = ROOT / ".cache" / "official" / name
    python = folder / "bin" / "python"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        ready = folder / "ready"
        if not ready.exists() or ready.read_text() != wanted:
            venv.create(folder, with_pip=False, clear=True)
            _see_our_libraries(folder)
            _install(python, "--no-deps", *packages)
            if libraries:
                _install(python, *libraries)
            ready.write_text(wanted)
    return python


def _install(python: Path, *what: str) -> None:
    command = [sys.executable, "-m", "pip", f"--python={python}", "install", "--quiet"]
    constraint = ["--constraint", str(ROOT / "constraints.txt")]
    subprocess.run([*command, *constraint, *what], check=True, env=os.environ | {"PIP_CONSTRAINT": ""})


def _see_our_libraries(folder: Path) -> None:
    (packages,) = (folder / "lib").glob("python*/site-packages")
    (packages / "shared.pth").write_text("\n".join(site.getsitepackages()))


def environment(url: str) -> dict[str, str]:
    """Variables for a process that uses an SDK against a service, and has none of ours."""
    others = {key: value for key, value in os.environ.items() if not key.startswith(("TINKER_", "TINSMITH_"))}
    return others | {"TINKER_BASE_URL": url, "TINKER_API_KEY": "tml-test"}


def run(version: str, script: Path, *arguments: str, url: str, limit: float = 240) -> str:
    """Run a script with an official SDK against a service; its standard output."""
    done = subprocess.run(
        [str(interpreter(version)), str(script), *arguments],
        env=environment(url),
        capture_output=True,
        text=True,
        timeout=limit,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return done.stdout
