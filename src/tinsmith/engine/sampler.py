"""What is sampled: a base model with a copy of an adapter's weights."""

from __future__ import annotations

from dataclasses import dataclass

from tinsmith.types import SampleJob

from .base import LoadedBase
from .interface import NOBODY_ELSE, BaseModel, Tenant
from .lora import LoraWeights


@dataclass(frozen=True, eq=False)
class Sampler:
    """A base model and a copy of an adapter's weights that nobody else holds; no weights: the bare base."""

    base: LoadedBase
    model: BaseModel
    weights: LoraWeights | None
    tenant: Tenant = NOBODY_ELSE


def tokens_to_cache(sampler: Sampler, job: SampleJob) -> int:
    """The most positions one sample of a job can come to hold in the key-value cache."""
    context = sampler.model.max_context_length
    return min(context, job.prompt.length + (job.params.max_tokens or context))


def length_limit(sampler: Sampler, job: SampleJob) -> int:
    """How many tokens one sample of a job may have."""
    return tokens_to_cache(sampler, job) - job.prompt.length
