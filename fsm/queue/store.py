"""The messages of a partition: those in memory, those on disk, and those to write.

In memory are all leased messages, all messages whose rows are not on disk as they are now, and the messages of the windows. A message in
memory is the truth about its sequence, and a row that is read for it is ignored. A message that is finished and had a row stays known as
gone until its deletion is written.

A message that came and went between two write-backs never becomes a row.

Reads are generators (`Reading`): they yield the ranges that are not in memory, and the host sends the rows. Everything else is a plain
function that works in memory.

Invariants, between two entries: a ready, delayed or lined message in memory has its key in the heap of its window, or beyond its fence.
A message on disk at or below the fence of its window is in memory. Nothing that is unwritten is evicted.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import Final, TypeVar

from raftmq.fsm.queue import rows as keys
from raftmq.fsm.queue.delayed_window import DelayedWindow
from raftmq.fsm.queue.limits import MemoryBounds
from raftmq.fsm.queue.message import DELAYED, LEASED, LINED, READY, Message, decode_message, encode_message
from raftmq.fsm.queue.windows import BY_NUMBER, BY_PRIORITY, BY_TIME, Key, Window
from raftmq.fsm.row_reads import RowRange, RowsFound, RowsNeeded
from raftmq.fsm.tables import DirtyRow, Row

T = TypeVar("T")
Reading = Generator[RowsNeeded, RowsFound, T]
"""A computation that may need rows: it yields the reads and returns its result."""

NOTHING_SPARED: Final = -1
"""The time up to which leases are spared while none are."""
LEASE_GARBAGE_MIN: Final = 1_024
"""Outdated keys that the heap of leases may always hold, so that small heaps are not rebuilt often."""


class MessageStore:
    """Hold the messages of one partition and the windows of their indexes."""

    def __init__(self, bounds: MemoryBounds) -> None:
        self.bounds = bounds
        self.heap_max = 2 * bounds.window_messages_max
        """Keys in the heap of a window above which it is trimmed."""
        self.generation = 0
        self.messages: dict[int, Message] = {}
        """The messages in memory by sequence."""
        self.dirty: set[int] = set()
        """Sequences of messages that changed since rows were taken last."""
        self.leased_count = 0
        self.gone: dict[int, Message] = {}
        """Finished messages whose rows are on disk or about to be, until their deletion is taken."""
        self._frozen: set[int] = set()
        """Sequences of messages whose rows were taken and may not be on disk yet."""
        self._frozen_gone: set[int] = set()
        """Sequences of finished messages whose deletion was taken and may not be on disk yet."""
        self.absent: set[int] = set()
        """Sequences that this entry looked for and did not find."""
        self._visitors: list[int] = []
        """Messages that this entry read one by one."""
        self.leases: list[tuple[int, int]] = []
        """A heap of (deadline, sequence) of all leased messages that are not in `_spared`, with outdated keys."""
        self._spared: list[tuple[int, int]] = []
        """The same for leases that are spared: those that came to the top of `leases` since leases are spared."""
        self._spared_through = NOTHING_SPARED
        """Leases that were granted or last renewed up to this time are spared."""
        self.ready: dict[int, Window] = {}
        """Windows of ready messages by tenant, the least recently used first."""
        self.lines: dict[bytes, Window] = {}
        """Windows of lined messages by line."""
        self.used: dict[int, Window] = {}
        """Windows of ready messages from which messages were taken since the last read ahead."""
        self._grown: list[Window] = []
        """Windows to be trimmed after the entry."""
        self.delayed = self._delayed_window(is_complete=not bounds.is_cold)
        self.expiry = self._expiry_window(is_complete=not bounds.is_cold)

    # ---------------------------------------------------------------------------------------------------------- finding

    def is_known(self, sequence: int) -> bool:
        """Return whether memory says if a message exists."""
        return (
            sequence in self.messages
            or sequence in self.gone
            or sequence in self._frozen_gone
            or sequence in self.absent
        )

    def find(self, sequence: int) -> Message | None:
        """Return an unfinished message, or None if there is none. `fetch` must have come before."""
        return self.messages.get(sequence)

    def is_leased(self, sequence: int, lease_number: int) -> bool:
        """Return whether a token is the one of a present lease. All leased messages are in memory."""
        message = self.messages.get(sequence)
        return message is not None and message.state == LEASED and message.lease_number == lease_number

    def fetch(self, sequences: Iterable[int]) -> Reading[None]:
        """Read the messages that memory does not know, by their locations."""
        wanted = [sequence for sequence in dict.fromkeys(sequences) if not self.is_known(sequence)]
        if not wanted:
            return
        found = yield RowsNeeded(tuple(keys.point(keys.location_key(self.generation, one)) for one in wanted))
        homes: list[RowRange] = []
        for sequence, rows in zip(wanted, found, strict=True):
            if rows:
                homes.append(keys.point(keys.key_of_location(self.generation, rows[0][1])))
            else:
                self.absent.add(sequence)
        if homes:
            found = yield RowsNeeded(tuple(homes))
            for rows in found:
                self._admit_visitors(rows)

    def visit(self, range_: RowRange) -> Reading[Sequence[Row]]:
        """Read a range of home rows, and keep their messages for this entry. Return the rows, also those of finished messages."""
        (rows,) = yield RowsNeeded((range_,))
        self._admit_visitors(rows)
        return rows

    def _admit_visitors(self, rows: Sequence[Row]) -> None:
        for key, value in rows:
            message = decode_message(key, value)
            if not self.is_known(message.sequence):
                self.messages[message.sequence] = message
                self._visitors.append(message.sequence)

    # ---------------------------------------------------------------------------------------------------------- windows

    def ready_window(self, tenant: int, ready_count: int) -> Window:
        """Return the window of a tenant that has `ready_count` ready messages."""
        window = self.ready.get(tenant)
        if window is None:
            prefix = keys.ready_prefix(self.generation, tenant)
            window = Window(prefix, BY_PRIORITY, self._is_ready, is_complete=ready_count == 0)
            self.ready[tenant] = window
        return window

    def ready_of(self, prefix: bytes) -> Window | None:
        """Return the window of ready messages whose rows begin with a prefix, if it is in memory."""
        window = self.ready.get(int.from_bytes(prefix[keys.PREFIX_BYTES :], "big"))
        return window if window is not None and window.prefix == prefix else None

    def use_window(self, tenant: int, window: Window) -> None:
        """Make a tenant's window the most recently used one."""
        del self.ready[tenant]
        self.ready[tenant] = self.used[tenant] = window

    def line_window(self, line: bytes, waiting_count: int) -> Window:
        """Return the window of a line in which `waiting_count` messages wait."""
        window = self.lines.get(line)
        if window is None:
            prefix = keys.line_prefix(self.generation, line)
            window = Window(prefix, BY_NUMBER, self._is_lined, is_complete=waiting_count == 0)
            self.lines[line] = window
        return window

    def fill(self, window: Window) -> Reading[None]:
        """Read the next rows of a window of messages."""
        rows_max = self.bounds.read_rows
        found = yield RowsNeeded(window.next_ranges(rows_max))
        self.admit(window, found, rows_max)

    def rows_of_each(self, windows: int, tenants: int) -> int:
        """Return how many rows to read for each of several windows: their part of one read, and of the memory for all tenants.

        More rows would be evicted before the turn of their tenant comes again.
        """
        return max(1, min(self.bounds.read_rows // max(1, windows), self.bounds.clean_messages_max // max(1, tenants)))

    def fill_together(self, windows: Sequence[Window], rows_max: int) -> Reading[None]:
        """Read the next rows of several windows in one read, at most `rows_max` of each."""
        wanted = [window.next_ranges(rows_max) for window in windows]
        found = yield RowsNeeded(tuple(range_ for ranges in wanted for range_ in ranges))
        first = 0
        for window, ranges in zip(windows, wanted, strict=True):
            self.admit(window, found[first : first + len(ranges)], rows_max)
            first += len(ranges)

    def fill_expiry(self) -> Reading[None]:
        """Read the next rows of the expiry index."""
        rows_max = self.bounds.read_rows
        found = yield RowsNeeded(self.expiry.next_ranges(rows_max))
        self.admit_expiry(found, rows_max)

    def admit(self, window: Window, found: RowsFound, rows_max: int) -> None:
        """Add the rows that were read for a window of messages."""
        placed, fence = window.accept(found, rows_max)
        inside: list[Key] = []
        for place, (key, value) in placed:
            sequence = place[-1]
            if sequence not in self.messages:
                if sequence in self.gone or sequence in self._frozen_gone:
                    continue
                self.messages[sequence] = decode_message(key, value)
            # If the message in memory is elsewhere now, this key is outdated, and dropped when it is the first.
            inside.append(place)
        window.extend(inside, fence, self.bounds.window_messages_max)
        self.check_size(window)

    def check_size(self, window: Window) -> None:
        """Remember to trim a window after the entry if it has grown too large."""
        if len(window.heap) > self.heap_max:
            self._grown.append(window)

    def admit_expiry(self, found: RowsFound, rows_max: int) -> None:
        """Add the rows that were read for the expiry index. Whether their messages still exist shows when they are due."""
        placed, fence = self.expiry.accept(found, rows_max)
        self.expiry.extend([place for place, _ in placed], fence, self.bounds.window_messages_max)

    def first_expiry(self) -> Key | None:
        """Return the smallest expiry key in memory."""
        return self.expiry.first()

    def pop_expiry(self) -> None:
        """Remove the smallest expiry key."""
        heappop(self.expiry.heap)

    # ---------------------------------------------------------------------------------------------------------- changing

    def index(self, m: Message, tenant_ready: int, waiting: int = 0) -> None:
        """Mark a changed message, and put its key into the index of its state. Leased and dead messages have none here.

        `tenant_ready` and `waiting` are the counts of its tenant and its line without it.
        """
        self.dirty.add(m.sequence)
        state = m.state
        if state == READY:
            window = self.ready_window(m.tenant, tenant_ready)
            window.insert((m.priority, m.due, m.sequence))
        elif state == DELAYED:
            window = self.delayed
            window.insert((m.due, m.sequence))
        elif state == LINED:
            window = self.line_window(m.line, waiting)
            window.insert((m.sequence,))
        else:
            return
        self.check_size(window)

    def remove(self, m: Message) -> None:
        """Forget a finished message, and remember to delete its rows if it has any."""
        sequence = m.sequence
        del self.messages[sequence]
        self.dirty.discard(sequence)
        if m.stored_key:
            self.gone[sequence] = m
        else:
            self.absent.add(sequence)

    def first_lease(self) -> Message | None:
        """Return the leased message with the earliest deadline of those that are not spared."""
        return self._first_of(self.leases)

    def first_spared_lease(self) -> Message | None:
        """Return the leased message with the earliest deadline of those that are spared."""
        return self._first_of(self._spared)

    def _first_of(self, heap: list[tuple[int, int]]) -> Message | None:
        while heap:
            deadline, sequence = heap[0]
            message = self.messages.get(sequence)
            if message is not None and message.state == LEASED and message.deadline == deadline:
                return message
            heappop(heap)
        return None

    def spare_leases(self, spared_through: int) -> None:
        """Spare the leases that were granted or last renewed up to this time, until another time is named.

        Afterwards the first lease that is not spared is at the top of `leases`. Each lease moves once, however long it is spared.
        """
        if spared_through != self._spared_through:
            self._spared_through = spared_through
            for key in self._spared:
                heappush(self.leases, key)
            self._spared.clear()
        if spared_through == NOTHING_SPARED:
            return
        while (first := self.first_lease()) is not None and first.leased_at <= spared_through:
            heappush(self._spared, heappop(self.leases))

    def may_lease_have_ended(self, spared_before: int, before: int) -> bool:
        """Return whether there may be a lease with a deadline up to `before`, or up to `spared_before` if it is spared."""
        leases, spared = self.leases, self._spared
        return bool((leases and leases[0][0] <= before) or (spared and spared[0][0] <= spared_before))

    def take_ended_lease(self, spared_before: int, before: int) -> Message | None:
        """Take the first lease by (deadline, sequence) that has ended, as `may_lease_have_ended` says, out of its heap."""
        self.spare_leases(self._spared_through)
        ended = [
            (m.deadline, m.sequence, heap)
            for heap, end in ((self.leases, before), (self._spared, spared_before))
            if (m := self._first_of(heap)) is not None and m.deadline <= end
        ]
        if not ended:
            return None
        _, sequence, heap = min(ended, key=lambda one: one[:2])
        heappop(heap)
        return self.messages[sequence]

    def purge(self) -> None:
        """Forget all messages of this generation and begin the next one."""
        self.generation += 1
        for held in (self.messages, self.gone, self.ready, self.used, self.lines):
            held.clear()
        for known in (self.dirty, self._frozen, self._frozen_gone, self.absent):
            known.clear()
        self._visitors.clear()
        self._grown.clear()
        self.leases.clear()
        self._spared.clear()
        self.leased_count = 0
        self.delayed = self._delayed_window(is_complete=True)
        self.expiry = self._expiry_window(is_complete=True)

    # ----------------------------------------------------------------------------------------------------------- writing

    @property
    def dirty_count(self) -> int:
        """Return the number of messages whose rows must be written or deleted."""
        return len(self.dirty) + len(self.gone)

    def take_dirty(self) -> list[DirtyRow]:
        """Return the rows of all changes since the last call. They count as unwritten until `on_written`."""
        out: list[DirtyRow] = []
        locations: list[DirtyRow] = []
        messages = self.messages
        for sequence in sorted(self.dirty):
            self._write(messages[sequence], out, locations)
        for message in self.gone.values():
            self._write_gone(message, out)
        self._frozen, self.dirty = self.dirty, set()
        self._frozen_gone, self.gone = set(self.gone), {}
        return out + locations

    def on_written(self) -> None:
        """Forget that rows were taken: they are on disk, and every read that began earlier has been handed over."""
        frozen, self._frozen = self._frozen, set()
        self._frozen_gone = set()
        self.delayed.forget_cells()
        for window in (*self.ready.values(), *self.lines.values(), self.delayed):
            if window.beyond:
                window.retain_beyond(self._is_unwritten)
        self.expiry.retain_beyond(self._is_unwritten)
        for sequence in frozen:
            self._evict_unless_needed(sequence)
        # many tenants may have nothing but the keys of messages that expired, or were leased by their key
        self.ready = {tenant: window for tenant, window in self.ready.items() if window.first() or window.beyond}
        self.lines = {line: window for line, window in self.lines.items() if window.first() or window.beyond}

    def _write(self, m: Message, out: list[DirtyRow], locations: list[DirtyRow]) -> None:
        """Add the rows of a message. Locations are apart: they are in order, so that all rows are sorted in half the time."""
        generation = self.generation
        key = keys.home_key(generation, m)
        if key != m.stored_key:
            if m.stored_key:
                out.append((m.stored_key, None))
            locations.append((keys.location_key(generation, m.sequence), keys.location_value(key)))
            m.stored_key = key
        out.append((key, encode_message(m)))
        if m.expires_at != m.stored_expiry:
            if m.stored_expiry:
                out.append((keys.expiry_key(generation, m.stored_expiry, m.sequence), None))
            if m.expires_at:
                out.append((keys.expiry_key(generation, m.expires_at, m.sequence), b""))
            m.stored_expiry = m.expires_at

    def _write_gone(self, m: Message, out: list[DirtyRow]) -> None:
        out.append((m.stored_key, None))
        out.append((keys.location_key(self.generation, m.sequence), None))  # its evacuated body goes with it
        if m.stored_expiry:
            out.append((keys.expiry_key(self.generation, m.stored_expiry, m.sequence), None))

    # ---------------------------------------------------------------------------------------------------------- evicting

    def trim(self) -> None:
        """Keep memory within its bounds. Called between entries: no message may be in use."""
        self.absent.clear()
        if self._visitors:
            visitors, self._visitors = self._visitors, []
            for sequence in visitors:
                self._evict_unless_needed(sequence)
        if len(self.leases) + len(self._spared) > 2 * self.leased_count + LEASE_GARBAGE_MIN:
            self._rebuild_leases()
        for window in self._grown:
            if len(window.heap) > self.heap_max:
                self._shrink(window, self.bounds.window_messages_max)
        self._grown.clear()
        if len(self.expiry.heap) > self.heap_max:
            self.expiry.trim(self.bounds.window_messages_max)
            self.expiry.retain_beyond(self._is_unwritten)
        self._drop_excess()

    def _drop_excess(self) -> None:
        """Empty the least recently used windows while too many messages in memory are on disk as well."""
        excess = self._clean_count() - self.bounds.clean_messages_max
        if excess <= 0:
            return
        excess -= self._drop_windows(self.ready, excess)
        excess -= self._drop_windows(self.lines, excess)
        if excess > 0:
            self._shrink(
                self.delayed, 1
            )  # without its first due time the clock would tick until the window is read again

    def _drop_windows(self, windows: dict[T, Window], excess: int) -> int:
        """Empty windows while messages are in excess, and return how many left memory."""
        before = len(self.messages)
        for name in list(windows):
            if excess <= before - len(self.messages):
                break
            window = windows.pop(name)
            self._shrink(window, 0)
            if window.beyond:
                windows[name] = window
        return before - len(self.messages)

    def _clean_count(self) -> int:
        return len(self.messages) - self.leased_count - len(self.dirty) - len(self._frozen)

    def _shrink(self, window: Window, keep: int) -> None:
        cut = window.trim(keep)
        unwritten = self._is_unwritten
        for key in cut:
            if window.is_valid(key) and not unwritten(key):
                del self.messages[key[-1]]
        window.retain_beyond(unwritten)

    def _evict_unless_needed(self, sequence: int) -> None:
        message = self.messages.get(sequence)
        if message is None or sequence in self.dirty or sequence in self._frozen or self._is_in_window(message):
            return
        del self.messages[sequence]

    def _is_in_window(self, m: Message) -> bool:
        state = m.state
        if state == LEASED:
            return True
        if state == DELAYED:
            return (m.due, m.sequence) <= self.delayed.fence
        if state == READY:
            window = self.ready.get(m.tenant)
            return window is not None and (m.priority, m.due, m.sequence) <= window.fence
        line = self.lines.get(m.line) if state == LINED else None
        return line is not None and (m.sequence,) <= line.fence

    def _rebuild_leases(self) -> None:
        self.leases = [(m.deadline, m.sequence) for m in self.messages.values() if m.state == LEASED]
        heapify(self.leases)
        self._spared.clear()

    # ----------------------------------------------------------------------------------------------------------- restoring

    def restore(self, generation: int, leased: Iterable[Message], *, has_delayed: bool, has_expiry: bool) -> None:
        """Replace everything by the leased messages. The others are read when they are needed."""
        self.purge()
        self.generation = generation
        for message in leased:
            self.messages[message.sequence] = message
        self.leased_count = len(self.messages)
        self._rebuild_leases()
        self.delayed = self._delayed_window(is_complete=not has_delayed)
        self.expiry = self._expiry_window(is_complete=not has_expiry)

    # ------------------------------------------------------------------------------------------------------------ validity

    def _delayed_window(self, *, is_complete: bool) -> DelayedWindow:
        prefix = keys.table_prefix(keys.DELAYED_ROWS, self.generation)
        return DelayedWindow(prefix, self._is_delayed, is_complete=is_complete)

    def _expiry_window(self, *, is_complete: bool) -> Window:
        prefix = keys.table_prefix(keys.EXPIRY_ROWS, self.generation)
        return Window(prefix, BY_TIME, self._may_expire, is_complete=is_complete)

    def _is_ready(self, key: Key) -> bool:
        m = self.messages.get(key[2])
        return m is not None and m.state == READY and m.due == key[1] and m.priority == key[0]

    def _is_delayed(self, key: Key) -> bool:
        m = self.messages.get(key[1])
        return m is not None and m.state == DELAYED and m.due == key[0]

    def _is_lined(self, key: Key) -> bool:
        m = self.messages.get(key[0])
        return m is not None and m.state == LINED

    def _may_expire(self, key: Key) -> bool:
        """Return False only if it is certain that no message expires with this key."""
        m = self.messages.get(key[1])
        if m is None:
            return key[1] not in self.gone and key[1] not in self._frozen_gone
        return m.expires_at == int(key[0])

    def _is_unwritten(self, key: Key) -> bool:
        sequence = key[-1]
        return sequence in self.dirty or sequence in self._frozen
