"""Checks and sizes of the records that callers send. Pure."""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, islice, repeat
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar, cast

from raftmq.client.base import settings
from raftmq.client.codec.batch import Headers
from raftmq.client.codec.cells import Serializer, check_headers, headers_bytes, to_bytes
from raftmq.errors import InvalidArgumentError, RecordTooLargeError
from raftmq.types import KeyT_contra, ValueT_contra

if TYPE_CHECKING:
    from raftmq.client.base.spans import SendSpan

T = TypeVar("T")
BulkRecord = (
    tuple[KeyT_contra | None, ValueT_contra | None]
    | tuple[KeyT_contra | None, ValueT_contra | None, Iterable[tuple[str, bytes]] | None]
    | tuple[KeyT_contra | None, ValueT_contra | None, Iterable[tuple[str, bytes]] | None, int | None]
)
"""A record for `send_many`: (key, value), (key, value, headers) or (key, value, headers, timestamp_ms)."""
Records = Sequence[Sequence[object]]
"""Records for `send_many`, each a tuple or list in one of the forms of `BulkRecord`."""
_PLAIN_TYPES: Final = frozenset({bytes, type(None)})
_SHAPES: Final = "send_many needs records of the form (key, value) or (key, value, headers[, timestamp_ms])"
_NO_HEADERS: Headers = ()
TIMESTAMP_MAX: Final = (1 << 63) - 1
"""Timestamps are encoded as signed 64-bit numbers. Times before 1970 are negative."""


class Columns(NamedTuple):
    """Valid records, column by column, and the error of the record after them."""

    keys: Sequence[bytes | None] | None
    """None: no record has a key."""
    values: Sequence[bytes | None]
    headers: Sequence[Headers] | None
    timestamps: Sequence[int | None] | None
    """None, as a column or as a cell: the timestamp for all records applies."""
    size: int
    """Bytes of all records with overhead, as the producer's buffer counts them."""
    refusal: Exception | None
    """The error of the record that follows, or None if there is none."""


def with_trace(headers: Headers, size: int, span: SendSpan, bytes_max: int) -> tuple[Headers, int]:
    """Return a record's headers, which have no context, with that of a span, and the record's bytes with overhead.

    A record that would exceed `bytes_max` remains without a context.
    """
    traced_size = size + headers_bytes(span.headers)
    return ((*headers, *span.headers), traced_size) if traced_size <= bytes_max else (headers, size)


def columns_with_trace(columns: Columns, span: SendSpan, bytes_max: int) -> Columns:
    """Return the records with the context of a span in their headers instead of one that they may have, as `with_trace` does."""
    span.record_count += len(columns.values)
    own = None if columns.headers is None else [span.own(each) for each in columns.headers]
    sizes = record_sizes(columns.keys, columns.values, own)
    added = headers_bytes(span.headers)
    traced = [size + added <= bytes_max for size in sizes]
    headers = [
        (*each, *span.headers) if has_room else each
        for each, has_room in zip(own or repeat(_NO_HEADERS), traced, strict=False)
    ]
    return columns._replace(headers=headers, size=sum(sizes) + added * sum(traced))


def to_bytes_column(
    cells: Sequence[object], serializer: Serializer | None, name: str
) -> tuple[Sequence[bytes | None], Exception | None]:
    """Convert a column to bytes, up to the first cell that fails. Return the converted cells and the error.

    A column of bytes and None, which is the common case, is returned unchanged.
    """
    if serializer is None and _PLAIN_TYPES.issuperset(map(type, cells)):
        return cast("Sequence[bytes | None]", cells), None
    made: list[bytes | None] = []
    try:
        made.extend(map(to_bytes, cells, repeat(serializer), repeat(name)))  # keeps the cells before a failure
    except Exception as error:  # noqa: BLE001 - a serializer may raise anything, and the caller reports it
        return made, error
    if len(made) < len(cells):  # `map` takes the StopIteration of a serializer for the end of the column
        return made, RuntimeError(f"the {name}_serializer raised StopIteration")
    return made, None


def check_timestamp(timestamp_ms: object) -> int:
    """Return a record's timestamp. Raises `TypeError` if it is not a whole number, `InvalidArgumentError` if it exceeds 64 bits."""
    try:
        time_ms = operator.index(cast("int", timestamp_ms))
    except TypeError:
        raise TypeError(f"timestamp_ms must be whole milliseconds since 1970, not {timestamp_ms!r}") from None
    if not -TIMESTAMP_MAX <= time_ms <= TIMESTAMP_MAX:
        raise InvalidArgumentError(f"timestamp_ms {time_ms} does not fit into 64 bits")
    return time_ms


def records_bytes(
    keys: Sequence[bytes | None], values: Sequence[bytes | None], headers: Sequence[Headers] | None = None
) -> int:
    """Return the bytes of records with overhead."""
    cells_bytes = sum(map(len, filter(None, keys))) + sum(map(len, filter(None, values)))
    size = cells_bytes + settings.RECORD_OVERHEAD_BYTES * len(values)
    return size if headers is None else size + sum(map(headers_bytes, headers))


def record_sizes(
    keys: Sequence[bytes | None] | None, values: Sequence[bytes | None], headers: Sequence[Headers] | None = None
) -> list[int]:
    """Return the bytes of each record with overhead."""
    overhead = settings.RECORD_OVERHEAD_BYTES
    if keys is None:
        sizes = [overhead + len(value or b"") for value in values]
    else:
        sizes = [overhead + len(key or b"") + len(value or b"") for key, value in zip(keys, values, strict=True)]
    return sizes if headers is None else list(map(operator.add, sizes, map(headers_bytes, headers)))


def prefix_that_fits(sizes: Sequence[int], start: int, room: int, *, must_take_one: bool) -> tuple[int, int]:
    """Return the number of records from `start` on that fit into `room`, and their bytes."""
    totals = list(accumulate(islice(sizes, start, None)))
    count = bisect_right(totals, room)
    if count == 0 and must_take_one:
        count = 1
    return count, totals[count - 1] if count else 0


def check_records(
    records: Records,
    key_serializer: Serializer | None,
    value_serializer: Serializer | None,
    bytes_max: int = settings.RECORD_BYTES_MAX,
) -> Columns:
    """Return the records as columns of bytes, up to the first invalid one. `bytes_max` limits each record with its overhead."""
    try:
        raw_keys, raw_values = (
            [key for key, _ in records],
            [value for _, value in records],
        )  # zip(*) takes twice as long
    except (ValueError, TypeError):
        return _check_long_records(records, key_serializer, value_serializer, bytes_max)
    keys: Sequence[bytes | None] | None = None
    refusal: Exception | None = None
    if raw_keys.count(None) != len(raw_keys):
        keys, refusal = to_bytes_column(raw_keys, key_serializer, "key")
        if refusal is not None:
            raw_values = raw_values[: len(keys)]
    values, value_refusal = to_bytes_column(raw_values, value_serializer, "value")
    if value_refusal is not None:
        refusal = value_refusal
        keys = keys if keys is None else keys[: len(values)]
    return _within_limit(keys, values, None, None, refusal, bytes_max)


def _check_long_records(
    records: Records, key_serializer: Serializer | None, value_serializer: Serializer | None, bytes_max: int
) -> Columns:
    """Do the same for records of any form, one by one."""
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    headers: list[Headers] = []
    timestamps: list[int | None] = []
    refusal: Exception | None = None
    for record in records:
        try:
            if not isinstance(record, tuple | list) or not 2 <= len(record) <= 4:
                raise TypeError(_SHAPES)  # noqa: TRY301 - handled like an exception of a serializer
            key, value, more, time_ms = tuple(record) + (None,) * (4 - len(record))
            key_bytes = to_bytes(key, key_serializer, "key")
            value_bytes = to_bytes(value, value_serializer, "value")
            pairs = check_headers(cast("Iterable[tuple[str, bytes]]", more))[0] if more is not None else _NO_HEADERS
            checked_ms = None if time_ms is None else check_timestamp(time_ms)
        except Exception as error:  # noqa: BLE001 - as in to_bytes_column
            refusal = error
            break
        keys.append(key_bytes)
        values.append(value_bytes)
        headers.append(pairs)
        timestamps.append(checked_ms)
    has_keys = keys.count(None) != len(keys)
    has_times = timestamps.count(None) != len(timestamps)
    return _within_limit(
        keys if has_keys else None,
        values,
        headers if any(headers) else None,
        timestamps if has_times else None,
        refusal,
        bytes_max,
    )


def _within_limit(
    keys: Sequence[bytes | None] | None,
    values: Sequence[bytes | None],
    headers: Sequence[Headers] | None,
    timestamps: Sequence[int | None] | None,
    refusal: Exception | None,
    bytes_max: int,
) -> Columns:
    size = records_bytes(keys or (), values, headers)
    if size > bytes_max:
        sizes = record_sizes(keys, values, headers)
        if max(sizes) > bytes_max:
            end = next(at for at, one in enumerate(sizes) if one > bytes_max)
            refusal = too_large(sizes[end], bytes_max)
            values, size = values[:end], sum(sizes[:end])
            keys, headers, timestamps = _until(keys, end), _until(headers, end), _until(timestamps, end)
    return Columns(keys, values, headers, timestamps, size, refusal)


def _until(column: Sequence[T] | None, end: int) -> Sequence[T] | None:
    return column if column is None else column[:end]


def too_large(size: int, bytes_max: int) -> RecordTooLargeError:
    """Return the error for a record of `size` bytes where `bytes_max` are allowed, both with overhead."""
    return RecordTooLargeError(
        f"a record has {size - settings.RECORD_OVERHEAD_BYTES} bytes, but at most {bytes_max - settings.RECORD_OVERHEAD_BYTES} are allowed"
    )
