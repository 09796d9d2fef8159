"""Pack and unpack the columns of messages, for the batches and blocks of queue topics (`queue_batch`, `message_block`).

Layout, little-endian, without padding, frozen once released (ADR 0013):

    offset size field
         0    4 present        bit n: the column with number n is there
         4    4 constant       bit n: the column with number n has one cell, which holds for every message
         8    4 columns_bytes  bytes of the columns after these 12
        12    n columns

The first part has the numbers of all columns, one column after the other: the number itself, the length of a byte string, or the place of a name. The
second part has the bytes of the columns of byte strings and names, in the same order. Those of names are a u8 length of each, then the names.

So one `Struct` unpacks all numbers, and a reader of the first columns needs no others. Imports nothing of RaftMQ except the errors of
`batch_header`. Invariant: no claim is used for an allocation before it is compared with the bytes that are there.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from enum import Enum, auto
from functools import lru_cache
from struct import Struct, pack
from typing import NamedTuple, TypeVar

from raftmq.batch_header import BatchFormatError, Buffer, UnsupportedBatchVersionError

PRELUDE = Struct("<III")
PLANS_MAX = 512
"""Maximum number of combinations of columns and counts whose layout is remembered. A plan takes about 3 KB."""

CellT = TypeVar("CellT")


class Cells(Enum):
    """Name the kinds of columns."""

    NUMBERS = auto()
    BYTES = auto()
    """One byte string per message. An empty one is none."""
    NAMES = auto()
    """One of few byte strings per message."""


class Column(NamedTuple):
    """One column of a format."""

    number: int
    """The column's bit in `present` and `constant`, and its place."""
    form: str
    """`struct`'s letter for the numbers, for the lengths of byte strings, or for the places of names."""
    cells: Cells = Cells.NUMBERS
    may_be_constant: bool = True


class Names(NamedTuple):
    """A column with few distinct cells."""

    names: tuple[bytes, ...]
    """The distinct names, each used by at least one message."""
    places: Sequence[int]
    """The place in `names` of each message's name."""

    def to_list(self) -> list[bytes]:
        """Return one name per message."""
        return list(map(self.names.__getitem__, self.places))


def distinct_names(cells: Sequence[bytes]) -> Names:
    """Return a column's distinct names, in the order of their first use."""
    places: dict[bytes, int] = {}
    chosen = [places.setdefault(cell, len(places)) for cell in cells]
    return Names(tuple(places), chosen)


class KnownColumns:
    """The columns of a format, by ascending number from 0, or its first columns if a reader needs no others."""

    __slots__ = ("are_all", "columns", "constant", "present")

    def __init__(self, *columns: Column, are_all: bool = True) -> None:
        self.columns = columns
        self.are_all = are_all
        self.present = sum(1 << column.number for column in columns)
        self.constant = sum(1 << column.number for column in columns if column.may_be_constant)

    def check(self, present: int, constant: int) -> None:
        """Raise `UnsupportedBatchVersionError` for an unknown column, and `BatchFormatError` for other contradictions."""
        unknown = present & ~self.present
        if unknown and self.are_all:
            raise UnsupportedBatchVersionError(f"the columns 0x{unknown:x} are unknown to this version: upgrade it")
        if constant & ~(present & self.constant | unknown):
            raise BatchFormatError(f"the columns 0x{constant:x} cannot all be constant")


# ------------------------------------------------------------------------------------------------------------- packing


class ColumnWriter:
    """Packs columns of at least one message. They must be added by ascending number.

    A column whose cells are all equal is packed as a constant, if it may be. A number that does not fit raises `struct.error`.
    """

    __slots__ = ("_bytes", "_constant", "_count", "_numbers", "_present")

    def __init__(self, count: int) -> None:
        self._count = count
        self._present = 0
        self._constant = 0
        self._numbers: list[bytes] = []
        self._bytes: list[bytes] = []

    def numbers(self, column: Column, cells: Sequence[int] | None, default: int | None = None) -> None:
        """Add one number per message. None, and a column in which every number is the default, is left out."""
        if cells is None or (default is not None and cells.count(default) == self._count):
            return
        self._add(column, cells, is_constant=self._are_equal(column, cells))

    def cells(self, column: Column, cells: Sequence[bytes | None] | None) -> None:
        """Add one byte string per message. None, and a column without any, is left out."""
        if cells is None or not any(cells):
            return
        filled = [cell or b"" for cell in cells]
        is_constant = self._are_equal(column, filled)
        self._bytes.append(filled[0] if is_constant else b"".join(filled))
        self._add(column, list(map(len, filled)), is_constant=is_constant)

    def names(self, column: Column, cells: Names | None) -> None:
        """Add one of few names per message. None, and a column of the empty name, is left out."""
        if cells is None or cells.names == (b"",):
            return
        self._bytes.append(bytes(map(len, cells.names)) + b"".join(cells.names))
        self._add(column, cells.places, is_constant=self._are_equal(column, cells.places))

    def finish(self) -> bytes:
        """Return the prelude and the columns."""
        columns = b"".join((*self._numbers, *self._bytes))
        return PRELUDE.pack(self._present, self._constant, len(columns)) + columns

    def _are_equal(self, column: Column, cells: Sequence[CellT]) -> bool:
        """Return whether to pack a constant. A single message's cells are not, so that each message has one encoding."""
        return column.may_be_constant and self._count > 1 and cells.count(cells[0]) == self._count

    def _add(self, column: Column, numbers: Sequence[int], *, is_constant: bool) -> None:
        self._present |= 1 << column.number
        if is_constant:
            self._constant |= 1 << column.number
            self._numbers.append(pack("<" + column.form, numbers[0]))
        else:
            self._numbers.append(pack(f"<{self._count}{column.form}", *numbers))


# ----------------------------------------------------------------------------------------------------------- unpacking


class _Plan(NamedTuple):
    """The places of all numbers, for one combination of columns and one count."""

    layout: Struct
    slots: tuple[tuple[slice, int] | None, ...]
    """For each column its place among the unpacked numbers, and how often to repeat it. None: it is left out."""


@lru_cache(PLANS_MAX)
def _plan(known: KnownColumns, present: int, constant: int, count: int) -> _Plan:
    known.check(present, constant)
    form = "<"
    slots: list[tuple[slice, int] | None] = []
    at = 0
    for column in known.columns:
        bit = 1 << column.number
        if not present & bit:
            slots.append(None)
            continue
        stored = 1 if constant & bit else count
        form += f"{stored}{column.form}"
        slots.append((slice(at, at + stored), count // stored))
        at += stored
    return _Plan(Struct(form), tuple(slots))


class ColumnReader:
    """Unpacks columns.

    Those of byte strings and names must be read by ascending number. Their cells are valid only after `finish`, which notices claims that go
    beyond the columns. Until then such cells are shorter than they claim to be.
    """

    __slots__ = ("_at", "_constant", "_count", "_numbers", "_section", "end")

    def __init__(self, buffer: Buffer, start: int, count: int, known: KnownColumns) -> None:
        """Read the prelude at `start`, and unpack all numbers.

        Args:
            buffer: a whole batch or block.
            start: the place of the prelude in it.
            count: the number of messages, at least 1. The caller has compared it with a limit.
            known: the format's columns.

        Raises:
            UnsupportedBatchVersionError: there are columns that this version does not know.
            BatchFormatError: the prelude contradicts the buffer or the format.
        """
        columns_start = start + PRELUDE.size
        if columns_start > len(buffer):
            raise BatchFormatError(f"the columns begin at {start}, but there are only {len(buffer)} bytes")
        present, self._constant, size = PRELUDE.unpack_from(buffer, start)
        self.end = columns_start + size
        """The place in the buffer where the columns end."""
        if self.end > len(buffer):
            raise BatchFormatError(
                f"the columns claim to have {size} bytes, but {len(buffer) - columns_start} are there"
            )
        layout, slots = _plan(known, present, self._constant, count)
        if layout.size > size:
            raise BatchFormatError(
                f"the numbers of {count} messages need {layout.size} bytes, but the columns have {size}"
            )
        self._section = bytes(memoryview(buffer)[columns_start : self.end])
        self._at = layout.size
        self._count = count
        unpacked = layout.unpack_from(self._section)
        self._numbers = [None if slot is None else unpacked[slot[0]] * slot[1] for slot in slots]

    def numbers(self, column: Column) -> tuple[int, ...] | None:
        """Return one number per message, or None if the column is left out."""
        return self._numbers[column.number]

    def required_numbers(self, column: Column) -> tuple[int, ...]:
        """Return one number per message. Raises `BatchFormatError` if the column is left out."""
        numbers = self._numbers[column.number]
        if numbers is None:
            raise BatchFormatError(f"column {column.number} is left out, but required")
        return numbers

    def cells(self, column: Column) -> list[bytes | None] | None:
        """Return one byte string per message, in which None is an empty one, or None if the column is left out."""
        lengths = self._numbers[column.number]
        if lengths is None:
            return None
        if self._count == 1 or self._constant >> column.number & 1:
            return [self._take(lengths[0]) or None] * self._count
        cells: list[bytes | None] = list(self._split(lengths))
        return cells if all(lengths) else [cell or None for cell in cells]

    def names(self, column: Column) -> Names | None:
        """Return the distinct names and one place per message, or None if the column is left out."""
        places = self._numbers[column.number]
        if places is None:
            return None
        count = max(places) + 1
        names = tuple(self._split(self._take(count)))
        # Each name is used, so that a count or a limit of names needs no look at the messages.
        if len(set(places)) != count or len(set(names)) != count:
            raise BatchFormatError(f"the {count} names are not distinct, or not those that the messages have")
        return Names(names, places)

    def finish(self) -> None:
        """Check that the cells that were read are exactly those that are there."""
        if self._at != len(self._section):
            raise BatchFormatError(f"the columns need {self._at} bytes, but have {len(self._section)}")

    def _take(self, size: int) -> bytes:
        start = self._at
        self._at += size
        return self._section[start : self._at]

    def _split(self, lengths: Sequence[int]) -> Iterator[bytes]:
        """Return consecutive pieces of these lengths. A `map` of `read` is twice as fast as slicing (ADR 0002)."""
        reader = io.BytesIO(self._section)
        reader.seek(self._at)
        self._at += sum(lengths)
        return map(reader.read, lengths)
