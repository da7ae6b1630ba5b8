"""Base classes of the control types: one rule for nulls, one for unknown fields."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, model_validator


class Params(BaseModel):
    """Numbers a user chooses. Nothing unknown, no NaN, and a null is not a default.

    A NaN written as JSON arrives as null, so "null means default" would turn a caller's mistake into
    a silent choice of ours.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())


class Request(BaseModel):
    """What a client sends. Missing field = null = default; an unknown field with a value is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _null_is_missing(cls, fields: Any) -> Any:
        if isinstance(fields, dict):
            return {name: value for name, value in fields.items() if value is not None}
        return fields


class Reply(BaseModel):
    """What a service answers. Unknown fields are ignored: a newer service may say more."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())


def _not_a_number(value: Any) -> Any:
    """Seconds since the epoch would be guesswork: whose seconds, or milliseconds?"""
    if isinstance(value, (int, float)) or (isinstance(value, str) and value.lstrip("-").isdecimal()):
        raise ValueError("write it like 2026-01-31, a time like 2026-01-31T12:00:00Z")
    return value


Day = Annotated[date, BeforeValidator(_not_a_number)]
Moment = Annotated[AwareDatetime, BeforeValidator(_not_a_number)]
