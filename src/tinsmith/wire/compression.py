"""Request bodies may come compressed; what they unfold to is bounded."""

from __future__ import annotations

import gzip
import io
import zlib

import zstandard

from tinsmith.types import UserError

ENCODINGS = ("identity", "gzip", "zstd")
_STEP = 1024  # compressed bytes taken at once: even a bomb's unfold to 32 MiB at most


def compress(body: bytes, level: int = 3) -> bytes:
    """One zstd frame."""
    return zstandard.ZstdCompressor(level=level).compress(body)


def decompress(body: bytes, encoding: str, limit: int) -> bytes:
    """The plain body; one that unfolds to more than ``limit`` bytes is refused before it takes memory.

    Bytes after the end and a body that is cut short are refused too; several frames in a row are one body.
    """
    name = encoding.strip().lower() or "identity"
    if name not in ENCODINGS:
        raise UserError(
            f"{encoding!r} is not understood; use {', '.join(ENCODINGS)}", field="Content-Encoding"
        )
    try:
        plain = _UNFOLD[name](body, limit)
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
        raise UserError(f"the body is not valid {name}: {error}", field="body") from error
    if len(plain) > limit:
        raise UserError(f"the body unfolds to more than {limit} bytes", field="body")
    return plain


def _as_is(body: bytes, limit: int) -> bytes:
    return body


def _gzip(body: bytes, limit: int) -> bytes:
    if not body:
        raise EOFError("it is empty")
    with gzip.GzipFile(fileobj=io.BytesIO(body)) as reader:
        return reader.read(limit + 1)


def _zstd(body: bytes, limit: int) -> bytes:
    """One frame that says its size (what clients send) unfolds in one go, anything else step by step."""
    try:
        if 0 <= zstandard.frame_content_size(body) <= limit:
            return zstandard.ZstdDecompressor().decompress(body, allow_extra_data=False)
    except zstandard.ZstdError:
        pass  # not one whole frame: the steps below say what it is
    return _zstd_frames(body, limit)


def _zstd_frames(body: bytes, limit: int) -> bytes:
    parts, size, at = [], 0, 0
    frame = zstandard.ZstdDecompressor().decompressobj()
    while at < len(body) and size <= limit:
        if frame.eof:
            frame = zstandard.ZstdDecompressor().decompressobj()
        piece = body[at : at + _STEP]
        parts.append(frame.decompress(piece))
        size += len(parts[-1])
        at += len(piece) - len(frame.unused_data)
    if size <= limit and not frame.eof:
        raise EOFError("it is cut short")
    return b"".join(parts)


_UNFOLD = {"identity": _as_is, "gzip": _gzip, "zstd": _zstd}
