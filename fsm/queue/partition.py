"""The state machine of a queue partition.

`apply` and `resume` return the result of an entry, or `RowsNeeded`: the entry is then half applied, and the host passes the rows to
`resume`. While an entry is half applied nobody may look at the machine or take rows from it.

The rows on disk are the truth as of the last write-back, and later changes are in memory. `take_dirty_rows` returns the difference, which
stays an overlay over the disk until `on_rows_written`. Other content of the memory cannot influence a row or a result.

Invariants: equal logs give byte-equal rows. At most one lease of a message is valid. Every count equals a recount. No entry touches more
than `WORK_MAX` messages. `apply` raises only for entries that a newer version wrote.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from operator import itemgetter
from typing import ClassVar, Final

from raftmq.batch_header import UnsupportedBatchVersionError
from raftmq.errors import invariant
from raftmq.fsm.expiry_clock import ExpiryClock
from raftmq.fsm.producer_table import ProducerState, ProducerTable
from raftmq.fsm.queue import commands as qc
from raftmq.fsm.queue import rows as keys
from raftmq.fsm.queue.changes import change
from raftmq.fsm.queue.duplicates import Recalled, recall
from raftmq.fsm.queue.enqueue import enqueue
from raftmq.fsm.queue.enqueued import ReadEntry, read_entry
from raftmq.fsm.queue.housekeeping import due_bound, keep_house
from raftmq.fsm.queue.jobs import JobRow, cancel_job, continue_job, start_job
from raftmq.fsm.queue.leases import due_by, is_key_leasable, is_leasable, is_open_to, leasable_count, lease
from raftmq.fsm.queue.levels import queue_level
from raftmq.fsm.queue.limits import NAME_BYTES_MAX, WORK_MAX, MemoryBounds
from raftmq.fsm.queue.message import Message, decode_message
from raftmq.fsm.queue.prefetch import Prefetcher
from raftmq.fsm.queue.results import (
    Chained,
    Code,
    Done,
    Enqueued,
    ItemResult,
    Leased,
    Purged,
    QueueApplied,
    Refused,
    Results,
    ScheduleChanged,
    SessionOpened,
    Settled,
)
from raftmq.fsm.queue.schedules import ScheduleRow, ScheduleTable
from raftmq.fsm.queue.sessions import SessionTable
from raftmq.fsm.queue.settings import QueueSettings, validate_settings
from raftmq.fsm.queue.settlements import accept_chain, settle
from raftmq.fsm.queue.state import QueueState, decode_scalars, restart_copies
from raftmq.fsm.queue.store import Reading
from raftmq.fsm.queue.tenants import PAUSED_FOREVER, Tenant
from raftmq.fsm.row_decoders import row_decoder, unknown_table
from raftmq.fsm.row_reads import RowRange, RowsFound, RowsNeeded
from raftmq.fsm.state_machine import DiskBackedMachine, UnsupportedCommandError
from raftmq.fsm.tables import DirtyRow, Row, RowSource, encode_value, number_key, number_table
from raftmq.queue_batch import QueueFields
from raftmq.raft.entry import GENESIS, Entry, EntryKind
from raftmq.types import LogIndex

_SCALARS_KEY: Final = number_key(keys.SCALARS, 0)
_SETTINGS_KEY: Final = number_key(keys.SETTINGS, 0)
_decode_settings = row_decoder(QueueSettings)


class QueuePartition(DiskBackedMachine):
    """Apply the log of a partition of kind "queue"."""

    resident_ranges: ClassVar[tuple[RowRange, ...]] = (
        RowRange(bytes((keys.SCALARS,)), bytes((keys.READY_ROWS,)), keys.ROWS_ALL),
        RowRange(bytes((keys.LEASED_ROWS,)), bytes((keys.DEAD_ROWS,)), keys.ROWS_ALL),
    )
    """The rows that `restore` takes."""

    def __init__(self, bounds: MemoryBounds | None = None, applied_index: LogIndex = GENESIS.index) -> None:
        self.applied_index = applied_index
        self.state = QueueState(bounds or MemoryBounds())
        self.producers = ProducerTable(keys.PRODUCERS)
        self.expiry = ExpiryClock(keys.EXPIRY_CLOCK)
        """The clock by which producers are forgotten."""
        self.sessions = SessionTable()
        self.schedules = ScheduleTable()
        self.jobs = number_table(keys.JOBS, JobRow)
        self._prefetcher = Prefetcher(self.state)
        self._entry: Reading[QueueApplied | None] | None = None
        """The entry that is half applied."""
        self._are_rows_written = False
        """Whether taken rows were written while an entry was half applied."""
        self._taken_scalars = encode_value(self.state.scalars)
        self._are_settings_dirty = False

    # ------------------------------------------------------------------------------------------------------ state machine

    def level_needed(self, payload: bytes) -> int | None:
        """Return the feature level that commands need, or None when they cannot be read back."""
        return queue_level(payload)

    def apply(self, entry: Entry) -> QueueApplied | RowsNeeded | None:
        """Apply the next entry. Return its result, None for one without commands or messages, or the rows that it needs.

        Raises:
            UnsupportedCommandError: The entry was written by a newer version. Nothing has changed.
        """
        index = entry.index
        if index <= self.applied_index:
            return None
        invariant(index == self.applied_index + 1, "apply_is_contiguous", index=index, applied_index=self.applied_index)
        invariant(self._entry is None, "apply_is_resumed", index=index)
        if entry.kind is EntryKind.DATA:
            self._entry = self._apply_data(entry, self._read(entry))
        elif entry.kind is EntryKind.COMMAND:
            self._entry = self._apply_commands(entry, self._decode(entry))
        else:
            self.applied_index = index
            return None
        return self._advance(None)

    def resume(self, found: RowsFound) -> QueueApplied | RowsNeeded | None:
        """Continue the entry that needed rows. Return as `apply` does."""
        return self._advance(found)

    def _advance(self, found: RowsFound | None) -> QueueApplied | RowsNeeded | None:
        entry = self._entry
        assert entry is not None, "no entry waits for rows"
        try:
            return next(entry) if found is None else entry.send(found)
        except StopIteration as end:
            self._entry = None
            self._finish_entry()
            result: QueueApplied | None = end.value
            return result

    def _finish_entry(self) -> None:
        state = self.state
        self.applied_index = LogIndex(self.applied_index + 1)
        state.tenants.finish_entry(state.scalars.now)
        if self._are_rows_written:
            self._are_rows_written = False
            self._forget_frozen()
        self._trim()

    def _read(self, entry: Entry) -> ReadEntry | None:
        try:
            return read_entry(entry.payload)
        except UnsupportedBatchVersionError:
            raise UnsupportedCommandError(entry, "batch") from None

    def _decode(self, entry: Entry) -> qc.Commands:
        commands = qc.decode_commands(entry.payload)
        if commands is None:
            raise UnsupportedCommandError(entry, "command")
        return commands

    # -------------------------------------------------------------------------------------------------------------- views

    def message(self, sequence: int) -> Message | None:
        """Return a leased message. It is valid until the next apply. Others may be on disk alone."""
        return self.state.store.messages.get(sequence)

    def producer(self, producer_id: int) -> ProducerState | None:
        """Return a producer's applied state. It is valid until the next apply."""
        return self.producers.get(producer_id)

    def tenant(self, path: str) -> Tenant | None:
        """Return a tenant with its counters, if they count. It is valid until the next apply."""
        tenant = self.state.tenants.by_path.get(path)
        return None if tenant is None or self.state.tenants.is_void(tenant) else tenant

    def schedule(self, name: str) -> ScheduleRow | None:
        """Return a schedule."""
        return self.schedules.table.get(name)

    @property
    def ready_count(self) -> int:
        """Return the number of ready messages."""
        return self.state.tenants.ready_count

    @property
    def leased_count(self) -> int:
        """Return the number of leased messages."""
        return self.state.store.leased_count

    @property
    def message_count(self) -> int:
        """Return the number of unfinished and dead messages."""
        return self.state.tenants.message_count

    @property
    def byte_count(self) -> int:
        """Return the bytes of their stored bodies."""
        return self.state.tenants.byte_count

    def is_leasable(self, subtrees: tuple[str, ...] = ()) -> bool:
        """Return whether a `Lease` with this filter would find a message among those that are ready now.

        Messages that an entry of a later time would first make ready do not count: see `next_deadline`.
        """
        return is_leasable(self.state, subtrees)

    def leasable_count(self, subtrees: tuple[str, ...] = ()) -> int:
        """Return how many messages leases with this filter may find among those that are ready now. It is 0 exactly if they find none.

        Limits of leases and pauses count, and tenants that their rate blocks. It may be too high for subtrees with several tenants, and for
        a rate that allows a few more.
        """
        return leasable_count(self.state, subtrees)

    def is_open_to(self, tenant: str) -> bool:
        """Return whether a message of this tenant could be leased now if it became ready: neither limits nor pauses forbid it."""
        return is_open_to(self.state, tenant)

    def due_by(self, time: int, subtrees: tuple[str, ...], key: bytes, count_max: int, due_max: int = 0) -> int:
        """Return how many messages an entry of this time and `due_max` would promote that a `Lease` in the same entry could find, at most
        `count_max`.

        Only messages in memory count.
        """
        return due_by(self.state, time, subtrees, key, count_max, due_max)

    def next_due_after(self, time: int, due_max: int) -> int | None:
        """Return the earliest due time after `time` of a delayed message in memory. None: there is none, or one entry with this `due_max`
        cannot promote all messages that are due before it.
        """
        return self.state.store.delayed.next_time_after(time, due_bound(due_max))

    def is_key_leasable(self, tenant: str, key: bytes) -> bool | None:
        """Return whether a `Lease` of this key would find its head ready now, or None if only reading its rows can tell."""
        return is_key_leasable(self.state, tenant, key)

    def recall(self, fields: QueueFields, base_sequence: int) -> Recalled:
        """Return the fate of the messages of a batch that was applied before, as far as memory has it. Nothing is changed."""
        return recall(self.state.ids, fields, base_sequence)

    def settled_before(self, session: int, request: int) -> Settled | None:
        """Return the result of a request that a session remembers as a settlement, or None."""
        known = self.sessions.answer(session, request)
        return known if isinstance(known, Settled) else None

    def next_deadline(self, leases_end_from: int = 0, spared_through: int = 0) -> int | None:
        """Return the queue time at which a command entry next changes something by its time alone, or None.

        It may be too early if rows were not read yet, and is never too late. Schedules are not part of it: they are fired by DATA
        entries (`schedules`).

        Args:
            leases_end_from: The time before which the proposer ends no lease that it spares. 0: it spares none.
            spared_through: It spares the leases that were granted or last renewed up to this time.
        """
        state = self.state
        if state.is_purging:
            return state.scalars.now
        times: list[int | None] = [state.ids.next_end(), state.tenants.next_deadline()]
        if leases_end_from:
            state.store.spare_leases(spared_through)
        first_lease, first_spared = state.store.first_lease(), state.store.first_spared_lease()
        times.append(None if first_lease is None else first_lease.deadline)
        times.append(None if first_spared is None else max(first_spared.deadline, leases_end_from))
        times += (state.store.delayed.next_time(), state.store.expiry.next_time())
        return min((time for time in times if time is not None), default=None)

    # ----------------------------------------------------------------------------------------------------------- messages

    def _apply_data(self, entry: Entry, read: ReadEntry | None) -> Reading[QueueApplied | None]:
        scalars = self.state.scalars
        self._start(entry)
        scalars.next_sequence = entry.base_offset + entry.record_count
        if read is None or len(read.fields.body_lengths) != entry.record_count:
            # A leader appended this although it should have refused it. Its sequences stay empty.
            return None
        self.producers.record(read.header, entry.base_offset, self.expiry.now_ms)
        self._expire_producers()
        if read.firing is not None and not self.schedules.fire(read.firing):
            return Enqueued(0, is_stale=True)
        if read.chain is not None:
            return (yield from self._apply_chain(read.chain, read.fields, entry.base_offset))
        return (yield from self._enqueue(read.fields, entry.base_offset))

    def _enqueue(self, fields: QueueFields, base_sequence: int, omitted: Collection[int] = ()) -> Reading[Enqueued]:
        enqueued = yield from enqueue(self.state, fields, base_sequence, omitted)
        self.state.tallies.enqueued += enqueued.count
        return enqueued

    def _apply_chain(self, chain: qc.Chain, fields: QueueFields, base_sequence: int) -> Reading[Chained]:
        """Accept messages, and enqueue those that belong to the accepted ones. Or repeat the answer of a session."""
        count = len(fields.body_lengths)
        if qc.validate_chain(chain, count) is not None:
            return Chained(Refused(Code.INVALID), Enqueued(0))
        known = self.sessions.answer(chain.session, chain.request) if chain.session else None
        if known is not None:
            return Chained(known if isinstance(known, Settled | Refused) else Refused(Code.INVALID), Enqueued(0))
        settled, omitted = yield from accept_chain(self.state, chain, WORK_MAX)
        if chain.session:
            self.sessions.remember(chain.session, chain.request, settled, self.state.scalars.now)
        if len(omitted) == count:
            return Chained(settled, Enqueued(0))
        return Chained(settled, (yield from self._enqueue(fields, base_sequence, omitted)))

    def _start(self, entry: Entry) -> None:
        """Take the entry's time."""
        scalars = self.state.scalars
        scalars.now = max(scalars.now, entry.append_time_ms)
        self.state.dwells_ms.clear()
        self.expiry.advance(entry.append_time_ms)
        self.state.tenants.advance(scalars.now)

    def _expire_producers(self) -> None:
        self.producers.expire(self.expiry.now_ms)
        scalars = self.state.scalars
        scalars.forgotten_producer_id = self.producers.forgotten_id
        scalars.forgotten_named_producer_id = self.producers.forgotten_named_id

    # ----------------------------------------------------------------------------------------------------------- commands

    def _apply_commands(self, entry: Entry, commands: qc.Commands) -> Reading[QueueApplied | None]:
        self._start(entry)
        self._expire_producers()
        self.sessions.expire(self.state.scalars.now)
        self.state.jitter_seed = commands.jitter_seed
        self.state.lease_numbers_after = min(max(commands.lease_numbers_after, 0), qc.LEASE_NUMBERS_AFTER_MAX)
        done = yield from keep_house(self.state, commands.expire_before, commands.spared_through, commands.due_max)
        left, results = WORK_MAX - done.touched, []
        for item in commands.items:
            result, used = yield from self._execute(item, left)
            left -= used
            results.append(result)
        self.state.continue_purge()
        return Results(tuple(results), done.has_more_due or self.state.is_purging, done.touched)

    def _execute(self, item: qc.Item, work_max: int) -> Reading[tuple[ItemResult, int]]:
        """Execute an item. Return its result and the messages that it touched."""
        match item:
            case qc.Lease() | qc.Settle():
                return (yield from self._execute_request(item, work_max))
            case qc.Change():
                used = min(len(item.items), work_max)
                return (yield from change(self.state, item, used)), used
            case qc.ContinueJob():
                used = max(0, min(item.messages_max, work_max))
                return (yield from continue_job(self.state, self.jobs, item, used)), used
            case _:
                return self._execute_plain(item), 0

    def _execute_request(self, item: qc.Lease | qc.Settle, work_max: int) -> Reading[tuple[ItemResult, int]]:
        """Execute a request of a session, or repeat its answer."""
        if item.session:
            known = self.sessions.answer(item.session, item.request)
            if known is not None:
                return known, 0
        result: Leased | Settled
        if isinstance(item, qc.Lease):
            result, used = yield from lease(self.state, item, work_max)
            self._tally(result)
        else:
            result, used = yield from settle(self.state, item, work_max)
        if item.session:
            self.sessions.remember(item.session, item.request, result, self.state.scalars.now)
        return result, used

    def _tally(self, result: Leased) -> None:
        """Count leased messages."""
        tallies = self.state.tallies
        tallies.leased += sum(result.counts)
        tallies.redelivered += sum(
            count
            for count, number in zip(result.counts, result.lease_numbers, strict=True)
            if number > self.state.lease_numbers_after + 1
        )

    def _execute_plain(self, item: qc.Item) -> ItemResult:
        """Execute a command that reads nothing."""
        state, scalars = self.state, self.state.scalars
        match item:
            case qc.StartJob():
                return start_job(state, self.jobs, item)
            case qc.CancelJob():
                return cancel_job(self.jobs, item)
            case qc.PurgeAll():
                return self._purge_all()
            case qc.PutSchedule() | qc.ChangeSchedule() | qc.DeleteSchedule():
                return self._change_schedule(item)
            case qc.SkipFirings():
                return self._skip_firings(item)
            case qc.OpenSession():
                return self._open_session()
            case qc.CloseSession():
                self.sessions.close(item.session)
            case qc.Configure():
                return self._configure(item.settings)
            case qc.PauseTenant():
                return self._pause(item.tenant, PAUSED_FOREVER if item.pause_ms < 0 else state.later(item.pause_ms))
            case qc.ResumeTenant():
                return self._pause(item.tenant, 0)
            case qc.AimCopies():
                if item.epoch == scalars.copy_epoch + 1:
                    scalars.copy_topic, scalars.copy_partition = item.topic_id, item.partition
                    restart_copies(scalars)
            case qc.CopyDead():
                if item.epoch == scalars.copy_epoch:
                    scalars.copied_dead = max(scalars.copied_dead, min(item.through_number, scalars.next_dead - 1))
            case _:
                pass  # a tick carries nothing but its time
        return Done()

    def _configure(self, settings: QueueSettings) -> ItemResult:
        # The check is part of the format: a value that it accepts once, it must accept permanently, and the other way round.
        if validate_settings(settings) is not None:
            return Refused(Code.INVALID)
        self.state.settings = settings
        self._are_settings_dirty = True
        self.state.tenants.configure(settings, self.state.scalars.now)
        return Done()

    def _pause(self, path: str, until: int) -> ItemResult:
        if qc.validate_tenant(path) is not None:
            return Refused(Code.INVALID)
        self.state.tenants.pause(self.state.tenant(path), until)
        return Done()

    def _change_schedule(self, item: qc.PutSchedule | qc.ChangeSchedule | qc.DeleteSchedule) -> ItemResult:
        if not 0 < len(item.name.encode()) <= NAME_BYTES_MAX:
            return Refused(Code.INVALID)
        scalars = self.state.scalars
        version = scalars.next_schedule_version
        scalars.next_schedule_version += 1
        match item:
            case qc.PutSchedule():
                return self.schedules.put(item, version)
            case qc.ChangeSchedule():
                return self.schedules.change(item, version)
            case qc.DeleteSchedule():
                return self.schedules.delete(item)

    def _skip_firings(self, item: qc.SkipFirings) -> ItemResult:
        result = self.schedules.skip(item)
        if isinstance(result, ScheduleChanged):
            self.state.tallies.skipped_firings += max(item.count, 0)
        return result

    def _open_session(self) -> ItemResult:
        scalars = self.state.scalars
        number = scalars.next_session
        if not self.sessions.open(number, scalars.now):
            return Refused(Code.TOO_MANY_SESSIONS)
        scalars.next_session += 1
        return SessionOpened(number)

    def _purge_all(self) -> Purged:
        """Remove all messages and jobs: their rows belong to a generation that does not exist any more."""
        count = self.state.purge()
        for number in list(self.jobs.by_key):
            self.jobs.delete(number)
        return Purged(count)

    # ---------------------------------------------------------------------------------------------------------- read ahead

    def prefetch(self) -> RowsNeeded | None:
        """Return the rows that windows will need soon, or None. Asked between entries. One such read is in flight at a time."""
        return self._prefetcher.prefetch()

    def on_prefetched(self, needed: RowsNeeded, found: RowsFound) -> None:
        """Take the rows that `prefetch` asked for. Comes between entries."""
        invariant(self._entry is None, "prefetched_between_entries")
        self._prefetcher.on_prefetched(needed, found)

    # ---------------------------------------------------------------------------------------------------------------- rows

    @property
    def dirty_count(self) -> int:
        """Return about how many rows changed since rows were taken last."""
        state = self.state
        return (
            state.store.dirty_count + state.ids.dirty_count + state.heads.dirty_count + state.tenants.dirty_count
            + self.sessions.dirty_count
        )  # fmt: skip

    def take_dirty_rows(self) -> tuple[DirtyRow, ...]:
        """Return the rows changed since the last call, in key order. None means deleted. They describe `applied_index`.

        They stay an overlay over the disk until `on_rows_written`, which must come before the next call.
        """
        invariant(self._entry is None, "rows_taken_between_entries")
        self.state.scalars.ending_ids = self.state.ids.ending_count
        out: list[DirtyRow] = []
        scalars = encode_value(self.state.scalars)
        if scalars != self._taken_scalars:
            self._taken_scalars = scalars
            out.append((_SCALARS_KEY, scalars))
        if self._are_settings_dirty:
            self._are_settings_dirty = False
            out.append((_SETTINGS_KEY, encode_value(self.state.settings)))
        for source in self._sources:
            out.extend(source.take_dirty())
        for part in (self.state.store, self.state.ids, self.state.heads):
            out += part.take_dirty()
        out.sort(key=itemgetter(0))
        return tuple(out)

    def on_rows_written(self) -> None:
        """Drop the overlay: the taken rows are on disk, and reads that began before have been handed over."""
        if self._entry is not None:
            self._are_rows_written = True  # the half applied entry may use messages that would be evicted
            return
        self._forget_frozen()
        self._trim()

    def _trim(self) -> None:
        self.state.store.trim()
        self.state.ids.trim()
        self.state.heads.trim()

    def _forget_frozen(self) -> None:
        self.state.store.on_written()
        self.state.ids.on_written()
        self.state.heads.on_written()

    def restore(self, rows: Iterable[Row], state_index: LogIndex) -> None:
        """Replace the state by the one that is on disk, of which `rows` are the resident part. Raises if a row does not decode."""
        self._entry = None
        self._are_rows_written = self._are_settings_dirty = False
        state = self.state = QueueState(self.state.bounds)
        self._prefetcher = Prefetcher(state)
        sources = {source.tag: source for source in self._sources}
        for source in sources.values():
            source.clear()
        leased: list[Message] = []
        for key, value in rows:
            self._load(sources, leased, key, value)
        self._finish_restore(leased)
        self.applied_index = state_index

    def _load(self, sources: dict[int, RowSource], leased: list[Message], key: bytes, value: bytes) -> None:
        tag = key[0] if key else 0
        if tag == keys.SCALARS:
            self.state.scalars = decode_scalars(value)
        elif tag == keys.SETTINGS:
            self.state.settings = _decode_settings(value)
        elif tag == keys.LEASED_ROWS:
            if key.startswith(keys.table_prefix(tag, self.state.scalars.generation)):
                leased.append(decode_message(key, value))
        elif tag in sources:
            sources[tag].load(key, value)
        else:
            raise unknown_table(key)

    def _finish_restore(self, leased: list[Message]) -> None:
        state = self.state
        scalars = state.scalars
        state.restore(leased)
        self.sessions.finish_loading()
        self.schedules.finish_loading()
        self.producers.rebuild_order()
        self.producers.forgotten_id = scalars.forgotten_producer_id
        self.producers.forgotten_named_id = scalars.forgotten_named_producer_id
        self._taken_scalars = encode_value(scalars)

    def adopt(self, other: object) -> None:
        """Take over the state of `other`, a queue partition that nobody uses afterwards."""
        assert isinstance(other, type(self))
        vars(self).update(vars(other))

    @property
    def _sources(self) -> tuple[RowSource, ...]:
        return (self.state.tenants, self.sessions, self.schedules.table, self.jobs, self.producers, self.expiry)


def purged_ranges(generation: int) -> Sequence[RowRange]:
    """Return the rows of older generations, which no longer exist and may be deleted whenever there is time."""
    if generation == 0:
        return ()
    return tuple(
        RowRange(bytes((tag,)), keys.table_prefix(tag, generation), keys.ROWS_ALL) for tag in keys.GENERATION_TAGS
    )
