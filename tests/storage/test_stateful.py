"""Both stores are compared with a slow, obvious model, with a crash as a rule: all three always agree."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from raftmq.batch_header import max_timestamp_of, seal
from raftmq.raft.core import RestoredState
from raftmq.raft.entry import GENESIS, Entry, EntryKind, LogPosition
from raftmq.raft.hard_state import HardState
from raftmq.raft.membership import Membership
from raftmq.raft.messages import SnapshotMeta
from raftmq.storage.lmdb_log_store import LmdbLogStore
from raftmq.storage.log_store import Update
from raftmq.storage.memory_log_store import MemoryLogStore
from raftmq.types import LogIndex, Offset, ReplicaId, Term

from tests.support.storage.log_builder import KEY, VOTERS, LogBuilder, Store, initial_state, position_after

MIB = 1 << 20
PAYLOADS = st.sampled_from([b"", b"small", b"m" * 700, b"l" * 2100, b"overflow" * 1200])
TIMES = st.one_of(st.integers(0, 40), st.sampled_from([-(1 << 63), (1 << 63) - 1]))
BATCHES = TIMES.map(
    lambda time: seal(b"", record_count=1, raw_body_bytes=0, base_timestamp_ms=time, max_timestamp_ms=time)
)
ROWS = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"c" * 300]), st.one_of(st.none(), st.binary(max_size=40), PAYLOADS)),
    max_size=5,
).map(tuple)
MEMBERSHIPS = st.sampled_from([None, VOTERS, Membership((ReplicaId(1),), (ReplicaId(2),), revision=4)])


@dataclass
class Model:
    """A replica as lists and dicts. It is copied for each change, and shares nothing with a store."""

    hard_state: HardState
    position: LogPosition
    state_index: LogIndex
    membership: Membership
    log: list[Entry] = field(default_factory=list)
    state: dict[bytes, bytes] = field(default_factory=dict)

    def copy(self) -> Model:
        return replace(self, log=list(self.log), state=dict(self.state))

    @property
    def last(self) -> LogPosition:
        return position_after(self.log[-1]) if self.log else self.position

    def restored(self) -> RestoredState:
        terms = [(entry.term, entry.index) for entry in self.log]
        starts = tuple(next(group) for _, group in itertools.groupby(terms, key=lambda pair: pair[0]))
        return RestoredState(
            self.hard_state,
            self.position,
            self.last.index,
            self.last.next_offset,
            self.last.append_time_ms,
            starts,
            self.membership,
            self.state_index,
        )

    def apply(self, update: Update) -> None:
        if update.hard_state is not None:
            self.hard_state = update.hard_state
        if update.entries:
            self.log = [entry for entry in self.log if entry.index < update.entries[0].index] + list(update.entries)
        for row, value in update.state_rows:
            self.state.pop(row, None)
            if value is not None:
                self.state[row] = value
        if update.state_index is not None:
            self.state_index = update.state_index
        if update.membership is not None:
            self.membership = update.membership
        if update.truncation is not None:
            self.position = update.truncation
            self.log = [entry for entry in self.log if entry.index > update.truncation.index]


class TwinStores(RuleBasedStateMachine):
    """Both stores and their models.

    The memory store holds its updates until they are synced. The LMDB store is durable immediately, so it receives held updates only
    at the sync. Thus the same updates are durable in both at a crash.
    """

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.generation = 0
        self.lmdb = LmdbLogStore(self.directory, map_bytes=1 << 26)
        self.memory = MemoryLogStore(hold_updates=True)
        self.durable = Model(HardState(GENESIS.term, ReplicaId(0), GENESIS.index), GENESIS, GENESIS.index, VOTERS)
        self.ahead = self.durable.copy()
        """The state with the held updates applied, which the next update must continue."""
        self.held: list[list[Update]] = []

    @property
    def directory(self) -> Path:
        return self.root / str(self.generation)

    @property
    def stores(self) -> tuple[Store, Store]:
        return self.lmdb, self.memory

    @initialize(rows=st.dictionaries(st.sampled_from([b"a", b"z"]), st.binary(max_size=9)))
    def create(self, rows: dict[bytes, bytes]) -> None:
        for store in self.stores:
            store.create(KEY, initial_state(), list(rows.items()))
            store.open(KEY)
        self.durable.state = dict(rows)
        self.ahead = self.durable.copy()

    def teardown(self) -> None:
        self.lmdb.close(KEY)
        shutil.rmtree(self.root)

    # ---------------------------------------------------------------------------------------------- changes

    @rule(data=st.data(), count=st.integers(1, 3))
    def write(self, data: st.DataObject, count: int) -> None:
        """Write a few random but allowed updates in one batch."""
        batch = []
        for _ in range(count):
            update = self._draw_update(data)
            self.ahead.apply(update)
            batch.append(update)
        self.memory.append_batch([(KEY, update) for update in batch])
        self.held.append(batch)

    @rule(data=st.data(), count=st.integers(2, 4))
    def write_through(self, data: st.DataObject, count: int) -> None:
        """Write several durable transactions, the common case, so that logs and states grow."""
        for _ in range(count):
            self.write(data, 1)
        self._sync(len(self.held))

    @rule(data=st.data())
    def write_and_crash(self, data: st.DataObject) -> None:
        """Crash after a part of the writes has become durable."""
        self.write(data, 1)
        self.write(data, 1)
        self._sync(len(self.held) - 1)
        self.crash()

    def _draw_update(self, data: st.DataObject) -> Update:
        ahead = self.ahead
        entries = self._draw_entries(data)
        last_term = entries[-1].term if entries else Term(0)
        hard_state = None
        if last_term > ahead.hard_state.term or data.draw(st.booleans(), "hard state"):
            term = Term(max(last_term, ahead.hard_state.term + data.draw(st.integers(0, 2), "term step")))
            vote = ahead.hard_state.vote if term == ahead.hard_state.term else ReplicaId(0)
            hard_state = HardState(term, vote or ReplicaId(data.draw(st.integers(0, 3))), ahead.last.index)
        after = ahead.copy()
        after.apply(Update(entries=entries))
        state_index = None
        rows: tuple[tuple[bytes, bytes | None], ...] = ()
        membership = None
        if after.last.index >= after.state_index and data.draw(st.booleans(), "state"):
            state_index = LogIndex(data.draw(st.integers(after.state_index, after.last.index), "state index"))
            rows, membership = data.draw(ROWS), data.draw(MEMBERSHIPS)
        truncation = None
        limit = state_index or ahead.state_index
        known = [entry for entry in after.log if entry.index <= limit]
        if len(known) and data.draw(st.booleans(), "truncate"):
            truncation = position_after(data.draw(st.sampled_from(known), "truncation"))
        return Update(hard_state, entries, truncation, rows, state_index, membership)

    def _draw_entries(self, data: st.DataObject) -> tuple[Entry, ...]:
        """Draw new entries after the log's end, or after any entry in it."""
        count = data.draw(st.integers(0, 4), "entries")
        if not count:
            return ()
        is_conflict: bool = data.draw(st.booleans(), "conflict")
        kept = self.ahead.log
        if is_conflict:
            kept = kept[: data.draw(st.integers(0, len(kept)), "kept")]
        builder = LogBuilder(position_after(kept[-1]) if kept else self.ahead.position)
        entries = []
        for _ in range(count):
            term = builder.term + data.draw(st.sampled_from([0, 0, 0, 1, 3]), "term step")
            if data.draw(st.sampled_from([True, True, False]), "is data"):
                later = data.draw(st.integers(0, 9))
                payload = data.draw(st.one_of(PAYLOADS, BATCHES))
                entries.append(builder.data(data.draw(st.integers(1, 5)), payload, later_ms=later, term=term))
            else:
                entries.append(builder.empty(term=term))
        return tuple(entries)

    @rule(data=st.data())
    def sync(self, data: st.DataObject) -> None:
        """Make the oldest held writes durable in both stores."""
        self._sync(data.draw(st.integers(0, len(self.held)), "synced"))

    def _sync(self, count: int) -> None:
        self.memory.sync(count)
        for batch in self.held[:count]:
            self.lmdb.append_batch([(KEY, update) for update in batch])
            for update in batch:
                self.durable.apply(update)
        del self.held[:count]
        assert self.memory.held_count == len(self.held)

    @rule()
    def crash(self) -> None:
        """Drop held updates. The LMDB file is copied while it is open, as a killed process leaves it."""
        old, self.generation = self.directory, self.generation + 1
        shutil.copytree(old, self.directory)
        self.lmdb.close(KEY)
        shutil.rmtree(old)
        self.lmdb = LmdbLogStore(self.directory, map_bytes=1 << 26, verify="tail" if self.generation % 2 else "full")
        self.memory.crash()
        self.held.clear()
        self.ahead = self.durable.copy()
        self._check_open()

    def _check_open(self) -> None:
        expected = self.durable.restored()
        for store in self.stores:
            assert store.open(KEY) == expected

    @rule(data=st.data(), rows=st.dictionaries(st.binary(min_size=1, max_size=20), PAYLOADS, max_size=4))
    def install(self, data: st.DataObject, rows: dict[bytes, bytes]) -> None:
        """Install a snapshot, which replaces everything, including held updates."""
        base = self.ahead.last
        position = LogPosition(
            LogIndex(base.index + data.draw(st.integers(0, 9))),
            Term(base.term + data.draw(st.integers(0, 2))),
            Offset(base.next_offset + data.draw(st.integers(0, 9))),
            base.append_time_ms,
        )
        state_index = LogIndex(position.index + data.draw(st.integers(0, 4)))
        hard_state = replace(self.ahead.hard_state, commit_index=position.index)
        if position.term > hard_state.term:
            hard_state = HardState(position.term, ReplicaId(0), position.index)
        for store in self.stores:
            store.install(KEY, hard_state, SnapshotMeta(position, state_index, VOTERS), list(rows.items()))
        self.held.clear()
        self.durable = Model(hard_state, position, state_index, VOTERS, [], dict(rows))
        self.ahead = self.durable.copy()

    @rule(task=st.sampled_from(["reopen", "compact", "reclaim", "delete_truncated"]), rows_max=st.integers(1, 4))
    def maintain(self, task: str, rows_max: int) -> None:
        """Do maintenance, which must not change anything readable. The threshold of a compaction is lowered for it."""
        if task == "delete_truncated":
            left = [store.delete_truncated(KEY, rows_max) for store in self.stores]
            assert left[0] == left[1]
        elif task == "reclaim":
            while not self.lmdb.reclaim(KEY).is_complete:
                pass  # a call stops after a fixed time, which a busy machine may use up
            assert self.lmdb.why_without_holes(KEY) is None
        elif task == "compact":
            self.lmdb._compact_bytes_min = 0
            self.lmdb.compact_if_sparse(KEY)
        elif not self.held:
            for store in self.stores:
                store.close(KEY)
            self._check_open()

    # ---------------------------------------------------------------------------------------------- what must hold

    @invariant()
    def state_is_equal(self) -> None:
        """Compare a snapshot of each store."""
        for store in self.stores:
            if KEY in store.open_replicas():
                position, state_index, membership, rows = store.snapshot(KEY)
                durable = self.durable
                assert (position, state_index, membership) == (
                    durable.position,
                    durable.state_index,
                    durable.membership,
                )
                assert list(rows) == sorted(self.durable.state.items())

    @rule(data=st.data(), bytes_max=st.integers(1, 20_000))
    def read_entries(self, data: st.DataObject, bytes_max: int) -> None:
        """Read any range with any size limit."""
        log = self.durable.log
        if not log:
            return
        start = data.draw(st.integers(0, len(log) - 1))
        end = data.draw(st.integers(start, len(log) - 1))
        expected: list[Entry] = []
        size = 0
        for entry in log[start : end + 1]:
            size += len(entry.payload)
            if expected and size > bytes_max:
                break
            expected.append(entry)
        for store in self.stores:
            assert store.entries(KEY, log[start].index, log[end].index, bytes_max) == tuple(expected)
            assert store.header(KEY, log[start].index).term == log[start].term

    @rule(data=st.data())
    def find(self, data: st.DataObject) -> None:
        """Search for offsets and times, inside and outside of the log."""
        last = self.durable.last
        offset = Offset(data.draw(st.integers(0, last.next_offset + 2), "offset"))
        time = data.draw(st.integers(0, last.append_time_ms + 2), "time")
        batches = [entry for entry in self.durable.log if entry.kind is EntryKind.DATA]
        at_offset = [entry.index for entry in batches if entry.base_offset <= offset < entry.next_offset]
        at_time = [entry.index for entry in batches if entry.append_time_ms >= time]
        for store in self.stores:
            assert store.find_offset(KEY, offset) == (at_offset[0] if at_offset else None)
            header = store.find_time(KEY, time)
            assert (header.index if header else None) == (at_time[0] if at_time else None)

    @rule(time_ms=TIMES, data=st.data())
    def find_timestamp(self, time_ms: int, data: st.DataObject) -> None:
        """Search for record timestamps, which are in no order."""
        first = Offset(data.draw(st.integers(0, self.durable.last.next_offset + 2), "first offset"))
        latest = [(entry, max_timestamp_of(entry.payload)) for entry in self.durable.log if entry.next_offset > first]
        hits = [entry.index for entry, latest_ms in latest if latest_ms is not None and latest_ms >= time_ms]
        for store in self.stores:
            while not (search := store.find_timestamp(KEY, time_ms, first)).is_complete:
                pass
            assert (search.header.index if search.header else None) == (hits[0] if hits else None)


TestTwinStores = TwinStores.TestCase
TestTwinStores.settings = settings(max_examples=15, stateful_step_count=50, deadline=None)
