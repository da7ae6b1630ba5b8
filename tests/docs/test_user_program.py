"""The types that users see: a right program passes mypy --strict, and mistakes in a wrong one are found."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import user_program

from tinsmith.testing import ServiceProcess

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


# Following these takes a minute and tells nothing of ours.
CONFIG = "[mypy]\nstrict = true\n[mypy-transformers.*,torch.*]\nfollow_imports = skip\n"


def test_a_right_program_passes_and_a_wrong_one_does_not(tmp_path: Path) -> None:
    (config := tmp_path / "mypy.ini").write_text(CONFIG)
    text = (HERE / "wrong_program.txt").read_text()
    (wrong := tmp_path / "wrong_program.py").write_text(text)
    command = [sys.executable, "-m", "mypy", "--no-error-summary", f"--config-file={config}"]
    programs = [str(HERE / "user_program.py"), str(wrong)]
    done = subprocess.run([*command, *programs], capture_output=True, text=True, cwd=ROOT, timeout=280)
    assert not done.stderr, done.stderr
    found = re.findall(r"(\w+)\.py:(\d+): error: .*\[([a-z-]+)\]", done.stdout)
    mistakes = re.finditer(r"^.*# error: (\S+)$", text, re.MULTILINE)
    expected = [("wrong_program", str(text.count("\n", 0, at.start()) + 1), at[1]) for at in mistakes]
    assert len(expected) == 4
    assert found == expected, done.stdout


def test_the_right_program_runs(tinsmith_service: ServiceProcess) -> None:
    user_program.main(tinsmith_service.url)
