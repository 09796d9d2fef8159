"""A host for queue partitions in tests: it builds entries, keeps a disk in memory, and answers reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from raftmq.fsm.queue.commands import Commands, Item, encode_commands
from raftmq.fsm.queue.limits import MemoryBounds
from raftmq.fsm.queue.partition import QueuePartition, purged_ranges
from raftmq.fsm.queue.results import Enqueued, ItemResult, QueueApplied, Results
from raftmq.fsm.row_reads import RowRange, RowsNeeded
from raftmq.fsm.tables import DirtyRow, Row
from raftmq.message_checks import TIME_AFTER, TIME_AT, Times
from raftmq.queue_batch import MessageColumns, encode, seal_queue_batch
from raftmq.raft.entry import Entry, EntryKind

from tests.support.fsm.histories import LogBuilder

COLD = MemoryBounds(window_messages_max=1, clean_messages_max=0, read_rows=1, low_mark=1, points_max=0, is_cold=True)
"""The least memory: windows of one message, and a read at every place."""


class Disk:
    """The state file of a replica: sorted rows."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}

    def write(self, dirty: Sequence[DirtyRow]) -> None:
        for key, value in dirty:
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value

    def read(self, needed: RowsNeeded) -> list[list[Row]]:
        return [self.range(one) for one in needed.ranges]

    def range(self, range_: RowRange) -> list[Row]:
        if range_.end_key == range_.first_key + b"\0":
            value = self.rows.get(range_.first_key)
            return [] if value is None else [(range_.first_key, value)]
        keys = sorted(key for key in self.rows if range_.first_key <= key < range_.end_key)
        return [(key, self.rows[key]) for key in keys[: range_.rows_max]]


class QueueHost:
    """One replica: a machine with its disk. It writes rows back only when it is told."""

    def __init__(self, bounds: MemoryBounds | None = None) -> None:
        self.bounds = bounds or MemoryBounds()
        self.disk = Disk()
        self.machine = QueuePartition(self.bounds)
        self.reads = 0
        self.durable_index = self._taken_index = self.machine.applied_index
        """The entry that the rows on disk describe."""
        self.while_reading: Callable[[], None] = lambda: None
        """Called while an entry waits for rows that were read."""
        self._ahead: tuple[RowsNeeded, list[list[Row]]] | None = None
        self.in_flight: tuple[DirtyRow, ...] | None = None

    def apply(self, entry: Entry) -> QueueApplied | None:
        """Apply an entry, with as many reads as it needs."""
        result = self.machine.apply(entry)
        while isinstance(result, RowsNeeded):
            self.reads += 1
            found = self.disk.read(result)
            self.while_reading()
            result = self.machine.resume(found)
        return result

    def prefetch(self) -> None:
        """Begin a read ahead, whose rows are read now and handed over later."""
        needed = self.machine.prefetch()
        if needed is not None:
            assert self._ahead is None
            self._ahead = (needed, self.disk.read(needed))

    @property
    def is_reading_ahead(self) -> bool:
        """Return whether a read ahead is in flight: a write-back that ends must wait for it."""
        return self._ahead is not None

    def hand_over(self) -> None:
        """Hand over the rows of the read ahead that is in flight."""
        if self._ahead is not None:
            (needed, found), self._ahead = self._ahead, None
            self.machine.on_prefetched(needed, found)

    def take(self) -> None:
        """Begin a write-back."""
        assert self.in_flight is None
        self.in_flight = self.machine.take_dirty_rows()
        self._taken_index = self.machine.applied_index

    def commit(self) -> None:
        """Make the rows of the write-back durable. The machine does not know yet."""
        assert self.in_flight is not None
        self.disk.write(self.in_flight)
        self.durable_index = self._taken_index

    def written(self) -> None:
        """Tell the machine that the write-back is done. Reads that began before it are handed over first."""
        self.hand_over()
        self.in_flight = None
        self.machine.on_rows_written()

    def write_back(self) -> None:
        if self.in_flight is not None:
            self.commit()
            self.written()
        self.take()
        self.commit()
        self.written()

    def restart(self) -> None:
        """Write everything back, and begin again."""
        self.write_back()
        self.crash()

    def crash(self) -> None:
        """Lose the memory, and begin with the rows of the last write-back."""
        self.in_flight = self._ahead = None
        index = self.durable_index
        self.machine = QueuePartition(self.bounds)
        resident = [row for range_ in QueuePartition.resident_ranges for row in self.disk.range(range_)]
        self.machine.restore(resident, index)

    def rows(self) -> list[Row]:
        """Return the whole state, without the rows of older generations."""
        self.write_back()
        for range_ in purged_ranges(self.machine.state.scalars.generation):
            for key, _ in self.disk.range(range_):
                del self.disk.rows[key]
        return sorted(self.disk.rows.items())


class QueueLog(LogBuilder):
    """Builds the log of a queue partition."""

    def commands(
        self,
        *items: Item,
        expire_before: int | None = None,
        jitter_seed: int = 0,
        spared_through: int | None = None,
        due_max: int = 0,
        numbers_after: int = 0,
    ) -> Entry:
        before = self.time_ms if expire_before is None else expire_before
        spared = self.time_ms if spared_through is None else spared_through
        commands = Commands(items, before, jitter_seed, spared, due_max, numbers_after)
        return self.append(EntryKind.COMMAND, encode_commands(commands))

    def put(self, columns: MessageColumns) -> Entry:
        count = len(columns.bodies)
        return self.append(EntryKind.DATA, seal_queue_batch(encode(columns), message_count=count), count)


class Queue:
    """One replica with its log, for most tests."""

    def __init__(self, bounds: MemoryBounds | None = None) -> None:
        self.log = QueueLog()
        self.host = QueueHost(bounds)

    @property
    def now(self) -> int:
        return self.log.time_ms

    def wait(self, elapsed_ms: int) -> None:
        self.log.time_ms += elapsed_ms

    def run(self, *items: Item, **fields: int) -> Results:
        result = self.host.apply(self.log.commands(*items, **fields))
        assert isinstance(result, Results)
        return result

    def do(self, item: Item, **fields: int) -> ItemResult:
        return self.run(item, **fields).items[0]

    def put(self, count: int = 1, **columns: object) -> Enqueued:
        result = self.host.apply(self.log.put(messages(count, **columns)))
        assert isinstance(result, Enqueued)
        return result


def messages(
    count: int = 1,
    *,
    priority: int | Sequence[int] | None = None,
    tenant: str | Sequence[str] | None = None,
    id: str | Sequence[str | None] | None = None,  # noqa: A002
    key: str | Sequence[str | None] | None = None,
    delay: int | None = None,
    due: int | None = None,
    ttl: int | None = None,
    replace: bool = False,
) -> MessageColumns:
    """Return the columns of messages that are alike, or that differ where a sequence is given."""

    def texts(cell: str | Sequence[str | None] | None) -> list[bytes | None] | None:
        if cell is None:
            return None
        cells = [cell] * count if isinstance(cell, str) else cell
        return [one if one is None else one.encode() for one in cells]

    tenants = texts(tenant)
    priorities = [priority] * count if isinstance(priority, int) else priority
    return MessageColumns(
        [b"body"] * count,
        priorities=priorities,
        due=_times(count, TIME_AFTER, delay) or _times(count, TIME_AT, due),
        expiry=_times(count, TIME_AFTER, ttl),
        replaces=[1] * count if replace else None,
        tenants=None if tenants is None else [one or b"" for one in tenants],
        ids=texts(id),
        keys=texts(key),
    )


def _times(count: int, kind: int, value: int | None) -> Times | None:
    return None if value is None else Times([kind] * count, [value] * count)
