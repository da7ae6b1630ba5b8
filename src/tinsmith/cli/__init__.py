"""The `tinsmith` command. Each subcommand is a module, imported only when it is called."""

from __future__ import annotations

import importlib
import sys

# Subcommand -> the module whose `command` it is.
COMMANDS = {
    "demo": "tinsmith.cli.demo",
    "key": "tinsmith.cli.key",
    "models": "tinsmith.cli.models",
    "serve": "tinsmith.cli.serve",
}


def main() -> None:
    """Entry point."""
    try:
        import click
    except ModuleNotFoundError:
        sys.exit("The tinsmith command needs more than the lean client: pip install 'tinsmith[serve]'")

    class Lazy(click.Group):
        def list_commands(self, ctx: click.Context) -> list[str]:
            return sorted(COMMANDS)

        def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
            if cmd_name not in COMMANDS:
                return None
            command: click.Command = importlib.import_module(COMMANDS[cmd_name]).command
            return command

    @click.group(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"]})
    @click.version_option(package_name="tinsmith")
    def tinsmith() -> None:
        """Tinsmith: a training API for language models, on your own machine."""

    tinsmith(prog_name="tinsmith")
