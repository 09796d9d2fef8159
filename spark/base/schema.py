"""Define the columns of the source as Spark's and as Arrow's schema: those of records, with the Kafka connector's names and types, and those
of the messages of queue topics.

It imports Spark, but nothing here needs a session.
Source: "Structured Streaming + Kafka Integration Guide", schema of the source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from raftmq.spark.errors import InvalidOptionError

if TYPE_CHECKING:
    import pyarrow as pa

HEADERS: Final = "headers"
APPEND_TIME: Final = "appendTime"
OPTIONAL: Final = frozenset({HEADERS, APPEND_TIME})
"""Columns that a read has only if its options ask for them, as the connector's headers."""
HEADERS_TYPE: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
COLUMNS: Final[Mapping[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    HEADERS: HEADERS_TYPE,
    APPEND_TIME: TimestampType(),
}
BROWSE_COLUMNS: Final[Mapping[str, DataType]] = {
    "topic": StringType(),
    "partition": IntegerType(),
    "sequence": LongType(),
    "state": StringType(),
    "tenant": StringType(),
    "key": BinaryType(),
    "id": StringType(),
    "priority": IntegerType(),
    "attempts": LongType(),
    "version": LongType(),
    "enqueued_at": TimestampType(),
    "due_at": TimestampType(),
    "lease_left_ms": LongType(),
    "expires_at": TimestampType(),
    "error": StringType(),
    "progress": StringType(),
    "dead_reason": StringType(),
    "dead_since": TimestampType(),
    HEADERS: HEADERS_TYPE,
    "value": BinaryType(),
}
"""The columns of messages. Those whose numbers have 32 bits without a sign are longs."""
LEASED_COLUMNS: Final[Mapping[str, DataType]] = {
    "topic": StringType(),
    "partition": IntegerType(),
    "sequence": LongType(),
    "token": StringType(),
    "tenant": StringType(),
    "key": BinaryType(),
    "id": StringType(),
    "priority": IntegerType(),
    "attempts": LongType(),
    "enqueued_at": TimestampType(),
    HEADERS: HEADERS_TYPE,
    "value": BinaryType(),
}
"""The columns of messages that a streaming query has leased. `token` names the lease."""


def source_schema(
    columns: Sequence[str] | None, include_headers: bool, *, include_append_time: bool = False
) -> StructType:
    """Return the schema of a read: `columns` in their order, or those of the connector. The two flags add a column each.

    Raises:
        InvalidOptionError: a column is unknown or named twice.
    """
    names = list(columns or (name for name in COLUMNS if name not in OPTIONAL))
    for name, is_wanted in ((HEADERS, include_headers), (APPEND_TIME, include_append_time)):
        if is_wanted and name not in names:
            names.append(name)
    return _schema(names, COLUMNS)


def browse_schema(columns: Sequence[str] | None) -> StructType:
    """Return the schema of a read of messages: `columns` in their order, or all columns. Raises as `source_schema`."""
    return _schema(list(columns or BROWSE_COLUMNS), BROWSE_COLUMNS)


def leased_schema(columns: Sequence[str] | None) -> StructType:
    """Return the schema of a stream of messages: `columns` in their order, or all columns. Raises as `source_schema`."""
    return _schema(list(columns or LEASED_COLUMNS), LEASED_COLUMNS)


def _schema(names: Sequence[str], known: Mapping[str, DataType]) -> StructType:
    for name in names:
        if name not in known:
            raise InvalidOptionError(f"columns: there is no column {name!r}; there are {', '.join(known)}")
        if names.count(name) > 1:
            raise InvalidOptionError(f"columns: {name!r} is there twice")
    return StructType([StructField(name, known[name]) for name in names])


def check_schema(schema: StructType, known: Mapping[str, DataType] = COLUMNS) -> None:
    """Check a schema that the user gave. It may leave columns out, but Spark would silently convert other types.

    Raises:
        InvalidOptionError: a column is unknown, is not nullable, or has another type than the source's column.
    """
    for field in schema.fields:
        ours = known.get(field.name)
        if ours is None or field.dataType != ours or not field.nullable:
            raise InvalidOptionError(
                f"the schema has {field.simpleString()}, and the source"
                + (f" has {field.name}:{ours.simpleString()}, nullable" if ours else " has no such column")
                + "; omit schema() and choose columns with the option columns"
            )


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the exact Arrow schema that Spark expects of the batches.

    On a difference, Spark from 4.2 on reports it, and earlier versions fail in the JVM.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        converted: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    except TypeError:  # 4.0 and 4.1 call it `timestamp_utc`, which is their default
        converted = to_arrow_schema(schema)
    return converted
