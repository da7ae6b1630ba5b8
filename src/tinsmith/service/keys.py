"""API keys: made once, kept as hashes, each standing for an owner."""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import sqlalchemy as sa
from sqlalchemy import Connection

from tinsmith.store import DATABASE_FILE, Database, schema
from tinsmith.types import NotFound, UserError

from . import audit
from .limits import Limits, highest

_table = schema.api_keys
_OWNER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PREFIX = "tml-"  # clients refuse a key that begins otherwise
_NAME_LENGTH = 200
Role = Literal["owner", "admin"]  # an admin may also read the metrics and everybody's audit log; no more


@dataclass(frozen=True, slots=True)
class Key:
    """One key, without the key itself."""

    key_id: int
    owner: str
    role: Role
    limits: Limits
    name: str
    note: str
    email: str | None
    created_at: float
    revoked_at: float | None = None


class Keys:
    """The keys of a data directory, in memory.

    `tinsmith key` works on the same directory while a service runs. It touches a stamp file, which the
    service looks at with every request, so that a revoked key is refused from then on.
    """

    def __init__(self, database: Database, data_dir: Path) -> None:
        self._database = database
        self._stamp = data_dir / "keys.stamp"
        self._loaded: int | None = -1
        self._by_hash: dict[str, Key] = {}
        self._by_id: dict[int, Key] = {}
        self._limits: dict[str, Limits] = {}  # by owner

    @property
    def required(self) -> bool:
        """Whether a key is needed: where one was ever made, revoking the last one opens no door."""
        self._refresh()
        return bool(self._by_id)

    def find(self, presented: str) -> Key | None:
        """The key that was presented, if it is one of ours and not revoked."""
        self._refresh()
        key = self._by_hash.get(hash_key(presented))
        return None if key is None or key.revoked_at is not None else key

    def get(self, key_id: int) -> Key | None:
        """A key that is not revoked, by its id."""
        self._refresh()
        key = self._by_id.get(key_id)
        return None if key is None or key.revoked_at is not None else key

    def all(self) -> list[Key]:
        """Every key there ever was, oldest first."""
        self._refresh()
        return list(self._by_id.values())

    def limits_of(self, owner: str) -> Limits:
        """What an owner's keys say about his limits; where several do, the highest."""
        self._refresh()
        return self._limits.get(owner, {})

    async def create(
        self,
        name: str,
        owner: str | None = None,
        note: str = "",
        email: str | None = None,
        role: Role = "owner",
        limits: Limits | None = None,
    ) -> str:
        """A new key. It is shown this once."""
        owner = _check_owner(name if owner is None else owner)
        for field, text in {"name": name, "note": note, "email": email or ""}.items():
            _check_text(field, text)
        key = _PREFIX + secrets.token_urlsafe(32)
        values = {
            "owner": owner,
            "role": role,
            "limits": limits or {},
            "name": name,
            "note": note,
            "email": email,
            "created_at": time.time(),
        }

        def change(connection: Connection) -> None:
            done = connection.execute(_table.insert().values(key_hash=hash_key(key), **values))
            assert done.inserted_primary_key is not None
            audit.record(
                connection,
                owner,
                "api_key_created",
                key_id=done.inserted_primary_key.key_id,
                name=name,
                role=role,
                limits=limits or {},
            )

        await self._database.write(change)
        self._stamp.touch()
        return key

    async def limit(self, key_id: int, limits: Limits, actor: str) -> None:
        """Set what its owner's limits are, in place of what the key said before."""
        key = self._in_use(key_id)

        def change(connection: Connection) -> None:
            connection.execute(_table.update().where(_table.c.key_id == key_id).values(limits=limits))
            audit.record(connection, key.owner, "api_key_limited", actor=actor, key_id=key_id, limits=limits)

        await self._database.write(change)
        self._stamp.touch()

    def _in_use(self, key_id: int) -> Key:
        key = self.get(key_id)
        if key is None:
            raise NotFound(f"no key {key_id} that is in use", field="key_id")
        return key

    async def revoke(self, key_id: int, actor: str) -> None:
        """End a key. Its owner's work stays."""
        key = self._in_use(key_id)

        def change(connection: Connection) -> None:
            connection.execute(
                _table.update().where(_table.c.key_id == key_id).values(revoked_at=time.time())
            )
            audit.record(connection, key.owner, "api_key_revoked", actor=actor, key_id=key_id, name=key.name)

        await self._database.write(change)
        self._stamp.touch()

    def _refresh(self) -> None:
        try:
            stamp = self._stamp.stat().st_mtime_ns
        except FileNotFoundError:
            stamp = None  # no key was ever made here
        if stamp == self._loaded:
            return
        columns = [column for column in _table.c if column.name != "key_hash"]
        query = sa.select(_table.c.key_hash, *columns).order_by(_table.c.key_id)
        rows = self._database.read_now(lambda connection: connection.execute(query).all())
        keys = {key_hash: Key(*values) for key_hash, *values in map(tuple, rows)}
        self._by_hash, self._by_id = keys, {key.key_id: key for key in keys.values()}
        by_owner: dict[str, list[Limits]] = {}
        for key in keys.values():
            if key.revoked_at is None and key.limits:
                by_owner.setdefault(key.owner, []).append(key.limits)
        self._limits = {owner: highest(limits) for owner, limits in by_owner.items()}
        self._loaded = stamp


def any_key(data_dir: Path) -> bool:
    """Whether a key was ever made in this data directory."""
    if not (data_dir / DATABASE_FILE).exists():
        return False
    with closing(Database.in_folder(data_dir)) as database:
        return Keys(database, data_dir).required


def hash_key(key: str) -> str:
    """What is kept of a key. It has 256 random bits, so a plain hash cannot be searched."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def _check_owner(owner: str) -> str:
    if not _OWNER.fullmatch(owner):
        raise UserError(
            f"{owner[:80]!r} cannot be an owner's id; use up to 64 letters, digits, '.', '_' or '-'",
            field="owner",
        )
    return owner


def _check_text(field: str, text: str) -> None:
    if len(text) > _NAME_LENGTH or not text.isprintable():
        raise UserError(
            f"{text[:80]!r} cannot be shown in a list; use up to {_NAME_LENGTH} printable characters",
            field=field,
        )
