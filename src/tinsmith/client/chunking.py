"""One forward_backward call in requests no larger than the service wants."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tinsmith.types import (
    Datum,
    DmelChunk,
    EncodedTextChunk,
    ImageAssetPointerChunk,
    ModelInputChunk,
)

from .replies import ServerConfig


def split(data: Sequence[Datum], server: ServerConfig) -> list[list[Datum]]:
    """Neighbouring datums together, within the service's limits; one that is too large goes alone."""
    size = _numbers if server.old_dialect else _bytes
    return _split(data, server.fwdbwd_max_chunk_len, server.fwdbwd_max_chunk_bytes_count, size)


def _split(data: Sequence[Datum], most: int, largest: int, size: Callable[[Datum], int]) -> list[list[Datum]]:
    if not data:
        raise ValueError("data: is empty; give at least one datum")
    chunks: list[list[Datum]] = []
    room = 0
    for datum in data:
        needed = size(datum)
        if not chunks or needed > room or len(chunks[-1]) == most:
            chunks.append([])
            room = largest
        chunks[-1].append(datum)
        room -= needed
    return chunks


def _bytes(datum: Datum) -> int:
    """What the datum takes on the binary wire, nearly."""
    tensors = sum(tensor.nbytes for tensor in datum.loss_fn_inputs.values())
    return tensors + sum(_chunk_bytes(chunk) for chunk in datum.model_input.chunks)


def _chunk_bytes(chunk: ModelInputChunk) -> int:
    if isinstance(chunk, EncodedTextChunk):
        return 4 * chunk.length
    if isinstance(chunk, ImageAssetPointerChunk):
        return len(chunk.location)
    return len(chunk.dmel if isinstance(chunk, DmelChunk) else chunk.data)


def _numbers(datum: Datum) -> int:
    """What the old dialect's limit counts: positions and tensor elements."""
    return datum.model_input.length + sum(int(tensor.data.size) for tensor in datum.loss_fn_inputs.values())
