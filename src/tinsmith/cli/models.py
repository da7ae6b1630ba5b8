"""`tinsmith models`: which base models there are, and fetching more."""

from __future__ import annotations

from collections.abc import Iterator

import click

from tinsmith.engine.models import Catalogue

from .fetching import catalogue
from .tables import show


@click.group("models")
def command() -> None:
    """List base models, or fetch one."""


@command.command("list")
def list_() -> None:
    """The built-in models and those pulled before."""
    show(("name", "kind", "on disk", "context", "folder"), _rows())


def _rows() -> Iterator[tuple[str, ...]]:
    for entry in Catalogue().entries():
        size = f"{entry.size_bytes / 1e6:.1f} MB" if entry.on_disk else "-"
        yield entry.name, entry.kind, size, str(entry.context_length or "-"), str(entry.folder)


@command.command("pull")
@click.argument("name")
def pull(name: str) -> None:
    """Fetch a causal language model, NAME like org/name, from the hub (or make a built-in one ready)."""
    with catalogue() as models:
        entry = models.pull(name)
    click.echo(f"{entry.name} is ready in {entry.folder}")
