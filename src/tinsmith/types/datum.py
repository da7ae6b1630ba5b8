"""Datum: one training example, an input and the tensors its loss needs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from .model_input import ModelInput
from .tensor import TensorData, TensorDtype

if TYPE_CHECKING:
    import torch

    LossInput = TensorData | np.ndarray[Any, Any] | torch.Tensor | list[Any] | Sequence[float]

# A plain list carries no dtype; the key decides it.
LIST_DTYPES: dict[str, TensorDtype] = {
    "target_tokens": "int64",
    "weights": "float32",
    "advantages": "float32",
    "logprobs": "float32",
    "clip_low_threshold": "float32",
    "clip_high_threshold": "float32",
    "sequence_ratio_mask": "float32",
}
# Mostly zeros in top-K distillation, so a 2-D torch tensor travels as CSR where that is smaller.
_SPARSE_KEYS = ("target_tokens", "weights")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    sequence_id: str
    offset: int = 0
    length: int

    def __post_init__(self) -> None:
        if not isinstance(self.sequence_id, str):
            raise ValueError("sequence_id: text is needed")
        for name in ("offset", "length"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
                raise ValueError(f"{name}: {value!r:.80} is not a whole number >= 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptProvenanceSpan(_Span):
    """A run of tokens copied from the prompt of a recorded sequence.

    >>> PromptProvenanceSpan(sequence_id="s:0", offset=0, length=5).length
    5
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledProvenanceSpan(_Span):
    """A run of tokens sampled in a recorded sequence.

    >>> SampledProvenanceSpan(sequence_id="s:0", offset=5, length=3).offset
    5
    """


ProvenanceSpan = PromptProvenanceSpan | SampledProvenanceSpan


@dataclass(frozen=True, slots=True, init=False)
class Datum:
    """One example. Lists, numpy arrays and torch tensors are converted (and copied) on the way in.

    >>> datum = Datum(ModelInput.from_ints([1, 2]), {"target_tokens": [2, 3], "weights": [0, 1]})
    >>> datum.loss_fn_inputs["weights"].dtype
    'float32'
    """

    model_input: ModelInput
    loss_fn_inputs: dict[str, TensorData] = field(default_factory=dict)
    model_input_spans: tuple[ProvenanceSpan, ...] | None = None
    loss_fn_input_spans: tuple[ProvenanceSpan, ...] | None = None

    def __init__(
        self,
        model_input: ModelInput,
        loss_fn_inputs: Mapping[str, LossInput] | None = None,
        model_input_spans: Any = None,
        loss_fn_input_spans: Any = None,
    ) -> None:
        if not isinstance(model_input, ModelInput):
            raise TypeError(f"model_input: a ModelInput is needed, not {type(model_input).__name__}")
        if (model_input_spans is None) != (loss_fn_input_spans is None):
            raise ValueError("model_input_spans and loss_fn_input_spans go together: give both or neither")
        set_ = object.__setattr__
        set_(self, "model_input", model_input)
        inputs = {key: as_tensor_data(key, value) for key, value in (loss_fn_inputs or {}).items()}
        set_(self, "loss_fn_inputs", inputs)
        set_(self, "model_input_spans", None if model_input_spans is None else tuple(model_input_spans))
        set_(self, "loss_fn_input_spans", None if loss_fn_input_spans is None else tuple(loss_fn_input_spans))

    def with_provenance(
        self, model_input: Iterable[ProvenanceSpan], loss_fn_inputs: Iterable[ProvenanceSpan]
    ) -> Datum:
        """This datum, saying of which recorded sequences its tokens are.

        The spans of each side follow on each other and cover it: the input's tokens, and the targets.
        """
        inputs, targets = tuple(model_input), tuple(loss_fn_inputs)
        _check_cover("model_input", inputs, self.model_input.length)
        tokens = self.loss_fn_inputs.get("target_tokens")
        if tokens is not None and tokens.shape is not None and len(tokens.shape) == 1:
            _check_cover("loss_fn_inputs", targets, tokens.shape[0])
        return Datum(self.model_input, self.loss_fn_inputs, inputs, targets)


def _check_cover(field: str, spans: tuple[ProvenanceSpan, ...], length: int) -> None:
    for span in spans:
        if not isinstance(span, _Span):
            raise TypeError(f"{field}: provenance spans are needed, not {type(span).__name__}")
    covered = sum(span.length for span in spans)
    if covered != length:
        raise ValueError(f"{field}: the spans cover {covered} tokens, not the {length} there are")


def as_tensor_data(key: str, value: LossInput) -> TensorData:
    """The tensor for one loss input, whatever the caller had it in."""
    if isinstance(value, TensorData):
        return value
    try:
        if isinstance(value, np.ndarray):
            return TensorData.from_numpy(value)
        if isinstance(value, list):
            return _from_list(key, value)
        if _is_torch(value):
            return _from_torch(key, value)
    except ValueError as error:
        raise ValueError(f"loss_fn_inputs[{key!r}]: {error}") from None
    raise TypeError(
        f"loss_fn_inputs[{key!r}]: {type(value).__name__} is not accepted; "
        "use TensorData, a numpy array, a torch tensor or a list"
    )


def _is_torch(value: object) -> TypeGuard[torch.Tensor]:
    """Whether this is a torch tensor; without importing torch, since who has one has imported it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _from_torch(key: str, tensor: torch.Tensor) -> TensorData:
    dense = TensorData.from_torch(tensor)
    if key in _SPARSE_KEYS and tensor.ndim == 2:
        rows, columns = tensor.shape
        sparse = dense.to_sparse()
        if rows + 1 + 2 * sparse.data.size < rows * columns:
            return sparse
    return dense


def _from_list(key: str, values: list[Any]) -> TensorData:
    if key not in LIST_DTYPES:
        raise KeyError(
            f"loss_fn_inputs[{key!r}]: the dtype of a plain list is known only for {', '.join(LIST_DTYPES)}; "
            "pass a numpy array or a torch tensor"
        )
    try:
        array = np.asarray(values)
    except ValueError:
        raise ValueError("nested lists must be rectangular") from None
    if array.dtype.kind == "b":
        array = array.astype(np.int64)  # a mask written as [False, True]: the key has already said what it is
    return TensorData(array, LIST_DTYPES[key], array.shape)
