"""Text to tokens and back, with a model's own tokenizer."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tinsmith.types import UserError


class Texts:
    """One model's tokenizer, as completions need it."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)

    def encode(self, text: str) -> list[int]:
        """Text as it stands, with what the model's tokenizer puts before it."""
        tokens: list[int] = self._tokenizer.encode(text)
        return tokens

    def conversation(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """The conversation in the model's chat format, up to where the assistant speaks."""
        from jinja2 import TemplateError

        if not self._tokenizer.chat_template:
            raise UserError("this model has no chat format; use completions", field="model")
        try:
            text = self._tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True
            )
        except TemplateError as error:  # the template's own refusal, such as of a second system message
            raise UserError(
                f"this model's chat format does not take them: {error}", field="messages"
            ) from error
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of an answer."""
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=True)
        return text

    def piece(self, token: int) -> str:
        """One token, whatever it is."""
        text: str = self._tokenizer.decode([token])
        return text


texts_of = functools.lru_cache(maxsize=16)(Texts)  # by folder; models are few
