"""Checkpoint folders: written aside, then moved into place whole."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Container
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
        failpoints.reach("blob.stage")
        return folder

    def discard(self, staged: Path) -> None:
        """Throw a staged folder away, even while somebody still writes into it; none is fine."""
        doomed = staged.with_name(f"{staged.name}.doomed")  # where nobody opens a new file
        if staged.exists():
            staged.rename(doomed)
            shutil.rmtree(doomed)

    def publish(self, staged: Path, key: str) -> int:
        """Move a staged folder to its key, replacing what was there; durable on return. Gives its size.

        Where that fails, what was staged is thrown away, and what was there before is there again.
        """
        target = self.path(key)
        replaced = self._staging / uuid.uuid4().hex
        new = staged
        fresh = [folder for folder in target.parents if not folder.exists()]
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            failpoints.reach("blob.publish")
            size = sum(file.stat().st_size for file in staged.iterdir())
            if target.exists():
                target.rename(replaced)
                failpoints.reach("blob.replacing")
            new = staged.rename(target)
            for folder in (target, target.parent, *(made.parent for made in fresh)):
                _fsync_folder(folder)
            failpoints.reach("blob.published")
        except OSError:
            self.discard(new)
            if replaced.exists():
                replaced.rename(target)
            raise
        if replaced.exists():
            shutil.rmtree(replaced)
        return size

    def path(self, key: str) -> Path:
        """Where a key lies; it never leaves the root."""
        path = (self._root / key).resolve()
        if not path.is_relative_to(self._root.resolve()) or path == self._root.resolve():
            raise ValueError(f"blob key {key!r} leaves the data directory")
        return path

    def sweep(self, known: Container[str]) -> None:
        """Remove folders of files that nothing knows of: a crash came before their entry or after its end."""
        for folder, _, files in list(os.walk(self._root)):
            key = Path(folder).relative_to(self._root)
            if files and self._staging.name not in key.parts and key.as_posix() not in known:
                self.delete(key.as_posix())

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
