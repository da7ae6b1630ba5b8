"""Completions for OpenAI's clients: the service's own samples, under the names those clients use."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from starlette.responses import Response

from tinsmith.service.kinds import KINDS
from tinsmith.types import (
    SampledSequence,
    SampleRequest,
    SampleResponse,
    SamplingParams,
    Unavailable,
    UserError,
)
from tinsmith.types.openai import (
    ChatCompletionRequest,
    CompletionReply,
    CompletionRequest,
    ModelCard,
    ModelsReply,
    Usage,
)

from .call import Call, reply
from .texts import Texts, texts_of

_MOST_PROMPTS = 64
_LOOK = 5.0  # seconds between looks for whether the caller is still there


async def models(call: Call) -> Response:
    """The base models on offer."""
    offered = call.service.base_models.capabilities().supported_models
    return reply(ModelsReply(data=[ModelCard(id=model.model_name) for model in offered if model.model_name]))


async def completions(call: Call) -> Response:
    """Continue one prompt or several."""
    asked: CompletionRequest = call.body
    if not 1 <= len(asked.prompts()) <= _MOST_PROMPTS:
        raise UserError(f"{len(asked.prompts())} prompts; give 1 to {_MOST_PROMPTS}", field="prompt")
    texts = await _texts(call, asked.model)
    prompts = [texts.encode(prompt) if isinstance(prompt, str) else prompt for prompt in asked.prompts()]
    requests = [_request(asked, prompt, asked.max_tokens, asked.logprobs or 0) for prompt in prompts]
    responses = await _samples(call, requests)
    sequences = [sequence for response in responses for sequence in response.sequences]
    choices = [
        _choice(asked, at, sequence, texts)
        | {"logprobs": None if asked.logprobs is None else _flat_logprobs(sequence, texts)}
        for at, sequence in enumerate(sequences)
    ]
    for choice in choices:
        choice["text"] = choice.pop("content")
    return _reply(asked, "text_completion", "cmpl", prompts, sequences, choices)


async def chat_completions(call: Call) -> Response:
    """Answer a conversation."""
    asked: ChatCompletionRequest = call.body
    if asked.max_tokens is not None and asked.max_completion_tokens is not None:
        raise UserError("give either this or max_tokens", field="max_completion_tokens")
    if asked.top_logprobs and not asked.logprobs:
        raise UserError("needs logprobs", field="top_logprobs")
    texts = await _texts(call, asked.model)
    prompt = texts.conversation(
        [{"role": message.role, "content": message.text} for message in asked.messages]
    )
    limit = asked.max_tokens if asked.max_completion_tokens is None else asked.max_completion_tokens
    (response,) = await _samples(call, [_request(asked, prompt, limit, asked.top_logprobs)])
    choices = []
    for at, sequence in enumerate(response.sequences):
        choice = _choice(asked, at, sequence, texts)
        choice["message"] = {"role": "assistant", "content": choice.pop("content")}
        choice["logprobs"] = {"content": _token_logprobs(sequence, texts)} if asked.logprobs else None
        choices.append(choice)
    return _reply(asked, "chat.completion", "chatcmpl", [prompt], response.sequences, choices)


async def _texts(call: Call, model: str) -> Texts:
    """The tokenizer of a base model, or of the one under saved weights."""
    if model.startswith("tinker://"):
        model = (await call.service.checkpoints.find(call.owner, model)).base_model
    base = await call.service.base_models.get(model)
    return await asyncio.to_thread(texts_of, base.folder)


Asked = CompletionRequest | ChatCompletionRequest


def _request(asked: Asked, prompt: Sequence[int], max_tokens: int | None, top_logprobs: int) -> SampleRequest:
    saved = asked.model.startswith("tinker://")
    return SampleRequest(
        prompt={"chunks": [{"tokens": list(prompt)}]},
        sampling_params=SamplingParams(
            max_tokens=max_tokens,
            seed=asked.seed,
            stop=asked.stop or None,
            temperature=asked.temperature,
            top_k=asked.top_k,
            top_p=asked.top_p,
        ),
        num_samples=asked.n,
        base_model=None if saved else asked.model,
        model_path=asked.model if saved else None,
        topk_sample_logprobs=top_logprobs,
    )


async def _samples(call: Call, requests: Sequence[SampleRequest]) -> list[SampleResponse]:
    """All of them, at the same time; none goes on when the caller has left or one of them was refused."""
    begun: list[str] = []
    try:
        for request in requests:
            request_id, _ = await call.accepted(call.service.samplers.submit(call.owner, request))
            begun.append(request_id)
        return [await _answer(call, request_id) for request_id in begun]
    finally:
        for request_id in begun:
            call.service.samplers.cancel(call.owner, request_id)
        await call.service.futures.acknowledge(begun, call.owner)


async def _answer(call: Call, request_id: str) -> SampleResponse:
    while (outcome := await call.service.futures.wait(request_id, call.owner, _LOOK)) is None:
        if await call.http.is_disconnected():
            call.service.samplers.cancel(call.owner, request_id)
    if outcome.error is not None:
        raise UserError(outcome.error) if outcome.category == "user" else Unavailable(outcome.error)
    response: SampleResponse = KINDS["sample"].result.decode(outcome.body)
    return response


def _choice(asked: Asked, at: int, sequence: SampledSequence, texts: Texts) -> dict[str, Any]:
    """Without the stop that ended it, as these clients expect."""
    text = texts.decode(sequence.tokens)
    if sequence.stop_reason == "stop":
        stops = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
        text = text[: min((text.index(stop) for stop in stops if stop in text), default=len(text))]
    return {"index": at, "content": text, "finish_reason": sequence.stop_reason}


def _token_logprobs(sequence: SampledSequence, texts: Texts) -> list[dict[str, Any]]:
    """Every token with its log-probability, the stop's included, and the likeliest in its place."""
    logprobs = sequence.logprobs or []
    tops = sequence.topk_logprobs or [None] * len(logprobs)
    return [
        _logprob(texts, token, logprob) | {"top_logprobs": [_logprob(texts, *one) for one in top or []]}
        for token, logprob, top in zip(sequence.tokens, logprobs, tops, strict=True)
    ]


def _logprob(texts: Texts, token: int, logprob: float) -> dict[str, Any]:
    piece = texts.piece(token)
    return {"token": piece, "logprob": logprob, "bytes": list(piece.encode())}


def _flat_logprobs(sequence: SampledSequence, texts: Texts) -> dict[str, Any]:
    """The older form: one list a property."""
    tokens = _token_logprobs(sequence, texts)
    pieces = [token["token"] for token in tokens]
    return {
        "tokens": pieces,
        "token_logprobs": [token["logprob"] for token in tokens],
        "top_logprobs": [{top["token"]: top["logprob"] for top in token["top_logprobs"]} for token in tokens],
        "text_offset": list(accumulate(map(len, pieces[:-1]), initial=0)) if pieces else [],
    }


def _reply(
    asked: Asked,
    kind: Any,
    prefix: str,
    prompts: Sequence[Sequence[int]],
    sequences: Sequence[SampledSequence],
    choices: list[dict[str, Any]],
) -> Response:
    read, written = sum(map(len, prompts)), sum(len(sequence.tokens) for sequence in sequences)
    usage = Usage(prompt_tokens=read, completion_tokens=written, total_tokens=read + written)
    return reply(
        CompletionReply(
            id=f"{prefix}-{time.time_ns():x}",
            object=kind,
            created=int(time.time()),
            model=asked.model,
            choices=choices,
            usage=usage,
        )
    )
