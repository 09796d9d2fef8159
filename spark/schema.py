"""The columns of the source: the Kafka connector's names and types, as Spark's and as Arrow's schema.

The only module, with the readers, that imports Spark; nothing here needs a session.
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
}


def source_schema(columns: Sequence[str] | None, include_headers: bool) -> StructType:
    """What a read delivers: `columns` in their order, or all; headers only if asked for by either.

    Raises:
        InvalidOptionError: a column is unknown or named twice.
    """
    names = list(columns or (name for name in COLUMNS if name != HEADERS))
    if include_headers and HEADERS not in names:
        names.append(HEADERS)
    for name in names:
        if name not in COLUMNS:
            raise InvalidOptionError(f"columns: there is no column {name!r}; there are {', '.join(COLUMNS)}")
        if names.count(name) > 1:
            raise InvalidOptionError(f"columns: {name!r} is there twice")
    return StructType([StructField(name, COLUMNS[name]) for name in names])


def check_schema(schema: StructType) -> None:
    """A schema given by the user may leave columns out; anything else would be converted behind his back.

    Raises:
        InvalidOptionError: a column is unknown, or of another type than ours.
    """
    for field in schema.fields:
        ours = COLUMNS.get(field.name)
        if ours is None or field.dataType != ours or not field.nullable:
            raise InvalidOptionError(
                f"the schema has {field.simpleString()}, and the source"
                + (f" has {field.name}:{ours.simpleString()}, nullable" if ours else " has no such column")
                + "; leave schema() out, and choose columns with the option columns"
            )


def arrow_schema(schema: StructType) -> pa.Schema:
    """Exactly the Arrow schema that Spark expects of the batches (4.2 and later compare, earlier ones fail in the JVM)."""
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        converted: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    except TypeError:  # 4.0 and 4.1 call it `timestamp_utc`, which is their default
        converted = to_arrow_schema(schema)
    return converted
