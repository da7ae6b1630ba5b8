"""Server-sent events come out the same however the bytes are cut."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinsmith.types import SequenceDelta, UserError
from tinsmith.wire import sample_events, sse
from tinsmith.wire.sse import Event

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
line = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\0"), min_size=1, max_size=8)
numbers = st.none() | st.integers(0, 10**6)
events = st.builds(Event, data=text, event=st.just("message") | line, id=st.just("") | line, retry=numbers)
ends = st.sampled_from(["\n", "\r", "\r\n"])


def cut(raw: bytes, places: list[int]) -> list[bytes]:
    at = sorted({place % (len(raw) + 1) for place in places} | {0, len(raw)})
    return [raw[start:stop] for start, stop in pairwise(at)]


def read(pieces: list[bytes]) -> list[Event]:
    decoder = sse.Decoder()
    return [event for piece in pieces for event in decoder.feed(piece)]


@given(st.lists(events, max_size=4), st.lists(st.integers(0, 500), max_size=12))
def test_what_was_written_is_read_however_it_is_cut(sent: list[Event], places: list[int]) -> None:
    raw = b"".join(sse.comment("x") + sse.encode(event) for event in sent)
    known, expected = "", []
    for event in sent:
        known = event.id or known
        data = event.data.replace("\r\n", "\n").replace("\r", "\n")
        expected.append(Event(data, event.event, known, event.retry))
    assert read(cut(raw, places)) == expected


fields = st.sampled_from(
    ["data: a", "data:b", "data", "event: e", "id: 7", "retry: 5", "retry: x", ": c", "z: 1"]
)


@given(
    st.lists(st.tuples(fields | st.just(""), ends), max_size=14), st.lists(st.integers(0, 200), max_size=8)
)
def test_any_stream_gives_the_same_events_however_it_is_cut(
    lines: list[tuple[str, str]], places: list[int]
) -> None:
    raw = "".join(content + end for content, end in lines).encode()
    whole = read([raw])
    assert read(cut(raw, places)) == whole
    assert read([bytes([byte]) for byte in raw]) == whole


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"data: a\ndata: b\n\n", [Event("a\nb")]),
        (b"event: x\r\ndata: 1\r\n\r\n", [Event("1", "x")]),
        (b"data: a\r\rdata: b\n\n", [Event("a"), Event("b")]),
        (b": nothing\n\ndata: a\n\n", [Event("a")]),
        (b"id: 1\ndata: a\n\ndata: b\n\n", [Event("a", id="1"), Event("b", id="1")]),
        (b"retry: 10\ndata: a\n\n", [Event("a", retry=10)]),
        (b"data: cut off", []),
        (b"event: only\n\n", []),
        (b"\xef\xbb\xbfdata: a\n\n", [Event("a")]),
    ],
)
def test_by_the_standard(raw: bytes, expected: list[Event]) -> None:
    assert read([raw]) == expected


@pytest.mark.parametrize("field", ["event", "id"])
def test_a_field_that_would_break_the_stream_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=f"^{field}: "):
        sse.encode(Event("a", **{field: "x\ny"}))  # type: ignore[arg-type]


@given(
    st.lists(st.tuples(st.integers(0, 2**31 - 1), st.floats(-50, 0, width=32)), max_size=5),
    st.integers(0, 9),
    st.sampled_from([None, "stop", "length"]),
)
def test_deltas_survive(pairs: list[tuple[int, float]], index: int, reason: str | None) -> None:
    tokens, logprobs = zip(*pairs, strict=True) if pairs else ((), ())
    sent = SequenceDelta(index, np.array(tokens, np.int32), np.array(logprobs, np.float32), reason)  # type: ignore[arg-type]
    (event,) = sse.Decoder().feed(sse.encode(sample_events.tokens_event(sent)))
    got = sample_events.tokens_of(event)
    assert (got.index, got.stop_reason) == (index, reason)
    np.testing.assert_array_equal(got.tokens_np, sent.tokens_np)
    np.testing.assert_array_equal(got.logprobs_np, sent.logprobs_np)


@pytest.mark.parametrize(
    "data",
    [
        "nonsense",
        "[]",
        "{}",
        '{"sequence":0,"tokens":[1],"logprobs":[]}',
        '{"sequence":0,"tokens":[[1]],"logprobs":[[1]]}',
        '{"sequence":0,"tokens":[9999999999],"logprobs":[0]}',
        '{"sequence":0,"tokens":["a"],"logprobs":[0]}',
        '{"sequence":0,"tokens":[1],"logprobs":[0],"stop_reason":"eos"}',
    ],
)
def test_what_is_no_delta_is_refused(data: str) -> None:
    with pytest.raises(UserError):
        sample_events.tokens_of(Event(data, "tokens"))
