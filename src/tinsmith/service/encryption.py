"""Encrypting exported files to age recipients, file by file, never whole in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tinsmith.types import UserError

SUFFIX = ".age"
_FIELD = "age_encryption_recipients"


def parse_recipients(recipients: Sequence[str]) -> list[Any]:
    """Keys to encrypt to: ``age1...`` or SSH public keys; a wrong one is named."""
    try:
        from pyrage import RecipientError, ssh, x25519
    except ModuleNotFoundError as error:
        raise UserError(
            "is not available: this service was installed without pyrage", field=_FIELD
        ) from error
    parsed = []
    for at, text in enumerate(recipients):
        parse = ssh.Recipient.from_str if text.startswith("ssh-") else x25519.Recipient.from_str
        try:
            parsed.append(parse(text.strip()))
        except RecipientError as error:
            raise UserError(
                f"{text[:80]!r} is neither an age1... key nor an SSH public key", field=f"{_FIELD}[{at}]"
            ) from error
    return parsed


def encrypt_folder(folder: Path, recipients: Sequence[Any]) -> None:
    """Replace each file by its encrypted form."""
    from pyrage import encrypt_file

    for file in sorted(folder.iterdir()):
        encrypt_file(str(file), str(file.with_name(file.name + SUFFIX)), list(recipients))
        file.unlink()
