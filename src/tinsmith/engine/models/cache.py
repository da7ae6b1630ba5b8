"""Where model folders live, and how one appears there: whole, once, or not at all."""

import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

OnProgress = Callable[[str], None]


class ModelUnavailable(Exception):
    """A model cannot be had; the message says which one, why, and what would help."""


def silent(_message: str) -> None:
    """The progress callback of a caller that wants none."""


def default_cache_dir() -> Path:
    """`TINSMITH_CACHE`, else `tinsmith` in the user's cache directory."""
    chosen = os.environ.get("TINSMITH_CACHE")
    if chosen:
        return Path(chosen).expanduser().resolve()
    xdg = os.environ.get("XDG_CACHE_HOME")
    return (Path(xdg) if xdg and os.path.isabs(xdg) else Path.home() / ".cache") / "tinsmith"


def build_once(target: Path, build: Callable[[Path], None], *, needs_bytes: int = 0) -> Path:
    """Let `build` fill a folder beside `target` and rename it into place; a failed build leaves nothing.

    Of several processes that want the same folder one builds and the others wait for it.
    """
    if target.is_dir():
        return target
    from filelock import FileLock

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.parent / f".{target.name}.lock"):
            if not target.is_dir():  # another process may have built it while we waited
                _sweep(target)
                _check_space(target, needs_bytes)
                _build(target, build)
    except OSError as error:
        raise ModelUnavailable(
            f"the model folder {target} cannot be written: {error}. "
            "Free some space, or set TINSMITH_CACHE to a folder you can write to."
        ) from error
    return target


def _build(target: Path, build: Callable[[Path], None]) -> None:
    # In the target's own parent, so that the rename below stays within one file system and is atomic.
    partial = target.parent / f".{target.name}.{uuid.uuid4().hex}.partial"
    try:
        partial.mkdir()
        build(partial)
        _flush(partial)
        try:
            os.rename(partial, target)
        except OSError:
            # Where file locks do nothing (some network file systems) another process may have been first.
            if not target.is_dir():
                raise
    finally:
        if partial.exists():
            shutil.rmtree(partial)


def _sweep(target: Path) -> None:
    """Remove what a killed process left. Only the holder of the lock builds, so nobody is writing there."""
    for leftover in target.parent.glob(f".{target.name}.*.partial"):
        shutil.rmtree(leftover)


def _check_space(target: Path, needs_bytes: int) -> None:
    free = shutil.disk_usage(target.parent).free
    if free < needs_bytes:
        raise ModelUnavailable(
            f"{target.name} needs {needs_bytes / 1e6:.0f} MB in {target.parent}, "
            f"which has {free / 1e6:.0f} MB free. "
            "Free some space, or set TINSMITH_CACHE to a folder on a larger disk."
        )


def _flush(folder: Path) -> None:
    """What has its final name must be on disk, or a power cut leaves empty files that look complete."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb+") as file:
                os.fsync(file.fileno())
