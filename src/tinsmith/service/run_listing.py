"""All runs there ever were, as their owner lists them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Row

from tinsmith.store import Database, schema
from tinsmith.types import NotFound, TrainingRun

from .checkpoints import Checkpoints
from .runs import Runs
from .sessions import DEFAULT_PROJECT

_table = schema.runs


class RunListing:
    """Runs in the catalogue, live or ended."""

    def __init__(self, database: Database, checkpoints: Checkpoints, runs: Runs) -> None:
        self._database = database
        self._checkpoints = checkpoints
        self._runs = runs

    async def page(
        self, owner: str, limit: int, offset: int, project_id: str | None = None
    ) -> tuple[list[TrainingRun], int]:
        """A page of this owner's runs, newest first, of all projects or of one; and how many there are."""
        sessions = schema.sessions
        matches = sa.select(_table).where(_table.c.owner == owner)
        if project_id is not None:
            project = sa.func.coalesce(sessions.c.project_id, DEFAULT_PROJECT)
            matches = matches.join(sessions, sessions.c.session_id == _table.c.session_id)
            matches = matches.where(project == project_id)
        query = matches.order_by(_table.c.created_at.desc(), _table.c.run_id).limit(limit).offset(offset)
        count = sa.select(sa.func.count()).select_from(matches.subquery())
        rows = await self._database.read(lambda connection: connection.execute(query).all())
        total = await self._database.read(lambda connection: connection.scalar(count))
        return [await self._describe(row) for row in rows], total or 0

    async def get(self, owner: str, run_id: str) -> TrainingRun:
        """One run, live or ended."""
        query = sa.select(_table).where(_table.c.run_id == run_id, _table.c.owner == owner)
        row = await self._database.read(lambda connection: connection.execute(query).one_or_none())
        if row is None:
            raise NotFound(f"no training run {run_id!r}", field="training_run_id")
        return await self._describe(row)

    async def ids_of_session(self, session_id: str) -> list[str]:
        """Run ids of a session, oldest first."""
        query = (
            sa.select(_table.c.run_id).where(_table.c.session_id == session_id).order_by(_table.c.created_at)
        )
        return await self._database.read(lambda connection: list(connection.scalars(query)))

    async def _describe(self, row: Row[Any]) -> TrainingRun:
        saved = await self._checkpoints.of_run(row.run_id)
        # Oldest first, so of each type the newest stays.
        newest = {checkpoint.checkpoint_type: checkpoint for checkpoint in saved}
        last_request = self._runs.last_request(row.run_id) or row.last_request_at
        return TrainingRun(
            training_run_id=row.run_id,
            base_model=row.base_model,
            model_owner=row.owner,
            is_lora=True,
            lora_rank=row.lora["rank"],
            last_request_time=datetime.fromtimestamp(last_request, UTC),
            last_checkpoint=newest.get("training"),
            last_sampler_checkpoint=newest.get("sampler"),
            user_metadata=row.user_metadata,
        )
