"""Server-sent events: written, and read from a stream of bytes that may be cut anywhere.

The rules are those of the HTML standard: a line ends in LF, CR or CR LF; a blank line ends an event; several
``data`` lines are one text; one space after the colon is no part of the value; a line that begins with a
colon is a comment. An event that no blank line ends was cut off and is not delivered.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass

CONTENT_TYPE = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Event:
    """One event. ``id`` is the last one given, in this event or before; ``retry`` is in milliseconds."""

    data: str = ""
    event: str = "message"
    id: str = ""
    retry: int | None = None


def encode(event: Event) -> bytes:
    """The bytes of an event.

    >>> encode(Event("a\\nb", "token"))
    b'event: token\\ndata: a\\ndata: b\\n\\n'
    """
    fields = []
    if event.event != "message":
        fields.append(("event", event.event))
    if event.id:
        fields.append(("id", event.id))
    if event.retry is not None:
        fields.append(("retry", str(event.retry)))
    for name, value in fields:
        if any(end in value for end in "\r\n\0"):
            raise ValueError(f"{name}: {value!r:.80} has a line break or a NUL in it")
    lines = event.data.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    fields += [("data", line) for line in lines]
    return ("".join(f"{name}: {value}\n" for name, value in fields) + "\n").encode()


def comment(text: str = "") -> bytes:
    """Bytes that mean nothing, to keep a connection alive."""
    return f": {text}\n\n".encode()


class Decoder:
    """Feed it bytes as they come; it gives back the events that have become whole.

    >>> decoder = Decoder()
    >>> decoder.feed(b"data: he")
    []
    >>> [event.data for event in decoder.feed(b"llo\\r\\n\\r\\n")]
    ['hello']
    """

    def __init__(self) -> None:
        self._text = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""  # the line that has not ended yet
        self._after_cr = False  # a line ended in \r: a \n that comes next belongs to it
        self._began = False
        self._data: list[str] = []
        self._event = ""
        self._id = ""
        self._retry: int | None = None

    def feed(self, piece: bytes) -> list[Event]:
        """The events that end in this piece."""
        text = self._text.decode(piece)
        if not self._began and text:
            self._began = True
            text = text.removeprefix("\ufeff")
        events = []
        for line in self._lines(text):
            event = self._take(line)
            if event is not None:
                events.append(event)
        return events

    def _lines(self, text: str) -> list[str]:
        if self._after_cr and text:
            text = text.removeprefix("\n")
            self._after_cr = False
        if not text:
            return []
        self._after_cr = text.endswith("\r")
        whole = (self._rest + text).replace("\r\n", "\n").replace("\r", "\n")
        *lines, self._rest = whole.split("\n")
        return lines

    def _take(self, line: str) -> Event | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self._id = value
        elif name == "retry" and value.isascii() and value.isdigit():
            self._retry = int(value)
        return None  # a comment, or a field that is none of ours

    def _dispatch(self) -> Event | None:
        data, event, retry = self._data, self._event, self._retry
        self._data, self._event, self._retry = [], "", None
        if not data:
            return None
        return Event("\n".join(data), event or "message", self._id, retry)
