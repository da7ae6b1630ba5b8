"""ModelInput and its chunks: which token ids there are, and how long each kind of chunk is."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from tinsmith.types import (
    DmelChunk,
    EncodedTextChunk,
    ImageAssetPointerChunk,
    ImageChunk,
    ModelInput,
    ModelInputChunk,
)

MAX = 2**31 - 1


@pytest.mark.parametrize(
    "tokens",
    [[0, 5, MAX], (0, 5, MAX), [0.0, 5.0, float(MAX)], np.array([0, 5, MAX]),
     np.array([0, 5, MAX], np.uint32), torch.tensor([0, 5, MAX])],
    ids=lambda tokens: type(tokens).__name__,
)  # fmt: skip
def test_token_ids_from_any_flat_sequence_of_whole_numbers(tokens: Any) -> None:
    chunk = EncodedTextChunk(tokens=tokens)
    assert (chunk.tokens, chunk.length, chunk.type) == ([0, 5, MAX], 3, "encoded_text")
    assert chunk.array.dtype == np.int32


@pytest.mark.parametrize("tokens", [[], (), np.array([]), range(0)])
def test_no_tokens(tokens: Any) -> None:
    assert EncodedTextChunk(tokens=tokens).tokens == []


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([1, -1], r"tokens\[1\]: -1 is not a token id"),
        ([2**31], r"tokens\[0\]: 2147483648 is not a token id"),
        ([1, 2**63], r"tokens\[1\]: "),
        ([-1, 2**63], r"tokens\[0\]: "),
        ([1e30], r"tokens\[0\]: "),
        ([float("inf")], r"tokens\[0\]: "),
        ([2**70], "tokens: a flat sequence of whole numbers"),
        ([1.5], "tokens: a flat sequence of whole numbers"),
        ([float("nan")], "tokens: a flat sequence of whole numbers"),
        ([None], "tokens: a flat sequence of whole numbers"),
        (["1"], "tokens: a flat sequence of whole numbers"),
        ([True], "tokens: a flat sequence of whole numbers"),
        ([[1, 2]], "tokens: a flat sequence of whole numbers"),
        ([[1], [2, 3]], "tokens: a flat sequence of whole numbers"),
        ([[]], "tokens: a flat sequence of whole numbers"),
        (5, "tokens: a flat sequence of whole numbers"),
        (None, "tokens: a flat sequence of whole numbers"),
        ({}, "tokens: a flat sequence of whole numbers"),
        ("12", "tokens: .*not text"),
        (b"12", "tokens: .*not text"),
    ],
    ids=repr,
)
def test_what_is_no_token_id_is_refused_by_its_place(tokens: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EncodedTextChunk(tokens=tokens)


def test_editing_the_source_afterwards_changes_nothing() -> None:
    source = np.array([1, 2], np.int32)
    chunk = EncodedTextChunk(source)
    source[:] = 9
    chunk.tokens.append(9)
    assert chunk.tokens == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        chunk.array[0] = 9
    with pytest.raises(AttributeError, match="immutable"):
        chunk.array = source


@pytest.mark.parametrize(
    ("fields", "length"),
    [
        ({"height": 4, "width": 5, "tokens": 6}, 6),  # SDK 0.4.1
        ({"expected_tokens": 7}, 7),  # since 0.5.1
        ({"expected_tokens": 7, "tokens": 6}, 7),
        ({"expected_tokens": 0}, 0),
    ],
)
def test_images_of_every_generation_know_their_length(fields: dict[str, Any], length: int) -> None:
    assert ImageChunk(data=b"x", format="png", **fields).length == length
    assert ImageAssetPointerChunk(location="x://y", format="jpeg", **fields).length == length


def test_an_image_without_a_count_has_no_length() -> None:
    with pytest.raises(ValueError, match="expected_tokens"):
        _ = ImageChunk(data=b"x", format="png").length


@pytest.mark.parametrize(
    ("make", "fields", "where"),
    [
        (ImageChunk, {"data": b"x", "format": "gif"}, "format"),
        (ImageChunk, {"data": "not base64!", "format": "png"}, "data"),
        (ImageChunk, {"data": "ü", "format": "png"}, "data"),
        (ImageChunk, {"format": "png"}, "data"),
        (ImageChunk, {"image_data": b"x", "image_format": "png"}, "data"),
        (ImageChunk, {"data": b"x", "format": "png", "asset_id": "a"}, "asset_id"),
        (ImageChunk, {"data": b"x", "format": "png", "expected_tokens": -1}, "expected_tokens"),
        (ImageChunk, {"data": b"x", "format": "png", "tokens": 2**31}, "tokens"),
        (ImageAssetPointerChunk, {"format": "png"}, "location"),
        (DmelChunk, {"dmel": b"", "x": 1}, "x"),
    ],
)
def test_a_wrong_field_of_a_chunk_is_named(make: Any, fields: dict[str, Any], where: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        make(**fields)
    assert where in {error["loc"][0] for error in refusal.value.errors()}


@pytest.mark.parametrize("data", [b"", b"\xfb\xff\xfe>?", bytes(range(256))])
def test_bytes_in_are_bytes_out(data: bytes) -> None:
    image = ImageChunk(data=data, format="png")
    assert ImageChunk.model_validate_json(image.model_dump_json()).data == data
    assert ImageChunk.model_validate(image.model_dump()).data == data


# The lengths and the refusals are those of SDK 0.38.
@pytest.mark.parametrize(
    ("header", "length"),
    [
        (b"\x04\x02\x05\x03", 5),
        (b"\x04\x01\x00", 0),
        (b"\x04\x02\xac\x02\x03", 300),
        (b"\xfe\x04\x02\xac\x02\x03", 300),  # a constant tensor
        (b"\x07\x01\x7f" + bytes(100), 127),
    ],
)
def test_the_length_of_audio_is_its_first_dimension(header: bytes, length: int) -> None:
    assert DmelChunk(dmel=header).length == length


@pytest.mark.parametrize(
    "header",
    [b"", b"\x04", b"\xfe", b"\xfe\x04", b"\x04\x01", b"\x04\x01\x80", b"\x04\x00", b"\x09\x01\x05",
     b"\xff\x01\x05",
     b"\x04\x01" + b"\xff" * 12 + b"\x01", b"\x04\x01" + b"\xff" * 1_000_000],
    ids=lambda header: header[:6].hex() or "empty",
)  # fmt: skip
def test_audio_with_a_broken_header_has_no_length(header: bytes) -> None:
    with pytest.raises(ValueError, match=r"^dmel: "):
        _ = DmelChunk(dmel=header).length


def test_building_an_input() -> None:
    text = ModelInput.from_ints([1, 2])
    image = ImageChunk(data=b"x", format="png", expected_tokens=4)
    both = text.append(image).append_int(3).append_int(4)
    assert (text.to_ints(), text.length) == ([1, 2], 2)
    assert (both.length, [chunk.type for chunk in both.chunks]) == (
        8,
        ["encoded_text", "image", "encoded_text"],
    )
    assert (ModelInput.empty().to_ints(), ModelInput.empty().append_int(7).to_ints()) == ([], [7])
    assert text.append(EncodedTextChunk([3])).to_ints() == [1, 2, 3]


def test_only_text_has_token_ids() -> None:
    with pytest.raises(ValueError, match=r"chunks\[1\]: dmel has no token ids"):
        ModelInput.from_ints([1]).append(DmelChunk(dmel=b"")).to_ints()


def test_an_input_is_made_of_chunks() -> None:
    with pytest.raises(TypeError, match=r"chunks\[0\]: int is not a chunk"):
        ModelInput([1, 2])  # type: ignore[list-item]
    with pytest.raises(AttributeError, match="immutable"):
        ModelInput.empty().chunks = ()


@pytest.mark.parametrize(
    "chunk",
    [EncodedTextChunk([1, 2]), ImageChunk(data=b"x", format="png"), DmelChunk(dmel=b"x"),
     ImageAssetPointerChunk(location="x", format="png")],
    ids=lambda chunk: chunk.type,
)  # fmt: skip
def test_equal_inputs_are_equal_and_survive_pickling(chunk: ModelInputChunk) -> None:
    one = ModelInput([chunk])
    other = pickle.loads(pickle.dumps(one))
    assert other == one
    assert hash(other) == hash(one)
    assert one != ModelInput([chunk, chunk])
    assert one != [chunk]
