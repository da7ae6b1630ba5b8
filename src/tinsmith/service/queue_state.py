"""Why an operation has no answer yet, in words a person understands."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from .futures import Ticket
from .sequence import SequencedQueue

# ``paused_capacity``: the service keeps the operation waiting; ``paused_rate_limit``: its owner's quota does.
State = Literal["active", "paused_capacity", "paused_rate_limit"]


@dataclass(frozen=True, slots=True)
class QueueState:
    """Where an operation stands."""

    state: State
    reason: str


def being_carried_out(kind: str) -> QueueState:
    """It is its turn."""
    return QueueState("active", f"{kind} is being carried out")


def loading(base_model: str) -> QueueState:
    """It is its turn, but the model must be brought in first."""
    return QueueState("paused_capacity", f"the base model {base_model} is being loaded")


def too_many_runs(earlier: int, most: int) -> QueueState:
    """Of a run that waits for others of its owner to end."""
    return QueueState(
        "paused_rate_limit",
        f"{earlier} training runs of yours are live and came before this one, {most} may be (live_runs); it "
        "begins when one of them is unloaded or its session ends",
    )


def in_queue(seq_id: int, queue: SequencedQueue[tuple[Any, Ticket]], current: Ticket | None) -> QueueState:
    """Of a run's operation whose turn has not come."""
    ahead = [ticket for _, ticket in queue.before(seq_id)] + ([] if current is None else [current])
    repeated = sum(ticket.answered for ticket in ahead)
    if repeated:
        return QueueState(
            "paused_capacity",
            f"the service was restarted and first repeats {_operations(repeated)} of this run",
        )
    if current is None and queue.missing is not None:
        return QueueState("active", f"waiting for seq_id {queue.missing}, which has not arrived")
    return QueueState("active", f"{_operations(len(ahead))} of this run before it")


def among_samples(ticket: Ticket, running: Iterable[str]) -> QueueState:
    """Of a sample: all that were accepted are decoded side by side, as many as fit at a time."""
    earlier = 0
    for request_id in running:
        if request_id == ticket.request_id:
            break
        earlier += 1
    return QueueState("active", f"being sampled; {earlier} samples that came before it are not done yet")


def _operations(count: int) -> str:
    return "1 operation" if count == 1 else f"{count} operations"
