"""A real service on a real port with two tenants on it, and the means to attack it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tinsmith import _zstd as zstd
from tinsmith.engine.host import offer, open_engine
from tinsmith.engine.models import Catalogue
from tinsmith.server import create_app
from tinsmith.server.auth import Authenticator
from tinsmith.server.browsers import ForeignPages
from tinsmith.server.connection import bounded
from tinsmith.service import Service, Settings
from tinsmith.service.keys import Keys
from tinsmith.store import Database
from tinsmith.testing.faulty_service import ThreadServer
from tinsmith.wire import protobuf

API = "/api/v1/"
MODEL = "tiny-llama"
TOKENS = [10, 20, 30, 40, 50, 60]
BODY_LIMIT = 8 * 2**20
JSON, PROTOBUF = "application/json", protobuf.CONTENT_TYPE


class Tenant:
    """Somebody with a key, by plain HTTP."""

    def __init__(self, url: str, key: str | None) -> None:
        headers = {} if key is None else {"X-API-Key": key}
        self.key = key
        self.http = httpx.Client(base_url=url + API, headers=headers, timeout=60)

    def post(self, path: str, /, **body: Any) -> Any:
        """A call that must succeed."""
        answer = self.http.post(path, json=body)
        assert answer.status_code == 200, (path, answer.text)
        return answer.json()

    def result(self, request_id: str) -> Any:
        """The answer of a future."""
        while True:
            answer = self.http.post("retrieve_future", json={"request_id": request_id})
            if answer.status_code != 408:
                assert answer.status_code == 200, answer.text
                return answer.json()

    def do(self, path: str, /, **body: Any) -> Any:
        """Submit, and wait for what comes of it."""
        return self.result(self.post(path, **body)["request_id"])

    def session(self, **fields: Any) -> str:
        """A new session."""
        opened = self.post("create_session", **({"tags": [], "user_metadata": {}} | fields))
        return str(opened["session_id"])

    def run(self, session: str, number: int = 0) -> str:
        """A new run, always with the same weights."""
        lora = {"rank": 4, "seed": 1}
        made = self.do(
            "create_model", session_id=session, model_seq_id=number, base_model=MODEL, lora_config=lora
        )
        return str(made["model_id"])

    def train(self, run: str, seq: int) -> Any:
        """A batch and a step; gives their results."""
        result = self.do("forward_backward", **batch(run, seq))
        step = self.do("optim_step", model_id=run, seq_id=seq + 1, adam_params={"learning_rate": 0.01})
        return {"loss": result["metrics"], "norm": step["metrics"], "logprobs": result["loss_fn_outputs"]}

    def sampler(self, session: str, number: int = 0) -> str:
        """A sampler of the base model."""
        made = self.post(
            "create_sampling_session", session_id=session, sampling_session_seq_id=number, base_model=MODEL
        )
        return str(made["sampling_session_id"])


def datum(tokens: list[int] = TOKENS, **inputs: Any) -> dict[str, Any]:
    """A training example, with some of its inputs replaced."""
    length = len(tokens) - 1
    given = {
        "target_tokens": {"data": tokens[1:], "dtype": "int64", "shape": [length]},
        "weights": {"data": [1.0] * length, "dtype": "float32", "shape": [length]},
    }
    return {"model_input": {"chunks": [{"tokens": tokens[:-1]}]}, "loss_fn_inputs": given | inputs}


def batch(
    run: str, seq: int | None, *data: Any, loss_fn: Any = "cross_entropy", config: Any = None
) -> dict[str, Any]:
    """The body of a forward_backward."""
    content = {"data": list(data) or [datum()], "loss_fn": loss_fn, "loss_fn_config": config}
    return {"forward_backward_input": content, "model_id": run, "seq_id": seq}


def sample(sampler: str, seq: int = 0, **fields: Any) -> dict[str, Any]:
    """The body of an asample."""
    return {
        "sampling_session_id": sampler,
        "seq_id": seq,
        "prompt": {"chunks": [{"tokens": TOKENS}]},
        "sampling_params": {"max_tokens": 4},
        "num_samples": 1,
    } | fields


def packed(body: bytes) -> bytes:
    """As zstd, in a frame that does not say how large it is."""
    packer = zstd.ZstdCompressor(level=1)
    return packer.compress(body) + packer.flush()


def make_keys(data_dir: Path, *names: str, **details: Any) -> list[str]:
    """As `tinsmith key create` does it."""
    data_dir.mkdir(exist_ok=True)
    database = Database.in_folder(data_dir)
    try:
        return [asyncio.run(Keys(database, data_dir).create(name, **details)) for name in names]
    finally:
        database.close()


@dataclass
class Live:
    """A service on a port of this process."""

    url: str
    service: Service
    _tenants: list[Tenant] = field(default_factory=list)

    def tenant(self, key: str | None) -> Tenant:
        """Somebody with this key."""
        self._tenants.append(Tenant(self.url, key))
        return self._tenants[-1]

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        url = httpx.URL(self.url)
        return url.host, url.port or 80

    def close(self) -> None:
        """Let go of the tenants' connections."""
        for tenant in self._tenants:
            tenant.http.close()

    def raw(self, request: bytes, patience: float = 60) -> bytes:
        """What comes back for these very bytes, until the other side closes or falls silent for good."""
        with socket.create_connection(self.address, timeout=patience) as connection:
            connection.sendall(request)
            return read_all(connection)


@dataclass(frozen=True)
class Scene:
    """A service, its tenants, and a session of the attacker's own."""

    service: Live
    alice: Tenant
    mallory: Tenant
    session: str  # mallory's
    sampler: str
    expected: Any  # what training gives when nobody attacks


def read_all(connection: socket.socket) -> bytes:
    """Everything until the other side closes; a reset is an end too."""
    received = b""
    try:
        while piece := connection.recv(65536):
            received += piece
    except ConnectionResetError:
        return received
    return received


@contextmanager
def live(
    data_dir: Path,
    *,
    api_key: str | None = None,
    connections: int = 512,
    head_seconds: float = 20.0,
    hearing_seconds: float = 60.0,
    **settings: Any,
) -> Iterator[Live]:
    """Start a service as `tinsmith serve` does, but in this process, and stop it."""
    chosen = Settings(
        data_dir=data_dir, **({"poll_hold": 0.2, "max_body_bytes": BODY_LIMIT, "api_key": api_key} | settings)
    )
    service = Service(open_engine(offer(Catalogue(), [MODEL])), chosen)
    auth = Authenticator(api_key, service.keys, service.tokens)
    app = create_app(service, auth, own_service=True)
    app.add_middleware(ForeignPages, auth=auth, host=chosen.host)
    server = ThreadServer(app, bounded(connections, head_seconds, hearing_seconds))
    server.start()
    running = Live(server.url, service)
    try:
        yield running
    finally:
        running.close()
        server.stop()
