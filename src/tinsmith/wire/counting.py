"""How much is in a body, told before it is taken apart: a few bytes can stand for many objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from tinsmith.types import UserError

MOST_VALUES = 2**24  # of a JSON text: each takes up to 32 bytes once it is read
MOST_CONTAINERS = 2**18  # lists and objects of a JSON text: each takes 100 to 200
MOST_FIELDS = 2**18  # of a protobuf message and all messages in it
MOST_DATUMS = 2**14  # of a batch
_SMALL = 8 * 2**20  # bytes of a protobuf message that cannot hold enough fields to matter

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_SIZE = {_FIXED64: 8, _FIXED32: 4}


def check_json(body: bytes) -> None:
    """Refuse a text of too many values. Those in strings count too: bulk bodies hold numbers."""
    values, containers = body.count(b",") + 1, body.count(b"[") + body.count(b"{")
    for count, most, what in (
        (values, MOST_VALUES, "values"),
        (containers, MOST_CONTAINERS, "lists and objects"),
    ):
        if count > most:
            raise UserError(f"{count} {what}; at most {most} can be in one request", field="body")


def check_datums(count: int, field: str) -> None:
    """Refuse a batch of too many datums."""
    if count > MOST_DATUMS:
        raise UserError(f"{count} datums; send at most {MOST_DATUMS} in one request", field=field)


def check_protobuf(body: bytes, message: Any) -> None:
    """Refuse a message of too many fields. What is cut short is left for the parser to refuse."""
    if len(body) <= _SMALL:
        return
    fields = 0
    try:
        for count in _counts(memoryview(body), message):
            fields += count
            if fields > MOST_FIELDS:
                raise UserError(
                    f"more than {MOST_FIELDS} fields; send fewer datums per request", field="body"
                )
    except IndexError:
        return  # the parser stops at the same place, having made no more than was counted


def _counts(body: memoryview, message: Any) -> Iterator[int]:
    """One for each field, those of messages inside included; a packed field counts its values."""
    at = 0
    while at < len(body):
        tag, at = _varint(body, at)
        kind = tag & 7
        yield 1
        if kind == _VARINT:
            _, at = _varint(body, at)
        elif kind in _FIXED_SIZE:
            at += _FIXED_SIZE[kind]
        elif kind == _BYTES:
            size, at = _varint(body, at)
            field = message.fields_by_number.get(tag >> 3)
            if field is not None and field.message_type is not None:
                yield from _counts(body[at : at + size], field.message_type)
            elif field is not None and field.is_repeated and field.type == FieldDescriptor.TYPE_INT64:
                yield size
            at += size
        else:
            raise UserError("holds a group, which no message of this protocol does", field="body")


def _varint(body: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise IndexError("a number of more than 64 bits")
