"""Checkpoints: weights saved under a name, and who may read them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Row

from tinsmith.store import Blobs, Database, schema
from tinsmith.types import (
    Checkpoint,
    LoraConfig,
    NotFound,
    ParsedCheckpointTinkerPath,
    UserError,
    WeightsInfoResponse,
)

_table = schema.checkpoints


class Checkpoints:
    """The catalogue of saved weights; the files are in the blobs."""

    def __init__(self, database: Database, blobs: Blobs) -> None:
        self._database = database
        self._blobs = blobs

    async def find(self, reader: str, tinker_path: str) -> Row[Any]:
        """A checkpoint this reader may use: an own one, or a public one."""
        parsed = _parse(tinker_path)
        row = await self._row(parsed.tinker_path)
        if row is None or not (row.owner == reader or row.public):
            raise NotFound(f"no checkpoint {tinker_path!r}", field="path")
        return row

    async def _row(self, tinker_path: str) -> Row[Any] | None:
        query = sa.select(_table).where(_table.c.tinker_path == tinker_path, _not_expired())
        return await self._database.read(lambda connection: connection.execute(query).one_or_none())

    async def check_free(self, tinker_path: str, request_id: str, overwrite: bool) -> None:
        """Refuse a name that is taken, unless this very operation took it before a restart."""
        row = await self._row(tinker_path)
        if row is not None and not overwrite and row.request_id != request_id:
            raise UserError(
                f"{tinker_path!r} exists; choose another name or pass overwrite=True", field="path"
            )

    async def add(self, staged: Path, row: dict[str, Any]) -> None:
        """Move the files into place, then enter them in the catalogue."""
        row["size_bytes"] = self._blobs.publish(staged, row["blob"])
        row["created_at"] = time.time()

        def change(connection: Connection) -> None:
            connection.execute(_table.delete().where(_table.c.tinker_path == row["tinker_path"]))
            connection.execute(_table.insert(), row)

        await self._database.write(change)

    def folder(self, row: Row[Any]) -> Path:
        """Where a checkpoint's files lie."""
        return self._blobs.path(row.blob)

    async def of_run(self, run_id: str) -> list[Checkpoint]:
        """Checkpoints of one run, oldest first."""
        query = (
            sa.select(_table).where(_table.c.run_id == run_id, _not_expired()).order_by(_table.c.created_at)
        )
        return [as_checkpoint(row) for row in await self._rows(query)]

    async def of_user(self, owner: str, limit: int, offset: int) -> tuple[list[Checkpoint], int]:
        """A page of a user's checkpoints, newest first, and how many there are in all."""
        mine = sa.and_(_table.c.owner == owner, _not_expired())
        query = sa.select(_table).where(mine).order_by(_table.c.created_at.desc()).limit(limit).offset(offset)
        count = sa.select(sa.func.count()).select_from(_table).where(mine)
        total = await self._database.read(lambda connection: connection.scalar(count))
        return [as_checkpoint(row) for row in await self._rows(query)], total or 0

    async def _rows(self, query: sa.Select[Any]) -> Sequence[Row[Any]]:
        return await self._database.read(lambda connection: connection.execute(query).all())

    async def own(self, owner: str, run_id: str, checkpoint_id: str) -> Row[Any]:
        """A checkpoint this owner may change."""
        row = await self.find(owner, f"tinker://{run_id}/{checkpoint_id}")
        if row.owner != owner:
            raise NotFound(f"no checkpoint {checkpoint_id!r} in run {run_id!r}", field="checkpoint_id")
        return row

    async def change(self, owner: str, run_id: str, checkpoint_id: str, **values: Any) -> None:
        """Set columns of an own checkpoint."""
        row = await self.own(owner, run_id, checkpoint_id)
        change = _table.update().where(_table.c.tinker_path == row.tinker_path).values(**values)
        await self._database.write(lambda connection: connection.execute(change))

    async def delete(self, owner: str, run_id: str, checkpoint_id: str) -> None:
        """Remove an own checkpoint: first from the catalogue, then its files."""
        await self._remove(await self.own(owner, run_id, checkpoint_id))

    async def expire(self) -> None:
        """Remove those whose time has come."""
        query = sa.select(_table).where(_table.c.expires_at <= time.time())
        for row in await self._rows(query):
            await self._remove(row)

    async def _remove(self, row: Row[Any]) -> None:
        change = _table.delete().where(_table.c.tinker_path == row.tinker_path)
        await self._database.write(lambda connection: connection.execute(change))
        self._blobs.delete(row.blob)


def weights_info(row: Row[Any]) -> WeightsInfoResponse:
    """What is needed to make a run that can load this checkpoint."""
    lora = LoraConfig(**row.lora)
    return WeightsInfoResponse(
        base_model=row.base_model,
        is_lora=True,
        lora_rank=lora.rank,
        train_unembed=lora.train_unembed,
        train_mlp=lora.train_mlp,
        train_attn=lora.train_attn,
        optimizer_config={"type": "adamw"},
    )


def as_checkpoint(row: Row[Any]) -> Checkpoint:
    """A catalogue row as clients see it."""
    return Checkpoint(
        checkpoint_id=row.checkpoint_id,
        checkpoint_type=row.checkpoint_type,
        time=datetime.fromtimestamp(row.created_at, UTC),
        tinker_path=row.tinker_path,
        size_bytes=row.size_bytes,
        public=row.public,
        user_metadata=row.user_metadata,
        expires_at=None if row.expires_at is None else datetime.fromtimestamp(row.expires_at, UTC),
    )


def expiry(ttl_seconds: int | None) -> float | None:
    """When a checkpoint with this time to live goes."""
    if ttl_seconds is None:
        return None
    if not 1 <= ttl_seconds <= 10 * 365 * 86400:
        raise UserError("from 1 second to 10 years, or null for ever", field="ttl_seconds")
    return time.time() + ttl_seconds


def _not_expired() -> sa.ColumnElement[bool]:
    return sa.or_(_table.c.expires_at.is_(None), _table.c.expires_at > time.time())


def _parse(tinker_path: str) -> ParsedCheckpointTinkerPath:
    try:
        return ParsedCheckpointTinkerPath.from_tinker_path(tinker_path)
    except ValueError as error:
        raise UserError(str(error)) from error
