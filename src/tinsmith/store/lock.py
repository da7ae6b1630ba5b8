"""One service per data directory."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO


class DataDirUnusable(RuntimeError):
    """A data directory that this service cannot work with; the message says why and what would help."""


class DataDirLock:
    """An exclusive lock on a folder, held until released or until the process ends, however it ends."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # of no business to other users here
        path = folder / "lock"
        self._file: IO[str] = path.open("a+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            holder = self._file.read().strip() or "unknown"
            self._file.close()
            raise DataDirUnusable(
                f"data directory {folder} is in use by another Tinsmith service (process {holder}). "
                "Connect to that one with TINKER_BASE_URL, or choose another folder with TINSMITH_DATA_DIR."
            ) from None
        self._file.truncate(0)
        self._file.write(str(os.getpid()))
        self._file.flush()

    def release(self) -> None:
        """Let the next service in."""
        self._file.close()
