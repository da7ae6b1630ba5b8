"""Who is calling."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

LOCAL_OWNER = "local"


class Unauthorized(Exception):
    """No key, or not one of ours."""


@dataclass(frozen=True, slots=True)
class Authenticator:
    """Maps a key to its owner. Only the key's hash is kept; without one, every caller is the local user."""

    key_hash: bytes | None = None

    @classmethod
    def for_key(cls, api_key: str | None) -> Authenticator:
        """One key for all."""
        return cls(None if api_key is None else _hash(api_key))

    def owner(self, presented: str | None) -> str:
        """The owner a presented key stands for."""
        if self.key_hash is None:
            return LOCAL_OWNER
        if presented is None or not hmac.compare_digest(_hash(presented), self.key_hash):
            raise Unauthorized("X-API-Key: missing or unknown; set TINKER_API_KEY to this service's key")
        return LOCAL_OWNER


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
