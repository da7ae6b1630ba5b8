"""The demo's data: sixty questions answered by an old tinsmith, and three he was never asked."""

from __future__ import annotations

import json
from importlib import resources

HELD_OUT = (
    "What is the capital of France?",
    "How do I make a cup of tea?",
    "Why is exercise good for me?",
)


def examples() -> list[tuple[str, str]]:
    """Question and answer pairs."""
    text = (resources.files("tinsmith.recipes") / "data" / "tinsmith.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines() if line]
    return [(row["question"], row["answer"]) for row in rows]
