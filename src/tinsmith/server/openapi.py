"""The OpenAPI document, made from the table of routes and the types it names."""

from __future__ import annotations

import inspect
import re
from importlib.metadata import version
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from tinsmith.types import AdamParams, LoraConfig, SamplingParams
from tinsmith.types.checkpoint import CHECKPOINT_NAME, PATH_KINDS
from tinsmith.types.replies import ErrorReply, PendingReply
from tinsmith.wire import json

from .bulk_schemas import BODIES, RESULTS
from .routes import API, ROUTES, Route

DOCUMENT_PATHS = ("/openapi.json", f"{API}/openapi.json")
_REF = "#/components/schemas/{model}"
_ALSO = (ErrorReply, PendingReply, AdamParams, LoraConfig, SamplingParams)  # named by no row of the table

# Parameters of paths that not every text will do for.
_PATH_SCHEMAS: dict[str, Any] = {
    "kind": {"enum": list(PATH_KINDS)},
    "name": {"type": "string", "pattern": f"^{CHECKPOINT_NAME.pattern}$"},
}
_ANY_TEXT = {"type": "string", "minLength": 1}

# Every refusal, and what it means here.
_REFUSALS = {
    "400": "A value cannot be honoured; the field is named.",
    "401": "The key is missing, unknown or revoked.",
    "403": "What was presented gives no access.",
    "404": "There is no such thing, or it is somebody else's.",
    "408": "The body came in too slowly.",
    "410": "It has ended or expired.",
    "413": "The body is too large.",
    "422": "The body is not what this endpoint takes.",
    "429": "Too much is waiting; come back in a moment.",
    "500": "The service failed.",
    "503": "The service is shutting down.",
}


def document() -> dict[str, Any]:
    """The whole document."""
    schemas = _schemas()
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.address, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tinsmith",
            "version": version("tinsmith"),
            "description": "A training API for language models.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "X-API-Key"}},
        },
        "security": [{"key": []}],
    }


def _schemas() -> dict[str, Any]:
    models: dict[type[BaseModel], None] = dict.fromkeys(_ALSO)
    for route in ROUTES:
        models.update(dict.fromkeys(model for model in (route.takes, route.gives) if model is not None))
    _, definitions = models_json_schema([(model, "validation") for model in models], ref_template=_REF)
    schemas: dict[str, Any] = definitions["$defs"]
    return schemas


def _operation(route: Route) -> dict[str, Any]:
    said = inspect.getdoc(route.handler) or ""
    operation: dict[str, Any] = {
        "operationId": f"{route.method.lower()}_{re.sub(r'[^a-z_]+', '_', route.path)}".rstrip("_"),
        "summary": said.partition("\n")[0],
        "parameters": [*_path_parameters(route), *_query_parameters(route)],
        "responses": _responses(route),
    }
    if route.takes is not None or route.raw:
        required = route.takes is None or any(
            field.is_required() for field in route.takes.model_fields.values()
        )
        operation["requestBody"] = {"required": required, "content": _body(route)}
    if route.open:
        operation["security"] = []
    return operation


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": _PATH_SCHEMAS.get(name, _ANY_TEXT)}
        for name in re.findall(r"{(\w+)", route.path)
    ]


def _query_parameters(route: Route) -> list[dict[str, Any]]:
    if route.query is None:
        return []
    schema = route.query.model_json_schema()
    required = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": _not_null(field)}
        for name, field in schema.get("properties", {}).items()
    ]


def _not_null(field: dict[str, Any]) -> dict[str, Any]:
    """A query has no null: what may be null may be left out."""
    kinds = [kind for kind in field.get("anyOf", []) if kind != {"type": "null"}]
    return kinds[0] if len(kinds) == 1 else field


def _body(route: Route) -> dict[str, Any]:
    if route.takes is not None:
        return {json.CONTENT_TYPE: {"schema": _reference(route.takes)}}
    return BODIES[route.path]


def _responses(route: Route) -> dict[str, Any]:
    refusal = {json.CONTENT_TYPE: {"schema": _reference(ErrorReply)}}
    responses: dict[str, Any] = {
        status: {"description": meaning, "content": refusal} for status, meaning in _REFUSALS.items()
    }
    content = RESULTS.get(route.path)
    if route.gives is not None:
        content = {json.CONTENT_TYPE: {"schema": _reference(route.gives)}}
    responses["200"] = {"description": "Done.", "content": content}
    if route.path.endswith("/archive"):
        responses["302"] = {"description": "The archive is at Location, until Expires."}
        del responses["200"]
    if route.path == "retrieve_future":
        pending = {json.CONTENT_TYPE: {"schema": _reference(PendingReply)}}
        responses["408"] = {"description": "There is no result yet: ask again.", "content": pending}
    return responses


def _reference(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REF.format(model=model.__name__)}
