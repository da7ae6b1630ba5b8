"""Endpoints of the account: tokens, keys, the audit log, usage."""

from __future__ import annotations

from starlette.responses import Response

from tinsmith.service.tokens import ORGANIZATION
from tinsmith.types import Forbidden, UserError
from tinsmith.types.account import (
    ApiKeyResponse,
    AuthTokenResponse,
    KeyDetails,
    OrganizationDetails,
    UserDetails,
)
from tinsmith.types.replies import Empty

from .auth import FIXED_KEY
from .call import Call, reply

EVERYBODY = "*"

# What a key that is not in the data directory is called: whether one is needed -> name and note.
_FIXED = {
    True: ("service", "the key this service was started with"),
    False: ("none", "this service asks for no key"),
}


async def token(call: Call) -> Response:
    """A short-lived token for the key of this call."""
    caller = call.caller
    jwt = call.service.tokens.issue(caller.owner, caller.key_id, caller.email, caller.expires)
    return reply(AuthTokenResponse(jwt=jwt))


async def own_key(call: Call) -> Response:
    """What the key of this call is."""
    key = call.service.keys.get(call.caller.key_id)
    name, note = _FIXED[call.key_required] if key is None else (key.name, key.note)
    details = KeyDetails(
        org_details=OrganizationDetails(name=ORGANIZATION),
        user_details=UserDetails(email=call.caller.email or call.owner),
    )
    return reply(ApiKeyResponse(key_id=call.caller.key_id, name=name, note=note, details=details))


async def revoke_own_key(call: Call) -> Response:
    """End the key of this call."""
    if call.caller.key_id == FIXED_KEY:
        raise UserError(
            "this key is a setting of the service; only its operator can end it", field="X-API-Key"
        )
    await call.service.keys.revoke(call.caller.key_id, actor=call.owner)
    return reply(Empty())


async def audit_log(call: Call) -> Response:
    """Who did what on one day."""
    asked = call.query.owner or call.owner
    if asked != call.owner and not call.caller.admin:
        raise Forbidden("only an admin's key reads what is not its own", field="owner")
    owner = None if asked == EVERYBODY else asked
    return reply(await call.service.audit.of_day(owner, call.query.event_type, call.query.day))


async def usage(call: Call) -> Response:
    """What was used, by hour."""
    return reply(await call.service.billing.events(call.owner, call.query))


async def storage(call: Call) -> Response:
    """What is kept now."""
    return reply(await call.service.billing.stored_now(call.owner, call.query.project_id))
