"""Completions as OpenAI's clients ask for them. What cannot be honoured has no field, or one value only."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from .base import Reply, Request

_Zero = Annotated[float, Field(ge=0, le=0)]


class _Asked(Request):
    """What both kinds of completion take. ``model``: a base model, or the tinker:// path of saved weights."""

    model: str
    n: int = Field(1, ge=1, le=128)
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1  # ours: not in OpenAI's
    seed: int | None = None
    stop: str | list[str] | None = None
    # Accepted at the value that changes nothing, since clients write it.
    stream: Literal[False] = False
    frequency_penalty: _Zero = 0.0
    presence_penalty: _Zero = 0.0
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] = {}
    user: str | None = None  # for the caller's own books


class CompletionRequest(_Asked):
    """Continue text, or token ids; one prompt or several."""

    prompt: str | list[str] | list[int] | list[list[int]]
    max_tokens: int = 16
    logprobs: int | None = Field(None, ge=0)
    echo: Literal[False] = False
    best_of: Annotated[int, Field(ge=1, le=1)] = 1
    suffix: Literal[""] = ""

    def prompts(self) -> list[str] | list[list[int]]:
        """One by one."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        first = self.prompt[0] if self.prompt else ""
        return [self.prompt] if isinstance(first, int) else self.prompt  # type: ignore[return-value]


class ContentPart(Request):
    """A piece of a message; text is all a text model reads."""

    type: Literal["text"]
    text: str


def _text_alone(content: Any) -> Any:
    for at, part in enumerate(content if isinstance(content, list) else ()):
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind != "text":
            raise ValueError(f"part {at} is {kind!r}; this service reads text alone")
    return content


class ChatMessage(Request):
    """What somebody said."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str | list[ContentPart], BeforeValidator(_text_alone)]

    @property
    def text(self) -> str:
        """All of it."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class ChatCompletionRequest(_Asked):
    """Answer a conversation, in the model's own chat format."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0)


class Usage(Reply):
    """Tokens read and written."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionReply(Reply):
    """The answers, as OpenAI's clients read them."""

    id: str
    object: Literal["text_completion", "chat.completion"]
    created: int
    model: str
    choices: list[dict[str, Any]]
    usage: Usage


class ModelCard(Reply):
    """A base model on offer."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "tinsmith"


class ModelsReply(Reply):
    """The base models on offer."""

    object: Literal["list"] = "list"
    data: list[ModelCard]
