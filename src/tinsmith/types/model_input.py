"""ModelInput: what a model reads, a sequence of chunks of token ids or images."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BeforeValidator, Field, PlainSerializer

from .base import Params

TokenArray = npt.NDArray[np.int32]
_MAX_INT32 = 2**31 - 1


class EncodedTextChunk:
    """Token ids. They are checked and copied once; ``tokens`` gives them back as a list.

    >>> EncodedTextChunk(tokens=[1, 2]).length
    2
    """

    __slots__ = ("array",)
    type: ClassVar[Literal["encoded_text"]] = "encoded_text"
    array: TokenArray

    def __init__(
        self, tokens: Sequence[int] | npt.NDArray[Any], type: Literal["encoded_text"] = "encoded_text"
    ):
        if type != "encoded_text":
            raise ValueError(f"type: a text chunk is 'encoded_text', not {type!r}")
        object.__setattr__(self, "array", token_array(tokens, "tokens"))

    @property
    def tokens(self) -> list[int]:
        """The ids as a fresh list."""
        tokens: list[int] = self.array.tolist()
        return tokens

    @property
    def length(self) -> int:
        """Number of positions this chunk takes in the model's context."""
        return int(self.array.size)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("EncodedTextChunk is immutable")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EncodedTextChunk):
            return NotImplemented
        return np.array_equal(self.array, other.array)

    def __hash__(self) -> int:
        return hash(self.array.tobytes())

    def __reduce__(self) -> tuple[Any, ...]:
        return EncodedTextChunk, (self.array,)

    def __repr__(self) -> str:
        return f"EncodedTextChunk(tokens={self.tokens})"


def token_array(tokens: Sequence[int] | npt.NDArray[Any], field: str) -> TokenArray:
    """A read-only int32 copy, or an error that names the first bad id."""
    if isinstance(tokens, (str, bytes)):
        raise ValueError(
            f"{field}: a sequence of token ids is needed, not text; encode it with a tokenizer first"
        )
    try:
        source = np.asarray(tokens)
    except (ValueError, TypeError):
        raise ValueError(f"{field}: a flat sequence of whole numbers is needed") from None
    kind = source.dtype.kind if source.size else "i"
    if source.ndim != 1 or not (kind in "iu" or (kind == "f" and np.array_equal(source, np.trunc(source)))):
        raise ValueError(f"{field}: a flat sequence of whole numbers below 2**31 is needed")
    if source.size and not (source.min() >= 0 and source.max() <= _MAX_INT32):
        where = int(np.argmax((source < 0) | (source > _MAX_INT32)))
        raise ValueError(f"{field}[{where}]: {source[where]} is not a token id (0..{_MAX_INT32})")
    if source.dtype == np.int32 and isinstance(source.base, bytes):
        return source  # bytes never change, so wire data needs no copy
    array = source.astype(np.int32)
    array.flags.writeable = False
    return array


def _from_base64(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return base64.b64decode(value, validate=True)
        except binascii.Error as error:
            raise ValueError(f"not base64 text: {error}") from None
    return value


Base64Bytes = Annotated[
    bytes,
    BeforeValidator(_from_base64),
    PlainSerializer(lambda data: base64.b64encode(data).decode(), return_type=str, when_used="json"),
]


class _ImageBase(Params):
    """Fields of both generations of the image chunk: height, width, tokens (old) or expected_tokens (new)."""

    format: Literal["png", "jpeg"]
    expected_tokens: int | None = Field(None, ge=0, le=_MAX_INT32)
    height: int | None = Field(None, ge=0, le=_MAX_INT32)
    width: int | None = Field(None, ge=0, le=_MAX_INT32)
    tokens: int | None = Field(None, ge=0, le=_MAX_INT32)

    @property
    def length(self) -> int:
        """Number of positions the image takes in the model's context."""
        known = self.expected_tokens if self.expected_tokens is not None else self.tokens
        if known is None:
            raise ValueError("expected_tokens: unknown, so the length of this image is not known")
        return known


class ImageChunk(_ImageBase):
    """An image, carried in the request."""

    data: Base64Bytes
    type: Literal["image"] = "image"


class ImageAssetPointerChunk(_ImageBase):
    """An image the service already has."""

    location: str
    type: Literal["image_asset_pointer"] = "image_asset_pointer"


class DmelChunk(Params):
    """Audio features: a serialized tensor container, opaque to us.

    >>> DmelChunk(dmel=b"features").type
    'dmel'
    """

    dmel: Base64Bytes
    type: Literal["dmel"] = "dmel"

    @property
    def length(self) -> int:
        """The container's first dimension."""
        at = 1 if self.dmel[:1] == _CONSTANT_MARKER else 0
        try:
            if self.dmel[at] > _LAST_DTYPE:
                raise ValueError(f"dmel: {self.dmel[at]} is not a dtype of a tensor container")
            rank, at = _varint(self.dmel, at + 1)
            if not rank:
                raise ValueError("dmel: a scalar has no first dimension, so no length")
            return _varint(self.dmel, at)[0]
        except IndexError:
            raise ValueError("dmel: the tensor container's header is cut short") from None


# The container's header: perhaps a marker (all values equal), the dtype, the rank, the dimensions as varints.
_CONSTANT_MARKER = b"\xfe"
_LAST_DTYPE = 7


def _varint(blob: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 63, 7):
        byte = blob[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if not byte & 0x80:
            return value, at
    raise ValueError("dmel: a dimension of the tensor container is too large")


ModelInputChunk = EncodedTextChunk | ImageAssetPointerChunk | ImageChunk | DmelChunk


class ModelInput:
    """A prompt or a training input. Immutable: ``append`` gives a new one.

    >>> ModelInput.from_ints([1, 2]).append_int(3).to_ints()
    [1, 2, 3]
    """

    __slots__ = ("_chunks",)
    _chunks: tuple[ModelInputChunk, ...]

    def __init__(self, chunks: Sequence[ModelInputChunk] = ()) -> None:
        for at, chunk in enumerate(chunks):
            if not isinstance(chunk, ModelInputChunk):
                raise TypeError(f"chunks[{at}]: {type(chunk).__name__} is not a chunk")
        object.__setattr__(self, "_chunks", tuple(chunks))

    @property
    def chunks(self) -> list[ModelInputChunk]:
        """The chunks, as a list of the caller's own."""
        return list(self._chunks)

    @classmethod
    def from_ints(cls, tokens: Sequence[int] | npt.NDArray[Any]) -> ModelInput:
        """One text chunk of these token ids."""
        return cls([EncodedTextChunk(tokens)])

    @classmethod
    def empty(cls) -> ModelInput:
        """No chunks at all."""
        return cls()

    def to_array(self) -> TokenArray:
        """All token ids as one int32 array; an error if there is anything but text."""
        arrays = []
        for at, chunk in enumerate(self._chunks):
            if not isinstance(chunk, EncodedTextChunk):
                raise ValueError(f"chunks[{at}]: {chunk.type} has no token ids; only text chunks do")
            arrays.append(chunk.array)
        if len(arrays) == 1:
            return arrays[0]
        return np.concatenate(arrays) if arrays else np.empty(0, dtype=np.int32)

    def to_ints(self) -> list[int]:
        """All token ids; an error if there is anything but text."""
        tokens: list[int] = self.to_array().tolist()
        return tokens

    @property
    def length(self) -> int:
        """Number of positions in the model's context."""
        return sum(chunk.length for chunk in self._chunks)

    def append(self, chunk: ModelInputChunk) -> ModelInput:
        """A new input with one more chunk."""
        return ModelInput([*self._chunks, chunk])

    def append_int(self, token: int) -> ModelInput:
        """A new input with one more token, joined to the last chunk when that is text."""
        if self._chunks and isinstance(self._chunks[-1], EncodedTextChunk):
            return ModelInput([*self._chunks[:-1], EncodedTextChunk([*self._chunks[-1].tokens, token])])
        return self.append(EncodedTextChunk([token]))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("ModelInput is immutable: append() gives a new one")

    def __eq__(self, other: object) -> bool:
        return self._chunks == other._chunks if isinstance(other, ModelInput) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._chunks)

    def __reduce__(self) -> tuple[Any, ...]:
        return ModelInput, (self._chunks,)

    def __repr__(self) -> str:
        return f"ModelInput(chunks={list(self._chunks)})"
