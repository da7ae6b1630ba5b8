"""Who a key belongs to: the claims of the token the service makes from it."""

from __future__ import annotations

import base64
import binascii

from tinsmith.types.account import WhoamiResponse
from tinsmith.types.errors import UserError
from tinsmith.wire import json as wire_json

from .api import Api
from .errors import TinkerError


async def whoami(api: Api) -> WhoamiResponse:
    """The token is not checked: it came from the service itself."""
    token = await api.token()
    try:
        payload = token.split(".")[1]
        claims = wire_json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return WhoamiResponse(
            user_urn=claims["sub"],
            org_urn=f"tml:organization:{claims['org_id']}",
            email=claims.get("email"),
        )
    except (IndexError, KeyError, TypeError, UserError, binascii.Error) as error:
        raise TinkerError("the service made a token that does not say whose it is") from error
