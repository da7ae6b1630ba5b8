"""Every public method and command of the oldest and the newest official SDK works, as the document says."""

from __future__ import annotations

import re

import pytest
from compatibility import PARTS, VERSIONS, entries, probe, written

from tinsmith.testing import ServiceProcess


@pytest.mark.timeout(1500)  # each command starts an interpreter
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("version", VERSIONS)
def test_every_method(tinsmith_service: ServiceProcess, version: str, part: str) -> None:
    rows = probe(version, PARTS[part], tinsmith_service.url)
    failed = [f"{row['name']}: {row['error']}" for row in rows if row["error"]]
    assert not failed, "\n".join(failed)
    said = {key: entry for key, entry in written().items() if _is_in(key, version, part)}
    assert entries(rows) == said, "run: python tests/conformance/compatibility.py"


def _is_in(key: tuple[str, str], version: str, part: str) -> bool:
    return key[0] == version and re.search(PARTS[part], key[1]) is not None
