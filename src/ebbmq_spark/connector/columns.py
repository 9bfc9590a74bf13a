"""The columns of a message, live or archived, and rows of a broker as Arrow batches."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
from msgspec import UNSET
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from ebbmq.errors import InvalidSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ebbmq_spark.connector.requests import Row

MESSAGE: Final = T.StructType(
    [
        T.StructField("id", T.StringType()),
        T.StructField("body", T.BinaryType()),
        T.StructField("headers", T.MapType(T.StringType(), T.StringType())),
        T.StructField("type", T.StringType()),
        T.StructField("state", T.StringType()),
        T.StructField("importance", T.IntegerType()),
        T.StructField("current_importance", T.DoubleType()),
        T.StructField("band", T.IntegerType()),
        T.StructField("attempt", T.IntegerType()),
        T.StructField("failures", T.IntegerType()),
        T.StructField("ttl_ms", T.LongType()),
        T.StructField("decay_rate", T.DoubleType()),
        T.StructField("enqueued_at_ms", T.LongType()),
        T.StructField("deadline_ms", T.LongType()),
        T.StructField("unique_id", T.StringType()),
    ]
)
#: The id after what tells the store: two brokers number their messages alike.
UNIQUE: Final = "unique_id"


ARCHIVED: Final = T.StructType(
    [
        T.StructField("store", T.StringType()),
        T.StructField("queue", T.StringType()),
        T.StructField("pack", T.LongType()),
        T.StructField("id", T.StringType()),
        T.StructField("importance", T.IntegerType()),
        T.StructField("enqueued_at", T.TimestampType()),
        T.StructField("dead_at", T.TimestampType()),
        T.StructField("decay_rate", T.DoubleType()),
        T.StructField("type", T.StringType()),
        T.StructField("key", T.StringType()),
        T.StructField("producer_id", T.StringType()),
        T.StructField("headers", T.MapType(T.StringType(), T.StringType())),
        T.StructField("body", T.BinaryType()),
    ]
)


def chosen(whole: T.StructType, columns: str | None) -> T.StructType:
    """The columns that an option names, in its order; all without it.

    Raises:
        InvalidSpec: one of them is not there, or is named twice.
    """
    if not columns:
        return whole
    names = [name.strip() for name in columns.split(",")]
    for name in names:
        if name not in whole.names:
            raise InvalidSpec(
                f"option columns names {name!r:.80}", f"use columns of {', '.join(whole.names)}"
            )
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidSpec(
            f"option columns names {twice!r} twice",
            "name it once; select(..) may name it again",
        )
    return T.StructType([whole[name] for name in names])


def checked(asked: T.StructType, whole: T.StructType) -> T.StructType:
    """A schema that Spark asks for, if it is made of columns there are.

    Raises:
        InvalidSpec: a column is not there, of another type, or there twice.
    """
    for field in asked:
        if field.name not in whole.names or whole[field.name].dataType != field.dataType:
            raise InvalidSpec(
                f"the schema names {field.name!r:.80} of type {field.dataType.simpleString()}",
                f"leave .schema(..) out, or use columns of {whole.simpleString()}",
            )
        if asked.names.count(field.name) > 1:
            raise InvalidSpec(
                f"the schema names {field.name!r} twice",
                "name it once; select(..) may name it again",
            )
    return asked


def arrow_of(schema: T.StructType) -> pa.Schema:
    """The Arrow schema that Spark expects of a reader."""
    return to_arrow_schema(schema, timezone="UTC")


def _body(row: Row) -> bytes:
    if row.text is not UNSET:
        return row.text.encode()
    return b"" if row.body_b64 is UNSET else row.body_b64


def _headers(row: Row) -> list[tuple[str, str]]:
    return list(row.headers.items())


_MADE: Final[dict[str, Callable[[Row], Any]]] = {"body": _body, "headers": _headers}


def batch_of(rows: Sequence[Row], schema: pa.Schema, store_id: str | None) -> pa.RecordBatch:
    """Rows as one batch.

    Args:
        rows: messages of one store.
        schema: the columns to make of them.
        store_id: what tells that store from others; None: its server is too old to tell.
    """
    arrays = []
    for field in schema:
        if field.name == UNIQUE:
            values = [None if store_id is None else f"{store_id}-{row.id}" for row in rows]
        else:
            values = list(map(_MADE.get(field.name) or attrgetter(field.name), rows))
        arrays.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
