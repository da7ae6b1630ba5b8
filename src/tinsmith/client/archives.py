"""Where a checkpoint's archive is, as a redirection or (from services in between) as JSON tells it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from tinsmith.types.checkpoint import CheckpointArchiveUrlResponse
from tinsmith.wire import json as wire_json

from .errors import APIResponseValidationError
from .transport import Response

_UNSAID = timedelta(minutes=15)


def archive_address(answer: Response) -> CheckpointArchiveUrlResponse:
    """The address and until when it is good."""
    if answer.status_code in (301, 302, 303, 307, 308) and "location" in answer.headers:
        return CheckpointArchiveUrlResponse(
            url=answer.headers["location"], expires=_expiry(answer.headers.get("expires"))
        )
    if answer.status_code == 200 and answer.content_type == wire_json.CONTENT_TYPE:
        return wire_json.parse_model(CheckpointArchiveUrlResponse, wire_json.loads(answer.body))
    raise APIResponseValidationError(
        answer, None, f"a redirection to the archive was expected, not {answer.status_code}"
    )


def _expiry(said: str | None) -> datetime:
    try:
        when = parsedate_to_datetime(said or "")
    except ValueError:
        return datetime.now(UTC) + _UNSAID
    return when if when.tzinfo else when.replace(tzinfo=UTC)
