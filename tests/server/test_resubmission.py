"""A request whose answer was lost is sent again: it finds its future, and nothing is executed twice."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from server_support import TOKENS, Api, Serve, batch
from tracing import traced

from tinsmith.service.kinds import KINDS


@dataclass(frozen=True)
class World:
    """A run that has taken a step, and what was made of it; the next operation of the run is the fourth."""

    session: str
    run: str
    saved: str
    sampler: str

    @property
    def at(self) -> dict[str, Any]:
        """Where the next operation goes."""
        return {"model_id": self.run, "seq_id": 4}


async def make_world(api: Api) -> World:
    session = await api.session()
    run = await api.run(session)
    await api.loss(run, 1)
    await api.do("optim_step", adam_params={"learning_rate": 0.01}, model_id=run, seq_id=2)
    saved = (await api.do("save_weights", model_id=run, path="first", seq_id=3))["path"]
    made = await api.post(
        "create_sampling_session", session_id=session, sampling_session_seq_id=0, model_path=saved
    )
    return World(session, run, saved, made["sampling_session_id"])


def squared(logprobs: Any) -> Any:
    return torch.sum(logprobs * logprobs), {}


def _sample(of: dict[str, Any]) -> dict[str, Any]:
    return of | {
        "seq_id": 5,
        "prompt": {"chunks": [{"tokens": TOKENS}]},
        "sampling_params": {"max_tokens": 4},
    }


Body = Callable[[World], dict[str, Any]]
# What is asked -> its kind, its path and its body.
CASES: dict[str, tuple[str, str, Body]] = {
    "create_model": (
        "create_model",
        "create_model",
        lambda w: {"session_id": w.session, "model_seq_id": 1, "base_model": "tiny-llama"},
    ),
    "a run from a checkpoint": (
        "load_weights",
        "load_weights",
        lambda w: {"session_id": w.session, "model_seq_id": 1, "path": w.saved},
    ),
    "forward": ("forward", "forward", lambda w: batch(w.run, 4, "forward")),
    "forward_backward": ("forward_backward", "forward_backward", lambda w: batch(w.run, 4)),
    "optim_step": ("optim_step", "optim_step", lambda w: w.at | {"adam_params": {}}),
    "save_weights": ("save_weights", "save_weights", lambda w: w.at | {"path": "second"}),
    "load_weights": ("load_weights", "load_weights", lambda w: w.at | {"path": w.saved}),
    "save_weights_external": ("save_weights_external",) * 2 + (lambda w: w.at | {"path": "second"},),
    "a named snapshot": ("save_weights_for_sampler",) * 2 + (lambda w: w.at | {"path": "second"},),
    "a snapshot for one sampler": ("save_weights_for_sampler",) * 2
    + (lambda w: w.at | {"sampling_session_seq_id": 1},),
    "create_custom_loss": (
        "create_custom_loss",
        "create_custom_loss",
        lambda w: {"session_id": w.session, "custom_loss_seq_id": 0} | traced(squared, {"logprobs": 1}),
    ),
    "sample": ("sample", "asample", lambda w: _sample({"sampling_session_id": w.sampler})),
    "a sample without a session": ("sample", "asample", lambda w: _sample({"model_path": w.saved})),
    "unload_model": ("unload_model", "unload_model", lambda w: {"model_id": w.run}),
}


def test_every_kind_of_operation_is_resubmitted_here() -> None:
    assert {kind for kind, _, _ in CASES.values()} == set(KINDS)


def executions(api: Api, kind: str) -> int:
    """How many operations of a kind have been answered."""
    return sum(count for (of, _), count in api.service.futures.outcomes.items() if of == kind)


@pytest.mark.parametrize("case", CASES)
def test_a_lost_answer_costs_nothing(serve: Serve, case: str) -> None:
    kind, path, make_body = CASES[case]

    async def main() -> None:
        async with serve() as api:
            world = await make_world(api)
            body, before = make_body(world), executions(api, kind)
            await _hang_up(api, path, body)
            replies = await asyncio.gather(*(api.post(path, **body) for _ in range(3)))
            request_id = replies[0]["request_id"]
            assert all(reply == replies[0] for reply in replies)
            first = await api.result(request_id)
            assert "error" not in first
            assert await api.post(path, **body) == replies[0]
            assert await api.result(request_id) == first
            assert executions(api, kind) == before + 1
        async with serve() as api:  # the journal knows it too
            assert await api.result(request_id) == first
            assert await api.post(path, **body) == replies[0]
            assert await api.result(request_id) == first
            assert executions(api, kind) == 0

    asyncio.run(main())


async def _hang_up(api: Api, path: str, body: dict[str, Any]) -> None:
    """Send it and leave, as soon as the service has it in hand."""
    begun = asyncio.create_task(api.post(path, **body))
    while not api.service.futures.pending and not begun.done():
        await asyncio.sleep(0)
    begun.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await begun


def test_nothing_of_a_run_is_done_twice(serve: Serve) -> None:
    """Every request of a run thrice, and each time somebody hung up: the weights are those of one run."""

    async def main() -> None:
        async with serve() as api:
            session = await api.session()
            ends = []
            for number, times in enumerate((1, 3)):
                run = await api.run(session, number)
                for seq in range(1, 5):
                    step = {"adam_params": {"learning_rate": 0.01}, "model_id": run, "seq_id": seq}
                    path, body = ("forward_backward", batch(run, seq)) if seq % 2 else ("optim_step", step)
                    for _ in range(times - 1):
                        await _hang_up(api, path, body)
                    await api.do(path, **body)
                ends.append(await api.loss(run, 5, "forward"))
            assert ends[0] == ends[1]

    asyncio.run(main())


def test_one_sampler_is_made_however_often_it_is_asked_for_at_once(serve: Serve) -> None:
    async def main() -> None:
        async with serve() as api:
            body = {
                "session_id": await api.session(),
                "sampling_session_seq_id": 0,
                "base_model": "tiny-llama",
            }
            made = await asyncio.gather(*(api.post("create_sampling_session", **body) for _ in range(5)))
            assert all(one == made[0] for one in made)

    asyncio.run(main())
