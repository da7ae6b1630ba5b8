"""`tinsmith serve`: the service on a port."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError

from tinsmith.engine.interface import BaseModel, Engine
from tinsmith.service.keys import any_key
from tinsmith.service.settings import Settings, is_loopback

_KEY_LENGTH = 24  # of an operator's own key that other machines can try to guess


@click.command("serve")
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on.  [default: 8600]")
@click.option(
    "--data-dir", type=click.Path(path_type=Path, file_okay=False), help="Where everything durable lies."
)
@click.option("--api-key", help="The key clients must present.")
@click.option("--session-ttl", type=float, help="Seconds without a heartbeat until a session ends.")
@click.option(
    "--engine",
    type=click.Choice(["process", "local", "ray"]),
    help="Where the numbers are computed: a process of their own, this one, or Ray.  [default: process]",
)
@click.option("--device", help="What they are computed on: auto, cpu, cuda or cuda:1.  [default: auto]")
@click.option(
    "--dtype",
    type=click.Choice(["auto", "float32", "bfloat16"]),
    help="Of the base models' weights.  [default: float32 on a CPU, bfloat16 on a GPU]",
)
@click.option(
    "--model", "models", multiple=True, metavar="NAME_OR_FOLDER", help="A base model to offer; repeatable."
)
@click.option(
    "--alias", "aliases", multiple=True, metavar="NAME=MODEL", help="A second name for a model; repeatable."
)
def command(**given: Any) -> None:
    """Serve the training API over HTTP.

    Every option can also be set in the environment: TINSMITH_PORT, TINSMITH_DATA_DIR, and so on
    (TINSMITH_MODELS and TINSMITH_ALIASES take commas).
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    logging.getLogger("tinsmith").setLevel(logging.INFO)
    try:
        settings = Settings(**{name: value for name, value in given.items() if value not in (None, ())})
    except ValidationError as error:
        raise click.ClickException(_told(error)) from error
    try:
        _refuse_open_door(settings)
    except RuntimeError as error:  # of a data directory this version cannot read
        raise click.ClickException(str(error)) from error

    # Brought in late, so that --help and mistakes answer at once.
    from tinsmith.engine.host import offer
    from tinsmith.engine.models import parse_alias
    from tinsmith.server import create_app
    from tinsmith.server.auth import Authenticator
    from tinsmith.server.browsers import ForeignPages
    from tinsmith.server.listen import listen
    from tinsmith.service import Service

    from .fetching import catalogue

    try:
        with catalogue() as models:
            base_models = offer(models, settings.models, map(parse_alias, settings.aliases))
        service = Service(_engine(settings, base_models), settings)
    except (ValueError, RuntimeError) as error:
        raise click.ClickException(str(error)) from error
    key = settings.api_key.get_secret_value() if settings.api_key else None
    auth = Authenticator(key, service.keys, service.tokens)
    app = create_app(service, auth, own_service=True)
    app.add_middleware(ForeignPages, auth=auth, host=settings.host)
    names = list(base_models)

    def announce(url: str) -> None:
        click.echo(_welcome(url, names, auth.required))

    listen(app, settings.host, settings.port, announce, service.drain, settings.max_connections)


def _engine(settings: Settings, base_models: dict[str, BaseModel]) -> Engine:
    if settings.engine == "ray":
        try:
            from tinsmith.cluster import RayEngine
        except ModuleNotFoundError as error:
            raise click.ClickException("--engine ray needs Ray: pip install 'tinsmith[cluster]'") from error
        return RayEngine(base_models, settings.engine_options())
    if settings.engine == "process":
        from tinsmith.engine.child import ChildEngine
        from tinsmith.engine.host import choose

        if settings.device.startswith("cuda"):
            choose(settings.engine_options())  # refuses one that is not here before a process is started
        return ChildEngine(base_models, settings.engine_options(), patience=settings.engine_patience)
    from tinsmith.engine.host import open_engine

    return open_engine(base_models, settings.engine_options())


def _refuse_open_door(settings: Settings) -> None:
    """Nobody offers his machine to a network by accident."""
    if is_loopback(settings.host):
        return
    if settings.api_key is None and not any_key(settings.data_dir):
        raise click.ClickException(
            f"--host {settings.host} lets other machines in, so a key is needed: make one with `tinsmith key "
            "create`, or give --api-key (or TINSMITH_API_KEY)"
        )
    if settings.api_key is not None and len(settings.api_key) < _KEY_LENGTH:
        raise click.ClickException(
            f"--api-key: other machines can try to guess it, so it needs {_KEY_LENGTH} characters or more; "
            "`tinsmith key create` makes one nobody can guess"
        )


def _told(error: ValidationError) -> str:
    """Each setting that is wrong, by the name it has in the environment."""
    problems = (("_".join(map(str, problem["loc"])), problem["msg"]) for problem in error.errors())
    return "\n".join(f"TINSMITH_{name.upper()}: {message}" for name, message in problems)


def _welcome(url: str, models: list[str], key_required: bool) -> str:
    """What a person copies into another terminal; a key is shown only where any will do."""
    lines = [f"Tinsmith serves {', '.join(models)} at {url}", f"  export TINKER_BASE_URL={url}"]
    if key_required:
        lines.append("  export TINKER_API_KEY=<a key of yours; `tinsmith key create` makes one>")
    else:
        lines.append("  export TINKER_API_KEY=tml-local")
        lines.append("No key is asked for: any will do, and only programs on this machine are served.")
    return "\n".join(lines)
