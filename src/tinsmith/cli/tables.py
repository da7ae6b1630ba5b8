"""Lists, as commands print them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

_NO_TERMINAL_WIDTH = 10_000


def show(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table; where no terminal is, every row is one line, for programs that read it.

    Only the last column is folded to fit a terminal: the others are names a person copies.
    """
    table = Table(box=None, pad_edge=False)
    for heading in headings[:-1]:
        table.add_column(heading, no_wrap=True)
    table.add_column(headings[-1], overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _NO_TERMINAL_WIDTH
    console.print(table)
