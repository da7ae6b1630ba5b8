"""What clients of a model do with its tokenizer: text to tokens and back, conversations to examples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .conversation import Message, datum_from_messages, prompt_from_messages

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from tinsmith.types import Datum, ModelInput


class Tokenized(ABC):
    """A client of a model that has a tokenizer. Each of these blocks while the tokenizer loads, once."""

    @abstractmethod
    def get_tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's tokenizer, loaded with transformers."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Text as token ids."""
        tokenizer: Any = self.get_tokenizer()
        tokens: list[int] = tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return tokens

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Token ids as text."""
        tokenizer: Any = self.get_tokenizer()
        text: str = tokenizer.decode(list(tokens), skip_special_tokens=skip_special_tokens)
        return text

    def prompt_from_messages(self, messages: Sequence[Message]) -> ModelInput:
        """A conversation, in the model's chat template, up to where the assistant speaks."""
        return prompt_from_messages(self.get_tokenizer(), messages)

    def datum_from_messages(self, messages: Sequence[Message], *, last_turn_only: bool = False) -> Datum:
        """A conversation to learn from: only the assistant's tokens count in the loss."""
        return datum_from_messages(self.get_tokenizer(), messages, last_turn_only=last_turn_only)
