"""The README's loop runs as printed, and its commands are the Makefile's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tinsmith.service.client_flags import ClientFlags
from tinsmith.service.limits import Quota
from tinsmith.service.settings import Settings

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_training_loop_runs_as_printed(tmp_path: Path) -> None:
    (loop,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", loop],
        env={key: value for key, value in os.environ.items() if not key.startswith("TINKER_")}
        | {"TINSMITH_DATA_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    *steps, text = done.stdout.splitlines()[:9]
    losses = [float(line.split()[1]) for line in steps]
    assert len(losses) == 8
    assert losses[-1] < losses[0] / 2
    assert text


def test_the_loop_is_as_short_as_promised() -> None:
    (loop,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len([line for line in loop.splitlines() if line]) == 15


def test_every_make_target_the_readme_names_is_there() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README, flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_every_option_of_the_table_is_an_option_of_serve() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "tinsmith", "serve", "--help"], capture_output=True, text=True, check=True
    ).stdout
    options = re.findall(r"`(--[a-z-]+)", README.partition("| option |")[2].partition("\n\n")[0])
    assert options
    assert all(option in shown for option in options)
    assert sorted(set(re.findall(r"--[a-z-]+", shown)) - {"--help"}) == sorted(options)


def test_every_setting_the_documents_name_is_one() -> None:
    settings = {
        f"{kind.model_config['env_prefix']}{name.upper()}"
        for kind in (Settings, Quota, ClientFlags)
        for name in kind.model_fields
    }
    named = {
        name
        for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))
        for name in re.findall(r"TINSMITH_[A-Z_]*[A-Z](?![A-Z_])", path.read_text(encoding="utf-8"))
    }
    assert len(named) > 15
    assert named <= settings | {"TINSMITH_CACHE", "TINSMITH_FAILPOINTS"}


def test_the_table_of_limits_is_that_of_the_service() -> None:
    table = README.partition("| limit |")[2].partition("\n\n")[0]
    told = re.findall(r"^\| `(\w+)` \| ([\d,]+)( GiB)?", table, flags=re.MULTILINE)
    limits = {name: int(number.replace(",", "")) * (2**30 if unit else 1) for name, number, unit in told}
    assert limits == Quota().model_dump()
