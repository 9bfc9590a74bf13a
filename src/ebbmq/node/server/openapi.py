"""The OpenAPI 3.1 document, made of the table of operations and of what the decoders take.

Schemas come from the structs that requests are decoded into, so the document cannot promise what
the server refuses (ADR 0017). It covers message verbs, which Litestar never sees.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ebbmq import __version__
from ebbmq.node.server.operations import OPERATIONS, Operation
from ebbmq.policy.rules.grammar import TEXT_CHARS_MAX
from ebbmq.policy.rules.rule import WEIGHT_MAX
from ebbmq.wire.http import forms

_REF: Final = "#/components/schemas/{name}"
#: What any operation may answer beside what it promises.
_FAULTS: Final = {
    400: "The request, or something in it, is not what this takes.",
    401: "A token is needed, or the one given is not valid.",
    403: "The token does not hold the scope this needs.",
    404: "There is no such queue, topic, rule or path, or the token may not know of it.",
    408: "The request did not arrive in time.",
    409: "Something of that name is there already and differs, or cannot be changed here.",
    412: "It changed since the version named in If-Match.",
    413: "The request is too large.",
    429: "Full or overloaded; Retry-After says when to try again.",
    503: "The server is stopping, or its storage has failed.",
    504: "Not confirmed in time: stored or not is not known.",
}
_BASE64: Final = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
#: What a name in a path may not be is told by the server; here only what cannot be sent.
_NAME: Final = {"type": "string", "minLength": 1, "maxLength": 255}
_ID: Final = {"type": "string", "pattern": "^[0-9a-f]{1,8}-[0-9a-f]{1,12}$"}
_PARAMETERS: Final = {
    "queue": "The queue's name; a slash in it is sent as %2F.",
    "topic": "The topic's name; a slash in it is sent as %2F.",
    "rule": "The rule's id; a slash in it is sent as %2F.",
    "device": "The device's name; the node's own log is `log`.",
    "name": "The name given to the lease call.",
    "id": "A message's id, as receipts show it.",
}


def document() -> dict[str, Any]:
    """All of it, as JSON would say it."""
    kinds = {
        kind
        for operation in OPERATIONS
        for kind in (operation.body, operation.answer)
        if kind is not None
    }
    ordered = sorted(kinds | {forms.FaultForm}, key=lambda kind: kind.__name__)
    _, schemas = msgspec.json.schema_components(ordered, ref_template=_REF)
    _refine(schemas)
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "EbbMQ",
            "version": __version__,
            "summary": "A message queue whose messages lose importance as they age",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}, {}],
        "tags": [{"name": group} for group in dict.fromkeys(o.group for o in OPERATIONS)],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": _faults(),
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Made by `ebbmq users add`. Without users, callers from the "
                    "server's own machine need none.",
                }
            },
        },
    }


def _refine(schemas: dict[str, Any]) -> None:
    """Say what the types of structs cannot."""
    bodies = ("body_b64", "text")
    for name in ("MessageForm", "LeaseForm", "PeekForm"):
        schema = schemas[name]
        schema["required"] = [field for field in schema["required"] if field not in bodies]
        schema["oneOf"] = [{"required": [field]} for field in bodies]
        schema["properties"]["body_b64"]["pattern"] = _BASE64
    for name in ("RuleForm", "RuleChangeForm"):
        fields = schemas[name]["properties"]
        fields["weight"] |= {"minimum": 0, "maximum": WEIGHT_MAX}
        fields["when"] |= {"minLength": 1, "maxLength": TEXT_CHARS_MAX}


def _described(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "tags": [operation.group],
        "summary": operation.summary,
        "parameters": [*_path_parameters(operation.path), *_query_parameters(operation)],
        "responses": _responses(operation),
    }
    scope = f"Scope: {operation.scope}. " if operation.scope else ""
    if scope or operation.needs:
        described["description"] = f"{scope}{operation.needs}".strip()
    if operation.body is not None:
        content: dict[str, Any] = {"schema": _reference(operation.body)}
        if operation.example:
            content["example"] = msgspec.json.decode(operation.example)
        described["requestBody"] = {
            "required": not operation.may_be_empty,
            "content": {"application/json": content},
        }
    return described


def _path_parameters(path: str) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": _PARAMETERS[name],
            "schema": dict(_ID if name == "id" else _NAME),
        }
        for name in names
    ]


def _query_parameters(operation: Operation) -> list[dict[str, Any]]:
    schema = msgspec.json.schema_components([operation.query])[1][operation.query.__name__]
    return [
        {"name": name, "in": "query", "required": False, "schema": _without_null(told)}
        for name, told in schema["properties"].items()
    ]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A query cannot say null: what may be null is left out."""
    if "anyOf" in schema:
        schema = next(each for each in schema["anyOf"] if each != {"type": "null"})
    if None in schema.get("enum", ()):
        schema = {**schema, "enum": [each for each in schema["enum"] if each is not None]}
    return {key: value for key, value in schema.items() if value is not None}


def _responses(operation: Operation) -> dict[str, Any]:
    found: dict[str, Any] = {name: {"$ref": f"#/components/responses/{name}"} for name in _faults()}
    for status in operation.statuses:
        found[str(status)] = _success(operation)
    return found


def _faults() -> dict[str, Any]:
    return {
        **{
            str(status): {"description": text, "content": _content(forms.FaultForm)}
            for status, text in _FAULTS.items()
        },
        "default": {"description": "Any other error.", "content": _content(forms.FaultForm)},
    }


def _success(operation: Operation) -> dict[str, Any]:
    if operation.answer is not None:
        return {"description": operation.summary, "content": _content(operation.answer)}
    if operation.statuses == (204,):
        return {"description": operation.summary}
    return {
        "description": operation.summary,
        "content": {operation.media_type: {"schema": {"type": "string"}}},
    }


def _content(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {"application/json": {"schema": _reference(kind)}}


def _reference(kind: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": _REF.format(name=kind.__name__)}
