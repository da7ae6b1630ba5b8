"""Request bodies may come compressed; what they unfold to is bounded."""

from __future__ import annotations

import gzip
import io
import zlib

from tinsmith import _zstd as zstd
from tinsmith.types import UserError

ENCODINGS = ("identity", "gzip", "zstd")


def compress(body: bytes, level: int = 3) -> bytes:
    """One zstd frame."""
    return zstd.compress(body, level)


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
    except (OSError, EOFError, zlib.error, zstd.ZstdError) as error:
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
    """Frame after frame, and no further than one byte beyond the limit."""
    if not body:
        raise EOFError("it is empty")
    parts, room = [], limit + 1
    while body and room > 0:
        frame = zstd.ZstdDecompressor()
        parts.append(frame.decompress(body, room))
        room -= len(parts[-1])
        if room > 0 and not frame.eof:
            raise EOFError("it is cut short")
        body = frame.unused_data
    return b"".join(parts)


_UNFOLD = {"identity": _as_is, "gzip": _gzip, "zstd": _zstd}
