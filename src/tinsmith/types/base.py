"""Base classes of the control types: one rule for nulls, one for unknown fields."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


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
