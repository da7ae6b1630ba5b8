"""A folder that can prove it is whole: beside its files a seal with their checksums."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

SEAL = "seal.json"
_CHUNK = 2**20


class Damaged(ValueError):
    """A folder is not what its seal says; the message names the file."""


def seal(folder: Path) -> None:
    """Write the seal; on return it is on the disk. The files must be already."""
    sums = {file.name: _checksum(file) for file in sorted(folder.iterdir())}
    with (folder / SEAL).open("w") as file:
        json.dump(sums, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def check(folder: Path) -> None:
    """Raise `Damaged` unless every file is there and is what it was."""
    try:
        sums = json.loads((folder / SEAL).read_text())
    except (OSError, ValueError) as error:
        raise Damaged(f"{folder.name}: no seal can be read ({error})") from error
    found = {file.name for file in folder.iterdir()} - {SEAL}
    if not isinstance(sums, dict) or found != sums.keys():
        raise Damaged(f"{folder.name} holds {sorted(found)}, its seal names others")
    for name, checksum in sums.items():
        if _checksum(folder / name) != checksum:
            raise Damaged(f"{folder.name}/{name} is not what it was when it was sealed")


def _checksum(file: Path) -> str:
    digest = hashlib.blake2b(digest_size=20)
    with file.open("rb") as content:
        while chunk := content.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
