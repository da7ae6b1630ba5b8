"""docs/requirements.md: every number is there, and every test it names; the guide says what it must."""

from __future__ import annotations

import ast
import re
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "requirements.md").read_text()
# Of the client and the documents; 28, 43, 56, 82 and 136 are the service's and the tests' own.
NUMBERS = set(
    chain(
        range(1, 34), range(40, 70), range(80, 100), range(110, 118), range(130, 140), range(150, 154),
        range(160, 166),
    )
) - {28, 43, 56, 82, 136}  # fmt: skip
ROW = re.compile(r"^\| R-(\d{3}) \| (.+) \| (.+) \|$", re.MULTILINE)


def test_every_number_is_there_once() -> None:
    found = Counter(int(number) for number, _, _ in ROW.findall(DOCUMENT))
    assert set(found) == NUMBERS
    assert max(found.values()) == 1


def test_every_requirement_names_tests_that_exist() -> None:
    known: dict[str, set[str]] = {}
    for number, _, cell in ROW.findall(DOCUMENT):
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", cell)
        assert named, f"R-{number} names no test"
        for path, test in named:
            if path not in known:
                tree = ast.parse((ROOT / path).read_text())
                known[path] = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
            assert test in known[path], f"R-{number}: there is no {path}::{test}"
            assert test.startswith("test_")


def test_categories_that_never_were_are_not_here() -> None:
    words = [f"{'USER'}_ERROR", f"{'TRANS'}IENT", f"{'FA'}TAL"]
    pattern = re.compile(rf"\b({'|'.join(words)})\b")
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *ROOT.glob("*.md")]
    for file in [*files, *(ROOT / "docs").glob("*.md")]:
        assert not pattern.search(file.read_text()), file


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ("docs/sdk.md", "## What blocks"),
        ("docs/sdk.md", "## Cancelling"),
        ("docs/sdk.md", "## Where it differs from the official packages"),
        ("docs/sdk.md", "`prompt_logprobs`"),
        ("README.md", "nothing\n  in the official API streams"),
    ],
)
def test_the_guide_says_what_it_must(document: str, says: str) -> None:
    assert says in (ROOT / document).read_text()
