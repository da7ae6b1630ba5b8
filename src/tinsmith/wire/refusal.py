"""Nouns out of wire values: whatever is wrong with them becomes a refusal that names the field."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pydantic import ValidationError

from tinsmith.types import SampledSequence, UserError

_T = TypeVar("_T")


def build(field: str, make: Callable[..., _T], /, **fields: object) -> _T:
    """Make a noun, with the field's place put before what is wrong with it."""
    try:
        return make(**fields)
    except ValidationError as error:
        where, message = first_wrong(error)
        raise UserError(message, field=f"{field}.{where}" if where else field) from error
    except (ValueError, TypeError) as error:
        raise UserError(str(error), field=field) from error


def first_wrong(error: ValidationError) -> tuple[str, str]:
    """The path of the first thing wrong, and what is wrong with it."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return ".".join(str(part) for part in first["loc"]), first["msg"].removeprefix("Value error, ")


def check_sequence(sequence: SampledSequence, field: str) -> None:
    """Refuse a sample with more or fewer logprobs than tokens."""
    logprobs, topk = sequence.logprobs_np, sequence.topk_logprobs_np
    positions = {
        "logprobs": None if logprobs is None else len(logprobs),
        "topk_logprobs": None if topk is None else len(topk.logprobs),
    }
    for name, count in positions.items():
        if count is not None and count != sequence.tokens_np.size:
            raise UserError(
                f"{count} positions for {sequence.tokens_np.size} tokens", field=f"{field}.{name}"
            )
