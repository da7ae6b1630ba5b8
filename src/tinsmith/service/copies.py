"""Copies of checkpoints: a new entry in the catalogue over the same files."""

from __future__ import annotations

import time
import uuid
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Row

from tinsmith.store import Database, schema
from tinsmith.types import NotFound, UserError
from tinsmith.types.transfer import CopyWeightsRequest

from . import audit, ids, usage
from .checkpoints import Checkpoints, expiry
from .quotas import Quotas
from .sessions import Session, Sessions

_checkpoints, _runs = schema.checkpoints, schema.runs
_NAMESPACE = uuid.UUID("5f3c8a4e-6d0b-4d55-9a57-2f0f0c1a7e31")


class Copies:
    """Makes copies. A copy keeps its source's kind and name, and belongs to a run that cannot be trained."""

    def __init__(
        self, database: Database, checkpoints: Checkpoints, sessions: Sessions, quotas: Quotas
    ) -> None:
        self._database = database
        self._checkpoints = checkpoints
        self._sessions = sessions
        self._quotas = quotas

    async def copy(
        self, owner: str, request: CopyWeightsRequest, reader: str, idempotency_key: str | None
    ) -> str:
        """The path of the copy; the same run number, or the same idempotency key, gives the same copy."""
        await self._quotas.check_storage(owner)
        source = await self._checkpoints.find(reader, request.source_path, purpose="copy")
        expires_at = expiry(request.ttl_seconds)
        session, new = self._destination(owner, request, idempotency_key)
        run_id = ids.run_id(session.session_id, request.model_seq_id or 0)
        copy = _copy_of(source, owner, run_id, expires_at)

        def change(connection: Connection) -> None:
            if _exists(connection, copy):
                return
            still_there = _checkpoints.c.tinker_path == source.tinker_path, _checkpoints.c.blob == source.blob
            if connection.scalar(sa.select(_checkpoints.c.blob).where(*still_there)) is None:
                raise NotFound(f"no checkpoint {request.source_path!r}", field="source_path")
            if new:
                connection.execute(schema.sessions.insert(), session.row())
            connection.execute(_runs.insert(), _run_of(copy, session))
            connection.execute(_checkpoints.insert(), copy)
            usage.storage_begins(connection, copy)
            audit.record(
                connection,
                owner,
                "checkpoint_created",
                tinker_path=copy["tinker_path"],
                training_run_id=run_id,
                copied_from=source.tinker_path,
            )

        await self._database.write(change)
        path: str = copy["tinker_path"]
        return path

    def _destination(
        self, owner: str, request: CopyWeightsRequest, idempotency_key: str | None
    ) -> tuple[Session, bool]:
        """An own session, or a new, finished one that stands for the copy in its project."""
        if request.session_id is not None:
            return self._sessions.active(owner, request.session_id), False
        session_id = ids.new_session_id()
        if idempotency_key is not None:
            session_id = str(uuid.uuid5(_NAMESPACE, f"{owner}\0{idempotency_key}"))
        now = time.time()
        session = Session(
            session_id=session_id,
            owner=owner,
            created_at=now,
            last_seen_at=now,
            status="client_finished",
            status_detail={"reason": "success", "detail": "made to hold a copy of weights"},
            project_id=request.destination_project_id,
            display_name=f"copy of {request.source_path}",
        )
        return session, True


def _exists(connection: Connection, copy: dict[str, Any]) -> bool:
    """Whether this very copy was made before; a run number used for anything else is refused."""
    if connection.scalar(sa.select(_runs.c.run_id).where(_runs.c.run_id == copy["run_id"])) is None:
        return False
    same = _checkpoints.c.tinker_path == copy["tinker_path"], _checkpoints.c.blob == copy["blob"]
    if connection.scalar(sa.select(_checkpoints.c.blob).where(*same)) is None:
        raise UserError("is taken by another run; use the next free number", field="model_seq_id")
    return True


def _copy_of(source: Row[Any], owner: str, run_id: str, expires_at: float | None) -> dict[str, Any]:
    changed = {
        "tinker_path": f"tinker://{run_id}/{source.checkpoint_id}",
        "run_id": run_id,
        "owner": owner,
        "created_at": time.time(),
        "expires_at": expires_at,
        "public": False,
        "request_id": f"{run_id}:copy",
    }
    return dict(source._mapping) | changed


def _run_of(copy: dict[str, Any], session: Session) -> dict[str, Any]:
    return {
        "run_id": copy["run_id"],
        "session_id": session.session_id,
        "owner": copy["owner"],
        "base_model": copy["base_model"],
        "lora": copy["lora"],
        "created_at": copy["created_at"],
        "last_request_at": copy["created_at"],
        "live": False,
    }
