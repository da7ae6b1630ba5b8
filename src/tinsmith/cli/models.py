"""`tinsmith models`: which base models there are, and fetching more."""

from __future__ import annotations

import click
from rich.console import Console
from rich.table import Table

from tinsmith.engine.models import Catalogue, ModelUnavailable


@click.group("models")
def command() -> None:
    """List base models, or fetch one."""


@command.command("list")
def list_() -> None:
    """The built-in models and those pulled before."""
    table = Table(box=None, pad_edge=False)
    for heading in ("name", "kind", "on disk", "context", "folder"):
        table.add_column(heading, overflow="fold")
    for entry in Catalogue().entries():
        size = f"{entry.size_bytes / 1e6:.1f} MB" if entry.on_disk else "-"
        table.add_row(entry.name, entry.kind, size, str(entry.context_length or "-"), str(entry.folder))
    Console().print(table)


@command.command("pull")
@click.argument("name")
def pull(name: str) -> None:
    """Fetch a causal language model, NAME like org/name, from the hub (or make a built-in one ready)."""
    catalogue = Catalogue(on_progress=lambda message: click.echo(message, err=True))
    try:
        built_in = any(entry.kind == "built-in" and entry.name == name for entry in catalogue.entries())
        entry = catalogue.resolve(name) if built_in else catalogue.pull(name)
    except ModelUnavailable as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{entry.name} is ready in {entry.folder}")
