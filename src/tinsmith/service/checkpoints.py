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
from tinsmith.types.checkpoint import CHECKPOINT_TYPES, CheckpointType

from . import audit, usage

_table = schema.checkpoints


class Checkpoints:
    """The catalogue of saved weights; the files are in the blobs."""

    def __init__(self, database: Database, blobs: Blobs) -> None:
        self._database = database
        self._blobs = blobs

    async def find(self, reader: str, tinker_path: str, *, purpose: str | None = None) -> Row[Any]:
        """A checkpoint this reader may use: an own one, or a public one.

        With a ``purpose`` its weights are about to be read, which the audit log tells.
        """
        parsed = _parse(tinker_path)
        row = await self._row(parsed.tinker_path)
        if row is None or not (row.owner == reader or row.public):
            raise NotFound(f"no checkpoint {tinker_path!r}", field="path")
        if purpose is not None:
            await self._database.write(
                lambda connection: _record(connection, row, "checkpoint_read", actor=reader, purpose=purpose)
            )
        return row

    async def any(self, tinker_path: str) -> Row[Any]:
        """A checkpoint for whoever has a signed address of it."""
        row = await self._row(_parse(tinker_path).tinker_path)
        if row is None:
            raise NotFound(f"no checkpoint {tinker_path!r}; it was deleted or has expired", field="path")
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
        """Move the files into place, then enter them in the catalogue; what they replace goes."""
        row["size_bytes"] = self._blobs.publish(staged, row["blob"])
        row["created_at"] = time.time()

        def change(connection: Connection) -> str | None:
            same_path = _table.c.tinker_path == row["tinker_path"]
            replaced: str | None = connection.scalar(sa.select(_table.c.blob).where(same_path))
            connection.execute(_table.delete().where(same_path))
            connection.execute(_table.insert(), row)
            if replaced is not None:
                usage.storage_ends(connection, row["tinker_path"])
            usage.storage_begins(connection, row)
            _record(connection, row, "checkpoint_created", size_bytes=row["size_bytes"])
            return replaced if replaced is not None and _unused(connection, replaced) else None

        if (unused := await self._database.write(change)) is not None:
            self._blobs.delete(unused)

    def folder(self, row: Row[Any]) -> Path:
        """Where a checkpoint's files lie."""
        return self._blobs.path(row.blob)

    async def of_run(
        self, run_id: str, types: Sequence[CheckpointType] = CHECKPOINT_TYPES
    ) -> list[Checkpoint]:
        """Checkpoints of one run of these types, oldest first."""
        its = sa.and_(_table.c.run_id == run_id, _table.c.checkpoint_type.in_(types), _not_expired())
        query = sa.select(_table).where(its).order_by(_table.c.created_at)
        return [as_checkpoint(row) for row in await self._rows(query)]

    async def of_user(
        self, owner: str, limit: int, offset: int, types: Sequence[CheckpointType] = CHECKPOINT_TYPES
    ) -> tuple[list[Checkpoint], int]:
        """A page of a user's checkpoints of these types, newest first, and how many there are in all."""
        mine = sa.and_(_table.c.owner == owner, _table.c.checkpoint_type.in_(types), _not_expired())
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

        def change(connection: Connection) -> None:
            connection.execute(
                _table.update().where(_table.c.tinker_path == row.tinker_path).values(**values)
            )
            for name, value in values.items():
                _record(connection, row, _CHANGES[name, bool(value)], **{name: value})

        await self._database.write(change)

    async def delete(self, owner: str, run_id: str, checkpoint_id: str) -> None:
        """Remove an own checkpoint: first from the catalogue, then its files."""
        await self._remove(await self.own(owner, run_id, checkpoint_id), "checkpoint_deleted", owner)

    async def expire(self) -> None:
        """Remove those whose time has come."""
        query = sa.select(_table).where(_table.c.expires_at <= time.time())
        for row in await self._rows(query):
            await self._remove(row, "checkpoint_expired", audit.THE_SERVICE)

    async def _remove(self, row: Row[Any], event: str, actor: str) -> None:
        def change(connection: Connection) -> bool:
            connection.execute(_table.delete().where(_table.c.tinker_path == row.tinker_path))
            usage.storage_ends(connection, row.tinker_path)
            _record(connection, row, event, actor=actor)
            return _unused(connection, row.blob)

        if await self._database.write(change):
            self._blobs.delete(row.blob)


# A column of the catalogue and whether it is set or cleared -> the event that is.
_CHANGES = {
    ("public", True): "checkpoint_published",
    ("public", False): "checkpoint_unpublished",
    ("expires_at", True): "checkpoint_ttl_set",
    ("expires_at", False): "checkpoint_ttl_set",
}


def _record(connection: Connection, row: Row[Any] | dict[str, Any], event: str, **details: Any) -> None:
    fields = row if isinstance(row, dict) else row._mapping
    audit.record(
        connection,
        fields["owner"],
        event,
        tinker_path=fields["tinker_path"],
        training_run_id=fields["run_id"],
        **details,
    )


def _unused(connection: Connection, blob: str) -> bool:
    """Whether no checkpoint has these files: a copy shares its source's."""
    return connection.scalar(sa.select(_table.c.blob).where(_table.c.blob == blob).limit(1)) is None


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
