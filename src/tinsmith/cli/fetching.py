"""Base models on demand, for commands: what is being done is told, what fails is one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from tinsmith.engine.models import Catalogue, ModelUnavailable


def _tell(message: str) -> None:
    click.echo(message, err=True)


@contextmanager
def catalogue(tell: Callable[[str], None] = _tell) -> Iterator[Catalogue]:
    """The models of this machine. Whatever stops one from being had ends the command and says what to do."""
    try:
        yield Catalogue(on_progress=tell)
    except ModelUnavailable as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        raise click.ClickException(
            "interrupted: nothing was kept, and the same command starts from the beginning"
        ) from None
