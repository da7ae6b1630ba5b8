"""Writes docs/retries.md from the client's own table: python tests/client/retries_document.py"""

from __future__ import annotations

from pathlib import Path

from tinsmith.client.gate import SHORTEST_PAUSE
from tinsmith.client.polling import BILLING_PAUSE, HELD, PENDING, TROUBLE
from tinsmith.client.retry import MAX_HINT, TABLE, Delay, Layer

DOCUMENT = Path(__file__).parents[2] / "docs" / "retries.md"

LAYERS = {
    Layer.CALL: "submits of operations, creations, look-ups; a repeated submit is known by its seq id",
    Layer.REST: "one-off changes, and what `RestClient` and `AdminClient` ask",
    Layer.POLL: "waiting for the result of an accepted operation, up to the client's `deadline`",
    Layer.SAMPLE: "submitting a sample, up to `RetryConfig.progress_timeout`",
    Layer.GATE: "the same, when the service asks for a pause: all clients of it with this key wait together",
    Layer.RESAMPLE: "asking for a whole new sample in place of a lost one, five times at most",
    Layer.OPTIONAL: "the same, only with `RetryConfig(retry_failed=True)`, and only for samples",
}

TEMPLATE = """\
# What is tried again

Made from the table in `src/tinsmith/client/retry.py` by `python tests/client/retries_document.py`;
`tests/client/test_client_retry.py` tests it row by row, and that this page says what it says.

| what happened | who tries again | pause | user's mistake | why |
|---|---|---|---|---|
{rows}

`400-empty` is a 400 without a body; `failed-…` are operations that were accepted and then failed, by
category. `error.retryable` is true where anybody at all tries again, or may be asked to. "User's mistake"
decides only how telemetry files an error.

## Who

Exactly one layer retries a given call, with one budget, so attempts never multiply.

{layers}

## How long

* **The hint** is `Retry-After-Ms`, else `Retry-After` in seconds (a float) or as an HTTP date, where it
  lies in (0, {hint:.0f}] seconds. Anything else is no hint.
* **Back-off** is {base} s · 2ⁿ, at most {most:.0f} s, less up to {jitter:.0%} by chance.
* **A poll** that the service held for {held:.0f} s or more is followed by the next at once. After answers
  that come sooner the pause grows from {pending.base} s to {pending.most:.0f} s, after trouble from
  {trouble.base} s to {trouble.most:.0f} s: polling never spins.
* **A 429 on a sample** closes the gate for the hint, at least {shortest:.0f} s.
* **A 402** while a result is waited for: every {billing:.0f} s, as long as the service's setting says.
* `x-should-retry: true` or `false` in an answer goes before the table in the layers call, rest, poll and
  sample, except that a 429 on a sample is always the gate's.
* `max_retries` of `ServiceClient` bounds the number of attempts too; time bounds it always.
"""


def render() -> str:
    """The whole document."""
    default = Delay()
    return TEMPLATE.format(
        rows="\n".join(_row(case) for case in TABLE),
        layers="\n".join(f"* **{layer}**: {LAYERS[layer]}." for layer in Layer),
        hint=MAX_HINT,
        base=default.base,
        most=default.most,
        jitter=default.jitter,
        held=HELD,
        pending=PENDING,
        trouble=TROUBLE,
        shortest=SHORTEST_PAUSE,
        billing=BILLING_PAUSE,
    )


def _row(case: str) -> str:
    rule = TABLE[case]
    who = ", ".join(layer for layer in Layer if layer in rule.retried_by) or "nobody"
    return f"| {case} | {who} | {rule.delay} | {'yes' if rule.user_error else 'no'} | {rule.why} |"


if __name__ == "__main__":
    DOCUMENT.write_text(render())
