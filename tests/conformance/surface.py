"""Prints, as JSON, what a Tinker SDK offers: run by an interpreter that has one, given its import name.

``names``: what can be imported; ``members``: of each class the public members with their
parameters; ``fields``: of each type its fields and their defaults.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import json
import sys
import warnings
from typing import Any

# Clients the oldest SDK keeps out of its top level.
HIDDEN = {"RestClient": "lib.public_interfaces.rest_client", "RetryConfig": "lib.retry_handler"}


def parameters(member: Any) -> list[str] | None:
    """Names in order; None for what is not called. Positional ones count, keyword-only ones have a star."""
    if not callable(member):
        return None
    found = []
    for name, parameter in inspect.signature(member).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD or parameter.kind is parameter.VAR_POSITIONAL:
            continue
        found.append(f"*{name}" if parameter.kind is parameter.KEYWORD_ONLY else name)
    return found


def member_of(kind: type, name: str) -> Any:
    """The member as it is called on an instance, or (a property, a constant) as it is."""
    member = inspect.getattr_static(kind, name)
    if isinstance(member, staticmethod | classmethod):
        return getattr(kind, name)
    if inspect.isfunction(member):
        return _without_self(member)
    return None if not callable(member) else member


def _without_self(function: Any) -> Any:
    def bound() -> None: ...

    whole = inspect.signature(function)
    bound.__signature__ = whole.replace(parameters=list(whole.parameters.values())[1:])  # type: ignore[attr-defined]
    return bound


def fields(kind: type) -> dict[str, Any] | None:
    """A type's fields and the defaults that can be written as JSON."""
    if dataclasses.is_dataclass(kind):
        return {field.name: plain(field.default) for field in dataclasses.fields(kind)}
    models = getattr(kind, "model_fields", None)
    if models is None:
        return None
    return {name: plain(field.default) for name, field in models.items()}


def plain(value: Any) -> Any:
    """A default, or "..." where it is none or no plain value."""
    return value if isinstance(value, str | int | float | bool | None) else "..."


def describe(package: str) -> dict[str, Any]:
    """The whole surface."""
    sdk = importlib.import_module(package)
    found: dict[str, Any] = {"names": sorted(sdk.__all__), "members": {}, "fields": {}}
    kinds = {name: getattr(sdk, name) for name in sdk.__all__ if inspect.isclass(getattr(sdk, name))}
    for name, module in HIDDEN.items():
        if name not in kinds:
            place = sdk if hasattr(sdk, name) else importlib.import_module(f"{package}.{module}")
            kinds[name] = getattr(place, name)
    types = importlib.import_module(f"{package}.types")
    with contextlib.suppress(ImportError):
        importlib.import_module(f"{package}.types.official_names")
    kinds |= {name: kind for name, kind in vars(types).items() if inspect.isclass(kind)}
    for name, kind in sorted(kinds.items()):
        declared = fields(kind)
        if declared is not None:
            found["fields"][name] = declared
        found["members"][name] = {member: parameters(member_of(kind, member)) for member in own(kind)} | {
            "__init__": constructor(kind)
        }
    listed = {*vars(types), *getattr(sys.modules.get(f"{package}.types.official_names"), "__all__", ())}
    found["types"] = sorted(name for name in listed if not name.startswith("_"))
    return found


def own(kind: type) -> list[str]:
    """Public members that are not pydantic's, an exception's or a tuple's."""
    homes = {name: base for base in reversed(kind.__mro__) for name in vars(base)}
    return [
        name
        for name, home in homes.items()
        if not name.startswith("_") and home.__module__.partition(".")[0] in OURS
    ]


def constructor(kind: type) -> list[str] | None:
    try:
        return parameters(kind)
    except (TypeError, ValueError):
        return None


OURS = {"tinker", "tinsmith"}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(describe(sys.argv[1])))
