"""AdminClient: the account's books: who did what, what was used, what is kept."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, date, datetime
from typing import Literal, TypeVar

from tinsmith.types.account import AuditLogResponse, BillingUsageResponse, CheckpointStorageResponse

from .api import Api
from .config import ClientConfig
from .connection import Connection
from .futures import APIFuture, spawn
from .telemetry import Telemetry

_T = TypeVar("_T")
AuditEvents = Literal["all", "checkpoints", "projects", "teams", "organizations", "sessions", "training_runs"]


class AdminClient:
    """The account's audit log and bills. Opens no session.

    >>> storage = AdminClient().get_current_checkpoint_storage_usage().result()
    >>> all(item.checkpoint_count > 0 for item in storage.data)
    True
    """

    def __init__(
        self,
        _holder: Connection | None = None,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
    ) -> None:
        self._connection = _holder or Connection(ClientConfig.resolve(base_url=base_url, api_key=api_key))
        self._telemetry = Telemetry(self._connection.config.telemetry)

    def _ask(self, question: Callable[[Api], Awaitable[_T]]) -> APIFuture[_T]:
        connection = self._connection
        connection.check()

        async def work() -> _T:
            return await question(await connection.api())

        return spawn(work(), "rest")

    def get_audit_log(
        self, event_type: AuditEvents = "all", day: date | None = None
    ) -> APIFuture[AuditLogResponse]:
        """Who did what on one day (UTC; today)."""
        query = {"event_type": event_type, "day": day.isoformat() if day is not None else None}
        return self._ask(lambda api: api.audit_log(query))

    async def get_audit_log_async(
        self, event_type: AuditEvents = "all", day: date | None = None
    ) -> AuditLogResponse:
        """`get_audit_log`, awaited."""
        return await self.get_audit_log(event_type, day)

    def get_billing_usage(
        self, starting_on: datetime | str, ending_before: datetime | str
    ) -> APIFuture[BillingUsageResponse]:
        """What was used by the hour, and its cost where prices are set: whole hours, at most 14 days."""
        query = {
            "starting_on": _moment("starting_on", starting_on),
            "ending_before": _moment("ending_before", ending_before),
        }
        return self._ask(lambda api: api.usage(query))

    async def get_billing_usage_async(
        self, starting_on: datetime | str, ending_before: datetime | str
    ) -> BillingUsageResponse:
        """`get_billing_usage`, awaited."""
        return await self.get_billing_usage(starting_on, ending_before)

    def get_current_checkpoint_storage_usage(
        self, project_id: str | None = None
    ) -> APIFuture[CheckpointStorageResponse]:
        """What is kept now, of all projects or of one."""
        return self._ask(lambda api: api.storage({"project_id": project_id}))

    async def get_current_checkpoint_storage_usage_async(
        self, project_id: str | None = None
    ) -> CheckpointStorageResponse:
        """`get_current_checkpoint_storage_usage`, awaited."""
        return await self.get_current_checkpoint_storage_usage(project_id)

    def get_telemetry(self) -> Telemetry:
        """Telemetry of a client without a session: what is logged here is kept and never sent."""
        return self._telemetry


def _moment(name: str, value: datetime | str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, datetime):
        raise TypeError(f"{name}: a datetime or its text is needed, not {type(value).__name__}")
    if value.tzinfo is None:
        raise ValueError(f"{name}: {value} has no time zone; use datetime(..., tzinfo=UTC)")
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
