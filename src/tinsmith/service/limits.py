"""What one owner may have: settings for everybody (TINSMITH_QUOTA_...), which his keys can override."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from tinsmith.types import UserError

Limits = dict[str, int | float]


class Quota(BaseSettings):
    """The limits of one owner, whichever of his keys he uses."""

    model_config = SettingsConfigDict(env_prefix="TINSMITH_QUOTA_", extra="forbid", frozen=True)

    concurrent_samples: int = Field(2048, gt=0, description="samples without an answer, before 429")
    queued_tokens: int = Field(
        2**24, gt=0, description="tokens of batches and samples without an answer, before 429"
    )
    live_runs: int = Field(256, gt=0, description="training runs at a time; further ones wait")
    active_sessions: int = Field(2048, gt=0, description="sessions at a time, before 429")
    stored_bytes: int = Field(100 * 2**30, gt=0, description="bytes of checkpoints and snapshots kept")
    weight: float = Field(1.0, gt=0, le=1000, description="share of the engine's time, against others'")

    def with_limits(self, limits: Mapping[str, int | float]) -> Quota:
        """The same, but for these."""
        return self.model_copy(update=dict(limits))


def parse_limits(pairs: Iterable[str]) -> Limits:
    """Limits as a person writes them, NAME=VALUE each."""
    given: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or name not in Quota.model_fields:
            raise UserError(
                f"{pair!r} is not NAME=VALUE with one of {', '.join(Quota.model_fields)}", field="limit"
            )
        given[name] = value
    try:
        checked = Quota(**given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise UserError(f"{first['loc'][0]}: {first['msg']}", field="limit") from error
    return {name: getattr(checked, name) for name in given}


def highest(limits: Iterable[Limits]) -> Limits:
    """Of several keys' overrides, the most generous of each."""
    merged: Limits = {}
    for one in limits:
        for name, value in one.items():
            merged[name] = max(value, merged.get(name, value))
    return merged
