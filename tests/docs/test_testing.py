"""The tests in docs/testing.md pass as printed, in a project of their own; its table is complete."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tinsmith import testing

TEXT = (Path(__file__).parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")


def test_the_tests_pass_as_printed(tmp_path: Path) -> None:
    (tests,) = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    (tmp_path / "test_mine.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{tests.count('def test_')} passed" in done.stdout


def test_every_name_is_told_of() -> None:
    for name in set(testing.__all__) - {"Fault", "Faults", "ServiceProcess"}:
        assert f"`{name}(" in TEXT, name
