"""Convert Spark's rows to Arrow batches, Arrow batches to columns of Python values, and single cells to the values that are written.

Must not import Spark. Invariant: a row gives the same values in both forms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from raftmq.spark.errors import InvalidSchemaError
from raftmq.spark.sink.columns.fields import HEADERS_TYPE, TIMES, WHOLE, WITHOUT_ZONE, is_text

if TYPE_CHECKING:
    import pyarrow as pa
    from raftmq.spark.sink.columns.fields import Field

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
ROWS_PER_CHUNK: Final = 1000
"""Number of Spark rows gathered into columns at a time, where Spark passes no Arrow batches."""

Chunk = Sequence[Sequence[object]]
"""The columns of a few rows, in the order of the schema. Columns that the sink ignores are empty."""


class ChunkColumns(Protocol):
    """Tell which columns are converted."""

    @property
    def width(self) -> int:
        """Return the number of all columns."""
        ...

    @property
    def used(self) -> frozenset[int]:
        """Return the positions of the columns that are written."""
        ...

    @property
    def as_bytes(self) -> frozenset[int]:
        """Return the positions of the used columns in which text is converted to bytes."""
        ...


def chunk_of(batch: pa.RecordBatch, columns: ChunkColumns) -> Chunk:
    """Convert Arrow's columns to Python values, with times as microseconds."""
    import pyarrow as pa

    used, as_bytes = columns.used, columns.as_bytes
    chunk: list[Sequence[object]] = []
    for position in range(columns.width):
        if position not in used:
            chunk.append(())
            continue
        column = batch.column(position)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
        elif position in as_bytes and not pa.types.is_binary(column.type):
            column = column.cast(pa.binary())
        chunk.append(column.to_pylist())
    return chunk


def batches_of_rows(rows: Iterable[Sequence[object]], fields: Sequence[Field]) -> Iterator[pa.RecordBatch]:
    """Convert Spark's rows to Arrow batches, `ROWS_PER_CHUNK` rows at a time. Columns of types that no topic has become null."""
    import pyarrow as pa

    source = iter(rows)
    while gathered := list(islice(source, ROWS_PER_CHUNK)):
        columns = zip(*gathered, strict=True)
        arrays = [_array(cells, field.dataType.simpleString()) for field, cells in zip(fields, columns, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, names=[field.name for field in fields])


def _array(cells: Sequence[object], kind: str) -> pa.Array:
    import pyarrow as pa

    if is_text(kind):
        return pa.array(cells, pa.string())
    if kind == "binary":
        return pa.array(cells, pa.binary())
    if kind in WHOLE:
        return pa.array(cells, pa.int64())
    if kind in TIMES:
        # a timestamp without a zone is the same text everywhere, which Arrow has as if it were UTC
        zone = UTC if kind == WITHOUT_ZONE else None
        return pa.array([_micros(cell, zone) for cell in cells], pa.int64()).cast(pa.timestamp("us"))
    if kind.replace(" ", "").lower() != HEADERS_TYPE:
        return pa.nulls(len(cells))
    pairs = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    return pa.array([None if cell is None else list(map(_pair, cell)) for cell in cells], pairs)  # type: ignore[call-overload]


def _micros(cell: object, zone: tzinfo | None) -> int | None:
    """Return the microseconds since 1970 of a time. One without a zone is in `zone`, or in that of the process."""
    if not isinstance(cell, datetime):
        return None
    if cell.tzinfo is None:
        cell = cell.replace(tzinfo=zone) if zone is not None else cell.astimezone(UTC)
    return (cell - _EPOCH) // timedelta(microseconds=1)  # a float is too coarse for times after the year 2242


def _pair(header: Mapping[str, object]) -> dict[str, object]:
    return {"key": header["key"], "value": header["value"]}


def bytes_of(cell: object) -> bytes:
    """Return a text or bytes as bytes, and null as empty bytes."""
    if cell is None:
        return b""
    return cell if isinstance(cell, bytes) else str(cell).encode()


def int_or_0(cell: object) -> int:
    """Return a whole number, and null as 0."""
    return cell if isinstance(cell, int) else 0


NULL_ORDER: Final = -(1 << 63) - 1
"""The place of a null in the order column: before all numbers, as in Spark's ascending order."""


def order_of(cell: object) -> int:
    """Return the place of a value of the order column, a whole number or a time."""
    return cell if isinstance(cell, int) else NULL_ORDER


def header_of(header: Mapping[str, object]) -> tuple[str, bytes | None]:
    """Return the name and the value of a header. Raises `InvalidSchemaError` when the name is null."""
    name, value = header["key"], header["value"]
    if not isinstance(name, str):
        raise InvalidSchemaError("a header's key is null")
    assert value is None or isinstance(value, bytes | bytearray)
    return name, None if value is None else bytes(value)
