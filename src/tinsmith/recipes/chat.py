"""Conversations to training examples, with the model's own chat template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tinsmith

Message = dict[str, str]  # {"role": "user" | "assistant" | "system", "content": ...}


def prompt_tokens(tokenizer: Any, messages: Sequence[Message]) -> list[int]:
    """The conversation so far, up to where the assistant speaks."""
    text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
    tokens: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return tokens


def datum(tokenizer: Any, question: str, answer: str, system: str | None = None) -> tinsmith.Datum:
    """One question and answer; only the answer's tokens and its end of turn count in the loss."""
    messages = [{"role": "system", "content": system}] if system else []
    prompt = prompt_tokens(tokenizer, [*messages, {"role": "user", "content": question}])
    reply = [*tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id]
    tokens = prompt + reply
    return tinsmith.Datum(
        model_input=tinsmith.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": tokens[1:],
            "weights": [0.0] * (len(prompt) - 1) + [1.0] * len(reply),
        },
    )
