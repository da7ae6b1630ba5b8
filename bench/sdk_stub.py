"""A Tinker service that does nothing, quickly: what `bench/sdk.py` has both SDKs talk to.

One process, raw asyncio, every answer ready at once. It prints its port.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import httptools
import numpy as np
import orjson
import uvloop

from tinsmith.types import ForwardBackwardOutput, SampledSequence, SampleResponse
from tinsmith.wire import protobuf

API = b"/api/v1/"
SAMPLED = 32  # tokens in each answer
# As our service answers, but for tokens: the exchange of a key would be one more thing to imitate.
CONFIG = {
    "pjwt_auth_enabled": False,
    "sample_use_retrieve_futures": True,
    "sample_join_sampling_session": True,
    "parallel_fwdbwd_chunks": True,
}
DYNAMIC = {"refresh_interval_sec": 300, "sample_cancel_enabled": True, "sample_cancel_max_batch_size": 64}
_SEQUENCE = SampledSequence(
    "length", np.arange(SAMPLED, dtype=np.int32), np.full(SAMPLED, -1.5, dtype=np.float32)
)
SAMPLE = protobuf.encode_sample_response(SampleResponse([_SEQUENCE]))
BATCH = protobuf.encode_forward_backward_output(ForwardBackwardOutput("Nothing", [], {"loss:sum": 1.0}))
JSON, PROTOBUF = b"application/json", b"application/x-protobuf"
Reply = tuple[bytes, bytes]


class Service:
    """What has been asked of it so far."""

    def __init__(self) -> None:
        self._count = itertools.count()
        self._results: dict[str, Reply] = {}
        self._told: dict[str, list[str]] = defaultdict(list)  # finished samples, by sampler
        self._waiting: dict[str, list[tuple[int, Callable[[Reply], None]]]] = defaultdict(list)

    def answer(self, path: bytes, body: bytes, send: Callable[[Reply], None]) -> None:
        """Answer now, or once there is something to tell."""
        name = path.removeprefix(API).partition(b"?")[0].decode().replace("/", "_")
        if name == "retrieve_futures":
            self._poll(orjson.loads(body), send)
        elif name.startswith("sessions_") or name.startswith("samplers_"):
            send((JSON, b'{"sampler_id": "s", "base_model": "m"}'))
        else:
            send(getattr(self, name)(body))

    def client_config(self, _: bytes) -> Reply:
        return JSON, orjson.dumps(CONFIG)

    def client_dynamic_config(self, _: bytes) -> Reply:
        return JSON, orjson.dumps(DYNAMIC)

    def create_session(self, _: bytes) -> Reply:
        return JSON, b'{"session_id": "S", "type": "create_session"}'

    def session_heartbeat(self, _: bytes) -> Reply:
        return JSON, b'{"type": "session_heartbeat"}'

    def telemetry(self, _: bytes) -> Reply:
        return JSON, b'{"status": "accepted"}'

    def create_sampling_session(self, body: bytes) -> Reply:
        number = orjson.loads(body)["sampling_session_seq_id"]
        return JSON, orjson.dumps({"sampling_session_id": f"S:sample:{number}"})

    def create_model(self, body: bytes) -> Reply:
        model_id = f"S:train:{orjson.loads(body)['model_seq_id']}"
        return self._accept((JSON, orjson.dumps({"model_id": model_id, "type": "create_model"})))

    def get_info(self, body: bytes) -> Reply:
        data = {"arch": "a", "model_name": "m", "tokenizer_id": "t"}
        model_id = orjson.loads(body)["model_id"]
        return JSON, orjson.dumps({"model_data": data, "model_id": model_id, "type": "get_info"})

    def forward_backward(self, _: bytes) -> Reply:
        return self._accept((PROTOBUF, BATCH))

    def asample(self, body: bytes) -> Reply:
        asked = orjson.loads(body)
        sampler = asked["sampling_session_id"]
        request_id = f"{sampler}:{asked['seq_id']}"
        self._results[request_id] = (PROTOBUF, SAMPLE)
        told = self._told[sampler]
        told.append(request_id)
        for cursor, send in self._waiting.pop(sampler, ()):
            self._tell(sampler, cursor, send)
        ids = [f"{request_id}:{at}" for at in range(asked["num_samples"])]
        return JSON, orjson.dumps({"request_id": request_id, "sample_sequence_ids": ids})

    def retrieve_future(self, body: bytes) -> Reply:
        return self._results.pop(orjson.loads(body)["request_id"])

    def _poll(self, asked: Any, send: Callable[[Reply], None]) -> None:
        sampler, cursor = asked["target"]["sampling_session_id"], asked["prev_cursor"]
        if len(self._told[sampler]) > cursor or asked.get("timeout") == 0:
            self._tell(sampler, cursor, send)
        else:
            self._waiting[sampler].append((cursor, send))

    def _tell(self, sampler: str, cursor: int, send: Callable[[Reply], None]) -> None:
        told = self._told[sampler]
        finished = [
            {"state": "finished", "request_id": name, "response_payload_uncompressed_size": len(SAMPLE)}
            for name in told[cursor:]
        ]
        send((JSON, orjson.dumps({"completions": finished, "cursor": len(told)})))

    def _accept(self, result: Reply) -> Reply:
        request_id = f"r{next(self._count)}"
        self._results[request_id] = result
        return JSON, orjson.dumps({"request_id": request_id})


class Connection(asyncio.Protocol):
    """HTTP/1.1, one request after the other."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._parser = httptools.HttpRequestParser(self)
        self._body: list[bytes] = []
        self._path = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._path = url

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        body, self._body = b"".join(self._body), []
        self._service.answer(self._path, body, self._send)

    def _send(self, reply: Reply) -> None:
        kind, body = reply
        head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (kind, len(body))
        self._transport.write(head + body)


async def main() -> None:
    service = Service()
    server = await asyncio.get_running_loop().create_server(lambda: Connection(service), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
