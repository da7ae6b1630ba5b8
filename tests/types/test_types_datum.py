"""Datum: every kind of array a user may have, and errors that name the loss input they are about."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch

from tinsmith.types import Datum, ModelInput, PromptProvenanceSpan, SampledProvenanceSpan, TensorData
from tinsmith.types.datum import LIST_DTYPES

TEXT = ModelInput.from_ints([1, 2])
FLOAT_KEYS = (
    "weights",
    "advantages",
    "logprobs",
    "clip_low_threshold",
    "clip_high_threshold",
    "sequence_ratio_mask",
)


def convert(key: str, value: Any) -> TensorData:
    return Datum(TEXT, {key: value}).loss_fn_inputs[key]


def test_the_key_decides_the_dtype_of_a_list() -> None:
    known = {"target_tokens": "int64"} | dict.fromkeys(FLOAT_KEYS, "float32")
    assert known == LIST_DTYPES
    for key, dtype in LIST_DTYPES.items():
        for values, shape in (([0, 1], [2]), ([[0], [1]], [2, 1]), ([], [0])):
            tensor = convert(key, values)
            assert (tensor.dtype, tensor.shape, tensor.tolist()) == (dtype, shape, values)


def test_a_mask_may_be_written_as_booleans() -> None:
    assert convert("weights", [False, True]).tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    "values", [np.array([0, 1], np.int32), torch.tensor([0, 1]), TensorData([0, 1], "int64", [2])]
)
def test_arrays_bring_their_own_dtype_under_any_key(values: Any) -> None:
    assert convert("my_own_column", values) == TensorData([0, 1], "int64", [2])
    assert convert("weights", values).dtype == "int64"


def test_subclasses_of_torch_tensors_are_torch_tensors() -> None:
    class Named(torch.Tensor):
        pass

    assert convert("x", torch.nn.Parameter(torch.ones(2))).tolist() == [1.0, 1.0]
    assert convert("x", torch.ones(2).as_subclass(Named)).tolist() == [1.0, 1.0]


def test_a_mostly_empty_grid_from_torch_travels_as_csr() -> None:
    grid = torch.zeros(4, 8)
    grid[1, 3] = 0.5
    assert convert("weights", grid).is_sparse
    assert convert("weights", grid).tolist() == grid.tolist()
    assert not convert("weights", torch.ones(4, 8)).is_sparse
    assert not convert("weights", grid.numpy()).is_sparse
    assert not convert("advantages", grid).is_sparse


@pytest.mark.parametrize(
    ("key", "value", "error", "message"),
    [
        ("target_tokens", [1.5], ValueError, "whole numbers"),
        ("target_tokens", [2**63], ValueError, "does not fit int64"),
        ("weights", ["a"], ValueError, "numbers"),
        ("weights", [None], ValueError, "numbers"),
        ("weights", [[1], [1, 2]], ValueError, "rectangular"),
        ("weights", [1e300], ValueError, "does not fit float32"),
        ("weights", np.array([True]), ValueError, "numpy bool"),
        ("weights", np.array([1], np.uint8), ValueError, "numpy uint8"),
        ("weights", torch.zeros(1, dtype=torch.complex64), ValueError, "complex64"),
        ("weights", (1, 2), TypeError, "tuple is not accepted"),
        ("weights", 1.0, TypeError, "float is not accepted"),
        ("weights", None, TypeError, "NoneType is not accepted"),
        ("mystery", [1, 2], KeyError, "known only for target_tokens, weights"),
    ],
)
def test_every_error_names_the_key(key: str, value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=rf"loss_fn_inputs\['{key}'\].*{message}"):
        Datum(TEXT, {key: value})


def test_the_input_is_a_model_input() -> None:
    with pytest.raises(TypeError, match="model_input: a ModelInput is needed, not list"):
        Datum([1, 2])  # type: ignore[arg-type]


def test_equality_and_pickling() -> None:
    spans = (
        [PromptProvenanceSpan(sequence_id="s", length=2)],
        [SampledProvenanceSpan(sequence_id="s", length=1)],
    )
    one = Datum(TEXT, {"weights": [0, 1]}, *spans)
    assert pickle.loads(pickle.dumps(one)) == one
    assert one != Datum(TEXT, {"weights": [0, 1]})
    assert Datum(TEXT) == Datum(TEXT, {})


def test_spans_come_in_pairs() -> None:
    with pytest.raises(ValueError, match="go together"):
        Datum(TEXT, {}, model_input_spans=[])


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"sequence_id": 5, "length": 1}, "sequence_id"),
        ({"sequence_id": "s", "length": -1}, "length"),
        ({"sequence_id": "s", "length": 2**63}, "length"),
        ({"sequence_id": "s", "length": 1, "offset": -1}, "offset"),
        ({"sequence_id": "s", "length": 1, "offset": 1.5}, "offset"),
        ({"sequence_id": "s", "length": True}, "length"),
    ],
)
@pytest.mark.parametrize("make", [PromptProvenanceSpan, SampledProvenanceSpan])
def test_a_span_is_a_stretch_of_a_sequence(make: Any, fields: dict[str, Any], where: str) -> None:
    with pytest.raises(ValueError, match=f"^{where}: "):
        make(**fields)
