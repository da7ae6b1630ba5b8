"""The service's secret, and what it signs: download addresses and tokens."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import time
from pathlib import Path

from tinsmith.store import DataDirUnusable
from tinsmith.types import Forbidden, Gone

_BYTES = 32


class Signer:
    """Signs with a secret that is made once and kept in the data directory, readable by its owner only."""

    def __init__(self, data_dir: Path) -> None:
        self._secret = _read_or_make(data_dir / "secret")

    def sign(self, purpose: str, message: str) -> bytes:
        """A signature good for one purpose, so that none can be used for another."""
        return hmac.digest(self._secret, f"{purpose}\0{message}".encode(), hashlib.sha256)

    def sign_path(self, path: str, lifetime: float) -> str:
        """A path with a query that lets whoever has it read it, until it expires."""
        expires = int(time.time() + lifetime)
        return f"{path}?expires={expires}&signature={self.sign('path', f'{path} {expires}').hex()}"

    def check_path(self, path: str, expires: int, signature: str) -> None:
        """Refuse an address that is not ours, was changed, or has expired."""
        right = self.sign("path", f"{path} {expires}").hex()
        if not hmac.compare_digest(right.encode(), signature.encode()):
            raise Forbidden("does not belong to this address; ask for a new one", field="signature")
        if expires < time.time():
            raise Gone("this address has expired; ask for a new one", field="expires")


def _read_or_make(path: Path) -> bytes:
    if not path.exists():
        aside = path.with_suffix(".new")  # an empty secret, left by a crash, would sign for everybody
        aside.unlink(missing_ok=True)
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_BYTES))
            file.flush()
            os.fsync(file.fileno())
        aside.rename(path)
    secret = path.read_bytes()
    if len(secret) != _BYTES:
        raise DataDirUnusable(f"{path} is damaged; remove it, and addresses and tokens given out end with it")
    return secret
