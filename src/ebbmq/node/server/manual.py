"""The manual of the HTTP interface: /openapi.json for programs, /docs for people without network.

Neither says anything about this server's queues, so both are open to whoever reaches it. They are
made when first asked for, and kept.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from litestar import Response, get

from ebbmq import __version__
from ebbmq.node.server import openapi
from ebbmq.node.server.asking import JSON, Answer, Asking
from ebbmq.node.server.html import Markup, joined, page, tag
from ebbmq.wire.http import codec

if TYPE_CHECKING:
    from litestar.handlers import HTTPRouteHandler

    from ebbmq.node.server.context import Context

Schema = dict[str, Any]

_INTRODUCTION: Final = Markup(
    "<p>JSON in, JSON out. Errors have the fields <code>code</code>, <code>detail</code> and "
    "<code>action</code>: the code is for programs, the rest for people. Fields that are not "
    "known are refused by name. With users, every request carries <code>Authorization: Bearer "
    'TOKEN</code>. The same as a document for programs: <a href="/openapi.json">/openapi.json</a>.'
    "</p>"
)


class Manual:
    """The endpoints /openapi.json and /docs."""

    def __init__(self, _context: Context) -> None:
        pass

    def routes(self) -> list[HTTPRouteHandler]:
        """What Litestar serves."""
        return [get("/openapi.json")(self.openapi), get("/docs")(self.docs)]

    async def openapi(self, request: Asking) -> Answer:
        """The OpenAPI document."""
        return Response(self._document, media_type=JSON)

    async def docs(self, request: Asking) -> Answer:
        """The same for people."""
        head = tag("<h1>EbbMQ<small>HTTP interface, {version}</small></h1>", version=__version__)
        return page("EbbMQ: HTTP interface", head, self._body)

    @cached_property
    def _document(self) -> bytes:
        return codec.encode(openapi.document())

    @cached_property
    def _body(self) -> Markup:
        document = openapi.document()
        groups = [_group(each["name"], document) for each in document["tags"]]
        forms = [
            tag(
                '<details id="{name}"><summary><b>{name}</b><span class="soft">{told}</span>'
                "</summary>{fields}</details>",
                name=name,
                told=schema.get("description", ""),
                fields=_fields(schema),
            )
            for name, schema in sorted(document["components"]["schemas"].items())
        ]
        return joined([_INTRODUCTION, *groups, Markup("<h2>Forms</h2>"), *forms])


def _group(name: str, document: Schema) -> Markup:
    operations = [
        _operation(method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if name in operation["tags"]
    ]
    return tag("<h2>{name}</h2>{all}", name=name, all=joined(operations))


def _operation(method: str, path: str, operation: Schema) -> Markup:
    body = operation.get("requestBody", {}).get("content", {}).get(JSON)
    success = next(
        response for status, response in operation["responses"].items() if status[0] == "2"
    )
    answer = success.get("content", {}).get(JSON)
    parts = [
        tag("<p>{told}</p>", told=operation["description"])
        if "description" in operation
        else Markup(""),
        _parameters(operation["parameters"]),
        tag("<p>Body: {kind}</p>", kind=_kind(body["schema"])) if body else Markup(""),
        tag("<p>Answer: {kind}</p>", kind=_kind(answer["schema"])) if answer else Markup(""),
        tag("<pre>{curl}</pre>", curl=_curl(method, path, body)),
    ]
    return tag(
        '<details id="{id}"><summary><span class="verb">{method}</span><code>{path}</code>'
        '<span class="soft">{told}</span></summary>{parts}</details>',
        id=operation["operationId"],
        method=method.upper(),
        path=path,
        told=operation["summary"],
        parts=joined(parts),
    )


def _curl(method: str, path: str, body: Schema | None) -> str:
    given = "" if method in {"get", "post"} else f" -X {method.upper()}"
    for name in ("queue", "topic", "rule", "device", "name", "id"):
        path = path.replace(f"{{{name}}}", f"${name.upper()}")
    command = f"curl -s{given} $URL{path}"
    if body and "example" in body:
        return f"{command} -d '{codec.encode(body['example']).decode()}'"
    return f"{command} -d ''" if method == "post" else command


def _parameters(parameters: list[Schema]) -> Markup:
    if not parameters:
        return Markup("")
    rows = [
        tag(
            "<tr><td>{name}</td><td>{where}</td><td>{kind}</td><td>{told}</td></tr>",
            name=each["name"],
            where=each["in"],
            kind=_kind(each["schema"]),
            told=each.get("description", ""),
        )
        for each in parameters
    ]
    return tag(
        "<table><tr><th>parameter</th><th>in</th><th>type</th><th></th></tr>{rows}</table>",
        rows=joined(rows),
    )


def _fields(schema: Schema) -> Markup:
    if "properties" not in schema:
        return tag("<p>{kind}</p>", kind=_kind(schema))
    required = schema.get("required", ())
    rows = [
        tag(
            "<tr><td>{name}</td><td>{kind}</td><td>{default}</td></tr>",
            name=name,
            kind=_kind(told),
            default="required" if name in required else _default(told),
        )
        for name, told in schema["properties"].items()
    ]
    return tag(
        "<table><tr><th>field</th><th>type</th><th>default</th></tr>{rows}</table>",
        rows=joined(rows),
    )


def _default(schema: Schema) -> str:
    return codec.encode(schema["default"]).decode() if "default" in schema else ""


def _kind(schema: Schema) -> Markup:
    """A type in a few words, with its bounds; forms are links."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return tag('<a href="#{name}">{name}</a>', name=name)
    if "anyOf" in schema:
        return Markup(" or ".join(_kind(each) for each in schema["anyOf"]))
    if "enum" in schema:
        return tag("{all}", all=", ".join(map(str, schema["enum"])))
    if schema.get("type") == "array":
        items = schema.get("items") or {}
        return tag("list of {kind}", kind=_kind(items)) if items else Markup("list")
    if schema.get("type") == "object":
        values = schema.get("additionalProperties")
        return tag("object of {kind}", kind=_kind(values)) if values else Markup("object")
    return tag("{kind}{bounds}", kind=_plain(schema), bounds=_bounds(schema))


def _plain(schema: Schema) -> str:
    if schema.get("contentEncoding") == "base64":
        return "base64"
    return str(schema.get("type", "anything"))


def _bounds(schema: Schema) -> str:
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if low is not None and high is not None:
        return f", {low:,} to {high:,}"
    if "maxLength" in schema:
        return f", up to {schema['maxLength']:,} characters"
    return ""
