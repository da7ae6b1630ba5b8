"""Payloads and answers as they lie in the database: zstd, at the level that costs the least time."""

from __future__ import annotations

import zstandard

_LEVEL = 1


def pack(body: bytes) -> bytes:
    """Compressed. In any thread: a compressor of zstandard's serves one at a time, and is cheap to make."""
    return zstandard.ZstdCompressor(level=_LEVEL).compress(body)


def unpack(packed: bytes) -> bytes:
    """As it was."""
    return zstandard.ZstdDecompressor().decompress(packed)
