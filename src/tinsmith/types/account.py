"""What concerns an account: its key, its audit log, what it used and what that costs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from .base import Reply


class AuthTokenResponse(Reply):
    """A short-lived token made from a key."""

    jwt: str


class WhoamiResponse(Reply):
    """Who a key belongs to."""

    user_urn: str
    org_urn: str
    email: str | None = None


class OrganizationDetails(Reply):
    """Where a key belongs."""

    name: str


class UserDetails(Reply):
    """Whose key it is."""

    email: str


class KeyDetails(Reply):
    """Where and to whom a key belongs."""

    org_details: OrganizationDetails
    user_details: UserDetails


class ApiKeyResponse(Reply):
    """The key that was presented, without itself."""

    key_id: int
    name: str
    note: str
    details: KeyDetails


class AuditLogEntry(Reply):
    """One event. The last three are set for checkpoints only."""

    timestamp: datetime
    event: str
    event_details: dict[str, Any] = {}
    model_id: str | None = None
    tinker_path: str | None = None
    purpose: str | None = None


class AuditLogResponse(Reply):
    """The events of one day, oldest first."""

    entries: list[AuditLogEntry]


class TrainingUsage(Reply):
    """Tokens that went through forward or forward_backward."""

    type: Literal["training"] = "training"
    token_count: int


class PrefillUsage(Reply):
    """Prompt tokens; ``cached`` ones were known from an earlier prompt."""

    type: Literal["sampling_prefill"] = "sampling_prefill"
    cached: bool
    token_count: int


class SampleUsage(Reply):
    """Sampled tokens."""

    type: Literal["sampling_sample"] = "sampling_sample"
    token_count: int


class CheckpointUsage(Reply):
    """Checkpoints saved."""

    type: Literal["checkpoint"] = "checkpoint"
    count: int


class StorageUsage(Reply):
    """Checkpoints kept: their size times how long."""

    type: Literal["storage"] = "storage"
    free: bool = False
    gigabyte_hours: float


UsageInfo = Annotated[
    TrainingUsage | PrefillUsage | SampleUsage | CheckpointUsage | StorageUsage, Field(discriminator="type")
]


class UsageEvent(Reply):
    """What one session used of one kind with one base model in one hour."""

    bucket_start: datetime
    bucket_end: datetime
    event_info: UsageInfo
    base_model: str | None = None
    user_id: str | None = None
    user_name: str | None = None
    session_id: str | None = None
    project_id: str | None = None
    estimated_cost_usd: float | None = None
    effective_rate_usd_per_million_tokens: float | None = None
    effective_rate_usd_per_gigabyte_month: float | None = None


class UsageSession(Reply):
    """What a session's client said about it."""

    user_metadata: dict[str, str] | None = None


class BillingUsageResponse(Reply):
    """Usage by hour, and the sessions it belongs to."""

    data: list[UsageEvent]
    sessions: dict[str, UsageSession] = {}
    cost_data_through: datetime | None = None


class CheckpointStorageItem(Reply):
    """What one user keeps in one project."""

    project_id: str | None = None
    org_user_urn: str | None = None
    user_email: str | None = None
    user_name: str | None = None
    checkpoint_count: int
    size_bytes: int
    size_gigabytes: float
    estimated_monthly_cost_usd: float | None = None


class CheckpointStorageResponse(Reply):
    """What is kept now."""

    effective_rate_usd_per_gigabyte_month: float | None = None
    data: list[CheckpointStorageItem]
