"""The clock by which a state machine forgets: it follows the entries' append times, and never leaps with them.

An append time is the wall clock of whichever leader took the entry. One that is wrong by days, or a cluster that slept for a
day, would otherwise age everything by days with a single entry, and a producer that is about to repeat its last batch would not
be recognised any more. So each entry moves this clock by `STEP_MS_MAX` at most. In a log with fewer entries than that it runs
slower than the world, and things are remembered for longer.

Invariants: it never goes back, and equal logs give equal clocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
from raftmq.fsm.tables import DirtyRow, Row, encode_value, number_key

STEP_MS_MAX: Final = 10 * 60 * 1000
"""What one entry may add. Small beside the shortest time after which anything is forgotten (`REPLACEABLE_IDLE_MS`, two hours):
twelve wrong clocks in a row expire no producer that is at work. Large enough that a log with an entry now and then keeps time."""


class ExpiryRow(msgspec.Struct, frozen=True, array_like=True):
    """The clock's row."""

    append_time_ms: int
    now_ms: int


_DECODER = msgspec.msgpack.Decoder(ExpiryRow)


class ExpiryClock:
    """The clock of one state machine: a `RowSource` of one row."""

    __slots__ = ("_is_dirty", "append_time_ms", "now_ms", "tag")

    def __init__(self, tag: int) -> None:
        self.tag = tag
        self.append_time_ms = 0
        """Of the last entry that moved the clock; 0: none did."""
        self.now_ms = 0
        """What the clock says. It begins with the first entry's append time, and only differences mean anything."""
        self._is_dirty = False

    def advance(self, append_time_ms: int) -> int:
        """Follow an entry's append time, and return what the clock says now."""
        elapsed_ms = append_time_ms - self.append_time_ms
        if elapsed_ms > 0:
            self.now_ms += min(elapsed_ms, STEP_MS_MAX) if self.append_time_ms else elapsed_ms
            self.append_time_ms = append_time_ms
            self._is_dirty = True
        return self.now_ms

    def take_dirty(self) -> Iterator[DirtyRow]:
        """The row, if it changed since the last call."""
        if self._is_dirty:
            self._is_dirty = False
            yield from self.rows()

    def rows(self) -> Iterator[Row]:
        """The row, once there was an entry."""
        if self.append_time_ms:
            yield number_key(self.tag, 0), encode_value(ExpiryRow(self.append_time_ms, self.now_ms))

    def load(self, key: bytes, value: bytes) -> None:
        """Take back the row. Raises if it does not decode."""
        row = _DECODER.decode(value)
        self.append_time_ms, self.now_ms = row.append_time_ms, row.now_ms

    def clear(self) -> None:
        """Begin again."""
        self.append_time_ms = self.now_ms = 0
        self._is_dirty = False
