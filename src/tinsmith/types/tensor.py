"""TensorData: a typed array on its way over the wire, dense or sparse (CSR)."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

TensorDtype = Literal["int64", "float32"]
Array = npt.NDArray[Any]

_INT64, _FLOAT32 = np.dtype(np.int64), np.dtype(np.float32)
_NUMPY_DTYPES: dict[TensorDtype, np.dtype[Any]] = {"int64": _INT64, "float32": _FLOAT32}
_MAX_DIMENSIONS = 32
_MAX_CELLS = 2**60  # of a sparse tensor: what an int64 can still count
_MAX_DENSE_CELLS = 2**30  # a few bytes of CSR can stand for more than any memory holds
_EXACT_IN_FLOAT64 = 2**53


class TensorData:
    """An immutable int64 or float32 array.

    The values are copied when the tensor is made, so editing the source array afterwards never
    changes a request that is already on its way.

    >>> TensorData.from_numpy(np.array([1.0, 2.0])).dtype
    'float32'
    """

    __slots__ = ("_shape", "data", "dtype", "sparse_col_indices", "sparse_crow_indices")

    data: Array
    dtype: TensorDtype
    _shape: tuple[int, ...] | None
    sparse_crow_indices: Array | None
    sparse_col_indices: Array | None

    def __init__(
        self,
        data: Sequence[int] | Sequence[float] | Array,
        dtype: TensorDtype,
        shape: Sequence[int] | None = None,
        sparse_crow_indices: Sequence[int] | Array | None = None,
        sparse_col_indices: Sequence[int] | Array | None = None,
    ) -> None:
        if not isinstance(dtype, str) or dtype not in _NUMPY_DTYPES:
            raise ValueError(f"dtype: {dtype!r} is not a tensor type; use 'int64' or 'float32'")
        flat, dimensions = _frozen_copy(data, _NUMPY_DTYPES[dtype], "data")
        if shape is None and dimensions > 1:
            raise ValueError("shape: nested data needs one; give it, or a flat list")
        sparse = (sparse_crow_indices is not None) + (sparse_col_indices is not None)
        if sparse == 1:
            raise ValueError("sparse_crow_indices and sparse_col_indices go together: give both or neither")
        set_ = object.__setattr__
        set_(self, "data", flat)
        set_(self, "dtype", dtype)
        set_(self, "_shape", None if shape is None else _checked_shape(shape))
        set_(self, "sparse_crow_indices", None)
        set_(self, "sparse_col_indices", None)
        if sparse:
            crow, _ = _frozen_copy(sparse_crow_indices, _INT64, "sparse_crow_indices")
            col, _ = _frozen_copy(sparse_col_indices, _INT64, "sparse_col_indices")
            self._check_sparse(crow, col)
            set_(self, "sparse_crow_indices", crow)
            set_(self, "sparse_col_indices", col)
        elif self._shape is not None and math.prod(self._shape) != flat.size:
            raise ValueError(f"shape: {self.shape} does not hold the {flat.size} values of data")

    def _check_sparse(self, crow: Array, col: Array) -> None:
        values = self.data.size
        if self._shape is None or len(self._shape) != 2:
            raise ValueError("shape: a sparse tensor needs [rows, columns]")
        rows, columns = self._shape
        if rows * columns > _MAX_CELLS:
            raise ValueError(f"shape: {self.shape} has too many cells")
        if crow.size != rows + 1 or crow[0] != 0 or crow[-1] != values:
            raise ValueError(
                f"sparse_crow_indices: needs {rows + 1} offsets from 0 to {values} for {rows} rows"
            )
        if np.any(np.diff(crow) < 0):
            raise ValueError("sparse_crow_indices: offsets must not decrease")
        if col.size != values:
            raise ValueError(f"sparse_col_indices: {col.size} columns for {values} values")
        if col.size and (col.min() < 0 or col.max() >= columns):
            raise ValueError(f"sparse_col_indices: columns must lie in 0..{columns - 1}")
        cells = _rows_of(crow) * columns + col
        if np.any(np.diff(cells) <= 0) and np.unique(cells).size != cells.size:
            raise ValueError("sparse_col_indices: a column is listed twice in one row")

    @property
    def shape(self) -> list[int] | None:
        """The dimensions; None for flat data of any length, [] for a single number."""
        return None if self._shape is None else list(self._shape)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"TensorData is immutable: make a new one instead of setting {name!r}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"TensorData is immutable: {name!r} cannot be deleted")

    # -- from other arrays ------------------------------------------------------------------------

    @classmethod
    def from_numpy(cls, array: Array) -> TensorData:
        """Floats become float32, signed integers int64; anything else is refused rather than guessed."""
        return cls(array, dtype=_dtype_of_kind(array.dtype), shape=array.shape)

    @classmethod
    def from_torch(cls, tensor: torch.Tensor) -> TensorData:
        """From any tensor, on any device, with or without gradient. Floats become float32, the rest int64."""
        import torch

        if tensor.is_complex():
            raise ValueError(
                f"dtype: {tensor.dtype} cannot be sent; convert it to a float or an integer tensor"
            )
        dense = tensor.detach().cpu()
        dense = dense.to(torch.float32) if dense.is_floating_point() else dense.to(torch.int64)
        return cls.from_numpy(dense.numpy())

    @classmethod
    def from_torch_sparse(cls, tensor: torch.Tensor, pad_value: float = 0) -> TensorData:
        """A 2-D tensor as CSR: cells equal to ``pad_value`` are left out."""
        if isinstance(pad_value, bool):
            raise TypeError("pad_value: a number, not a bool")
        dense = cls.from_torch(tensor)
        return dense.to_sparse(pad_value)

    def to_sparse(self, pad_value: float = 0) -> TensorData:
        """This 2-D tensor as CSR."""
        if self.is_sparse:
            return self
        if self.shape is None or len(self.shape) != 2:
            raise ValueError(f"shape: only a 2-D tensor can be made sparse, not {self.shape}")
        grid = self.to_numpy()
        kept = grid != pad_value
        crow = np.concatenate(([0], np.cumsum(kept.sum(axis=1, dtype=np.int64))))
        return TensorData(
            grid[kept],
            self.dtype,
            self.shape,
            sparse_crow_indices=crow,
            sparse_col_indices=np.nonzero(kept)[1],
        )

    # -- to other arrays --------------------------------------------------------------------------

    @property
    def is_sparse(self) -> bool:
        """True for CSR data."""
        return self.sparse_crow_indices is not None

    def to_numpy(self, pad_value: float = 0) -> Array:
        """A dense array of its own memory; a sparse tensor's missing cells hold ``pad_value``."""
        if isinstance(pad_value, bool):
            raise TypeError("pad_value: a number, not a bool")
        if not self.is_sparse:
            return self.data.copy() if self._shape is None else self.data.reshape(self._shape).copy()
        crow, col = self.sparse_crow_indices, self.sparse_col_indices
        assert crow is not None and col is not None and self._shape is not None
        if math.prod(self._shape) > _MAX_DENSE_CELLS:
            raise ValueError(f"shape: {self.shape} has too many cells to be made dense")
        dense = np.full(self._shape, pad_value, dtype=self.data.dtype)
        dense[_rows_of(crow), col] = self.data
        return dense

    def to_torch(self, pad_value: float = 0) -> torch.Tensor:
        """A torch tensor of its own memory."""
        import torch

        return torch.from_numpy(self.to_numpy(pad_value))

    def tolist(self, pad_value: float = 0) -> list[Any]:
        """Plain (nested) Python lists."""
        return cast("list[Any]", self.to_numpy(pad_value).tolist())

    @property
    def nbytes(self) -> int:
        """Size of the values, and of the indices of a sparse tensor."""
        size = self.data.nbytes
        if self.is_sparse:
            assert self.sparse_crow_indices is not None and self.sparse_col_indices is not None
            size += self.sparse_crow_indices.nbytes + self.sparse_col_indices.nbytes
        return size

    # -- plain-object manners ---------------------------------------------------------------------

    def __len__(self) -> int:
        return self._shape[0] if self._shape else int(self.data.size)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorData):
            return NotImplemented
        mine, theirs = (t.shape if t.shape is not None else [t.data.size] for t in (self, other))
        if self.dtype != other.dtype or mine != theirs:
            return False
        return np.array_equal(self.to_numpy(), other.to_numpy())

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (self.data, self.dtype, self.shape, self.sparse_crow_indices, self.sparse_col_indices)
        return TensorData, fields

    def __repr__(self) -> str:
        kind = "sparse " if self.is_sparse else ""
        data = np.array2string(self.data, threshold=8)
        return f"TensorData({kind}{self.dtype}, shape={self.shape}, data={data})"


def _dtype_of_kind(dtype: np.dtype[Any]) -> TensorDtype:
    if dtype.kind == "f":
        return "float32"
    if dtype.kind == "i":
        return "int64"
    raise ValueError(
        f"dtype: numpy {dtype} cannot be sent; convert it to a float or a signed integer array first"
    )


def _rows_of(crow: Array) -> Array:
    """The row of each value of a CSR tensor."""
    return np.repeat(np.arange(crow.size - 1), np.diff(crow))


def _checked_shape(shape: Sequence[int]) -> tuple[int, ...]:
    try:
        sizes = tuple(operator.index(size) for size in shape)
    except TypeError:
        sizes = (-1,)
    if isinstance(shape, (str, bytes, dict)) or any(size < 0 for size in sizes):
        raise ValueError(f"shape: {shape!r:.80} is not a list of whole numbers >= 0")
    if len(sizes) > _MAX_DIMENSIONS:
        raise ValueError(f"shape: {len(sizes)} dimensions; at most {_MAX_DIMENSIONS} can be sent")
    if math.prod(size for size in sizes if size) > _MAX_CELLS:
        raise ValueError(f"shape: {list(sizes)} has too many cells")
    return sizes


def _frozen_copy(values: Any, dtype: np.dtype[Any], field: str) -> tuple[Array, int]:
    """The values as a flat read-only array that nobody else can change, and how many dimensions they had."""
    try:
        source = np.asarray(values)
    except (ValueError, TypeError):
        raise ValueError(f"{field}: a list of numbers is needed; nested lists must be rectangular") from None
    if source.size and source.dtype.kind not in "fiu":
        raise ValueError(f"{field}: numbers of at most 64 bits are needed, not {source.dtype}")
    _check_fits(source, dtype, field)
    if source.dtype == dtype and source.ndim == 1 and isinstance(source.base, bytes):
        return source, 1  # bytes never change, so wire data needs no copy
    fresh = isinstance(values, (list, tuple))
    with np.errstate(over="ignore"):
        flat = source.astype(dtype, order="C", copy=not fresh).reshape(-1)
    if dtype == _FLOAT32 and source.dtype.itemsize > 4 and np.isinf(flat).any():
        _check_no_overflow(source.reshape(-1), flat, field)
    flat.flags.writeable = False
    return flat, source.ndim


def _check_fits(source: Array, dtype: np.dtype[Any], field: str) -> None:
    """Refuse what int64 cannot hold exactly."""
    if dtype != _INT64 or not source.size:
        return
    if source.dtype.kind == "f":
        if not np.array_equal(source, np.trunc(source)):
            raise ValueError(f"{field}: int64 data holds whole numbers only")
        if np.abs(source).max() > _EXACT_IN_FLOAT64:
            raise ValueError(f"{field}: floats above 2**53 are not exact; give integers")
    elif source.dtype == np.uint64 and source.max() > np.uint64(2**63 - 1):
        raise ValueError(f"{field}: {source.max()} does not fit int64")


def _check_no_overflow(source: Array, flat: Array, field: str) -> None:
    lost = np.isinf(flat) & np.isfinite(source)
    if lost.any():
        raise ValueError(f"{field}: {source[int(np.argmax(lost))]} does not fit float32")
