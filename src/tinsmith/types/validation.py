"""Whether a request can be honoured: every refusal names its field and says what would be right."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from .custom_loss import CustomLoss, custom_loss_budget
from .datum import Datum
from .errors import UserError
from .losses import MANY_TARGETS, LossSpec, batch_spec, loss_spec
from .model_input import EncodedTextChunk, ModelInput
from .sampling import SampleJob, SamplingParams, as_stop_list
from .tensor import TensorData
from .training import AdamParams, ForwardBackwardInput, LoraConfig

Array = npt.NDArray[Any]

MAX_NUM_SAMPLES = 1024
MAX_TOPK = 1024
MAX_TARGETS = 4096  # candidates at one position
MAX_CELLS = 2**27  # of all tensors of a batch together, made dense
MAX_ANSWER = 2**25  # numbers in the answer to one sample request
MAX_SEED = 2**63 - 1
MIN_TEMPERATURE = 1e-6  # below, logits divided by it leave float32


# -- training -----------------------------------------------------------------------------------------


def check_batch(
    batch: ForwardBackwardInput, *, vocab_size: int, max_context_length: int, backward: bool = True
) -> None:
    """Refuse a forward or forward_backward call that cannot be computed exactly as asked."""
    spec, config = batch_spec(batch), batch_config(batch)
    if not batch.data:
        raise UserError("is empty; give at least one datum", field="data")
    # A client-side custom loss calls `forward` with cross_entropy on datums that carry its own columns.
    foreign_columns = batch.custom_loss is not None or (not backward and batch.loss_fn == "cross_entropy")
    for index, datum in enumerate(batch.data):
        where = f"data[{index}]"
        tokens = text_tokens(datum.model_input, f"{where}.model_input", vocab_size)
        if not tokens.size:
            raise UserError("is empty; give at least one token", field=f"{where}.model_input")
        if tokens.size > max_context_length:
            raise UserError(
                f"{tokens.size} tokens; the model takes at most {max_context_length}",
                field=f"{where}.model_input",
            )
        _check_inputs(datum, where, batch.loss_fn, spec, foreign_columns)
        inputs = {
            key: datum.loss_fn_inputs[key]
            for key in spec.required + spec.optional
            if key in datum.loss_fn_inputs
        }
        if batch.custom_loss is not None:
            _check_ranks(inputs, where, batch.custom_loss)
            _check_custom_size(inputs, where)
            inputs = {"target_tokens": inputs["target_tokens"]}  # of the others only the loss knows the rules
        _check_shapes(inputs, where, int(tokens.size), batch.loss_fn in MANY_TARGETS)
        _check_values(inputs, where, vocab_size)
        _check_clips(inputs, config, where)
        _check_sequence_mask(inputs, where)
    _check_cells(batch)


def batch_config(batch: ForwardBackwardInput) -> dict[str, float]:
    """A batch's configuration; of a custom loss it only names the loss."""
    return {} if batch.custom_loss is not None else loss_config(batch.loss_fn, batch.loss_fn_config)


def loss_config(loss_fn: str, config: Mapping[str, float | str] | None) -> dict[str, float]:
    """A loss's configuration with defaults filled in; unknown keys and what is no number are refused."""
    known = loss_spec(loss_fn).config
    given = dict(config or {})
    unknown = sorted(set(given) - set(known))
    if unknown:
        takes = f"{loss_fn} takes {', '.join(known)}" if known else f"{loss_fn} takes no configuration"
        raise UserError(f"unknown {', '.join(map(repr, unknown))}; {takes}", field="loss_fn_config")
    merged = dict(known)
    for key, value in given.items():
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
            or value < 0
        ):
            raise UserError(
                f"{value!r} is not a finite number >= 0 (tensors go into loss_fn_inputs)",
                field=f"loss_fn_config[{key!r}]",
            )
        merged[key] = float(value)
    if "clip_low_threshold" in merged and merged["clip_low_threshold"] > merged["clip_high_threshold"]:
        raise UserError("clip_low_threshold is above clip_high_threshold", field="loss_fn_config")
    return merged


def text_tokens(model_input: ModelInput, field: str, vocab_size: int) -> Array:
    """The token ids of a text-only input, all of them in the vocabulary."""
    for at, chunk in enumerate(model_input.chunks):
        if not isinstance(chunk, EncodedTextChunk):
            raise UserError(
                f"this model reads text only, not a chunk of type {chunk.type!r}; use encoded_text",
                field=f"{field}.chunks[{at}]",
            )
    tokens = model_input.to_array()
    _check_ids(tokens, field, vocab_size, lowest=0)
    return tokens


def _check_inputs(datum: Datum, where: str, loss_fn: str, spec: LossSpec, foreign_columns: bool) -> None:
    given, known = set(datum.loss_fn_inputs), spec.required + spec.optional
    for key in spec.required:
        if key not in given:
            raise UserError(
                f"missing; {loss_fn} needs {', '.join(spec.required)}",
                field=f"{where}.loss_fn_inputs[{key!r}]",
            )
    unknown = sorted(given - set(known))
    if unknown and not foreign_columns:
        raise UserError(
            f"{loss_fn} does not use it and would ignore it; it takes {', '.join(known)}",
            field=f"{where}.loss_fn_inputs[{unknown[0]!r}]",
        )


def _check_shapes(inputs: dict[str, TensorData], where: str, length: int, many_targets: bool) -> None:
    target_shape = shape_of(inputs["target_tokens"])
    for key, tensor in inputs.items():
        field, shape = f"{where}.loss_fn_inputs[{key!r}]", shape_of(tensor)
        if not shape or shape[0] != length:
            raise UserError(
                f"shape {shape}; its first dimension must be {length}, the length of model_input", field=field
            )
        if shape != target_shape:
            raise UserError(
                f"shape {shape}, but target_tokens has {target_shape}; they must agree", field=field
            )
        if len(shape) > (2 if many_targets else 1):
            allowed = f"[{length}] or [{length}, K]" if many_targets else f"[{length}]"
            raise UserError(f"shape {shape}; use {allowed}", field=field)
        if len(shape) == 2 and not 1 <= shape[1] <= MAX_TARGETS:
            raise UserError(f"{shape[1]} candidates at one position; use 1 to {MAX_TARGETS}", field=field)


def _check_cells(batch: ForwardBackwardInput) -> None:
    """A few bytes of a sparse tensor can stand for more than any memory holds."""
    cells = sum(math.prod(shape_of(each)) for datum in batch.data for each in datum.loss_fn_inputs.values())
    if cells > MAX_CELLS:
        raise UserError(
            f"{cells} cells in all tensors together; send at most {MAX_CELLS} in one request", field="data"
        )


def _check_custom_size(inputs: dict[str, TensorData], where: str) -> None:
    """What a loss is given is bounded like what it computes: by the positions of its datum."""
    most = custom_loss_budget(math.prod(shape_of(inputs["target_tokens"])))
    for key, tensor in inputs.items():
        if (cells := math.prod(shape_of(tensor))) > most:
            raise UserError(
                f"{cells} cells; a datum of this length may have {most}",
                field=f"{where}.loss_fn_inputs[{key!r}]",
            )


def _check_ranks(inputs: dict[str, TensorData], where: str, loss: CustomLoss) -> None:
    for each in loss.inputs:
        key = "target_tokens" if each.name == "logprobs" else each.name
        shape = shape_of(inputs[key])
        if len(shape) != each.rank:
            raise UserError(
                f"shape {shape}; {loss.name} takes {each.name} of rank {each.rank}",
                field=f"{where}.loss_fn_inputs[{key!r}]",
            )


def _check_values(inputs: dict[str, TensorData], where: str, vocab_size: int) -> None:
    for key, tensor in inputs.items():
        field = f"{where}.loss_fn_inputs[{key!r}]"
        if key == "target_tokens":
            if tensor.dtype != "int64":
                raise UserError(f"dtype {tensor.dtype}; token ids are int64", field=field)
            _check_ids(
                tensor.data,
                field,
                vocab_size,
                lowest=0,
                hint=" (use weight or advantage 0 to mask a position)",
            )
        elif not np.isfinite(tensor.data).all():
            at = int(np.argmin(np.isfinite(tensor.data)))
            raise UserError(f"value {at} is {tensor.data[at]}; use finite numbers", field=field)


def _check_clips(inputs: dict[str, TensorData], config: dict[str, float], where: str) -> None:
    """A tensor takes the place of the scalar; token by token the bounds must make an interval."""
    if not config.keys() & {"clip_low_threshold", "clip_high_threshold"}:
        return
    low, high = (
        inputs[key].to_numpy() if key in inputs else np.float32(config[key])
        for key in ("clip_low_threshold", "clip_high_threshold")
    )
    for key, bound in (("clip_low_threshold", low), ("clip_high_threshold", high)):
        if key in inputs and np.any(bound < 0):
            raise UserError("a bound on a ratio must be >= 0", field=f"{where}.loss_fn_inputs[{key!r}]")
    if np.any(low > high):
        key = "clip_low_threshold" if "clip_low_threshold" in inputs else "clip_high_threshold"
        raise UserError(
            "clip_low_threshold is above clip_high_threshold", field=f"{where}.loss_fn_inputs[{key!r}]"
        )


def _check_sequence_mask(inputs: dict[str, TensorData], where: str) -> None:
    mask = inputs.get("sequence_ratio_mask")
    if mask is not None and not mask.data.any() and inputs["advantages"].data.any():
        raise UserError(
            "all zero, so the sequence has no ratio; set it to 1 where a token was sampled",
            field=f"{where}.loss_fn_inputs['sequence_ratio_mask']",
        )


def check_adam(params: AdamParams) -> None:
    """Refuse parameters with which a step of AdamW makes no sense."""
    rules = {
        "learning_rate": (params.learning_rate >= 0, "use a number >= 0"),
        "beta1": (0 <= params.beta1 < 1, "use 0 <= beta1 < 1"),
        "beta2": (0 <= params.beta2 < 1, "use 0 <= beta2 < 1"),
        "eps": (params.eps > 0, "use a number > 0"),
        "weight_decay": (params.weight_decay >= 0, "use a number >= 0"),
        "grad_clip_norm": (params.grad_clip_norm >= 0, "use a number > 0, or 0 for no clipping"),
    }
    for name, (right, rule) in rules.items():
        value = getattr(params, name)
        if not right or not math.isfinite(value):
            raise UserError(f"{value}; {rule}", field=f"adam_params.{name}")


def check_lora(config: LoraConfig, *, max_rank: int) -> None:
    """Refuse a rank or a seed that cannot be."""
    if not 1 <= config.rank <= max_rank:
        raise UserError(f"{config.rank}; use 1 to {max_rank}", field="lora_config.rank")
    if config.seed is not None and not 0 <= config.seed <= MAX_SEED:
        raise UserError(f"{config.seed}; use 0 to {MAX_SEED}", field="lora_config.seed")


# -- sampling -----------------------------------------------------------------------------------------


def check_sample_job(job: SampleJob, *, vocab_size: int, max_context_length: int) -> None:
    """Refuse a sample request that cannot be honoured to the letter."""
    prompt = text_tokens(job.prompt, "prompt", vocab_size)
    if not prompt.size:
        raise UserError("is empty; give at least one token", field="prompt")
    if prompt.size + 1 > max_context_length:
        raise UserError(
            f"{prompt.size} tokens leave no room for a new one; the context holds {max_context_length}",
            field="prompt",
        )
    _within(job.num_samples, 1, MAX_NUM_SAMPLES, "num_samples")
    _within(job.seed, 0, MAX_SEED, "sampling_params.seed")
    if job.sequence_ids and len(job.sequence_ids) != job.num_samples:
        raise UserError(f"{len(job.sequence_ids)} ids for {job.num_samples} samples", field="sequence_ids")
    for name in ("topk_prompt_logprobs", "topk_sample_logprobs"):
        _within(getattr(job, name), 0, min(MAX_TOPK, vocab_size), name)
    _within(job.prompt_alt_tokens_k, 0, MAX_TOPK, "prompt_alt_tokens_k")  # drawn, so one may come twice
    if job.prompt_logprobs_last_n is not None:
        if not job.prompt_logprobs:
            raise UserError("needs prompt_logprobs", field="prompt_logprobs_last_n")
        if job.prompt_logprobs_last_n < 1:
            raise UserError(f"{job.prompt_logprobs_last_n}; use 1 or more", field="prompt_logprobs_last_n")
    if job.target_prompt_logprobs is not None:
        _check_target_prompt(job.target_prompt_logprobs, int(prompt.size), vocab_size)
    check_sampling_params(job.params, vocab_size=vocab_size)
    _check_answer(job, int(prompt.size), max_context_length)


def _check_answer(job: SampleJob, prompt_length: int, max_context_length: int) -> None:
    """Refuse what could be answered only with more numbers than fit into one answer."""
    length = min(job.params.max_tokens or max_context_length, max_context_length - prompt_length)
    targets = 0 if job.target_prompt_logprobs is None else shape_of(job.target_prompt_logprobs)[1]
    numbers = {
        "topk_sample_logprobs": job.num_samples * length * job.topk_sample_logprobs,
        "topk_prompt_logprobs": prompt_length * job.topk_prompt_logprobs,
        "prompt_alt_tokens_k": prompt_length * job.prompt_alt_tokens_k,
        "target_prompt_logprobs": prompt_length * targets,
    }
    if sum(numbers.values()) > MAX_ANSWER:
        most = max(numbers, key=numbers.__getitem__)
        raise UserError(
            f"the answer could hold {sum(numbers.values())} numbers, and {MAX_ANSWER} fit; ask for less, or "
            "for fewer samples in one request",
            field=most,
        )


def check_sampling_params(params: SamplingParams, *, vocab_size: int) -> None:
    """Refuse sampling parameters outside their range."""
    temperature = params.temperature
    if not math.isfinite(temperature) or temperature < 0:
        raise UserError(f"{temperature}; use a number >= 0", field="sampling_params.temperature")
    if 0 < temperature < MIN_TEMPERATURE:
        raise UserError(
            f"{temperature}; use 0 (always the most likely token) or at least {MIN_TEMPERATURE}",
            field="sampling_params.temperature",
        )
    if not 0 < params.top_p <= 1:
        raise UserError(f"{params.top_p}; use 0 < top_p <= 1", field="sampling_params.top_p")
    if params.top_k != -1 and params.top_k < 1:
        raise UserError(f"{params.top_k}; use 1 or more, or -1 for all tokens", field="sampling_params.top_k")
    if params.max_tokens is not None and params.max_tokens < 1:
        raise UserError(f"{params.max_tokens}; use 1 or more", field="sampling_params.max_tokens")
    if params.seed is not None:
        _within(params.seed, 0, MAX_SEED, "sampling_params.seed")
    _check_stop(params, vocab_size)


def _check_stop(params: SamplingParams, vocab_size: int) -> None:
    stops = as_stop_list(params.stop) or []
    if len({isinstance(stop, str) for stop in stops}) > 1:
        raise UserError("mixes strings and token ids; use one kind", field="sampling_params.stop")
    for at, stop in enumerate(stops):
        field = f"sampling_params.stop[{at}]"
        if stop == "":
            raise UserError("an empty string would stop at once; use text, token ids or []", field=field)
        if not isinstance(stop, str) and (isinstance(stop, bool) or not isinstance(stop, int)):
            raise UserError(f"{stop!r} is neither text nor a token id", field=field)
        if not isinstance(stop, str) and not 0 <= stop < vocab_size:
            raise UserError(f"{stop} is not a token id of this model (0..{vocab_size - 1})", field=field)


def _check_target_prompt(targets: TensorData, prompt_length: int, vocab_size: int) -> None:
    field, shape = "target_prompt_logprobs", shape_of(targets)
    if targets.dtype != "int64":
        raise UserError(f"dtype {targets.dtype}; token ids are int64", field=field)
    if len(shape) != 2 or shape[0] != prompt_length - 1:
        raise UserError(
            f"shape {shape}; use [{prompt_length - 1}, K], one row less than the prompt", field=field
        )
    if not 1 <= shape[1] <= MAX_TARGETS:
        raise UserError(f"{shape[1]} tokens at one position; use 1 to {MAX_TARGETS}", field=field)
    _check_ids(targets.data, field, vocab_size, lowest=-1, hint=" or -1 for none")


# -- shared -------------------------------------------------------------------------------------------


def shape_of(tensor: TensorData) -> list[int]:
    """The shape; data without one is flat."""
    return tensor.shape if tensor.shape is not None else [int(tensor.data.size)]


def _check_ids(ids: Array, field: str, vocab_size: int, *, lowest: int, hint: str = "") -> None:
    if ids.size and (int(ids.min()) < lowest or int(ids.max()) >= vocab_size):
        at = int(np.argmax((ids < lowest) | (ids >= vocab_size)))
        raise UserError(
            f"value {at} is {ids[at]}; token ids of this model are 0..{vocab_size - 1}{hint}", field=field
        )


def _within(value: int, low: int, high: int, field: str) -> None:
    if not low <= value <= high:
        raise UserError(f"{value}; use {low} to {high}", field=field)
