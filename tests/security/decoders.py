"""Everything that reads bytes of strangers, as functions of bytes: each gives something or a refusal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tinsmith.server.routes import ROUTES
from tinsmith.types import UserError
from tinsmith.types.checkpoint import ParsedCheckpointTinkerPath
from tinsmith.types.custom_loss import CreateCustomLossRequest, checked_loss
from tinsmith.types.requests import SampleRequest
from tinsmith.wire import compression, json, protobuf

LIMIT = 2**20
SAMPLES = Path(__file__).parent.parent / "wire" / "samples"
Decoder = Callable[[bytes], object]


def protobuf_batch(body: bytes) -> object:
    protobuf.check_size(body)
    protobuf.peek_address(body)
    call = protobuf.decode_forward_backward(body)
    again = protobuf.encode_forward_backward(call)
    twice = protobuf.encode_forward_backward(protobuf.decode_forward_backward(again))
    assert len(twice) == len(again)  # maps have no order
    return call


def json_batch(body: bytes, forward_only: bool) -> object:
    json.peek_address(body)
    call = json.forward_backward_from_json(json.loads_request(body), forward_only=forward_only)
    return protobuf.encode_forward_backward(call)


def sample_request(body: bytes) -> object:
    request = json.parse_model(SampleRequest, json.loads_request(body))
    request.model_dump_json()
    return json.model_input_from_json(request.prompt, "prompt")


def custom_loss(body: bytes) -> object:
    return checked_loss(json.parse_model(CreateCustomLossRequest, json.loads_request(body)))


def control_requests(body: bytes) -> object:
    """Every small body there is; what is accepted can be written down again."""
    value = json.loads_request(body)
    for route in ROUTES:
        if route.takes is not None:
            with contextlib.suppress(UserError):
                json.parse_model(route.takes, value).model_dump_json()
    return value


def compressed(body: bytes, encoding: str) -> object:
    plain = compression.decompress(body, encoding, LIMIT)
    assert len(plain) <= LIMIT
    return plain


def checkpoint_path(body: bytes) -> object:
    path = body.decode("utf-8", "replace")
    try:
        parsed = ParsedCheckpointTinkerPath.from_tinker_path(path)
    except ValueError as error:
        raise UserError(str(error)) from error
    name = parsed.checkpoint_id.partition("/")[2]
    assert name.isascii() and not set("/\\\0") & set(name) and name[0] not in ".-"
    return parsed


DECODERS: list[Decoder] = [
    protobuf_batch,
    protobuf.decode_forward_backward_output,
    protobuf.decode_sample_response,
    partial(json_batch, forward_only=False),
    partial(json_batch, forward_only=True),
    sample_request,
    custom_loss,
    control_requests,
    partial(compressed, encoding="zstd"),
    partial(compressed, encoding="gzip"),
    checkpoint_path,
]


def decode(data: bytes) -> None:
    """The first byte chooses who reads the rest. Only a refusal is an answer; all else is a find."""
    if data:
        with contextlib.suppress(UserError):
            DECODERS[data[0] % len(DECODERS)](data[1:])


def seeds() -> list[bytes]:
    """What honest clients send, for every reader."""
    honest = [path.read_bytes() for path in sorted(SAMPLES.iterdir())]
    honest += [
        b'{"chunks":[{"tokens":[1,2]}]}',
        b"tinker://a:train:0/weights/b",
        compression.compress(b"x" * 99),
    ]
    for name in ("sdk_0_4_1_requests.json", "sdk_0_38_requests.json"):
        requests = json.loads((SAMPLES / name).read_bytes())
        parts = requests.values() if isinstance(requests, dict) else requests
        honest += [json.dumps(part) for part in parts]
    return [bytes([reader]) + body for body in honest for reader in range(len(DECODERS))]
