"""Bodies made to hurt: each is refused with words, in bounded memory, and the next request is served."""

from __future__ import annotations

import gzip
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson
import pytest
from security_support import API, BODY_LIMIT, JSON, PROTOBUF, TOKENS, Scene, batch, datum, packed, sample

from tinsmith.server.intake import Intake
from tinsmith.service.quotas import TooMuchWaiting
from tinsmith.types import UserError
from tinsmith.wire import messages_pb2 as pb
from tinsmith.wire import protobuf
from tinsmith.wire.counting import MOST_FIELDS


@dataclass(frozen=True)
class Attack:
    """A body, where it goes, how it is announced, and what comes of it."""

    path: str
    body: bytes | Callable[[Scene], bytes]
    status: int
    says: str
    encoding: str = "identity"
    content_type: str = JSON


def nested(depth: int, opening: str = "[", closing: str = "]") -> bytes:
    return (opening * depth + closing * depth).encode()


def in_session(**fields: Any) -> bytes:
    return orjson.dumps({"tags": []} | fields)


def deep_list(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def deep_sample(scene: Scene) -> bytes:
    return orjson.dumps(sample(scene.sampler, 10**6, prompt=deep_list(200)))


def datums(count: int) -> bytes:
    """A protobuf batch of so many empty datums, two bytes each."""
    return (
        pb.ForwardBackwardRequest(model_id="x", loss_fn="cross_entropy").SerializeToString()
        + b"\x1a\x00" * count
    )


ZEROS = bytes(16 * BODY_LIMIT)
BATCHES = "forward_backward"
ATTACKS = {
    "zstd bomb": Attack(BATCHES, packed(ZEROS), 400, "unfolds to more than", "zstd"),
    "gzip bomb": Attack(BATCHES, gzip.compress(ZEROS), 400, "unfolds to more than", "gzip"),
    "many small zstd frames": Attack(BATCHES, packed(ZEROS[:65536]) * 200, 400, "unfolds to more", "zstd"),
    "a zstd frame that lies about its size": Attack(
        BATCHES,
        b"\x28\xb5\x2f\xfd\xe0" + (2**60).to_bytes(8, "little") + b"\x01\x00\x00",
        400,
        "body",
        "zstd",
    ),
    "a bomb for a small endpoint": Attack("create_session", packed(ZEROS), 400, "unfolds to more", "zstd"),
    "a bomb in a bomb": Attack(BATCHES, packed(packed(ZEROS)), 422, "not JSON", "zstd"),
    "more bytes than are taken": Attack(BATCHES, ZEROS[: BODY_LIMIT + 1], 413, "larger than"),
    "a large body for a small endpoint": Attack("create_session", b" " * (5 * 2**20), 413, "larger than"),
    "cut short": Attack(BATCHES, packed(ZEROS)[:40], 400, "cut short", "zstd"),
    "not what it says": Attack(BATCHES, b"{}", 400, "not valid gzip", "gzip"),
    "an unknown encoding": Attack(BATCHES, b"{}", 400, "Content-Encoding", "br"),
    "a list of encodings": Attack(BATCHES, b"{}", 400, "Content-Encoding", "gzip, gzip, gzip"),
    "JSON nested without end": Attack(BATCHES, nested(10**6), 422, "body"),
    "JSON objects nested without end": Attack("create_session", nested(10**5, '{"a":', "}"), 422, "body"),
    "JSON of a million lists": Attack(BATCHES, b"[" + b"[]," * 10**6 + b"[]]", 422, "lists and objects"),
    "JSON of a million objects": Attack("asample", b"[" + b"{}," * 10**6 + b"{}]", 422, "lists and objects"),
    "metadata nested too deep": Attack(
        "create_session", in_session(user_metadata={"a": deep_list(100)}), 422, "nested more than"
    ),
    "metadata of many values": Attack(
        "create_session", in_session(user_metadata={"a": [0] * 70000}), 422, "at most 65536"
    ),
    "metadata of much text": Attack(
        "create_session", in_session(user_metadata={"a": "x" * 70000}), 422, "at most 65536"
    ),
    "a long name": Attack("create_session", in_session(display_name="x" * 2000), 422, "display_name"),
    "many tags": Attack("create_session", in_session(tags=["x"] * 1000), 422, "tags"),
    "a prompt nested too deep": Attack("asample", deep_sample, 422, "prompt"),
    "JSON of numbers too large": Attack(
        "create_session", b'{"tags":[],"user_metadata":1e999}', 422, "not JSON"
    ),
    "half a surrogate": Attack("create_session", b'{"tags":["\\ud800"]}', 422, "not JSON"),
    "no UTF-8": Attack("create_session", b'{"tags":["\xff"]}', 422, "not JSON"),
    "NaN": Attack("create_session", b'{"tags":[],"user_metadata":{"a":NaN}}', 422, "not JSON"),
    "protobuf of a million datums": Attack(BATCHES, datums(10**6), 422, "16384", content_type=PROTOBUF),
    "protobuf cut short": Attack(BATCHES, datums(1)[:-1], 422, "not a protobuf", content_type=PROTOBUF),
    "a group that swallows the count": Attack(
        BATCHES, b"\xfb\x01\xfc\x01" + datums(5 * 10**5), 422, "16384", content_type=PROTOBUF
    ),
    "a pickle": Attack(
        BATCHES, b"\x80\x04cos\nsystem\n(S'id'\ntR.", 422, "not a protobuf", content_type=PROTOBUF
    ),
    "a pickle as JSON": Attack(BATCHES, b"\x80\x04cos\nsystem\n(S'id'\ntR.", 422, "not JSON"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_it_is_refused_and_the_next_is_served(scene: Scene, name: str) -> None:
    attack = ATTACKS[name]
    body = attack.body if isinstance(attack.body, bytes) else attack.body(scene)
    headers = {"Content-Encoding": attack.encoding, "Content-Type": attack.content_type}
    answer = scene.mallory.http.post(attack.path, content=body, headers=headers)
    assert answer.status_code == attack.status, answer.text
    assert attack.says in answer.json()["detail"]
    assert len(answer.content) < 1000, "an answer does not grow with the attack"
    assert scene.mallory.post("session_heartbeat", session_id=scene.session)


@pytest.mark.parametrize(
    "name", ["zstd bomb", "gzip bomb", "JSON of a million lists", "protobuf of a million datums"]
)
def test_it_takes_no_more_memory_than_bodies_may(scene: Scene, name: str) -> None:
    attack = ATTACKS[name]
    assert isinstance(attack.body, bytes)
    headers = {"Content-Encoding": attack.encoding, "Content-Type": attack.content_type}
    tracemalloc.start()
    try:
        scene.mallory.http.post(attack.path, content=attack.body, headers=headers)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 6 * BODY_LIMIT


def inside(field: int, content: bytes) -> bytes:
    """Content as a length-delimited field."""
    size, length = len(content), b""
    while size > 127:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    return bytes([field << 3 | 2]) + length + bytes([size]) + content


MANY = 9 * 2**20
CROWDED = {
    "datums": (b"\x1a\x00" * (MANY // 2), str(MOST_FIELDS)),
    "chunks": (inside(3, b"\x0a\x00" * (MANY // 2)), str(MOST_FIELDS)),
    "dimensions": (inside(3, inside(2, inside(2, inside(4, bytes(MANY))))), str(MOST_FIELDS)),
    "what hides in a group": (b"\xfb\x01\xfc\x01" + bytes(MANY), "group"),
}


@pytest.mark.parametrize("what", CROWDED)
def test_large_protobuf_is_counted_before_it_is_parsed(what: str) -> None:
    """A message of two bytes takes a hundred once it is parsed, so there may be only so many."""
    body, says = CROWDED[what]
    with pytest.raises(UserError, match=says):
        protobuf.check_size(body)


def test_a_large_honest_batch_is_taken() -> None:
    honest = pb.ForwardBackwardRequest(model_id="x", loss_fn="y")
    for _ in range(1024):
        honest.data.add().model_input.add().encoded_text.tokens = bytes(10_000)
    protobuf.check_size(honest.SerializeToString())


def test_one_tenant_cannot_fill_the_memory_with_bodies(scene: Scene) -> None:
    """What is on its way in is counted for each owner; who has too much is asked to come back."""
    intake = Intake(BODY_LIMIT)
    with intake.of("mallory") as first, intake.of("mallory") as second:
        first.count(3 * BODY_LIMIT)
        second.count(BODY_LIMIT)
        with pytest.raises(TooMuchWaiting, match="on their way in"):
            second.count(1)
        with intake.of("alice") as hers:
            hers.count(BODY_LIMIT)
    assert not intake.held, "what was answered is no longer counted"
    assert scene.alice.post("create_session", tags=[])


# What is wrong only once the model or the loss is known fails through the future, and names its field.
FIELDS = "loss_fn_inputs"
N = len(TOKENS) - 1


def csr(crow: list[int], col: list[int], shape: list[int], values: int = 1) -> dict[str, Any]:
    indices = {"sparse_crow_indices": crow, "sparse_col_indices": col}
    return {"data": [1] * values, "dtype": "int64", "shape": shape} | indices


def numbers(*data: Any, dtype: str = "float32", shape: Any = None) -> dict[str, Any]:
    return {"data": list(data), "dtype": dtype, "shape": [len(data)] if shape is None else shape}


BATCHES_WITH_A_FAULT: dict[str, tuple[Any, str]] = {
    "a token beyond the vocabulary": (datum([1, 2, 10**6, 4]), "model_input"),
    "a target beyond the vocabulary": (datum(target_tokens=numbers(*[10**6] * N, dtype="int64")), FIELDS),
    "a target below zero": (datum(target_tokens=numbers(*[-1] * N, dtype="int64")), FIELDS),
    "a token below zero": (datum([1, -2, 3]), "model_input"),
    "a token of 2**40": (datum([1, 2**40, 3]), "model_input"),
    "no token": (datum([1]), "model_input"),
    "more tokens than the model takes": (datum([1] * 100_000), "model_input"),
    "a shape that holds more": (datum(weights=numbers(1.0, shape=[10**9])), FIELDS),
    "a shape below zero": (datum(weights=numbers(1.0, shape=[-1])), FIELDS),
    "a shape without end": (datum(weights=numbers(1.0, shape=[1] * 10**4)), FIELDS),
    "a shape of 2**62 by 2**62": (datum(weights=numbers(shape=[2**62, 2**62, 0])), FIELDS),
    "another length": (datum(weights=numbers(1.0, 1.0)), FIELDS),
    "infinity": (datum(weights=numbers(*[1e300] * N)), FIELDS),
    "text for numbers": (datum(weights=numbers(*["1"] * N)), FIELDS),
    "lists for numbers": (datum(weights=numbers(*[[1.0]] * N)), FIELDS),
    "another dtype": (datum(weights={"data": [1.0] * N, "dtype": "object"}), FIELDS),
    "CSR rows that do not fit": (datum(target_tokens=csr([0, 1], [0], [N, 2])), FIELDS),
    "CSR columns beyond the shape": (datum(target_tokens=csr([0, 1, 1, 1, 1, 1], [2], [N, 2])), FIELDS),
    "CSR columns below zero": (datum(target_tokens=csr([0, 1, 1, 1, 1, 1], [-1], [N, 2])), FIELDS),
    "CSR rows that go back": (datum(target_tokens=csr([0, 2, 1, 1, 1, 1], [0], [N, 2])), FIELDS),
    "CSR rows beyond the values": (datum(target_tokens=csr([0, 9, 9, 9, 9, 1], [0], [N, 2])), FIELDS),
    "CSR of 2**40 columns": (datum(target_tokens=csr([0, 1, 1, 1, 1, 1], [0], [N, 2**40])), FIELDS),
    "CSR of more cells than can be counted": (datum(weights=csr([0, 1], [0], [1, 2**62])), FIELDS),
}
CONFIGS_WITH_A_FAULT: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown loss": ({"loss_fn": "__import__('os')"}, "loss_fn"),
    "a custom loss of another session": (
        {"loss_fn": "custom", "config": {"loss_id": "00000000-0000-0000-0000-000000000000:loss:0"}},
        "loss_id",
    ),
    "configuration nobody asked for": ({"config": {"__class__": 1.0}}, "loss_fn_config"),
    "configuration that is a list": ({"config": [1]}, "loss_fn_config"),
}


def test_no_bad_batch_moves_a_gradient(scene: Scene) -> None:
    """All of them come between a run's creation and its first step, whose numbers are as if they had not."""
    mallory = scene.mallory
    run = mallory.run(mallory.session())
    sent = [(name, batch(run, 0, each), field) for name, (each, field) in BATCHES_WITH_A_FAULT.items()]
    sent += [(name, batch(run, 0, **how), field) for name, (how, field) in CONFIGS_WITH_A_FAULT.items()]
    for seq, (name, body, field) in enumerate(sent, 1):
        body["seq_id"] = seq
        answer = mallory.http.post("forward_backward", json=body)
        if answer.status_code == 200:
            told = mallory.result(answer.json()["request_id"])
            assert told["category"] == "user", (name, told)
            message = told["error"]
        else:
            assert answer.status_code == 422, (name, answer.text)
            message = answer.json()["detail"]
        assert field in message, (name, message)
        assert len(message) < 600, name
    assert mallory.train(run, len(sent) + 1) == scene.expected


SAMPLES_WITH_A_FAULT: dict[str, tuple[dict[str, Any], str]] = {
    "a token beyond the vocabulary": ({"prompt": {"chunks": [{"tokens": [10**6]}]}}, "prompt"),
    "no prompt": ({"prompt": {"chunks": []}}, "prompt"),
    "a prompt that is text": ({"prompt": "hello"}, "prompt"),
    "a million samples": ({"num_samples": 10**6}, "num_samples"),
    "a number of samples below zero": ({"num_samples": -1}, "num_samples"),
    "no temperature": ({"sampling_params": {"temperature": -1}}, "temperature"),
    "a vanishing temperature": ({"sampling_params": {"temperature": 1e-300}}, "temperature"),
    "a seed of 2**70": ({"sampling_params": {"seed": 2**63}}, "seed"),
    "a stop of nothing": ({"sampling_params": {"stop": [""]}}, "stop"),
    "an answer that fits into no memory": (
        {"num_samples": 1024, "topk_sample_logprobs": 250, "sampling_params": {"max_tokens": 500}},
        "topk_sample_logprobs",
    ),
    "targets of 2**40 columns": (
        {"target_prompt_logprobs": csr([0, 1, 1, 1, 1, 1], [0], [N, 2**40])},
        "target_prompt_logprobs",
    ),
    "a picture from elsewhere": (
        {"prompt": {"chunks": [{"type": "image_asset_pointer", "location": "http://x/", "format": "png"}]}},
        "prompt",
    ),
}


@pytest.mark.parametrize("name", SAMPLES_WITH_A_FAULT)
def test_a_bad_sample_is_refused_by_name(scene: Scene, name: str) -> None:
    fields, field = SAMPLES_WITH_A_FAULT[name]
    seq = 1000 + list(SAMPLES_WITH_A_FAULT).index(name)
    answer = scene.mallory.http.post("asample", json=sample(scene.sampler, seq, **fields))
    if answer.status_code == 200:
        told = scene.mallory.result(answer.json()["request_id"])
        assert told["category"] == "user", told
        assert field in told["error"]
    else:
        assert answer.status_code == 422
        assert field in answer.json()["detail"]


def test_an_address_with_nothing_behind_it(scene: Scene) -> None:
    """Methods and paths that do not exist are refused as such, with nothing of the service's insides."""
    for method, path, status in [
        ("PATCH", "sessions", 405),
        ("POST", "sessions/x/y/z", 404),
        ("GET", "../../../etc/passwd", 404),
        ("GET", "asample", 405),
    ]:
        answer = scene.mallory.http.request(method, f"{scene.service.url}{API}{path}")
        assert answer.status_code == status
        assert "Traceback" not in answer.text
