"""A Tinker service without a model, on a real port: it records what it is asked and misbehaves on request."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
import uvicorn

from tinsmith.types import ForwardBackwardOutput, SampledSequence, SampleResponse, TensorData
from tinsmith.wire import json as wire_json
from tinsmith.wire import protobuf as wire_protobuf
from tinsmith.wire.compression import decompress
from tinsmith.wire.protobuf import ForwardBackwardCall

API = "/api/v1/"
PROTOBUF = wire_protobuf.CONTENT_TYPE


@dataclass
class Recorded:
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    raw: bytes
    query: str = ""

    @property
    def json(self) -> Any:
        return orjson.loads(self.raw)

    @property
    def call(self) -> ForwardBackwardCall:
        body = decompress(self.raw, self.headers.get("content-encoding", ""), 2**30)
        return wire_protobuf.decode_forward_backward(body)


@dataclass
class Answer:
    """One scripted answer."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = "application/json"

    @property
    def raw(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else orjson.dumps(self.body or {})


Behaviour = Answer | Callable[[Recorded], Awaitable[Answer]]


class Stub:
    """The ASGI app. ``script[path]`` is used up answer by answer, then the default behaviour is back."""

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        self.config: dict[str, Any] | None = config if config is not None else {}
        self.url = ""
        self.prefix = ""
        self.requests: list[Recorded] = []
        self.script: dict[str, deque[Behaviour]] = defaultdict(deque)
        self.results: dict[str, Answer] = {}
        self._count = itertools.count()
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)

    # ---- what tests ask -------------------------------------------------------------------------

    def to(self, path: str) -> list[Recorded]:
        """The requests to one endpoint, in order of arrival."""
        with self._lock:
            return [request for request in self.requests if request.path == path]

    def wait_for(self, path: str, count: int = 1) -> list[Recorded]:
        """The same, once there are so many."""
        with self._arrived:
            enough = self._arrived.wait_for(
                lambda: sum(request.path == path for request in self.requests) >= count, timeout=60
            )
        assert enough, f"{path} was not asked {count} times"
        return self.to(path)

    # ---- ASGI -----------------------------------------------------------------------------------

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        path = scope["path"].removeprefix(self.prefix).removeprefix(API)
        headers = {key.decode(): value.decode() for key, value in scope["headers"]}
        request = Recorded(scope["method"], path, headers, body, scope["query_string"].decode())
        with self._arrived:
            self.requests.append(request)
            self._arrived.notify_all()
        answer = await self._answer(request)
        raw = answer.raw
        out = {"content-type": answer.content_type, "content-length": str(len(raw)), **answer.headers}
        fields = [(key.encode(), value.encode()) for key, value in out.items()]
        await send({"type": "http.response.start", "status": answer.status, "headers": fields})
        await send({"type": "http.response.body", "body": raw})

    async def _answer(self, request: Recorded) -> Answer:
        if self.script[request.path]:
            behaviour = self.script[request.path].popleft()
            if isinstance(behaviour, Answer):
                return behaviour
            return await behaviour(request)
        return self.default(request)

    # ---- a service that works -------------------------------------------------------------------

    def default(self, request: Recorded) -> Answer:
        """What a working service answers."""
        make = getattr(self, "_" + request.path.replace("/", "_"), None)
        if make is not None:
            return make(request)
        if request.path.startswith("samplers/"):
            return Answer(body={"sampler_id": request.path[9:], "base_model": "m", "tokenizer_id": "tok"})
        if request.path.startswith("sessions/"):
            return Answer()
        return Answer(404, {"detail": f"no {request.path}"})

    def accept(self, result: Any, content_type: str = "application/json", **extra: Any) -> Answer:
        """Accept an operation whose result is this."""
        request_id = f"req-{next(self._count)}"
        self.results[request_id] = Answer(200, result, content_type=content_type)
        return Answer(200, {"request_id": request_id, **extra})

    def _client_config(self, request: Recorded) -> Answer:
        return Answer(404, {"detail": "old"}) if self.config is None else Answer(200, self.config)

    def _create_session(self, request: Recorded) -> Answer:
        return Answer(200, {"session_id": "S"})

    def _session_heartbeat(self, request: Recorded) -> Answer:
        return Answer()

    def _telemetry(self, request: Recorded) -> Answer:
        return Answer(200, {"status": "accepted"})

    def _get_server_capabilities(self, request: Recorded) -> Answer:
        return Answer(200, {"supported_models": [{"model_name": "m"}]})

    def _create_model(self, request: Recorded) -> Answer:
        return self.accept({"model_id": f"S:train:{request.json['model_seq_id']}", "type": "create_model"})

    def _get_info(self, request: Recorded) -> Answer:
        data = {"arch": "a", "model_name": "m", "tokenizer_id": "tok"}
        return Answer(200, {"model_data": data, "model_id": request.json["model_id"], "type": "get_info"})

    def _forward(self, request: Recorded) -> Answer:
        call = wire_json.forward_backward_from_json(request.json, forward_only=True)
        return self.accept(wire_json.dumps(wire_json.forward_backward_output_to_json(_run(call))))

    def _forward_backward(self, request: Recorded) -> Answer:
        if request.headers["content-type"] == PROTOBUF:
            return self.accept(wire_protobuf.encode_forward_backward_output(_run(request.call)), PROTOBUF)
        call = wire_json.forward_backward_from_json(request.json, forward_only=False)
        return self.accept(wire_json.dumps(wire_json.forward_backward_output_to_json(_run(call))))

    def _optim_step(self, request: Recorded) -> Answer:
        return self.accept({"metrics": {"step:unique": float(request.json["seq_id"])}})

    def _save_weights(self, request: Recorded) -> Answer:
        body = request.json
        path = f"tinker://{body['model_id']}/weights/{body['path']}"
        return self.accept({"path": path, "type": "save_weights"})

    def _load_weights(self, request: Recorded) -> Answer:
        body = request.json
        model_id = body.get("model_id") or f"S:train:{body['model_seq_id']}"
        return self.accept({"path": body["path"], "model_id": model_id, "type": "load_weights"})

    def _save_weights_for_sampler(self, request: Recorded) -> Answer:
        body = request.json
        if "path" in body:
            return self.accept({"path": f"tinker://{body['model_id']}/sampler_weights/{body['path']}"})
        return self.accept(
            {"path": None, "sampling_session_id": f"S:sample:{body['sampling_session_seq_id']}"}
        )

    def _create_sampling_session(self, request: Recorded) -> Answer:
        return Answer(200, {"sampling_session_id": f"S:sample:{request.json['sampling_session_seq_id']}"})

    def _asample(self, request: Recorded) -> Answer:
        body = request.json
        ids = [f"q{body['seq_id']}.{n}" for n in range(body["num_samples"])]
        prompt = body["prompt"]["chunks"][0]["tokens"]
        logprobs = np.array([np.nan] + [-1.0] * (len(prompt) - 1), np.float32)
        response = SampleResponse(
            sequences=[SampledSequence("stop", np.array([body["seq_id"], 1], np.int32)) for _ in ids],
            prompt_logprobs_np=logprobs if body["prompt_logprobs"] else None,
        )
        return self.accept(wire_protobuf.encode_sample_response(response), PROTOBUF, sample_sequence_ids=ids)

    def _retrieve_future(self, request: Recorded) -> Answer:
        return self.results[request.json["request_id"]]

    def _cancel_future(self, request: Recorded) -> Answer:
        return Answer()

    def _weights_info(self, request: Recorded) -> Answer:
        return Answer(200, {"base_model": "m", "is_lora": True, "lora_rank": 4, "train_mlp": False})

    def _training_runs(self, request: Recorded) -> Answer:
        return Answer(200, {"training_runs": [], "cursor": {"offset": 0, "limit": 20, "total_count": 0}})

    def _checkpoints(self, request: Recorded) -> Answer:
        return Answer(200, {"checkpoints": []})


def _run(call: ForwardBackwardCall) -> ForwardBackwardOutput:
    """Log-probability -1 for every target, so that sums can be checked by counting."""
    outputs, loss = [], 0.0
    for datum in call.batch.data:
        targets = datum.loss_fn_inputs["target_tokens"].to_numpy()
        weights = datum.loss_fn_inputs["weights"].to_numpy()
        outputs.append({"logprobs": TensorData.from_numpy(np.full(targets.shape, -1.0, np.float32))})
        loss += float(weights.sum())
    return ForwardBackwardOutput("Stub", outputs, {"loss:sum": loss, "seq:unique": float(call.seq_id or 0)})


@contextlib.contextmanager
def serve(app: Any) -> Any:
    """The app on a port of its own, as a base URL."""
    config = uvicorn.Config(app, port=0, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    started = threading.Event()

    async def run() -> None:
        original = server.startup

        async def startup(*args: Any, **kwargs: Any) -> None:
            await original(*args, **kwargs)
            started.set()

        server.startup = startup  # type: ignore[method-assign]
        await server.serve()

    thread = threading.Thread(target=lambda: asyncio.run(run()), name="stub", daemon=True)
    thread.start()
    assert started.wait(30)
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(30)
