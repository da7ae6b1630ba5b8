"""What leaves the service: a checkpoint's files one by one, or all of them in one archive."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import os
import tarfile
import time
from pathlib import Path
from typing import Any

from sqlalchemy import Row

from tinsmith.types import NotFound, UserError

from .checkpoints import Checkpoints

COMPLETE = "checkpoint_complete"  # an empty file, written last: a folder that has it is whole
_KEPT_BACK = frozenset({"optimizer.safetensors"})  # of use to this service only


class Exports:
    """Reads checkpoints for whoever may have them. Archives are made when asked for and kept a while."""

    def __init__(self, checkpoints: Checkpoints, folder: Path, keep: float) -> None:
        self._checkpoints = checkpoints
        self._folder = folder
        self._keep = keep
        self._making: dict[Path, asyncio.Lock] = {}

    async def external_names(self, owner: str, run_id: str, checkpoint_id: str) -> list[str]:
        """The files of an export."""
        row = await self._checkpoints.find(owner, _path(run_id, checkpoint_id), purpose="download")
        if row.checkpoint_type != "external":
            raise UserError(
                f"{checkpoint_id!r} is no export; give an external_weights/... made by save_weights_external",
                field="checkpoint_id",
            )
        return [file.name for file in self._files(row)]

    async def check_readable(self, owner: str, run_id: str, checkpoint_id: str) -> None:
        """Refuse one that is not there or not this owner's to read."""
        await self._checkpoints.find(owner, _path(run_id, checkpoint_id), purpose="download")

    async def file(self, run_id: str, checkpoint_id: str, name: str) -> Path:
        """One file, for whoever has its signed address."""
        row = await self._checkpoints.any(_path(run_id, checkpoint_id))
        for file in self._files(row):
            if file.name == name:
                return file
        raise NotFound(f"no file {name!r} in {checkpoint_id!r}", field="file")

    async def archive(self, run_id: str, checkpoint_id: str) -> Path:
        """All files as one tar.gz, for whoever has its signed address. Same weights, same bytes."""
        row = await self._checkpoints.any(_path(run_id, checkpoint_id))
        key = hashlib.sha256(row.blob.encode()).hexdigest()
        path = self._folder / f"{key}.tar.gz"
        async with self._making.setdefault(path, asyncio.Lock()):
            if not path.exists():
                await asyncio.to_thread(_write_archive, path, self._files(row), row.created_at)
        return path

    def _files(self, row: Row[Any]) -> list[Path]:
        folder = self._checkpoints.folder(row)
        return sorted(file for file in folder.iterdir() if file.name not in _KEPT_BACK)

    def expire(self) -> None:
        """Remove archives whose addresses are no longer good."""
        oldest = time.time() - 2 * self._keep
        for path in self._folder.glob("*"):
            lock = self._making.get(path)
            if path.stat().st_ctime < oldest and (lock is None or not lock.locked()):
                path.unlink()
                self._making.pop(path, None)


def _path(run_id: str, checkpoint_id: str) -> str:
    return f"tinker://{run_id}/{checkpoint_id}"


def _write_archive(path: Path, files: list[Path], created_at: float) -> None:
    """Written aside, then moved into place; no names, times or owners of this machine go in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".part")
    with (
        aside.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=1, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for file in files:
            member = tarfile.TarInfo(file.name)
            member.size, member.mode = file.stat().st_size, 0o644
            with file.open("rb") as content:
                archive.addfile(member, content)
    os.utime(aside, (created_at, created_at))  # the ETag follows from it: a rebuilt archive is the same one
    aside.rename(path)
