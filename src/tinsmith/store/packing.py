"""Payloads and answers as they lie in the database: zstd, at the level that costs the least time."""

from __future__ import annotations

from tinsmith import _zstd as zstd

_LEVEL = 1


def pack(body: bytes) -> bytes:
    """Compressed. In any thread."""
    return zstd.compress(body, _LEVEL)


def unpack(packed: bytes) -> bytes:
    """As it was."""
    return zstd.decompress(packed)
