"""Tables of a state machine: rows under stable, ordered binary keys, with a record of changed rows.

A row's key is one byte for the table and then either an unsigned 64-bit big-endian number or UTF-8 text. The byte order
of all keys is therefore by table, and inside a table by number or by text. Values are MessagePack. Rows are encoded
only when they are collected, so a row that changes a hundred times between two commits is encoded once.

Text keys must stay below LMDB's 511 bytes. The code that reads a text from a command checks `KEY_TEXT_BYTES_MAX`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from operator import itemgetter
from typing import Final, Generic, Protocol, TypeVar

import msgspec
from raftmq.fsm.row_decoders import row_decoder, unknown_table

Row = tuple[bytes, bytes]
DirtyRow = tuple[bytes, bytes | None]
"""Key and new value. None means that the row was deleted."""

KEY_TEXT_BYTES_MAX: Final = 249
"""Maximum UTF-8 bytes of a name that becomes a key (topics allow 249 ASCII characters, as Kafka does)."""

_ENCODER = msgspec.msgpack.Encoder(order="deterministic")
"""Mappings are written in key order, because two replicas may have filled them in different orders."""

encode_value: Final = _ENCODER.encode

K = TypeVar("K", int, str)
V = TypeVar("V", bound=msgspec.Struct)


class RowSource(Protocol):
    """Represent a part of a state machine that keeps rows under one table tag."""

    tag: int

    def take_dirty(self) -> Iterable[DirtyRow]:
        """Return the rows changed since the last call, in no particular order."""
        ...

    def rows(self) -> Iterator[Row]:
        """Return all rows, ordered by key."""
        ...

    def load(self, key: bytes, value: bytes) -> None:
        """Load a row that `rows` or `take_dirty` returned. Raises if it does not decode."""
        ...

    def clear(self) -> None:
        """Remove all rows and forget which rows changed."""
        ...


class Table(Generic[K, V]):
    """Hold frozen rows by an integer or text key. A changed row is stored as a new value."""

    __slots__ = ("_decode", "_decode_key", "_dirty", "_encode_key", "by_key", "tag")

    def __init__(
        self, tag: int, row_type: type[V], encode_key: Callable[[int, K], bytes], decode_key: Callable[[bytes], K]
    ) -> None:
        self.tag = tag
        self.by_key: dict[K, V] = {}
        """For reading only. Its order depends on history and must never affect a row or a result."""
        self._dirty: set[K] = set()
        self._encode_key: Callable[[int, K], bytes] = encode_key
        self._decode_key: Callable[[bytes], K] = decode_key
        self._decode: Callable[[bytes], V] = row_decoder(row_type)

    def put(self, key: K, row: V) -> None:
        """Insert or replace a row."""
        self.by_key[key] = row
        self._dirty.add(key)

    def delete(self, key: K) -> None:
        """Remove an existing row."""
        del self.by_key[key]
        self._dirty.add(key)

    def get(self, key: K) -> V | None:
        """Return the row, or None."""
        return self.by_key.get(key)

    def ordered(self) -> Iterator[tuple[K, V]]:
        """Return the rows in key order."""
        for key in sorted(self.by_key):
            yield key, self.by_key[key]

    def take_dirty(self) -> Iterator[DirtyRow]:
        """Return the rows changed since the last call, in no particular order."""
        dirty, self._dirty = self._dirty, set()
        for key in dirty:
            row = self.by_key.get(key)
            yield self._encode_key(self.tag, key), None if row is None else encode_value(row)

    def rows(self) -> Iterator[Row]:
        """Return all rows, ordered by their binary key (for text, code point order is UTF-8 byte order)."""
        for key, row in self.ordered():
            yield self._encode_key(self.tag, key), encode_value(row)

    def load(self, key: bytes, value: bytes) -> None:
        """Load an encoded row. Raises if it does not decode."""
        self.by_key[self._decode_key(key)] = self._decode(value)

    def clear(self) -> None:
        """Remove all rows and forget which rows changed."""
        self.by_key.clear()
        self._dirty.clear()


def number_key(tag: int, number: int) -> bytes:
    """Return the binary key of a row with a number below 2^64."""
    return tag.to_bytes(1, "big") + number.to_bytes(8, "big")


def number_of_key(key: bytes) -> int:
    """Invert `number_key`."""
    return int.from_bytes(key[1:], "big")


def text_key(tag: int, text: str) -> bytes:
    """Return the binary key of a row with a text key."""
    return tag.to_bytes(1, "big") + text.encode()


def text_of_key(key: bytes) -> str:
    """Invert `text_key`."""
    return key[1:].decode()


def number_table(tag: int, row_type: type[V]) -> Table[int, V]:
    """Create a table whose keys are unsigned 64-bit numbers."""
    return Table[int, V](tag, row_type, number_key, number_of_key)


def text_table(tag: int, row_type: type[V]) -> Table[str, V]:
    """Create a table whose keys are texts."""
    return Table[str, V](tag, row_type, text_key, text_of_key)


def is_key_text(text: str) -> bool:
    """Return whether a text may be a key: not empty and not too long."""
    return 0 < len(text) <= KEY_TEXT_BYTES_MAX and len(text.encode()) <= KEY_TEXT_BYTES_MAX


def take_dirty(sources: Iterable[RowSource]) -> tuple[DirtyRow, ...]:
    """Return the changed rows of all sources in key order."""
    return tuple(sorted(chain.from_iterable([source.take_dirty() for source in sources]), key=itemgetter(0)))


def all_rows(sources: Iterable[RowSource]) -> Iterator[Row]:
    """Return all rows of the sources, which are given in tag order."""
    for source in sources:
        yield from source.rows()


def load_rows(sources: Iterable[RowSource], rows: Iterable[Row]) -> None:
    """Replace the sources' content by `rows`. Raises `UnsupportedRowError` for a row of an unknown table, or with an unknown field."""
    by_tag = {source.tag: source for source in sources}
    for source in by_tag.values():
        source.clear()
    for key, value in rows:
        found = by_tag.get(key[0]) if key else None
        if found is None:
            raise unknown_table(key)
        found.load(key, value)
