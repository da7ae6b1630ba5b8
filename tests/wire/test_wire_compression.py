"""Compressed bodies: whole ones unfold, the rest is refused, and none takes more memory than allowed."""

import contextlib
import gzip
import tracemalloc
import zlib

import pytest

from tinsmith._zstd import ZstdCompressor
from tinsmith.types import UserError
from tinsmith.wire.compression import compress, decompress

BODY = bytes(range(256)) * 40
LIMIT = 1 << 20


def stream_frame(body: bytes) -> bytes:
    """A zstd frame that does not say how large it is, as a streaming client writes it."""
    packer = ZstdCompressor()
    return packer.compress(body) + packer.flush()


PACK = {"gzip": gzip.compress, "zstd": compress, "zstd, streamed": stream_frame}
both = pytest.mark.parametrize("kind", PACK)


def unfold(body: bytes, kind: str, limit: int = LIMIT) -> bytes:
    return decompress(body, kind.split(",")[0], limit)


@both
@pytest.mark.parametrize("body", [b"", b"x", BODY, bytes(LIMIT)], ids=["empty", "one byte", "text", "zeros"])
def test_a_whole_body_unfolds(kind: str, body: bytes) -> None:
    assert unfold(PACK[kind](body), kind) == body


@pytest.mark.parametrize("encoding", ["", "identity", " Identity "])
def test_a_plain_body_stays_as_it_is(encoding: str) -> None:
    assert decompress(BODY, encoding, LIMIT) == BODY


@pytest.mark.parametrize("encoding", ["GZIP", " gzip "])
def test_the_name_of_an_encoding_has_no_case(encoding: str) -> None:
    assert decompress(gzip.compress(BODY), encoding, LIMIT) == BODY


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, zstd", "x"])
def test_other_encodings_are_refused(encoding: str) -> None:
    with pytest.raises(UserError, match="not understood; use identity, gzip, zstd") as refusal:
        decompress(BODY, encoding, LIMIT)
    assert refusal.value.field == "Content-Encoding"


@both
def test_several_frames_are_one_body(kind: str) -> None:
    pack = PACK[kind]
    assert unfold(pack(BODY) + pack(b"more") + pack(BODY), kind) == BODY + b"more" + BODY


def test_frames_of_both_forms_mix() -> None:
    assert unfold(compress(b"a") + stream_frame(b"b") + compress(b"c"), "zstd") == b"abc"


@both
def test_a_body_cut_short_is_refused_wherever_it_is_cut(kind: str) -> None:
    whole = PACK[kind](BODY)
    for size in range(len(whole)):
        with pytest.raises(UserError, match="body: the body is not valid"):
            unfold(whole[:size], kind)


@both
@pytest.mark.parametrize("garbage", [b"x", b"garbage after the end", b"\x28\xb5\x2f\xfd", b"\x1f\x8b"])
def test_bytes_after_the_end_are_refused(kind: str, garbage: bytes) -> None:
    with pytest.raises(UserError, match="body: the body is not valid"):
        unfold(PACK[kind](BODY) + garbage, kind)


@both
@pytest.mark.parametrize("body", [b"", b"x", b"{}", BODY, zlib.compress(BODY)])
def test_what_is_not_compressed_is_refused(kind: str, body: bytes) -> None:
    with pytest.raises(UserError, match="body: the body is not valid"):
        unfold(body, kind)


@both
def test_a_changed_byte_is_noticed_or_harmless(kind: str) -> None:
    """Only zstd's one-shot frames carry no checksum; even those never raise anything but a refusal."""
    whole = PACK[kind](BODY)
    for at in range(len(whole)):
        broken = whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :]
        with contextlib.suppress(UserError):
            unfold(broken, kind)


@both
def test_the_limit_is_exact(kind: str) -> None:
    assert unfold(PACK[kind](BODY), kind, len(BODY)) == BODY
    with pytest.raises(UserError, match=f"body: the body unfolds to more than {len(BODY) - 1} bytes"):
        unfold(PACK[kind](BODY), kind, len(BODY) - 1)


def test_a_plain_body_has_a_limit_too() -> None:
    with pytest.raises(UserError, match="more than 3 bytes"):
        decompress(b"four", "identity", 3)


@both
@pytest.mark.parametrize("frames", [1, 200])
def test_a_bomb_takes_little_memory(kind: str, frames: int) -> None:
    one = PACK[kind](bytes((400 << 20) // frames))
    bomb = one * frames
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match="unfolds to more than"):
            unfold(bomb, kind)
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()


def test_a_frame_that_lies_about_its_size_is_refused() -> None:
    honest = compress(bytes(200))
    at = honest.index(200)  # one byte of content size
    lie = honest[:at] + b"\x64" + honest[at + 1 :]
    with pytest.raises(UserError, match="not valid zstd"):
        unfold(lie, "zstd")
