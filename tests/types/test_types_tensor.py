"""TensorData: what goes in, what is refused, what comes out, and that nothing changes in between."""

import copy
import pickle
import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tinsmith.types import TensorData

# -- numpy ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "longdouble", ">f4", ">f8"])
def test_numpy_floats_become_float32(dtype: str) -> None:
    tensor = TensorData.from_numpy(np.array([0.5, -2.0, np.nan, np.inf], dtype=dtype))
    assert (tensor.dtype, tensor.data.dtype) == ("float32", np.dtype("float32"))
    np.testing.assert_array_equal(tensor.to_numpy(), np.array([0.5, -2.0, np.nan, np.inf], np.float32))


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", ">i4"])
def test_numpy_signed_integers_become_int64(dtype: str) -> None:
    tensor = TensorData.from_numpy(np.array([0, -5, 100], dtype=dtype))
    assert (tensor.dtype, tensor.data.dtype, tensor.tolist()) == ("int64", np.dtype("int64"), [0, -5, 100])


@pytest.mark.parametrize("dtype", ["bool", "uint8", "uint32", "uint64", "complex64", "object", "U3", "M8[s]"])
def test_other_numpy_kinds_are_refused_by_name(dtype: str) -> None:
    with pytest.raises(ValueError, match=rf"dtype: numpy {re.escape(str(np.dtype(dtype)))} cannot be sent"):
        TensorData.from_numpy(np.zeros(2, dtype=dtype))


def test_the_values_are_cast_and_not_only_the_label() -> None:
    assert TensorData.from_numpy(np.array([0.1])).to_numpy()[0] == np.float32(0.1)


@given(
    hnp.arrays(
        st.sampled_from([np.float32, np.int64]),
        hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
    )
)
def test_numpy_round_trip_keeps_dtype_shape_and_bits(array: np.ndarray[Any, Any]) -> None:
    back = TensorData.from_numpy(array).to_numpy()
    assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, array.shape, array.tobytes())


@pytest.mark.parametrize("view", [np.s_[::2], np.s_[::-1], np.s_[:, 1], np.s_[1:, ::-1]])
def test_strided_arrays_are_read_in_their_own_order(view: Any) -> None:
    array = np.arange(12.0).reshape(4, 3)[view]
    assert TensorData.from_numpy(array).tolist() == array.tolist()
    assert TensorData.from_numpy(np.asfortranarray(array)).tolist() == array.tolist()


# -- torch ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_torch_floats_become_float32(dtype: torch.dtype) -> None:
    tensor = TensorData.from_torch(torch.tensor([0.5, -2.0, 3.0], dtype=dtype))
    assert (tensor.dtype, tensor.tolist()) == ("float32", [0.5, -2.0, 3.0])


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
)
def test_other_torch_tensors_become_int64(dtype: torch.dtype) -> None:
    tensor = TensorData.from_torch(torch.tensor([0, 1, 1], dtype=dtype))
    assert (tensor.dtype, tensor.tolist()) == ("int64", [0, 1, 1])


def test_a_complex_torch_tensor_is_refused() -> None:
    with pytest.raises(ValueError, match=r"dtype: torch\.complex64 cannot be sent"):
        TensorData.from_torch(torch.zeros(2, dtype=torch.complex64))


def test_a_tensor_with_gradient_is_detached() -> None:
    weights = torch.nn.Parameter(torch.ones(2, 2))
    assert TensorData.from_torch(weights * 2).tolist() == [[2.0, 2.0], [2.0, 2.0]]


def test_torch_views_are_read_in_their_own_order() -> None:
    tensor = torch.arange(6).reshape(2, 3).t()
    assert TensorData.from_torch(tensor).tolist() == tensor.tolist()


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0), (2, 3, 1)])
def test_torch_round_trip_keeps_dtype_and_shape(shape: tuple[int, ...]) -> None:
    tensor = torch.ones(shape, dtype=torch.float32)
    back = TensorData.from_torch(tensor).to_torch()
    assert back.dtype == tensor.dtype
    assert torch.equal(back, tensor)


# -- the constructor -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "array_shape", "values"),
    [(None, (1,), [7]), ([], (), 7), ([1], (1,), [7]), ([1, 1], (1, 1), [[7]])],
)
def test_no_shape_is_flat_and_an_empty_shape_is_one_number(
    shape: list[int] | None, array_shape: tuple[int, ...], values: Any
) -> None:
    tensor = TensorData([7], "int64", shape)
    assert (tensor.shape, tensor.to_numpy().shape, tensor.tolist()) == (shape, array_shape, values)
    assert tensor.to_torch().shape == array_shape


@pytest.mark.parametrize("data", [[], (), np.array([])])
def test_no_values_at_all(data: Any) -> None:
    assert TensorData(data, "int64").tolist() == []
    assert TensorData(data, "float32", [0, 3]).to_numpy().shape == (0, 3)


@pytest.mark.parametrize(
    ("data", "dtype", "message"),
    [
        (["1"], "int64", "data: numbers"),
        ("12", "int64", "data: numbers"),
        (None, "int64", "data: numbers"),
        ([None, 1], "float32", "data: numbers"),
        ([True, False], "int64", "data: numbers"),
        ([1j], "float32", "data: numbers"),
        ([[1], [1, 2]], "int64", "data: .*rectangular"),
        ([[1, 2]], "int64", "shape: nested data needs one"),
        ([1.5], "int64", "data: int64 data holds whole numbers only"),
        ([float("nan")], "int64", "data: int64 data holds whole numbers only"),
        ([float("inf")], "int64", "data: floats above"),
        ([1e30], "int64", "data: floats above"),
        ([2.0**53 + 2], "int64", "data: floats above"),
        ([2**63], "int64", "data: 9223372036854775808 does not fit int64"),
        ([-1, 2**63], "int64", "data: "),
        ([2**64], "int64", "data: numbers of at most 64 bits"),
        ([0.0, 1e300], "float32", r"data: 1e\+300 does not fit float32"),
    ],
)
def test_values_that_cannot_be_held_exactly_are_refused(data: Any, dtype: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TensorData(data, dtype)


@pytest.mark.parametrize("dtype", ["float64", "int32", "", None, ["int64"], 3])
def test_there_are_two_dtypes(dtype: Any) -> None:
    with pytest.raises(ValueError, match=r"dtype: .* use 'int64' or 'float32'"):
        TensorData([1], dtype)


@pytest.mark.parametrize(
    "shape",
    [
        [2], [3, 2], [-2, -2], [-4], [-1], [4.0], ["4"], "4", [None], [[4]], 4, {4: 4},
        [2**64], [2**32, 2**32], [2**62, 4], [1] * 40 + [4], [0, 2**62, 2**62],
    ],
)  # fmt: skip
def test_a_shape_that_does_not_hold_the_values_is_refused(shape: Any) -> None:
    for data in ([1, 2, 3, 4], []):
        with pytest.raises(ValueError, match=r"^shape: "):
            TensorData(data, "int64", shape)


def test_any_sequence_is_a_shape() -> None:
    assert TensorData([1, 2], "int64", torch.Size([2, 1])).shape == [2, 1]
    assert TensorData([1, 2], "int64", np.array([2, 1])).shape == [2, 1]  # type: ignore[arg-type]


# -- copies and immutability ---------------------------------------------------------------------------


def test_editing_the_source_afterwards_changes_nothing() -> None:
    array, tensor = np.ones(3, np.float32), torch.ones(3)
    made = [TensorData.from_numpy(array), TensorData(array, "float32"), TensorData.from_torch(tensor)]
    array[:] = 9
    tensor[:] = 9
    assert [one.tolist() for one in made] == [[1.0, 1.0, 1.0]] * 3


def test_what_comes_out_is_the_callers_own() -> None:
    tensor = TensorData([1, 2, 3], "int64", [3])
    tensor.to_numpy()[:] = 9
    tensor.to_torch()[:] = 9
    assert tensor.shape is not None
    tensor.shape.append(9)
    assert (tensor.tolist(), tensor.shape) == ([1, 2, 3], [3])


def test_wire_bytes_are_not_copied_since_they_cannot_change() -> None:
    body = np.arange(3, dtype=np.int64).tobytes()
    view = np.frombuffer(body, np.int64)
    assert np.shares_memory(TensorData(view, "int64").data, view)
    editable = np.frombuffer(bytearray(body), np.int64)
    assert not np.shares_memory(TensorData(editable, "int64").data, editable)


def test_it_is_immutable() -> None:
    tensor = TensorData([1], "int64")
    with pytest.raises(ValueError, match="read-only"):
        tensor.data[0] = 2
    for name in ("data", "dtype", "shape", "colour"):
        with pytest.raises(AttributeError, match="immutable"):
            setattr(tensor, name, None)
    with pytest.raises(AttributeError, match="immutable"):
        del tensor.data
    with pytest.raises(TypeError, match="unhashable"):
        hash(tensor)


@pytest.mark.parametrize(
    "tensor",
    [
        TensorData([1, 2], "int64"),
        TensorData([1.5], "float32", []),
        TensorData([], "float32", [0, 4]),
        TensorData([5, 6], "int64", [2, 3], [0, 1, 2], [2, 0]),
    ],
    ids=repr,
)
def test_copies_and_pickles_are_equal(tensor: TensorData) -> None:
    for other in (pickle.loads(pickle.dumps(tensor)), copy.copy(tensor), copy.deepcopy(tensor)):
        assert other == tensor
        assert (other.shape, other.is_sparse, other.nbytes) == (tensor.shape, tensor.is_sparse, tensor.nbytes)
        with pytest.raises(ValueError, match="read-only"):
            other.data[...] = 0


def test_equality_is_of_dtype_shape_and_values() -> None:
    one = TensorData([1, 0], "int64", [2])
    assert one == TensorData([1, 0], "int64")
    assert one != TensorData([1, 0], "float32")
    assert one != TensorData([1, 0], "int64", [1, 2])
    assert one != TensorData([1, 1], "int64")
    assert one != [1, 0]
    assert TensorData([1], "int64", []) != TensorData([1], "int64", [1])
    grid = TensorData([0, 7], "int64", [1, 2])
    assert grid == grid.to_sparse()


def test_size_and_text() -> None:
    dense, sparse = TensorData([1.0, 2.0], "float32", [2, 1]), TensorData([5], "int64", [1, 9], [0, 1], [3])
    assert (len(dense), dense.nbytes, len(sparse), sparse.nbytes) == (2, 8, 1, 32)
    assert repr(dense) == "TensorData(float32, shape=[2, 1], data=[1. 2.])"
    assert repr(sparse).startswith("TensorData(sparse int64")


# -- sparse --------------------------------------------------------------------------------------------


@given(
    hnp.arrays(
        st.sampled_from([np.float32, np.int64]),
        hnp.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=5),
        elements=st.integers(-1, 2),
    ),
    st.sampled_from([0, -1]),
)
def test_sparse_round_trip(grid: np.ndarray[Any, Any], pad: int) -> None:
    sparse = TensorData.from_torch_sparse(torch.from_numpy(grid), pad_value=pad)
    assert sparse.is_sparse
    assert pad not in sparse.data
    np.testing.assert_array_equal(sparse.to_numpy(pad_value=pad), grid)
    np.testing.assert_array_equal(sparse.to_torch(pad_value=pad).numpy(), grid)
    assert sparse.tolist(pad_value=pad) == grid.tolist()
    assert sparse.to_sparse() is sparse


def test_columns_of_a_row_may_come_in_any_order() -> None:
    assert TensorData([5, 6], "int64", [1, 3], [0, 2], [2, 0]).tolist() == [[6, 0, 5]]


@pytest.mark.parametrize(
    ("shape", "crow", "col", "message"),
    [
        ([2, 3], [0, 1, 2], None, "go together"),
        ([2, 3], None, [0, 1], "go together"),
        (None, [0, 1, 2], [0, 1], "shape: a sparse tensor needs"),
        ([6], [0, 1, 2], [0, 1], "shape: a sparse tensor needs"),
        ([-1, 3], [], [], "shape: "),
        ([2, -3], [0, 1, 2], [0, 1], "shape: "),
        ([2, 2**62], [0, 1, 2], [0, 1], "shape: "),
        ([2, 3], [0, 2], [0, 1], "sparse_crow_indices: needs 3 offsets from 0 to 2"),
        ([2, 3], [1, 1, 2], [0, 1], "sparse_crow_indices: needs"),
        ([2, 3], [0, 1, 3], [0, 1], "sparse_crow_indices: needs"),
        ([3, 3], [0, 2, 1, 2], [0, 1], "sparse_crow_indices: offsets must not decrease"),
        ([3, 3], [0, -1, 1, 2], [0, 1], "sparse_crow_indices: offsets must not decrease"),
        ([2, 3], [0, 1.5, 2], [0, 1], "sparse_crow_indices: int64"),
        ([2, 3], [0, 1, 2], [0], "sparse_col_indices: 1 columns for 2 values"),
        ([2, 3], [0, 1, 2], [0, 3], r"sparse_col_indices: columns must lie in 0\.\.2"),
        ([2, 3], [0, 1, 2], [-1, 0], "sparse_col_indices: columns must lie"),
        ([2, 3], [0, 2, 2], [1, 1], "sparse_col_indices: a column is listed twice"),
    ],
)
def test_broken_csr_is_refused_by_its_part(shape: Any, crow: Any, col: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TensorData([8, 9], "int64", shape, crow, col)


def test_a_few_bytes_that_stand_for_too_much_are_not_unfolded() -> None:
    tensor = TensorData([1], "int64", [1, 10**12], [0, 1], [7])
    with pytest.raises(ValueError, match="too many cells to be made dense"):
        tensor.to_numpy()


@pytest.mark.parametrize("tensor", [TensorData([1], "int64"), TensorData([1], "int64", [1, 1, 1])])
def test_only_two_dimensions_can_be_made_sparse(tensor: TensorData) -> None:
    with pytest.raises(ValueError, match="shape: only a 2-D tensor"):
        tensor.to_sparse()


def test_a_pad_value_is_a_number() -> None:
    tensor = TensorData([1], "int64", [1, 1])
    for call in (tensor.to_numpy, tensor.to_torch, tensor.tolist):
        with pytest.raises(TypeError, match="pad_value"):
            call(pad_value=True)
