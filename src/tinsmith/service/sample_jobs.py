"""A sample as it was asked for, made into a job for the engine."""

from __future__ import annotations

import secrets

from tinsmith.types import SampleJob, SampleRequest, UserError
from tinsmith.wire import json

from . import ids

_MAX_SEED = 2**63 - 1
_MOST_SEQUENCES = 4096  # more are refused by the engine, through the future


def with_seed(request: SampleRequest) -> SampleRequest:
    """A seed chosen once and journalled, so that a sample repeated after a restart is the same sample."""
    if request.sampling_params.seed is not None:
        return request
    params = request.sampling_params.model_copy(update={"seed": secrets.randbits(62)})
    return request.model_copy(update={"sampling_params": params})


def job_of(request: SampleRequest, request_id: str) -> SampleJob:
    """The job, or a refusal that names the field."""
    target = request.target_prompt_logprobs
    seed = request.sampling_params.seed
    if seed is None or not 0 <= seed <= _MAX_SEED:
        raise UserError(f"{seed} is not between 0 and {_MAX_SEED}", field="sampling_params.seed")
    return SampleJob(
        prompt=json.model_input_from_json(request.prompt, "prompt"),
        params=request.sampling_params,
        num_samples=request.num_samples,
        prompt_logprobs=bool(request.prompt_logprobs),
        topk_prompt_logprobs=request.topk_prompt_logprobs,
        topk_sample_logprobs=request.topk_sample_logprobs,
        target_prompt_logprobs=None
        if target is None
        else json.tensor_from_json(target, "target_prompt_logprobs"),
        prompt_alt_tokens_k=request.prompt_alt_tokens_k,
        prompt_logprobs_last_n=request.prompt_logprobs_last_n,
        seed=seed,
        sequence_ids=sequence_ids(request, request_id),
    )


def sequence_ids(request: SampleRequest, request_id: str) -> list[str]:
    """One id for each sequence to come."""
    return ids.sequence_ids(request_id, min(max(request.num_samples, 0), _MOST_SEQUENCES))
