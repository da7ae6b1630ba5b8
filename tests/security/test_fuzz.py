"""Nonsense by the thousand: no 5xx, no crash, no hang, and nobody's numbers change. See `make fuzz`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson
import pytest
from decoders import DECODERS, decode, seeds
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from security_support import PROTOBUF, Live, Tenant, batch, datum, live, make_keys, sample

from tinsmith.wire import messages_pb2 as pb

EXAMPLES = int(os.environ.get("TINSMITH_FUZZ_EXAMPLES", "60"))
LIVE = settings(
    max_examples=EXAMPLES,
    derandomize="TINSMITH_FUZZ_EXAMPLES" not in os.environ,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

# -- the decoders -----------------------------------------------------------------------------------------


@st.composite
def spoilt(draw: st.DrawFn) -> bytes:
    """Something honest with a piece replaced, left out or put in twice."""
    body = draw(st.sampled_from(seeds()))
    start = draw(st.integers(1, len(body)))
    end = draw(st.integers(start, min(len(body), start + 64)))
    middle = draw(st.one_of(st.binary(max_size=16), st.just(body[start:end] * 2)))
    return body[:start] + middle + body[end:]


@settings(max_examples=600)
@given(st.one_of(spoilt(), st.binary(max_size=80)))
def test_no_bytes_cause_anything_but_a_refusal(data: bytes) -> None:
    decode(data)


def test_seeds_reach_every_decoder() -> None:
    read = set()
    for seed in seeds():
        reader = DECODERS[seed[0]]
        try:
            reader(seed[1:])
        except ValueError:
            continue
        read.add(seed[0])
    assert {0, 3, 7, 8, 10} <= read, "batches in both dialects, control requests, zstd and paths are read"


@pytest.mark.skipif(find_spec("atheris") is None, reason="atheris is not made for this platform")
def test_coverage_guided_inputs_find_nothing() -> None:
    """The same inputs each time."""
    script = Path(__file__).with_name("fuzz.py")
    done = subprocess.run(
        [sys.executable, script, "--runs", "4000"], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Done 4000 runs" in done.stderr, done.stderr[-2000:]


# -- a live service ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Live, Tenant, Tenant, str, str]]:
    """A service, an honest tenant, one who sends nonsense, and the latter's run and sampler."""
    data = tmp_path_factory.mktemp("fuzzed") / "data"
    keys = make_keys(data, "alice", "mallory")
    with live(data, gap_timeout=0.1) as service:
        alice, mallory = (service.tenant(key) for key in keys)
        session = mallory.session()
        expected = alice.train(alice.run(alice.session()), 1)
        yield service, alice, mallory, mallory.run(session), mallory.sampler(session)
        assert alice.train(alice.run(alice.session()), 1) == expected, "to the bit"
        mallory.do("unload_model", model_id=f"{session}:train:0")
        failed = {
            kind: count for kind, count in service.service.futures.outcomes.items() if kind[1] == "server"
        }
        assert not failed, failed


numbers = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([2**31, 2**63 - 1, -(2**63), 10**6]),
    st.floats(allow_nan=False, allow_infinity=False),
)
junk = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        numbers,
        st.text(max_size=8),
        st.sampled_from(["", "\0", "../..", "float32"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in inside:
        yield from _places(inner, (*path, key))


def _replaced(value: Any, path: tuple[Any, ...], by: Any) -> Any:
    if not path:
        return by
    copy = value.copy()
    copy[path[0]] = _replaced(value[path[0]], path[1:], by)
    return copy


def _bodies(run: str, sampler: str) -> list[tuple[str, Any]]:
    """One honest body for each endpoint that takes much."""
    session = run.partition(":")[0]
    options = {
        "num_samples": 1,
        "topk_prompt_logprobs": 2,
        "prompt_logprobs": True,
        "topk_sample_logprobs": 1,
    }
    return [
        ("forward_backward", batch(run, None, datum(), datum())),
        (
            "forward",
            {"forward_input": batch(run, None)["forward_backward_input"], "model_id": run, "seq_id": None},
        ),
        (
            "optim_step",
            {"model_id": run, "seq_id": None, "adam_params": {"learning_rate": 0.1, "beta1": 0.9}},
        ),
        ("asample", sample(sampler, 7, **options)),
        (
            "create_session",
            {"tags": ["a"], "user_metadata": {"a": [1]}, "project_id": "p", "display_name": "d"},
        ),
        ("sessions/search", {"owner": {"type": "own"}, "statuses": [{"type": "active"}], "limit": 5}),
        (
            "create_model",
            {"session_id": session, "model_seq_id": 9, "base_model": "x", "lora_config": {"rank": 2}},
        ),
        (
            "retrieve_futures",
            {"target": {"sampling_session_id": sampler, "cloned_sampler_id": 0}, "timeout": 0.0},
        ),
        ("save_weights", {"model_id": run, "path": "p", "ttl_seconds": 60, "user_metadata": {}}),
        (
            "create_custom_loss",
            {
                "session_id": session,
                "custom_loss_seq_id": 1,
                "name": "l",
                "inputs": [{"name": "logprobs", "rank": 1}],
                "graph": {
                    "format": 1,
                    "nodes": [
                        {"op": "placeholder", "name": "logprobs", "target": "logprobs"},
                        {
                            "op": "call_function",
                            "name": "s",
                            "target": "torch.sum",
                            "args": [{"ref": "logprobs"}],
                        },
                        {
                            "op": "output",
                            "name": "output",
                            "target": "output",
                            "args": [{"tuple": [{"ref": "s"}, {"dict": {}}]}],
                        },
                    ],
                },
            },
        ),
    ]


def _check(tenant: Tenant, path: str, content: bytes, content_type: str) -> None:
    answer = tenant.http.post(path, content=content, headers={"Content-Type": content_type})
    assert answer.status_code < 500, (path, content, answer.text)
    if answer.status_code >= 400:
        assert answer.json()["detail"] and "internal" not in answer.text


@LIVE
@given(data=st.data())
def test_live_json_with_a_part_replaced(
    fuzzed: tuple[Live, Tenant, Tenant, str, str], data: st.DataObject
) -> None:
    _, _, mallory, run, sampler = fuzzed
    path, body = data.draw(st.sampled_from(_bodies(run, sampler)))
    place = data.draw(st.sampled_from(list(_places(body))))
    spoilt_body = _replaced(body, place, data.draw(junk))
    if (
        not (isinstance(spoilt_body, dict) and isinstance(spoilt_body.get("seq_id"), int | float))
        or path == "asample"
    ):
        _check(mallory, path, orjson.dumps(spoilt_body, option=orjson.OPT_NON_STR_KEYS), "application/json")


@LIVE
@given(data=st.data())
def test_live_protobuf_of_any_parts(
    fuzzed: tuple[Live, Tenant, Tenant, str, str], data: st.DataObject
) -> None:
    _, _, mallory, run, _ = fuzzed
    message = pb.ForwardBackwardRequest(model_id=run, loss_fn=data.draw(st.sampled_from(LOSSES)))
    for _ in range(data.draw(st.integers(0, 3))):
        each = message.data.add()
        for tokens in data.draw(st.lists(st.binary(max_size=24), max_size=2)):
            each.model_input.add().encoded_text.tokens = tokens
        for name in data.draw(st.lists(st.sampled_from(INPUTS), max_size=3)):
            tensor = each.loss_fn_inputs[name]
            tensor.dtype = data.draw(st.integers(0, 5))
            tensor.shape.extend(
                data.draw(st.lists(st.one_of(st.integers(-1, 6), st.just(2**62)), max_size=3))
            )
            if data.draw(st.booleans()):
                tensor.dense = data.draw(st.binary(max_size=24))
            else:
                indices = [st.integers(-1, 6).map(lambda n: n.to_bytes(8, "little", signed=True))] * 2
                crow, col = (b"".join(data.draw(st.lists(each, max_size=4))) for each in indices)
                values = data.draw(st.binary(max_size=16))
                tensor.sparse_csr.CopyFrom(pb.SparseCsr(values=values, crow_indices=crow, col_indices=col))
    body = message.SerializeToString()
    cut = data.draw(st.one_of(st.just(len(body)), st.integers(0, len(body))))
    _check(mallory, "forward_backward", body[:cut] + data.draw(st.binary(max_size=4)), PROTOBUF)


LOSSES = ["cross_entropy", "importance_sampling", "ppo", "gspo", "custom", "", "x"]
INPUTS = ["target_tokens", "weights", "logprobs", "advantages", "", "x"]
