"""A sample as a request and as a response: written, checked, completed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tinsmith.types import EncodedTextChunk, ModelInput, SampleJob, SampleResponse, SamplingParams
from tinsmith.types.validation import check_sample_job, check_sampling_params
from tinsmith.wire import json as wire_json

from .clock import Clock
from .errors import APIConnectionError, TinkerError

_ANY = 2**31 - 1  # what only the service knows: the vocabulary, the context length


def encode(job: SampleJob, sampler_id: str, seq_id: int, record_stability_info: bool) -> bytes:
    """The body of a request."""
    optional: dict[str, Any] = {"prompt_logprobs_last_n": job.prompt_logprobs_last_n}
    if job.target_prompt_logprobs is not None:
        optional["target_prompt_logprobs"] = wire_json.tensor_to_json(job.target_prompt_logprobs)
    return wire_json.dumps(
        {
            "num_samples": job.num_samples,
            "prompt": wire_json.model_input_to_json(job.prompt),
            "sampling_params": job.params.model_dump(mode="json", exclude_none=True),
            "sampling_session_id": sampler_id,
            "seq_id": seq_id,
            "prompt_logprobs": job.prompt_logprobs,
            "topk_prompt_logprobs": job.topk_prompt_logprobs,
            "topk_sample_logprobs": job.topk_sample_logprobs,
            "prompt_alt_tokens_k": job.prompt_alt_tokens_k,
            "record_stability_info": record_stability_info,
            "type": "sample",
            **{key: value for key, value in optional.items() if value is not None},
        }
    )


def check(job: SampleJob) -> None:
    """Refuse a job before it is sent."""
    if not isinstance(job.prompt, ModelInput):
        raise TypeError(f"prompt: a ModelInput is needed, not {type(job.prompt).__name__}")
    if not isinstance(job.params, SamplingParams):
        raise TypeError(f"sampling_params: SamplingParams is needed, not {type(job.params).__name__}")
    if all(isinstance(chunk, EncodedTextChunk) for chunk in job.prompt.chunks):
        check_sample_job(job, vocab_size=_ANY, max_context_length=_ANY)
    else:
        check_sampling_params(job.params, vocab_size=_ANY)


def with_ids(response: SampleResponse, ids: list[str] | None) -> SampleResponse:
    """The response with its sequences' ids, which only the submit's answer has."""
    if ids is None or len(ids) != len(response.sequences):
        return response
    named = [
        replace(sequence, sequence_id=name) for sequence, name in zip(response.sequences, ids, strict=True)
    ]
    return replace(response, sequences=named)


def checked(job: SampleJob, response: SampleResponse) -> SampleResponse:
    """What was asked for and not given would otherwise be missed much later."""
    more = job.prompt.length > 1  # a single token has nothing before it
    asked = {
        "prompt_logprobs": (job.prompt_logprobs, response.prompt_logprobs_np),
        "topk_prompt_logprobs": (job.topk_prompt_logprobs and more, response.topk_prompt_logprobs_np),
        "target_prompt_logprobs": (job.target_prompt_logprobs is not None, response.target_prompt_logprobs),
        "prompt_alt_tokens": (job.prompt_alt_tokens_k and more, response.prompt_alt_tokens),
    }
    for name, (wanted, given) in asked.items():
        if wanted and given is None:
            raise TinkerError(f"{name} was asked for, but this service did not return it")
    return response


class Progress:
    """Notices that nothing comes back any more: no sample of this client ended for a long time."""

    def __init__(self, timeout: float, clock: Clock) -> None:
        self._timeout = timeout
        self._clock = clock
        self._running = 0
        self._last = clock.now()

    def began(self) -> None:
        """A sample starts."""
        if not self._running:
            self._last = self._clock.now()
        self._running += 1

    def ended(self) -> None:
        """A sample ended, one way or the other."""
        self._running -= 1
        self._last = self._clock.now()

    def check(self) -> None:
        """Raise if it has been too long."""
        quiet = self._clock.now() - self._last
        if quiet > self._timeout:
            raise APIConnectionError(
                message=f"no sample of this client has ended for {quiet:.0f} s; it seems stuck"
            )
