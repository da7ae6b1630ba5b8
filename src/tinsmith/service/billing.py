"""Usage as its owner sees it: by hour, session, base model and kind, with costs where there are prices."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Row

from tinsmith.store import Database, schema
from tinsmith.types.account import (
    BillingUsageResponse,
    CheckpointStorageItem,
    CheckpointStorageResponse,
    CheckpointUsage,
    PrefillUsage,
    SampleUsage,
    StorageUsage,
    TrainingUsage,
    UsageEvent,
    UsageInfo,
    UsageSession,
)
from tinsmith.types.queries import UsageQuery

from .prices import HOURS_PER_MONTH, cost, rate
from .sessions import DEFAULT_PROJECT, metadata_as_text
from .settings import Settings
from .usage import HOUR, Usage

_GIGABYTE = 1e9
_tokens, _storage, _sessions = schema.usage, schema.storage, schema.sessions

# A counted kind of token -> what an event says about it.
_TOKEN_EVENTS: dict[str, Callable[[int], UsageInfo]] = {
    "training": lambda count: TrainingUsage(token_count=count),
    "prefill": lambda count: PrefillUsage(cached=False, token_count=count),
    "prefill_cached": lambda count: PrefillUsage(cached=True, token_count=count),
    "sample": lambda count: SampleUsage(token_count=count),
}


class Billing:
    """Accounts for what an owner used."""

    def __init__(self, database: Database, usage: Usage, settings: Settings) -> None:
        self._database = database
        self._usage = usage
        self._settings = settings

    async def events(self, owner: str, window: UsageQuery) -> BillingUsageResponse:
        """Everything used within the window, by hour and then by tokens."""
        await self._usage.flush()
        start, end = window.starting_on.timestamp(), window.ending_before.timestamp()

        def query(connection: Connection) -> BillingUsageResponse:
            sessions = _sessions_of(connection, owner)
            events = [
                *self._token_events(connection, owner, start, end, sessions),
                *self._storage_events(connection, owner, start, end, sessions),
            ]
            events.sort(key=lambda event: (event.bucket_start, -getattr(event.event_info, "token_count", 0)))
            used = {event.session_id for event in events} & sessions.keys()
            said = {key: UsageSession(user_metadata=metadata_as_text(sessions[key])) for key in used if key}
            return BillingUsageResponse(data=events, sessions=said)

        return await self._database.read(query)

    def _token_events(
        self, connection: Connection, owner: str, start: float, end: float, sessions: dict[str, Row[Any]]
    ) -> Iterator[UsageEvent]:
        query = sa.select(_tokens).where(
            _tokens.c.owner == owner, _tokens.c.hour >= start, _tokens.c.hour < end
        )
        for row in connection.execute(query):
            price = rate(self._settings.prices, row.base_model, row.kind)
            yield UsageEvent(
                **_envelope(row.hour, owner, row.session_id, row.base_model, sessions),
                event_info=_TOKEN_EVENTS[row.kind](row.tokens),
                effective_rate_usd_per_million_tokens=price,
                estimated_cost_usd=cost(price, row.tokens / 1e6),
            )

    def _storage_events(
        self, connection: Connection, owner: str, start: float, end: float, sessions: dict[str, Row[Any]]
    ) -> Iterator[UsageEvent]:
        query = sa.select(_storage).where(
            _storage.c.owner == owner,
            _storage.c.since < end,
            sa.or_(_storage.c.until.is_(None), _storage.c.until > start),
        )
        rows = connection.execute(query).all()
        price = self._settings.price_gigabyte_month
        for (hour, session_id, base_model), byte_seconds in _kept(rows, start, end).items():
            gigabyte_hours = byte_seconds / _GIGABYTE / HOUR
            yield UsageEvent(
                **_envelope(hour, owner, session_id, base_model, sessions),
                event_info=StorageUsage(gigabyte_hours=gigabyte_hours),
                effective_rate_usd_per_gigabyte_month=price,
                estimated_cost_usd=cost(price, gigabyte_hours / HOURS_PER_MONTH),
            )
        for (hour, session_id, base_model), count in _saved(rows, start, end).items():
            yield UsageEvent(
                **_envelope(hour, owner, session_id, base_model, sessions),
                event_info=CheckpointUsage(count=count),
            )

    async def stored_now(self, owner: str, project_id: str | None) -> CheckpointStorageResponse:
        """What the owner keeps now, by project."""
        price = self._settings.price_gigabyte_month
        project = sa.func.coalesce(_sessions.c.project_id, DEFAULT_PROJECT).label("project_id")
        query = (
            sa.select(
                project, sa.func.count().label("count"), sa.func.sum(_storage.c.size_bytes).label("size")
            )
            .select_from(_storage)
            .join(_sessions, _sessions.c.session_id == _storage.c.session_id, isouter=True)
            .where(_storage.c.owner == owner, _storage.c.until.is_(None))
            .group_by(project)
            .order_by(project)
        )
        if project_id is not None:
            query = query.where(project == project_id)
        rows = await self._database.read(lambda connection: connection.execute(query).all())
        items = [
            CheckpointStorageItem(
                project_id=row.project_id,
                org_user_urn=owner,
                user_name=owner,
                checkpoint_count=row[1],
                size_bytes=row.size,
                size_gigabytes=row.size / _GIGABYTE,
                estimated_monthly_cost_usd=cost(price, row.size / _GIGABYTE),
            )
            for row in rows
        ]
        return CheckpointStorageResponse(effective_rate_usd_per_gigabyte_month=price, data=items)


def _sessions_of(connection: Connection, owner: str) -> dict[str, Row[Any]]:
    query = sa.select(_sessions).where(_sessions.c.owner == owner)
    return {row.session_id: row for row in connection.execute(query)}


def _envelope(
    hour: int, owner: str, session_id: str, base_model: str, sessions: dict[str, Row[Any]]
) -> dict[str, Any]:
    start = datetime.fromtimestamp(hour, UTC)
    session = sessions.get(session_id)
    return {
        "bucket_start": start,
        "bucket_end": start + timedelta(hours=1),
        "base_model": base_model,
        "user_id": owner,
        "user_name": owner,
        "session_id": None if session is None else session_id,
        "project_id": None if session is None else session.project_id or DEFAULT_PROJECT,
    }


def _kept(rows: Iterable[Row[Any]], start: float, end: float) -> dict[tuple[int, str, str], float]:
    """Bytes times seconds of every hour, session and base model within the window."""
    kept: dict[tuple[int, str, str], float] = defaultdict(float)
    now = time.time()
    for row in rows:
        since, until = max(row.since, start), min(row.until or now, end)
        hour = int(since) // HOUR * HOUR
        while hour < until:
            seconds = min(until, hour + HOUR) - max(since, hour)
            kept[hour, row.session_id, row.base_model] += row.size_bytes * seconds
            hour += HOUR
    return kept


def _saved(rows: Iterable[Row[Any]], start: float, end: float) -> dict[tuple[int, str, str], int]:
    """Checkpoints saved in every hour, by session and base model."""
    saved: dict[tuple[int, str, str], int] = defaultdict(int)
    for row in rows:
        if start <= row.since < end:
            saved[int(row.since) // HOUR * HOUR, row.session_id, row.base_model] += 1
    return saved
