"""How much room there is: on the disk, and in the data directory's budget."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from tinsmith.types import OutOfSpace


class Space:
    """Refuses new work while there is room left for what is under way."""

    def __init__(self, folder: Path, budget: int | None, reserve: int) -> None:
        self._folder = folder
        self._budget = budget
        self._reserve = reserve
        self._used = 0

    def claim(self, size: int) -> None:
        """Raise `OutOfSpace` unless so many more bytes may come in."""
        free = shutil.disk_usage(self._folder).free
        if free - size < self._reserve:
            raise OutOfSpace(
                f"disk_reserve: {free} bytes are free on the data directory's disk, and {self._reserve} are "
                "kept for what is under way; make room there"
            )
        if self._budget is not None and self._used + size > self._budget:
            raise OutOfSpace(
                f"data_budget: the data directory holds {self._used} bytes and {self._budget} may be; delete "
                "checkpoints, end sessions, or set TINSMITH_DATA_BUDGET higher"
            )
        self._used += size

    def measure(self) -> None:
        """Look how much there is; between two looks what comes in is added up."""
        used = 0
        for folder, _, files in os.walk(self._folder):
            for name in files:
                with contextlib.suppress(FileNotFoundError):  # it went while we looked
                    used += os.stat(os.path.join(folder, name)).st_size
        self._used = used
