"""Hash rows by the contents that their records have, column by column.

The hash of a row is the same in every process and version, because a batch that is run again is compared with it, and rows that were
written are found by it. It is a cryptographic hash of 128 bits, so that no two rows in the lifetime of a cluster, nor two that somebody
looked for, are taken for each other.

Must not know topics and partitions, nor Spark. Invariant: two rows have equal bytes before they are hashed exactly if their values, keys,
headers and times are equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from io import BytesIO
from struct import Struct
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute
from raftmq.client.codec.arrow import lengths_and_blob
from raftmq.spark.errors import InvalidSchemaError

pc: Any = pyarrow.compute  # Any: pyarrow creates its functions at run time, so no type checker sees them

HASH_BYTES: Final = 16
HASH_TYPE: Final = pa.binary(HASH_BYTES)
NO_TIME: Final = -(1 << 63)
"""The time of a row whose time is null. Its record gets the time at which the batch began."""
_WORD_BYTES: Final = 4
_LENGTH: Final = Struct("<i")
_TIME: Final = Struct("<q")
_ABSENT: Final = _LENGTH.pack(-1)
_NOTHING: Final = pa.scalar(b"", pa.binary())
_copy: Final = blake2b(digest_size=HASH_BYTES).copy
"""Copying a hash without contents takes a fifth less time than creating one with a length of its own."""

Part = Any  # bytes or a pyarrow.BinaryArray
"""A part of each row's bytes. Bytes alone are the same in all rows."""


def content_hashes(
    values: pa.BinaryArray, keys: pa.BinaryArray | None, packed: pa.BinaryArray | None, times_ms: pa.Int64Array | None
) -> pa.FixedSizeBinaryArray:
    """Return the hashes of rows.

    Args:
        values: The values. Null is not empty.
        keys: The keys, or None if no row has one.
        packed: The headers as `pack_headers` gives them, or None if no row has headers.
        times_ms: The times in milliseconds, or None if they do not belong to the contents.
    """
    # the lengths follow the cells, so that rows of one column need one join with a constant
    parts: list[Part] = [values]
    parts += [column for column in (keys, packed) if column is not None]
    parts.append(b"\1" if not values.null_count else pc.if_else(pc.is_valid(values), b"\1", b"\0").cast(pa.binary()))
    parts.append(_ABSENT if keys is None else _as_bytes(pc.binary_length(keys).fill_null(-1)))
    parts.append(_LENGTH.pack(0) if packed is None else _as_bytes(pc.binary_length(packed)))
    parts.append(_TIME.pack(0) if times_ms is None else _as_bytes(times_ms.fill_null(NO_TIME)))
    lengths, blob = lengths_and_blob(join(parts))
    read, copy = BytesIO(blob).read, _copy
    hashes: list[bytes] = []
    for length in lengths:  # a function for each row takes a fifth more time
        one = copy()
        one.update(read(length))
        hashes.append(one.digest())
    return pa.Array.from_buffers(HASH_TYPE, len(values), [None, pa.py_buffer(b"".join(hashes))])


def first_words(hashes: pa.FixedSizeBinaryArray) -> pa.Int64Array:
    """Return the first 32 bits of each hash as a number, little-endian."""
    return pc.binary_slice(hashes, 0, _WORD_BYTES).view(pa.uint32()).cast(pa.int64())


def join(parts: list[Part]) -> pa.BinaryArray:
    """Join the parts of each row. A null counts as empty. The first part must be an array."""
    columns: list[Part] = []
    for part in parts:
        if isinstance(part, bytes) and columns and isinstance(columns[-1], bytes):
            columns[-1] += part
        else:
            columns.append(part)
    scalars = [pa.scalar(part, pa.binary()) if isinstance(part, bytes) else part for part in columns]
    return pc.binary_join_element_wise(*scalars, _NOTHING, null_handling="replace", null_replacement="")


def cells_of(column: pa.BinaryArray) -> Iterator[bytes]:
    """Return the cells as Python values, one after another. A null is empty."""
    lengths, blob = lengths_and_blob(column)
    # `map` over a BytesIO never returns to the interpreter loop
    return map(BytesIO(blob).read, lengths)


def pack_headers(headers: pa.ListArray) -> pa.BinaryArray:
    """Pack the headers of each row into bytes that can be compared and hashed. Null and no headers are empty.

    They hold the length and the bytes of each name and value. A null value has length -1.

    Args:
        headers: A list of (name, value) structs of binaries per row.

    Raises:
        InvalidSchemaError: a header's name is null.
    """
    pairs = headers.flatten()
    names, values = pairs.flatten()
    if names.null_count:
        raise InvalidSchemaError("a header's key is null")
    lengths = _as_bytes(pc.binary_length(names)), _as_bytes(pc.binary_length(values).fill_null(-1))
    each = join([lengths[0], names, lengths[1], values])
    counts = pc.list_value_length(headers).fill_null(0)
    ends = pc.cumulative_sum(counts)
    starts = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    return pc.binary_join(pa.ListArray.from_arrays(starts, each), _NOTHING)


def _as_bytes(numbers: pa.Array) -> pa.BinaryArray:
    """Return the little-endian bytes of each number."""
    return numbers.view(pa.binary(numbers.type.bit_width // 8)).cast(pa.binary())
