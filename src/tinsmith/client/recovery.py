"""Going on where a run stopped: its newest checkpoint, found again by the name the run was given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinsmith.types import Checkpoint, TrainingRun

from .api import Api

if TYPE_CHECKING:
    from .training_client import TrainingClient

RUN_NAME = "run_name"  # in a run's metadata
_PAGE = 100


@dataclass(frozen=True, slots=True)
class ResumedRun:
    """A run to go on with. Without a ``checkpoint`` it is a fresh one.

    >>> resumed = service.resume_training("a run of this name", "tiny-llama", rank=2).result()
    >>> isinstance(resumed, ResumedRun), resumed.step
    (True, 0)
    """

    training_client: TrainingClient
    checkpoint: Checkpoint | None

    @property
    def step(self) -> int:
        """The ``step`` that was saved in the checkpoint's metadata; 0 for a fresh run."""
        metadata = (self.checkpoint.user_metadata if self.checkpoint else None) or {}
        return int(metadata.get("step", 0))


async def newest_checkpoint(api: Api, run_name: str) -> Checkpoint | None:
    """The newest training checkpoint of the runs of this name."""
    newest: Checkpoint | None = None
    for run in await _runs(api, run_name):
        for checkpoint in (await api.run_checkpoints(run.training_run_id)).checkpoints:
            if checkpoint.checkpoint_type == "training" and (newest is None or checkpoint.time > newest.time):
                newest = checkpoint
    return newest


async def _runs(api: Api, run_name: str) -> list[TrainingRun]:
    found, offset = [], 0
    while True:
        page = await api.training_runs({"limit": _PAGE, "offset": offset})
        found += [run for run in page.training_runs if (run.user_metadata or {}).get(RUN_NAME) == run_name]
        offset += len(page.training_runs)
        if not page.training_runs or offset >= page.cursor.total_count:
            return found
