"""`tinsmith key`: who may use a service. Works while the service runs, and takes effect at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import click

from tinsmith.service.keys import Keys, Role
from tinsmith.service.limits import parse_limits
from tinsmith.service.settings import default_data_dir
from tinsmith.store import Database
from tinsmith.types import UserError

from .tables import show

_data_dir = click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="TINSMITH_DATA_DIR",
    default=default_data_dir,
    help="Where the service keeps everything durable.",
)
_limits = click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="NAME=VALUE",
    help="A limit of the owner that differs from the service's (see `tinsmith key limit`); repeatable.",
)


@click.group("key")
def command() -> None:
    """Make, list and revoke API keys.

    Once there is a key, the service of this data directory asks every client for one.
    """


@contextmanager
def _keys(data_dir: Path) -> Iterator[Keys]:
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        database = Database.in_folder(data_dir)
    except RuntimeError as error:
        raise click.ClickException(str(error)) from error
    try:
        yield Keys(database, data_dir)
    except UserError as error:
        raise click.ClickException(str(error)) from error
    finally:
        database.close()


@command.command("create")
@_data_dir
@click.option("--name", required=True, help="What the key is called.")
@click.option("--owner", help="Whose it is: keys of one owner share all they made.  [default: the name]")
@click.option("--email", help="The owner's address, which clients show.")
@click.option("--note", default="", help="Anything worth remembering.")
@click.option(
    "--role",
    type=click.Choice(["owner", "admin"]),
    default="owner",
    help="An admin may also read the metrics and everybody's audit log.  [default: owner]",
)
@_limits
def create(
    data_dir: Path,
    name: str,
    owner: str | None,
    email: str | None,
    note: str,
    role: Role,
    limits: tuple[str, ...],
) -> None:
    """Make a key and print it, this once; only its hash is kept."""
    with _keys(data_dir) as keys:
        click.echo(asyncio.run(keys.create(name, owner, note, email, role, parse_limits(limits))))


@command.command("list")
@_data_dir
def list_(data_dir: Path) -> None:
    """Every key there ever was."""
    rows = []
    with _keys(data_dir) as keys:
        for key in keys.all():
            made, revoked = _day(key.created_at), _day(key.revoked_at)
            limits = " ".join(f"{name}={value}" for name, value in key.limits.items()) or "-"
            rows.append((str(key.key_id), key.name, key.owner, key.role, limits, made, revoked, key.note))
    show(("id", "name", "owner", "role", "limits", "made", "revoked", "note"), rows)


@command.command("limit")
@_data_dir
@click.argument("key_id", type=int)
@click.argument("limits", nargs=-1, metavar="[NAME=VALUE]...")
def limit(data_dir: Path, key_id: int, limits: tuple[str, ...]) -> None:
    """Set the limits of a key's owner where they differ from the service's; none: no longer.

    Names: concurrent_samples, queued_tokens, live_runs, active_sessions, stored_bytes, weight. Of several
    keys of one owner the highest limit counts.
    """
    with _keys(data_dir) as keys:
        asyncio.run(keys.limit(key_id, parse_limits(limits), actor="operator"))
        click.echo(f"key {key_id}: {' '.join(limits) or 'the limits of the service'}")


@command.command("revoke")
@_data_dir
@click.argument("key_id", type=int)
def revoke(data_dir: Path, key_id: int) -> None:
    """End the key with this id; what its owner made stays."""
    with _keys(data_dir) as keys:
        asyncio.run(keys.revoke(key_id, actor="operator"))
        click.echo(f"key {key_id} is revoked")


def _day(moment: float | None) -> str:
    return "-" if moment is None else datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M")
