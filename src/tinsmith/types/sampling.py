"""What a sampler is asked and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .base import Params
from .model_input import ModelInput
from .tensor import TensorData

StopReason = Literal["length", "stop"]
FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int32]

TOPK_EMPTY_LOGPROB = -99999.0  # marks an unused cell of a top-k table; its token id is 0


class SamplingParams(Params):
    """How to sample. An unknown argument is an error, never ignored.

    ``stop``: strings, token ids, None for the model's own end-of-sequence tokens, or [] for no stop at all.

    >>> SamplingParams(max_tokens=16, temperature=0.7, stop=["\\n"]).top_p
    1.0
    >>> SamplingParams(max_token=16)
    Traceback (most recent call last):
    pydantic_core._pydantic_core.ValidationError: ...
    """

    max_tokens: int | None = None
    seed: int | None = None
    stop: str | list[str] | list[int] | None = None
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class TopkLogprobs:
    """The k most likely tokens at each of ``length`` positions."""

    token_ids: IntArray  # [length, k]
    logprobs: FloatArray  # [length, k]

    def tolist(self) -> list[list[tuple[int, float]] | None]:
        """Per position (token id, logprob) pairs, most likely first; None where nothing is known."""
        rows: list[list[tuple[int, float]] | None] = []
        for ids, logprobs in zip(self.token_ids.tolist(), self.logprobs.tolist(), strict=True):
            row = [
                (token, logprob)
                for token, logprob in zip(ids, logprobs, strict=True)
                if not (token == 0 and logprob <= TOPK_EMPTY_LOGPROB)
            ]
            rows.append(row or None)
        return rows


@dataclass(frozen=True, slots=True, eq=False)
class PromptAltTokens:
    """For each prompt position after the first, k tokens drawn there at the request's temperature, each
    independently of the others; and the model's logprob of each.
    """

    tokens: TensorData
    logprobs: TensorData


@dataclass(frozen=True, slots=True, eq=False)
class SampledSequence:
    """One sampled continuation; the stop token is part of ``tokens``.

    >>> [sequence] = sampler.sample(PROMPT, 1, SamplingParams(max_tokens=3, stop=[])).result().sequences
    >>> len(sequence.tokens), len(sequence.logprobs), sequence.stop_reason
    (3, 3, 'length')
    """

    stop_reason: StopReason
    tokens_np: IntArray
    logprobs_np: FloatArray | None = None
    topk_logprobs_np: TopkLogprobs | None = None
    sequence_id: str | None = None

    @property
    def tokens(self) -> list[int]:
        """The sampled token ids."""
        tokens: list[int] = self.tokens_np.tolist()
        return tokens

    @property
    def logprobs(self) -> list[float] | None:
        """Log-probability of each token under the distribution it was drawn from."""
        return None if self.logprobs_np is None else self.logprobs_np.tolist()

    @property
    def topk_logprobs(self) -> list[list[tuple[int, float]] | None] | None:
        """The most likely tokens at each position, if asked for."""
        return None if self.topk_logprobs_np is None else self.topk_logprobs_np.tolist()


@dataclass(frozen=True, slots=True, eq=False)
class SampleResponse:
    """The answer to one sample request.

    >>> response = sampler.sample(PROMPT, 2, SamplingParams(max_tokens=3, stop=[])).result()
    >>> [len(sequence.tokens) for sequence in response.sequences]
    [3, 3]
    """

    sequences: list[SampledSequence]
    prompt_logprobs_np: FloatArray | None = None  # NaN where unknown, as at the first position
    topk_prompt_logprobs_np: TopkLogprobs | None = None
    target_prompt_logprobs: TensorData | None = None
    prompt_alt_tokens: PromptAltTokens | None = None
    prompt_cache_hit_tokens: int = 0
    type: Literal["sample"] = "sample"

    @property
    def prompt_logprobs(self) -> list[float | None] | None:
        """Log-probability of each prompt token given those before it; None where unknown."""
        return None if self.prompt_logprobs_np is None else none_for_nan(self.prompt_logprobs_np)

    @property
    def topk_prompt_logprobs(self) -> list[list[tuple[int, float]] | None] | None:
        """The most likely tokens at each prompt position, if asked for."""
        return None if self.topk_prompt_logprobs_np is None else self.topk_prompt_logprobs_np.tolist()


@dataclass(frozen=True, slots=True, eq=False)
class SequenceDelta:
    """Tokens that one sequence of a sample gained; ``stop_reason`` is set where these are its last."""

    index: int  # which of the request's sequences
    tokens_np: IntArray
    logprobs_np: FloatArray
    stop_reason: StopReason | None = None


@dataclass(frozen=True, slots=True, eq=False)
class SampleDelta:
    """What a sample gained since the delta before: at most one entry for each sequence.

    The last delta alone has the ``response``, whose sequences are the deltas' tokens end to end.
    """

    sequences: list[SequenceDelta]
    response: SampleResponse | None = None


def none_for_nan(values: FloatArray) -> list[float | None]:
    """A list with None where the array holds NaN."""
    return [None if value != value else value for value in values.tolist()]


@dataclass(frozen=True, slots=True)
class SampleJob:
    """One sample request as the engine sees it: nothing of HTTP, ids or sessions."""

    prompt: ModelInput
    params: SamplingParams
    num_samples: int = 1
    prompt_logprobs: bool = False
    topk_prompt_logprobs: int = 0
    topk_sample_logprobs: int = 0
    target_prompt_logprobs: TensorData | None = None
    prompt_alt_tokens_k: int = 0
    prompt_logprobs_last_n: int | None = None
    seed: int = 0  # always set: chosen by the service where the caller gave none
    sequence_ids: Sequence[str] = field(default_factory=tuple)


def as_stop_list(stop: str | list[str] | list[int] | None) -> list[Any] | None:
    """``stop`` with a lone string made a list; None stays None (the model's own end tokens)."""
    return [stop] if isinstance(stop, str) else stop
