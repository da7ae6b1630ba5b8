"""A protobuf message from its pieces, so that large arrays are copied once, into the whole.

The fields of a message may stand in any order, so what is small is written by protobuf itself, and the fields
with arrays in them are put beside it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

Piece = bytes | memoryview
Pieces = list[Piece]

_BYTES = 2  # protobuf's word for a field that says its length
_KEY, _VALUE = 1, 2  # the fields of a map's entry


def in_field(message: Any, name: str, pieces: Pieces) -> Pieces:
    """The pieces as one field of a message.

    >>> from . import messages_pb2 as pb
    >>> pb.Tensor.FromString(b"".join(in_field(pb.Tensor, "dense", [b"ab", b"c"]))).dense
    b'abc'
    """
    return _numbered(_number(message, name), pieces)


def in_map_key(key: str) -> Pieces:
    """The key of an entry of a map."""
    return _numbered(_KEY, [key.encode()])


def in_map_value(pieces: Pieces) -> Pieces:
    """The value of an entry of a map."""
    return _numbered(_VALUE, pieces)


def array_piece(array: npt.NDArray[Any], layout: np.dtype[Any]) -> Piece:
    """An array in wire order; not a copy, where it lies so already."""
    return np.ascontiguousarray(array, dtype=layout).reshape(-1).view(np.uint8).data


def _numbered(number: int, pieces: Pieces) -> Pieces:
    size = sum(map(len, pieces))
    return [_varint(number << 3 | _BYTES) + _varint(size), *pieces]


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@cache
def _number(message: Any, name: str) -> int:
    return int(message.DESCRIPTOR.fields_by_name[name].number)
