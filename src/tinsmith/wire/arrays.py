"""Little-endian byte strings to numpy arrays and back, with lengths checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tinsmith.types import UserError

Array = npt.NDArray[Any]

F32, I32, I64, U16 = (np.dtype(code) for code in ("<f4", "<i4", "<i8", "<u2"))


def to_bytes(array: Array, dtype: np.dtype[Any]) -> bytes:
    """The array's values in wire order."""
    return np.ascontiguousarray(array, dtype=dtype).tobytes()


def from_bytes(data: bytes, dtype: np.dtype[Any], field: str) -> Array:
    """A read-only view of wire bytes; a length that is not a whole number of items is refused."""
    if len(data) % dtype.itemsize:
        raise UserError(
            f"{len(data)} bytes are not a whole number of {dtype.itemsize}-byte items", field=field
        )
    return np.frombuffer(data, dtype=dtype)


def widen_bfloat16(raw: Array) -> Array:
    """float32 values of raw bfloat16 bit patterns: the same number with 16 more zero bits of mantissa."""
    return (raw.astype(np.uint32) << 16).view(np.float32)
