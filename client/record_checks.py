"""Checks and sizes of records as callers hand them in. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, islice, repeat
from typing import Final, cast

from raftmq.client import settings
from raftmq.client.batch_codec import Headers
from raftmq.errors import RecordTooLargeError

Serializer = Callable[[object], bytes | None]
_PLAIN_TYPES: Final = frozenset({bytes, type(None)})


def to_bytes(cell: object, serializer: Serializer | None, name: str) -> bytes | None:
    """A key or value as bytes. Raises `TypeError`."""
    if serializer is not None and cell is not None:
        cell = serializer(cell)
    if cell is None or isinstance(cell, bytes):
        return cell
    if isinstance(cell, bytearray | memoryview):
        return bytes(cell)
    raise TypeError(f"a {name} is bytes or None, not {type(cell).__name__}; give a {name}_serializer for other types")


def to_bytes_column(cells: Sequence[object], serializer: Serializer | None, name: str) -> Sequence[bytes | None]:
    """The same for many: a column of bytes and None, which is the common case, is passed on as it is."""
    if serializer is None and _PLAIN_TYPES.issuperset(map(type, cells)):
        return cast("Sequence[bytes | None]", cells)
    return list(map(to_bytes, cells, repeat(serializer), repeat(name)))


def check_headers(headers: Iterable[tuple[str, bytes]]) -> tuple[Headers, int]:
    """Headers as a tuple, and their bytes with overhead. Raises `TypeError`."""
    pairs: tuple[object, ...] = tuple(headers)
    size = 0
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError("headers are pairs of a str and bytes, such as [('trace', b'1')]")
        name, value = pair
        if not isinstance(name, str) or not isinstance(value, bytes):
            raise TypeError("headers are pairs of a str and bytes")
        size += len(name.encode()) + len(value) + settings.RECORD_OVERHEAD_BYTES
    return tuple((name, value) for name, value in cast("Headers", pairs)), size


def records_bytes(keys: Sequence[bytes | None], values: Sequence[bytes | None]) -> int:
    """Bytes of records with overhead."""
    cells_bytes = sum(map(len, filter(None, keys))) + sum(map(len, filter(None, values)))
    return cells_bytes + settings.RECORD_OVERHEAD_BYTES * len(values)


def record_sizes(keys: Sequence[bytes | None] | None, values: Sequence[bytes | None]) -> list[int]:
    """Bytes of each record with overhead."""
    overhead = settings.RECORD_OVERHEAD_BYTES
    if keys is None:
        return [overhead + len(value or b"") for value in values]
    return [overhead + len(key or b"") + len(value or b"") for key, value in zip(keys, values, strict=True)]


def prefix_that_fits(sizes: Sequence[int], start: int, room: int, *, must_take_one: bool) -> tuple[int, int]:
    """How many records from `start` on fit into `room`, and their bytes."""
    totals = list(accumulate(islice(sizes, start, None)))
    count = bisect_right(totals, room)
    if count == 0 and must_take_one:
        count = 1
    return count, totals[count - 1] if count else 0


def check_pairs(
    pairs: list[tuple[object, object]],
    key_serializer: Serializer | None,
    value_serializer: Serializer | None,
) -> tuple[Sequence[bytes | None] | None, Sequence[bytes | None], int]:
    """Serialized keys (None: no record has one) and values, and their bytes. Raises `TypeError`, `RecordTooLargeError`."""
    try:
        raw_keys, raw_values = (
            [key for key, _ in pairs],
            [value for _, value in pairs],
        )  # zip(*pairs) takes twice as long
    except (ValueError, TypeError) as error:
        raise TypeError("send_many takes (key, value) pairs") from error
    has_keys = raw_keys.count(None) != len(raw_keys)
    keys = to_bytes_column(raw_keys, key_serializer, "key") if has_keys else None
    values = to_bytes_column(raw_values, value_serializer, "value")
    size = sum(map(len, filter(None, values)))
    if keys is not None:
        size += sum(map(len, filter(None, keys)))
    if size + settings.RECORD_OVERHEAD_BYTES > settings.RECORD_BYTES_MAX:
        largest = max(record_sizes(keys, values)) - settings.RECORD_OVERHEAD_BYTES
        if largest + settings.RECORD_OVERHEAD_BYTES > settings.RECORD_BYTES_MAX:
            raise RecordTooLargeError(f"a record of {largest} bytes; at most {settings.RECORD_BYTES_MAX} are allowed")
    return keys, values, size
