"""A streamed sample as server-sent events: tokens as they come, then the end or a failure."""

from __future__ import annotations

import numpy as np

from tinsmith.types import SequenceDelta, UserError

from . import json, sse

DONE = sse.Event("{}", "done")


def tokens_event(delta: SequenceDelta) -> sse.Event:
    """What one sequence gained.

    >>> gained = SequenceDelta(0, np.array([7], np.int32), np.array([-0.5], np.float32), "stop")
    >>> tokens_event(gained).data
    '{"sequence":0,"tokens":[7],"logprobs":[-0.5],"stop_reason":"stop"}'
    """
    value = {
        "sequence": delta.index,
        "tokens": delta.tokens_np.tolist(),
        "logprobs": delta.logprobs_np.tolist(),
        "stop_reason": delta.stop_reason,
    }
    return sse.Event(json.dumps(value).decode(), "tokens")


def tokens_of(event: sse.Event) -> SequenceDelta:
    """The way back; a `UserError` names what cannot be read."""
    value = json.loads(event.data.encode())
    if not isinstance(value, dict):
        raise UserError("an object is needed", field="event")
    reason = value.get("stop_reason")
    if reason not in (None, "length", "stop"):
        raise UserError(f"{reason!r} is neither length nor stop", field="stop_reason")
    try:
        tokens = np.array(value["tokens"], np.int32)
        logprobs = np.array([np.nan if at is None else at for at in value["logprobs"]], np.float32)
        index = int(value["sequence"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UserError(f"not what a sequence gained: {error!r}", field="event") from error
    if tokens.ndim != 1 or tokens.shape != logprobs.shape:
        raise UserError("as many as there are tokens are needed", field="logprobs")
    return SequenceDelta(index, tokens, logprobs, reason)


def failure_event(error: str, category: str) -> sse.Event:
    """The sample failed, and whose fault it was."""
    return sse.Event(json.dumps({"error": error, "category": category}).decode(), "error")


def failure_of(event: sse.Event) -> tuple[str, str]:
    """The error and its category, as far as they are told."""
    value = json.loads(event.data.encode())
    fields = value if isinstance(value, dict) else {}
    return str(fields.get("error", "no reason was given")), str(fields.get("category", "unknown"))
