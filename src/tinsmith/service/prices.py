"""What usage costs, where the operator has set prices."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field

HOURS_PER_MONTH = 720  # of the unit gigabyte-month
ANY_MODEL = "*"


class Price(BaseModel):
    """US dollars per million tokens; a kind without a price has no cost."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    training: float | None = Field(None, ge=0)
    prefill: float | None = Field(None, ge=0)
    prefill_cached: float | None = Field(None, ge=0)
    sample: float | None = Field(None, ge=0)


def rate(prices: Mapping[str, Price], base_model: str, kind: str) -> float | None:
    """The price of one kind of token of one model."""
    price = prices.get(base_model) or prices.get(ANY_MODEL)
    return None if price is None else getattr(price, kind)


def cost(rate_per_unit: float | None, units: float) -> float | None:
    """What this many units cost, if they have a price."""
    return None if rate_per_unit is None else rate_per_unit * units
