"""Reading with another account's rights: what a weights access token means here."""

from __future__ import annotations

from tinsmith.types import Forbidden, LoadWeightsRequest

from .keys import Keys
from .kinds import AcceptedLoad
from .tokens import InvalidToken, Tokens

_FIELD = "weights_access_token"


def reader(own: str, token: str | None, tokens: Tokens, keys: Keys) -> str:
    """Whose rights weights are read with: the caller's, or those of the account whose token he was given.

    A weights access token is what auth/token gives to that account: a signed, short-lived token of this
    service. It is looked at once, when the request is accepted, and never written down.
    """
    if token is None:
        return own
    try:
        read = tokens.read(token)
    except InvalidToken as error:
        raise Forbidden(f"{error}; give one that auth/token made for the account", field=_FIELD) from error
    if read.key_id and keys.get(read.key_id) is None:
        raise Forbidden("the key it was made from was revoked", field=_FIELD)
    return read.owner


def accept_load(request: LoadWeightsRequest, reader: str) -> AcceptedLoad:
    """A load that is allowed to read with these rights, now and when it is replayed."""
    return AcceptedLoad(**request.model_dump(exclude={"weights_access_token"}), reader=reader)
