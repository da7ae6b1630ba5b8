"""Conversations to training examples, in the model's own chat template: only the assistant's tokens count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tinsmith.types import Datum, ModelInput

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = Mapping[str, Any]  # {"role": "system" | "user" | "assistant" | ..., "content": ...}


def datum_from_messages(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], *, last_turn_only: bool = False
) -> Datum:
    """A conversation as a `Datum` for ``cross_entropy``.

    Weight 1 for what the assistant says in each of its turns, up to and with its end-of-turn token; 0 for
    everything else. ``last_turn_only`` trains the last turn alone, as for a conversation whose earlier turns
    are not to be learnt, or whose template writes earlier turns differently from the last one.

    >>> talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    >>> datum = datum_from_messages(tokenizer, talk)
    >>> tokenizer.decode([t for t, w in zip(
    ...     datum.loss_fn_inputs["target_tokens"].tolist(), datum.loss_fn_inputs["weights"].tolist()
    ... ) if w])
    'Hello<|im_end|>'
    """
    turns = [at for at, message in enumerate(messages) if message.get("role") == "assistant"]
    if not turns:
        raise ValueError("messages: there is no message with role 'assistant' to learn from")
    if last_turn_only:
        turns = turns[-1:]
    tokens = _rendered(tokenizer, messages[: turns[-1] + 1], asks=False)
    weights = [0.0] * len(tokens)
    for turn in turns:
        begin = len(_prefix(tokenizer, tokens, messages[:turn], turn, asks=True))
        end = len(_prefix(tokenizer, tokens, messages[: turn + 1], turn, asks=False))
        spoken = tokens[begin:end]
        weights[begin : begin + _length(tokenizer, spoken)] = [1.0] * _length(tokenizer, spoken)
    if len(tokens) < 2 or not any(weights[1:]):
        raise ValueError("messages: the assistant says nothing")
    last = max(at for at, weight in enumerate(weights) if weight)
    tokens, weights = tokens[: last + 1], weights[: last + 1]
    return Datum(ModelInput.from_ints(tokens[:-1]), {"target_tokens": tokens[1:], "weights": weights[1:]})


def prompt_from_messages(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> ModelInput:
    """A conversation so far, up to where the assistant speaks.

    >>> prompt = prompt_from_messages(tokenizer, [{"role": "user", "content": "Hi"}])
    >>> tokenizer.decode(prompt.to_ints())
    '<|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n'
    """
    return ModelInput.from_ints(_rendered(tokenizer, messages, asks=True))


def _rendered(tokenizer: Any, messages: Sequence[Message], *, asks: bool) -> list[int]:
    if getattr(tokenizer, "chat_template", None) is None:
        raise ValueError(
            "tokenizer: has no chat template; write the tokens yourself, or set its chat_template"
        )
    if not messages:
        return []
    text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=asks)
    tokens: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return tokens


def _prefix(
    tokenizer: Any, tokens: list[int], messages: Sequence[Message], turn: int, *, asks: bool
) -> list[int]:
    """The tokens of the beginning of a conversation, which must be the beginning of its tokens."""
    prefix = _rendered(tokenizer, messages, asks=asks)
    if tokens[: len(prefix)] != prefix:
        raise ValueError(
            f"messages[{turn}]: this chat template writes the turn differently once more turns follow, or "
            "its tokens run into those before; make a datum of each turn, with last_turn_only=True"
        )
    return prefix


def _length(tokenizer: Any, spoken: list[int]) -> int:
    """Up to the token that ends the turn: what the template writes after it, the model never says."""
    ends = [at for at, token in enumerate(spoken) if token == tokenizer.eos_token_id]
    return ends[-1] + 1 if ends else len(spoken)
