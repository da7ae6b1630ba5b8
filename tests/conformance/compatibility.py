"""The table in docs/compatibility.md: which method and command of which SDK is probed, and how.

Run as a script, this calls every probe of every version and writes the table (some minutes).
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from official import ROOT, run

from tinsmith.testing import ServiceProcess

DOCUMENT = ROOT / "docs" / "compatibility.md"
VERSIONS = ("0.4.1", "0.38.0")
# Parts of the surface, each probed by a process of its own; together they are everything.
PARTS = {
    "ServiceClient": "^ServiceClient",
    "TrainingClient": "^TrainingClient",
    "RestClient": "^(Rest|Admin)Client",
    "backward compatibility": "^Backcompat",
    "commands": "^tinker ",
    "the rest": "^(?!ServiceClient|TrainingClient|RestClient|AdminClient|Backcompat|tinker )",
}
_SCRIPT = Path(__file__).with_name("every_method.py")
_MOST_SECONDS = 1200

_HEAD = """\
# Compatibility with the official SDKs

Every public method and command of the unmodified `tinker` packages, found by introspection and called against
a live `tinsmith serve`. `yes, both ways`: the method and its `_async` twin. This file is made by
`python tests/conformance/compatibility.py`; `tests/conformance/test_every_method.py` fails where it is not
true, and where an SDK has a method that nothing probes.
"""

Entries = dict[tuple[str, str], tuple[str, str]]  # (version, method) -> (its cell, what is checked)


def probe(version: str, pattern: str, url: str) -> list[dict[str, Any]]:
    """Call the probes of what matches; one row each."""
    printed = run(version, _SCRIPT, "tiny-llama", pattern, url=url, limit=_MOST_SECONDS)
    return [json.loads(line) for line in printed.splitlines()]


def entries(rows: Iterable[dict[str, Any]]) -> Entries:
    """A method and its ``_async`` twin are one entry."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["version"], row["name"].removesuffix("_async")), []).append(row)
    return {key: (_cell(twins), twins[0]["checks"]) for key, twins in found.items()}


def _cell(twins: list[dict[str, Any]]) -> str:
    if any(row["error"] for row in twins):
        return "no"
    return "yes, both ways" if len(twins) > 1 else "yes"


def written() -> Entries:
    """What the document says."""
    found: Entries = {}
    for line in DOCUMENT.read_text().splitlines():
        if match := re.fullmatch(r"\| `(.+?)` \| (.*?) \| (.*?) \| (.*) \|", line):
            method, *cells, checks = match.groups()
            for version, cell in zip(VERSIONS, cells, strict=True):
                if cell:
                    found[version, method] = (cell, checks)
    return found


def document(of: Entries) -> str:
    """The whole document."""
    return "\n".join(_lines(of)) + "\n"


def _lines(of: Entries) -> Iterator[str]:
    yield _HEAD
    for version in VERSIONS:
        cells = [cell for (of_version, _), (cell, _) in of.items() if of_version == version]
        count = sum(cell != "no" for cell in cells)
        yield f"* {version}: {count} of {len(cells)}"
    yield ""
    yield f"| | {' | '.join(VERSIONS)} | what is checked |"
    yield "|---|---|---|---|"
    for method in sorted({method for _, method in of}):
        given = [of.get((version, method)) for version in VERSIONS]
        checks = next(entry[1] for entry in given if entry is not None)
        yield f"| `{method}` | {' | '.join('' if e is None else e[0] for e in given)} | {checks} |"


def main() -> None:
    """Probe everything and write the document."""
    rows = []
    with tempfile.TemporaryDirectory() as folder, ServiceProcess(Path(folder)) as service:
        for version in VERSIONS:
            rows += probe(version, "", service.url)
    for row in rows:
        if row["error"]:
            print(f"{row['version']} {row['name']}: {row['error']}")
    DOCUMENT.write_text(document(entries(rows)))


if __name__ == "__main__":
    main()
