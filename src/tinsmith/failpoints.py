"""Places where a test can make the program fail. `arm` or the environment arms them; else they are nothing.

TINSMITH_FAILPOINTS="snapshot.entered=crash@2, journal.commit=eio@1+" kills the process when it is at
`snapshot.entered` for the second time, and fails every commit as a broken disk does. Without `@`: the
first time.
"""

from __future__ import annotations

import errno
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Where they are: after each write on the way of an operation, a checkpoint and a snapshot.
POINTS = frozenset(
    {
        "journal.commit",  # all is written, the commit is not made
        "journal.committed",  # it is on the disk, nobody has been told
        "adapter.config",
        "adapter.weights",
        "adapter.optimizer",
        "adapter.gradients",
        "adapter.synced",
        "blob.stage",  # an empty folder aside
        "blob.publish",  # written aside, not in its place
        "blob.replacing",  # what was there is away, what shall be there is not yet
        "blob.published",
        "blob.deleted",
        "snapshot.written",  # the engine is done
        "snapshot.sealed",
        "snapshot.entered",  # in the catalogue; what it makes superfluous is still there
    }
)
_ERRORS = {"enospc": errno.ENOSPC, "eio": errno.EIO}
_ACTIONS = {"crash", *_ERRORS}


def _parse(text: str) -> dict[str, tuple[str, range]]:
    armed = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, _, what = entry.partition("=")
        action, _, at = what.partition("@")
        if name not in POINTS or action not in _ACTIONS:
            raise ValueError(f"TINSMITH_FAILPOINTS: {entry!r} is not POINT=ACTION[@N[+]]")
        first = int(at.rstrip("+") or 1)
        armed[name] = (action, range(first, 2**62 if at.endswith("+") else first + 1))
    return armed


def _pass(name: str) -> None:
    """Nothing is armed."""


reach: Callable[[str], None] = _pass
reached: Counter[str] = Counter()  # how often each was, since they were armed


def arm(text: str) -> None:
    """From now on these fail, and no others; each counts from now on."""
    global reach
    armed = _parse(text)
    reached.clear()

    def _reach(name: str) -> None:
        reached[name] += 1
        action, when = armed.get(name, ("", range(0)))
        if reached[name] not in when:
            return
        if action == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(_ERRORS[action], f"{os.strerror(_ERRORS[action])} (failpoint {name})")

    reach = _reach


@contextmanager
def armed(text: str) -> Iterator[None]:
    """Within: these fail."""
    global reach
    arm(text)
    try:
        yield
    finally:
        reach = _pass


if _from_outside := os.environ.get("TINSMITH_FAILPOINTS", ""):
    arm(_from_outside)
