"""What was used: tokens, counted in memory and written now and then; and how long checkpoints were kept."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from sqlalchemy import Connection

from tinsmith.store import Database, schema
from tinsmith.types import ForwardBackwardInput

from . import ids

HOUR = 3600
_tokens, _storage = schema.usage, schema.storage
_Bucket = tuple[int, str, str, str, str]  # hour, owner, session, base model, kind


class Usage:
    """Tokens by hour, owner, session, base model and kind."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._unwritten: Counter[_Bucket] = Counter()
        self.totals: Counter[str] = Counter()  # since the service started

    def trained(self, owner: str, session_id: str, base_model: str, batch: ForwardBackwardInput) -> None:
        """A batch went through forward or forward_backward."""
        count = sum(datum.model_input.length for datum in batch.data)
        self._add(owner, session_id, base_model, training=count)

    def sampled(
        self, owner: str, session_id: str, base_model: str, *, prompt: int, cached: int, sampled: int
    ) -> None:
        """A prompt was read, as far as it was not cached, and continued."""
        kinds = {"prefill": prompt - cached, "prefill_cached": cached, "sample": sampled}
        self._add(owner, session_id, base_model, **kinds)

    def _add(self, owner: str, session_id: str, base_model: str, **tokens: int) -> None:
        hour = int(time.time()) // HOUR * HOUR
        for kind, count in tokens.items():
            if count:
                self._unwritten[hour, owner, session_id, base_model, kind] += count
                self.totals[kind] += count

    async def flush(self) -> None:
        """Write down what was counted since the last time."""
        counted, self._unwritten = self._unwritten, Counter()
        if not counted:
            return
        try:
            await self._database.write(lambda connection: _write(connection, counted))
        except BaseException:
            self._unwritten.update(counted)  # for the next time
            raise


def _write(connection: Connection, counted: Counter[_Bucket]) -> None:
    columns = _tokens.c
    for (hour, owner, session_id, base_model, kind), count in counted.items():
        change = (
            _tokens.update()
            .where(columns.hour == hour, columns.owner == owner, columns.session_id == session_id)
            .where(columns.base_model == base_model, columns.kind == kind)
            .values(tokens=columns.tokens + count)
        )
        if connection.execute(change).rowcount == 0:
            row = (hour, owner, session_id, base_model, kind, count)
            connection.execute(_tokens.insert().values(row))


def storage_begins(connection: Connection, checkpoint: dict[str, Any]) -> None:
    """A checkpoint is kept from now on; written in the commit that enters it."""
    row = {
        "tinker_path": checkpoint["tinker_path"],
        "owner": checkpoint["owner"],
        "session_id": ids.session_of_run(checkpoint["run_id"]),
        "base_model": checkpoint["base_model"],
        "size_bytes": checkpoint["size_bytes"],
        "since": checkpoint["created_at"],
        "until": None,
    }
    connection.execute(_storage.insert(), row)


def storage_ends(connection: Connection, tinker_path: str) -> None:
    """A checkpoint is gone; written in the commit that removes it."""
    change = (
        _storage.update()
        .where(_storage.c.tinker_path == tinker_path, _storage.c.until.is_(None))
        .values(until=time.time())
    )
    connection.execute(change)
