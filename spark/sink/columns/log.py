"""Find the columns that a write to log topics accepts. Must not import Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from raftmq.spark.errors import InvalidSchemaError
from raftmq.spark.sink.columns.fields import (
    BYTES_IN_WORDS,
    TIME_IN_WORDS,
    TIMES,
    WHOLE,
    WHOLE_IN_WORDS,
    Field,
    FieldFinder,
    is_bytes,
    is_text,
)

if TYPE_CHECKING:
    from raftmq.spark.sink.options import SinkOptions

OFFSET: Final = "offset"
"""The column that orders the rows if the option ``orderColumn`` names none: rows that were read from a topic have it."""


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """Hold the position of each column in the data. None means that the column is absent."""

    value: int
    key: int | None
    headers: int | None
    topic: int | None
    partition: int | None
    order: int | None
    timestamp: int | None
    width: int
    """Number of all columns. Columns with other names are ignored."""


def check_schema(fields: Sequence[Field], options: SinkOptions) -> SinkColumns:
    """Find the columns. Raises `InvalidSchemaError` when a column is missing, duplicated or of another type."""
    finder = FieldFinder(fields)
    found = SinkColumns(
        value=finder.value(),
        key=finder.find("key", BYTES_IN_WORDS, is_bytes),
        headers=finder.headers(),
        topic=finder.find("topic", "string", is_text),
        partition=finder.find("partition", WHOLE_IN_WORDS, WHOLE.__contains__),
        order=find_order(finder, options.order_column),
        timestamp=finder.find(options.timestamp_column, TIME_IN_WORDS, TIMES.__contains__),
        width=len(fields),
    )
    if found.topic is None and options.topic is None:
        raise InvalidSchemaError("nothing says where to write: set the option topic, or add a column 'topic'")
    if options.timestamp_column is not None and found.timestamp is None:
        raise InvalidSchemaError(f"timestampColumn names {options.timestamp_column!r}, and there is no such column")
    return found


def find_order(finder: FieldFinder, name: str | None) -> int | None:
    """Return the position of the column that orders the rows: the named one, else ``offset`` if it holds whole numbers.

    Raises `InvalidSchemaError` when the named column does not exist or has another type.
    """
    if name is not None:
        return finder.order(name)
    return finder.find_typed(OFFSET, WHOLE.__contains__)
