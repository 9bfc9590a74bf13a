"""Rows of a DataFrame as messages to publish."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec import UNSET
from pyspark.sql import types as T

from ebbmq import limits
from ebbmq.errors import InvalidMessage, InvalidSpec
from ebbmq.wire.http.codec import TEXT
from ebbmq.wire.http.forms import MessageForm
from ebbmq_spark.connector.options import FIELDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import pyarrow as pa  # type: ignore[import-untyped]  # it has no types

    from ebbmq.model import Level
    from ebbmq_spark.connector.options import Publishing

#: Messages of one request, and the bytes they take as they travel, unless one alone takes more.
BATCH_MESSAGES: Final = 5_000
BATCH_BYTES: Final = 8 * limits.MIB
_BEGIN: Final = b'{"messages":['
_encode_into: Final = msgspec.json.Encoder().encode_into

_WHOLE: Final = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_TYPES: Final[dict[str, tuple[type[T.DataType], ...]]] = {
    "id": (T.StringType, *_WHOLE),
    "body": (T.BinaryType, T.StringType),
    "headers": (T.MapType,),
    "importance": _WHOLE,
    "ttl_ms": _WHOLE,
    "decay_rate": (T.DoubleType, T.FloatType),
    "delay_ms": _WHOLE,
    "key": (T.StringType,),
    "type": (T.StringType,),
    "store": (T.StringType,),
    "replicas": _WHOLE,
    "durable": (T.BooleanType,),
}
_HEADERS: Final = T.MapType(T.StringType(), T.StringType())


def fields_of(options: Publishing, schema: T.StructType) -> dict[str, str]:
    """The column of each field that the rows have.

    Raises:
        InvalidSpec: a column is missing, of another type, or of no use.
    """
    columns = dict(options.columns)
    if options.id_column is not None:
        columns["id"] = options.id_column
    found = {field: column for field, column in columns.items() if column in schema.names}
    for field, column in columns.items():
        if field not in found and (field in ("body", "id") or column != field):
            option = "idColumn" if field == "id" else FIELDS[field]
            raise InvalidSpec(
                f"there is no column {column!r:.80}, which option {option} names",
                f"use one of {', '.join(schema.names)}",
            )
    for field, column in found.items():
        kind = schema[column].dataType
        if not isinstance(kind, _TYPES[field]) or (field == "headers" and not _is_text_map(kind)):
            known = " or ".join(each.typeName() for each in _TYPES[field])
            known = _HEADERS.simpleString() if field == "headers" else known
            raise InvalidSpec(
                f"column {column!r:.80} is of type {kind.simpleString()}, and {field} is {known}",
                "cast it",
            )
    unused = [name for name in schema.names if name not in found.values()]
    if unused:
        raise InvalidSpec(
            f"column {unused[0]!r:.80} is no field of a message",
            f"select what is published, under the names {', '.join(_TYPES)}, or name the columns "
            "by options such as bodyColumn",
        )
    return found


def _is_text_map(kind: T.DataType) -> bool:
    return (
        isinstance(kind, T.MapType)
        and isinstance(kind.keyType, T.StringType)
        and isinstance(kind.valueType, T.StringType)
    )


def forms_of(
    batch: pa.RecordBatch, fields: Mapping[str, str], next_id: Callable[[], str]
) -> Iterator[MessageForm]:
    """The messages of a batch of rows; `next_id` gives ids where no column does.

    Raises:
        InvalidMessage: a row has no body or no id.
    """
    values: dict[str, Iterable[Any]] = {
        field: batch.column(batch.schema.get_field_index(column)).to_pylist()
        for field, column in fields.items()
    }
    bodies = values.pop("body")
    ids = values.pop("id", repeat(UNSET))
    # A field that is absent takes the queue's default, and so does one that is null.
    kinds = values.pop("type", repeat(None))
    others = list(values)
    for body, given, kind, *rest in zip(bodies, ids, kinds, *values.values(), strict=False):
        if body is None or given is None:
            lacking = fields["body"] if body is None else fields["id"]
            raise InvalidMessage(f"a row has no {lacking}", "filter such rows out, or fill them")
        is_text = isinstance(body, str)
        form = MessageForm(
            body_b64=UNSET if is_text else body,
            text=body if is_text else UNSET,
            id=next_id() if given is UNSET else str(given),
            type=kind or (TEXT if is_text else None),
        )
        for name, value in zip(others, rest, strict=True):
            if value is not None:
                setattr(form, name, _headers(value) if name == "headers" else value)
        yield form


def _headers(entries: list[tuple[str, str | None]]) -> dict[str, str]:
    """A map without what is null in it, as with other fields that are null."""
    return {name: value for name, value in entries if value is not None}


class Request(NamedTuple):
    """Messages that are published together, and the body of the request that does it."""

    forms: list[MessageForm]
    body: bytes

    def halves(self, confirm: Level) -> list[Request]:
        """The same messages in two requests."""
        middle = len(self.forms) // 2
        parts = self.forms[:middle], self.forms[middle:]
        return [request for part in parts for request in requests_of(part, confirm)]


def requests_of(forms: Iterable[MessageForm], confirm: Level) -> Iterator[Request]:
    """Messages, as many together as a request takes; a body is what `PublishForm` would give."""
    part: list[MessageForm] = []
    body = bytearray(_BEGIN)
    for form in forms:
        end = len(body)
        # What a message takes is not known before: text is escaped, and not always ASCII.
        _encode_into(form, body, -1)
        if part and (len(part) == BATCH_MESSAGES or len(body) > BATCH_BYTES):
            last = body[end:]
            del body[end:]
            yield Request(part, _closed(body, confirm))
            part, body = [], bytearray(_BEGIN) + last
        part.append(form)
        body += b","
    if part:
        yield Request(part, _closed(body, confirm))


def _closed(body: bytearray, confirm: Level) -> bytes:
    body[-1:] = b'],"confirm":"%b"}' % confirm.encode()
    return bytes(body)
