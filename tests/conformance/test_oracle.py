"""Both official SDKs and ours answer the same random questions: chunks, tensors, datums, hints, mistakes."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from official import interpreter

from tinsmith.client.chunking import split
from tinsmith.client.metrics import combine
from tinsmith.client.replies import OLD_SERVER, ServerConfig
from tinsmith.client.retry import is_user_error, retry_after
from tinsmith.types import Datum, ForwardBackwardOutput, ModelInput, TensorData

VERSIONS = ["0.4.1", "0.38.0"]
Question = tuple[str, list[Any]]
CASES = 150
KEYS = ["target_tokens", "weights", "advantages", "logprobs", "clip_low_threshold", "other"]
STATUSES = [400, 401, 402, 403, 404, 408, 409, 410, 422, 429, 500, 503]


def ask(version: str, questions: list[Question]) -> list[Any]:
    """Its answers."""
    lines = "".join(json.dumps(question) + "\n" for question in questions)
    command = [str(interpreter(version)), "-W", "ignore", str(Path(__file__).with_name("oracle.py"))]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


# ---- our answers, in the oracle's words ----------------------------------------------------------------


def our_combine(chunks: list[dict[str, Any]]) -> Any:
    whole = combine(
        [
            ForwardBackwardOutput(
                chunk["type"],
                [{"at": TensorData.from_numpy(np.array([at]))} for at in chunk["outputs"]],
                chunk["metrics"],
            )
            for chunk in chunks
        ]
    )
    return [
        whole.loss_fn_output_type,
        [output["at"].tolist() for output in whole.loss_fn_outputs],
        whole.metrics,
    ]


def our_from_numpy(values: list[float], dtype: str, shape: list[int]) -> Any:
    made = TensorData.from_numpy(np.array(values).astype(dtype).reshape(shape))
    return [made.dtype, made.data.tolist(), made.shape, made.to_numpy().tolist()]


def our_datum(key: str, values: list[float]) -> Any:
    kept = Datum(ModelInput.from_ints([1]), {key: values}).loss_fn_inputs[key]
    return [kept.dtype, kept.data.tolist(), kept.shape]


def our_chunks(sizes: list[list[int]], most: int, largest: int, old: bool) -> Any:
    limits = {"fwdbwd_max_chunk_len": most, "fwdbwd_max_chunk_bytes_count": largest}
    server = (OLD_SERVER if old else ServerConfig()).model_copy(update=limits)
    data = [
        Datum(ModelInput.from_ints([1] * tokens), {"weights": [1.0] * weights}) for tokens, weights in sizes
    ]
    return [len(chunk) for chunk in split(data, server)]


def answer(version: str, name: str, arguments: list[Any]) -> Any:
    ours = {
        "combine": our_combine,
        "from_numpy": our_from_numpy,
        "datum": our_datum,
        "retry_after": retry_after,
        "user_error": lambda status: is_user_error(_status(status)),
        "chunks": lambda *sizes: our_chunks(*sizes, old=version == "0.4.1"),
    }
    try:
        return ours[name](*arguments)
    except (ValueError, TypeError, KeyError):
        return {"error": ""}


def _status(status: int) -> Exception:
    error = Exception()
    error.status_code = status  # type: ignore[attr-defined]
    return error


# ---- the questions -------------------------------------------------------------------------------------


def questions(version: str) -> list[Question]:
    rng = np.random.default_rng(7)
    reductions = ["sum", "mean", "min", "max", "slack", "unique", "none"]
    reductions.append("hash_unordered" if version == "0.4.1" else "hash2")
    asked: list[Question] = []
    for _ in range(CASES):
        keys = [f"m{at}:{rng.choice(reductions)}" for at in range(rng.integers(1, 6))]
        chunks = [
            {
                "type": f"T{at}",
                "outputs": rng.integers(0, 99, rng.integers(1, 5)).tolist(),
                "metrics": {
                    key: float(rng.integers(0, 50)) / (1 if ":hash" in key else 4)
                    for key in keys
                    if at == 0 or rng.random() < 0.9
                },
            }
            for at in range(rng.integers(1, 5))
        ]
        asked.append(("combine", [chunks]))
        shape = rng.integers(0, 4, rng.integers(1, 4)).tolist()
        dtype = str(rng.choice(["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u4", "?"]))
        values = (rng.integers(0, 100, int(np.prod(shape))) / 8).tolist()
        asked.append(("from_numpy", [values, dtype, shape]))
        key = str(
            rng.choice(["target_tokens", "weights", "advantages", "logprobs", "clip_low_threshold", "other"])
        )
        whole = key == "target_tokens"
        listed = rng.integers(0, 1000, rng.integers(0, 6))
        asked.append(("datum", [key, (listed if whole else listed / 8).tolist()]))
        sizes = rng.integers(1, 30, (rng.integers(1, 12), 2)).tolist()
        asked.append(("chunks", [sizes, int(rng.integers(1, 6)), int(rng.integers(20, 400))]))
        number = str(rng.choice(["0", "-1", "0.5", "7", "60", "60.5", "120", "soon", "", "1e1"]))
        headers = {str(rng.choice(["retry-after", "retry-after-ms", "x"])): number}
        if rng.random() < 0.3:
            headers |= {"retry-after": "3", "retry-after-ms": number}
        asked.append(("retry_after", [headers]))
    asked += [
        ("user_error", [status]) for status in (400, 401, 402, 403, 404, 408, 409, 410, 422, 429, 500, 503)
    ]
    return asked


def same(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, float | int) and isinstance(theirs, float | int):
        return math.isclose(mine, theirs, rel_tol=1e-6, abs_tol=1e-9)
    if isinstance(mine, list) and isinstance(theirs, list):
        return len(mine) == len(theirs) and all(map(same, mine, theirs))
    if isinstance(mine, dict) and isinstance(theirs, dict):
        return mine.keys() == theirs.keys() and all(same(mine[key], theirs[key]) for key in mine)
    return bool(mine == theirs)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_same_answers(version: str) -> None:
    asked = questions(version)
    theirs = ask(version, asked)
    assert len(theirs) == len(asked)
    for (name, arguments), expected in zip(asked, theirs, strict=True):
        mine = json.loads(json.dumps(answer(version, name, arguments)))
        assert same(mine, expected), f"{name}{tuple(arguments)}: {mine} is not {expected}"
    answered = [name for (name, _), expected in zip(asked, theirs, strict=True) if expected != {"error": ""}]
    assert set(answered) == {"combine", "from_numpy", "datum", "retry_after", "user_error", "chunks"}
