"""Who is calling."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass

from tinsmith.service.keys import Keys
from tinsmith.service.tokens import InvalidToken, Tokens, looks_like_token

LOCAL_OWNER = "local"
FIXED_KEY = 0  # the id of the operator's own key, and of no key where none is needed
_BEARER = "bearer "


class Unauthorized(Exception):
    """No key, or not one of ours."""


class RejectedToken(Unauthorized):
    """A token that is not ours or no longer valid: the client makes a new one from its key."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose call it is, and by which key; ``expires`` if he came with a token."""

    owner: str
    key_id: int = FIXED_KEY
    email: str | None = None
    expires: int | None = None
    admin: bool = False


NOBODY = Caller("nobody")
_LOCAL = Caller(LOCAL_OWNER, admin=True)  # who owns the machine, or has the operator's own key


class Authenticator:
    """Maps a key, or a token made from one, to its owner.

    The operator's own key (``api_key``) stands for the local user. With neither it nor any key in the data
    directory, the door is open and every caller is the local user.
    """

    def __init__(
        self, api_key: str | None = None, keys: Keys | None = None, tokens: Tokens | None = None
    ) -> None:
        self._fixed = None if api_key is None else _hash(api_key)
        self._keys = keys
        self._tokens = tokens

    @property
    def required(self) -> bool:
        """Whether a key is needed at all."""
        return self._fixed is not None or (self._keys is not None and self._keys.required)

    def caller(self, headers: Mapping[str, str]) -> Caller:
        """Who sent these headers."""
        if not self.required:
            return _LOCAL
        credential = headers.get("x-api-key") or _bearer(headers.get("authorization", ""))
        if not credential:
            raise Unauthorized("X-API-Key: missing; set TINKER_API_KEY to a key of this service")
        if self._tokens is not None and looks_like_token(credential):
            return self._of_token(self._tokens, credential)
        if self._fixed is not None and hmac.compare_digest(_hash(credential), self._fixed):
            return _LOCAL
        key = None if self._keys is None else self._keys.find(credential)
        if key is None:
            raise Unauthorized("X-API-Key: unknown; set TINKER_API_KEY to a key of this service")
        return Caller(key.owner, key.key_id, key.email, admin=key.role == "admin")

    def _of_token(self, tokens: Tokens, credential: str) -> Caller:
        """The owner of a token whose key is still good."""
        try:
            token = tokens.read(credential)
        except InvalidToken as error:
            raise RejectedToken(f"X-API-Key: {error}") from error
        if token.key_id == FIXED_KEY:
            good = admin = self._fixed is not None
        else:
            key = None if self._keys is None else self._keys.get(token.key_id)
            good, admin = key is not None, key is not None and key.role == "admin"
        if not good:
            raise RejectedToken("X-API-Key: the key this token was made from is no longer good")
        return Caller(token.owner, token.key_id, token.email, token.expires, admin)


def _bearer(header: str) -> str:
    return header[len(_BEARER) :].strip() if header.lower().startswith(_BEARER) else ""


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
