"""Short-lived tokens made from a key: JWTs, signed with the service's own secret."""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import time
from dataclasses import dataclass
from typing import Any

from .keys import hash_key
from .signing import Signer

ISSUER = "tinsmith"
ORGANIZATION = "tinsmith"  # one service is one organization
_HEADER = {"alg": "HS256", "typ": "JWT"}
_MOST_CHARACTERS = 4096


class InvalidToken(Exception):
    """Not a token of ours, or no longer valid."""


@dataclass(frozen=True, slots=True)
class Token:
    """What a token says."""

    owner: str
    key_id: int
    email: str | None
    expires: int


class Tokens:
    """Makes and reads tokens."""

    def __init__(self, signer: Signer, lifetime: int, operators_key: str = "") -> None:
        self._signer = signer
        self._lifetime = lifetime
        # Tokens made from the operator's own key end with it; it is in no table, so the signature tells.
        self._purpose = f"token {hash_key(operators_key)}"

    def issue(self, owner: str, key_id: int, email: str | None, not_after: int | None = None) -> str:
        """A token for the owner of a key. One made from a token does not outlive it (``not_after``)."""
        now = int(time.time())
        expires = now + self._lifetime if not_after is None else min(now + self._lifetime, not_after)
        claims = {
            "iss": ISSUER,
            "sub": owner,
            "org_id": ORGANIZATION,
            "email": email or "",
            "key_id": key_id,
            "iat": now,
            "exp": expires,
        }
        message = f"{_encode(_HEADER)}.{_encode(claims)}"
        return f"{message}.{_base64(self._signer.sign(self._purpose, message))}"

    def read(self, token: str) -> Token:
        """What a token says, if it is ours and still valid."""
        message, _, signature = token.rpartition(".")
        right = _base64(self._signer.sign(self._purpose, message))
        if len(token) > _MOST_CHARACTERS or not hmac.compare_digest(right.encode(), signature.encode()):
            raise InvalidToken("the token is not of this service")
        # Only this service can have signed it, so its form is ours.
        claims = _decode(message.partition(".")[2])
        if claims["exp"] <= time.time():
            raise InvalidToken("the token has expired")
        return Token(claims["sub"], claims["key_id"], claims["email"] or None, claims["exp"])


def looks_like_token(credential: str) -> bool:
    """Whether this is a token rather than a key: every JWT begins so."""
    return credential.startswith("eyJ")


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _encode(value: dict[str, Any]) -> str:
    return _base64(json.dumps(value, separators=(",", ":")).encode())


def _decode(text: str) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (binascii.Error, ValueError) as error:
        raise InvalidToken("the token cannot be read") from error
    return value
