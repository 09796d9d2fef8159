"""Keys of the rows of a queue partition. They can never change: rows of all versions lie in the same files.

A key begins with the tag of its table. In the tables of messages a generation follows: purging a partition raises it, and rows of older
generations no longer exist. Numbers are big-endian, and a priority has its sign bit flipped, so that the order of the bytes is the order
of the numbers. Only delayed messages have another order (`delayed_suffix`). All keys are below 511 bytes.

Table of the tags: docs/internals/queues.md.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from raftmq.fsm.queue.message import DEAD, DELAYED, LEASED, READY, Message
from raftmq.fsm.row_reads import RowRange

SCALARS: Final = 0x01
TENANTS: Final = 0x02
SESSIONS: Final = 0x04
SCHEDULES: Final = 0x05
JOBS: Final = 0x06
PRODUCERS: Final = 0x07
EXPIRY_CLOCK: Final = 0x08
SETTINGS: Final = 0x09
READY_ROWS: Final = 0x10
DELAYED_ROWS: Final = 0x11
LEASED_ROWS: Final = 0x12
DEAD_ROWS: Final = 0x13
LINE_ROWS: Final = 0x14
KEY_HEADS: Final = 0x15
LOCATIONS: Final = 0x20
EXPIRY_ROWS: Final = 0x21
IDS: Final = 0x22
ID_EXPIRY_ROWS: Final = 0x23
BODIES: Final = 0x40
"""Only the store writes these rows: a body goes with its location."""

GENERATION_TAGS: Final = (
    *(READY_ROWS, DELAYED_ROWS, LEASED_ROWS, DEAD_ROWS, LINE_ROWS, KEY_HEADS),
    *(LOCATIONS, EXPIRY_ROWS, IDS, ID_EXPIRY_ROWS),
)
"""The tables whose keys have a generation."""

ROWS_ALL: Final = 1 << 31
"""A `rows_max` that no range reaches."""

SPAN_BITS: Final = 20
"""A span is this many bits of due times: 17 minutes."""
RUN_BITS: Final = 14
"""A run is this many bits of sequences: 16,384 messages."""
_SPAN_MASK: Final = (1 << SPAN_BITS) - 1
_RUN_MASK: Final = (1 << RUN_BITS) - 1
_RUN_NUMBER_MASK: Final = (1 << 56) - 1

_PREFIX = Struct(">BI")
_TENANT_PREFIX = Struct(">BII")
_READY = Struct(">BIIIQQ")
_TIME = Struct(">BIQQ")
_NUMBER = Struct(">BIQ")
_LINE = Struct(">BI16sQ")
_LINE_PREFIX = Struct(">BI16s")
_U64 = Struct(">Q")
PREFIX_BYTES: Final = _PREFIX.size
READY_SIGN: Final = 1 << 31
"""Added to a signed priority, it makes the order of the bytes the order of the numbers."""


def home_key(generation: int, m: Message) -> bytes:
    """Return the key under which a message belongs in its present state."""
    state = m.state
    if state == READY:
        return _READY.pack(READY_ROWS, generation, m.tenant, m.priority + READY_SIGN, m.due, m.sequence)
    if state == DELAYED:
        return _PREFIX.pack(DELAYED_ROWS, generation) + delayed_suffix(m.due, m.sequence)
    if state == LEASED:
        return _NUMBER.pack(LEASED_ROWS, generation, m.sequence)
    if state == DEAD:
        return _NUMBER.pack(DEAD_ROWS, generation, m.dead_number)
    return _LINE.pack(LINE_ROWS, generation, m.line, m.sequence)


def delayed_suffix(due: int, sequence: int) -> bytes:
    """Return the end of the key of a delayed message: the span of its due time, the run of its sequence, then the rest of both.

    Messages of one run with due times of one span are neighbours. So messages that are enqueued together share pages on the disk,
    however far apart their due times are.
    """
    cell = due >> SPAN_BITS << 56 | sequence >> RUN_BITS
    return (cell << 40 | (due & _SPAN_MASK) << 16 | sequence & _RUN_MASK).to_bytes(18, "big")


def place_of_delayed(suffix: bytes) -> tuple[int, int]:
    """Return the due time and the sequence in the end of the key of a delayed message."""
    number = int.from_bytes(suffix, "big")
    run = number >> 40 & _RUN_NUMBER_MASK
    return number >> 96 << SPAN_BITS | number >> 16 & _SPAN_MASK, run << RUN_BITS | number & _RUN_MASK


def location_value(key: bytes) -> bytes:
    """Return the value of a location row: the tag of the home row and its key after the generation."""
    return key[:1] + key[PREFIX_BYTES:]


def key_of_location(generation: int, value: bytes) -> bytes:
    """Invert `location_value`."""
    return _PREFIX.pack(value[0], generation) + value[1:]


def location_key(generation: int, sequence: int) -> bytes:
    """Return the key of the row that names a message's home row."""
    return _NUMBER.pack(LOCATIONS, generation, sequence)


def sequence_of_location(key: bytes) -> int:
    """Return the sequence in the key of a location row."""
    return int.from_bytes(key[PREFIX_BYTES:], "big")


def dead_key(generation: int, number: int) -> bytes:
    """Return the key of the home row of a dead message."""
    return _NUMBER.pack(DEAD_ROWS, generation, number)


def number_of_dead(key: bytes) -> int:
    """Return the dead number in the key of a dead message's home row."""
    return sequence_of_location(key)


def expiry_key(generation: int, expires_at: int, sequence: int) -> bytes:
    """Return the key of the row that names a message's expiry."""
    return _TIME.pack(EXPIRY_ROWS, generation, expires_at, sequence)


def named_key(tag: int, generation: int, name: bytes) -> bytes:
    """Return the key of a row that has a name: an id, or the hash of a key."""
    return _PREFIX.pack(tag, generation) + name


def id_expiry_key(generation: int, until: int, id_: bytes) -> bytes:
    """Return the key of the row that names the end of an id's window."""
    return _PREFIX.pack(ID_EXPIRY_ROWS, generation) + _U64.pack(until) + id_


def id_of_expiry(key: bytes) -> tuple[int, bytes]:
    """Return the time and the id in the key of an id's expiry row."""
    end = PREFIX_BYTES + _U64.size
    return int.from_bytes(key[PREFIX_BYTES:end], "big"), key[end:]


def table_prefix(tag: int, generation: int) -> bytes:
    """Return the bytes with which all keys of a table of messages begin."""
    return _PREFIX.pack(tag, generation)


def ready_prefix(generation: int, tenant: int) -> bytes:
    """Return the bytes with which the keys of a tenant's ready messages begin."""
    return _TENANT_PREFIX.pack(READY_ROWS, generation, tenant)


def line_prefix(generation: int, line: bytes) -> bytes:
    """Return the bytes with which the keys of the messages that wait behind the head of a key begin."""
    return _LINE_PREFIX.pack(LINE_ROWS, generation, line)


def after(prefix: bytes) -> bytes:
    """Return the first key behind all keys that begin with `prefix`. The prefix must not be all 0xff, and a tag never is."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,))


def point(key: bytes) -> RowRange:
    """Return the range that holds one key."""
    return RowRange(key, key + b"\0", 1)


def whole(prefix: bytes) -> RowRange:
    """Return the range of all keys that begin with `prefix`."""
    return RowRange(prefix, after(prefix), ROWS_ALL)
