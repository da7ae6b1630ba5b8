"""Checkpoint folders: written aside, then moved into place whole."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path

from tinsmith import failpoints


class Blobs:
    """Folders of files under one root. A key is a relative path; a folder appears complete or not at all."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._staging = root / ".staging"
        if self._staging.exists():  # left by a crash: nothing refers to it
            shutil.rmtree(self._staging)
        self._staging.mkdir(parents=True)

    def stage(self) -> Path:
        """An empty folder to write into."""
        folder = self._staging / uuid.uuid4().hex
        folder.mkdir()
        return folder

    def discard(self, staged: Path) -> None:
        """Throw a staged folder away, even while somebody still writes into it; none is fine."""
        doomed = staged.with_name(f"{staged.name}.doomed")  # where nobody opens a new file
        if staged.exists():
            staged.rename(doomed)
            shutil.rmtree(doomed)

    def publish(self, staged: Path, key: str) -> int:
        """Move a staged folder to its key, replacing what was there; durable on return. Gives its size."""
        target = self.path(key)
        target.parent.mkdir(parents=True, exist_ok=True)
        failpoints.reach("blob.publish")
        size = sum(file.stat().st_size for file in staged.iterdir())
        if target.exists():
            replaced = self._staging / uuid.uuid4().hex
            target.rename(replaced)
            failpoints.reach("blob.replacing")
            staged.rename(target)
            shutil.rmtree(replaced)
        else:
            staged.rename(target)
        _fsync_folder(target)
        _fsync_folder(target.parent)
        failpoints.reach("blob.published")
        return size

    def path(self, key: str) -> Path:
        """Where a key lies; it never leaves the root."""
        path = (self._root / key).resolve()
        if not path.is_relative_to(self._root.resolve()) or path == self._root.resolve():
            raise ValueError(f"blob key {key!r} leaves the data directory")
        return path

    def keys(self, prefix: str) -> list[str]:
        """The keys right under this one."""
        folder = self.path(prefix)
        return [f"{prefix}/{entry.name}" for entry in folder.iterdir()] if folder.exists() else []

    def delete(self, key: str) -> None:
        """Remove a key; one that is not there is fine."""
        path = self.path(key)
        if path.exists():
            doomed = self._staging / uuid.uuid4().hex
            path.rename(doomed)
            failpoints.reach("blob.deleted")
            shutil.rmtree(doomed)


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
