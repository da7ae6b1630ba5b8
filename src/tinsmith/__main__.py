"""``python -m tinsmith`` is the `tinsmith` command."""

from tinsmith.cli import main

main()
