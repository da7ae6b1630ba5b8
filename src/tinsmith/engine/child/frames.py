"""What the service and its engine process say to each other: a length, then a pickle.

Both ends are this program, over a socket pair that nobody else holds; nothing from outside is unpickled.
"""

from __future__ import annotations

import asyncio
import pickle
import struct
from typing import Any

_LENGTH = struct.Struct("!Q")

# To the engine: (number, what, arguments), where what is a method of the engine or one of these.
START, OFFER, MORE, CANCEL, CLOSE = "start", "offer", "more", "cancel", "close"
# From the engine: (number, kind, value).
READY, DONE, FAILED, ITEM = "ready", "done", "failed", "item"

# Methods that may be called; the second kind gives one item each time `MORE` is asked for.
CALLS = frozenset(
    {
        "create_adapter",
        "drop_adapter",
        "forward_backward",
        "optim_step",
        "save_adapter",
        "load_adapter",
        "save_state",
        "load_state",
        "adapter_bytes",
        "open_sampler",
        "close_sampler",
        "sample",
        "beat",
    }
)
STREAMS = frozenset({"stream_sample"})


def pack(message: tuple[int, str, Any]) -> bytes:
    """One message as bytes."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


async def read(reader: asyncio.StreamReader) -> tuple[int, str, Any]:
    """The next message; `asyncio.IncompleteReadError` once the other end is gone."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    message: tuple[int, str, Any] = pickle.loads(await reader.readexactly(length))
    return message
