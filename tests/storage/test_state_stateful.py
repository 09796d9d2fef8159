"""Both stores are compared with a slow, obvious model of a replica with a state file, with crashes at every step: all three always agree.

And no body is lost: the body of each message that has a location is in the state file, or its entry is in the log.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from raftmq.raft.entry import GENESIS, LogPosition
from raftmq.raft.membership import Membership
from raftmq.raft.messages import SnapshotMeta
from raftmq.storage import durable_files
from raftmq.storage.lmdb_log_store import LmdbLogStore
from raftmq.storage.log_store import StateRow, Update
from raftmq.storage.memory_log_store import MemoryLogStore
from raftmq.storage.row_stream import Row
from raftmq.storage.state_store import StateCopy, StateWrite, body_key, is_body, is_location, location_key, sequence_of
from raftmq.types import LogIndex, Offset, ReplicaId

from tests.support.storage.log_builder import KEY, VOTERS, LogBuilder, Store, hard, initial_state, position_after

SOURCES = st.sampled_from([b"", b"small", b"overflow" * 1200])
SINGLE = Membership((ReplicaId(3),), revision=12)


class ProcessEndedError(BaseException):
    """Ends an installation between two of its steps."""


def body_of(sequence: int) -> bytes:
    return b"body %d" % sequence * (1 if sequence % 3 else 900)


class TwinStateStores(RuleBasedStateMachine):
    """Both stores, and their content as dictionaries. Every change is durable when it returns."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.lives = 0
        self.lmdb = LmdbLogStore(self.directory, map_bytes=1 << 26)
        self.memory = MemoryLogStore()
        for store in self.stores:
            store.create_with_state_file(KEY, initial_state())
            store.open(KEY)
        self.log = LogBuilder()
        self.position = GENESIS
        self.points = [GENESIS]
        """Every position in the log, with the truncation point as the first one."""
        self.state_index, self.membership = GENESIS.index, VOTERS
        self.rows: dict[bytes, bytes] = {}
        self.evacuated_through = -1
        self.generation = 0
        self.copies: list[tuple[StateCopy, LogPosition, LogIndex, list[Row]]] = []
        self.next_sequence = 0
        """The first sequence that the state does not include."""

    @property
    def directory(self) -> Path:
        return self.root / str(self.lives)

    @property
    def stores(self) -> tuple[Store, Store]:
        return self.lmdb, self.memory

    def both(self, action: Callable[[Store], object]) -> None:
        results = [action(store) for store in self.stores]
        assert results[0] == results[1]

    def waiting(self) -> list[int]:
        """Return the messages of this generation whose bodies are in the log only, and have arrived with it."""
        found = [sequence_of(key) for key in self.locations() if key[:-8] == location_key(self.generation, 0)[:-8]]
        return sorted(number for number in found if self.evacuated_through < number < self.log.next_offset)

    def locations(self) -> list[bytes]:
        return sorted(filter(is_location, self.rows))

    def delete(self, key: bytes) -> None:
        del self.rows[key]
        if is_location(key):
            self.rows.pop(body_key(sequence_of(key)), None)

    def teardown(self) -> None:
        self.close_copies()
        self.lmdb.close(KEY)
        shutil.rmtree(self.root)

    # ---------------------------------------------------------------------------------------------- changes

    @rule(counts=st.lists(st.integers(0, 4), min_size=1, max_size=5))
    def append(self, counts: list[int]) -> None:
        entries = tuple(self.log.data(count) if count else self.log.empty() for count in counts)
        self.points += map(position_after, entries)
        # after an installation the log catches up with the state, which includes these messages already
        included = [point.next_offset for point in self.points if point.index <= self.state_index]
        self.next_sequence = max(self.next_sequence, *included, 0)
        self.both(lambda store: store.append_batch([(KEY, Update(entries=entries))]))

    @rule(data=st.data(), other=st.dictionaries(st.sampled_from([b"\x10a", b"\x13b", b"\x50c"]), SOURCES))
    def write_back(self, data: st.DataObject, other: dict[bytes, bytes]) -> None:
        """Apply some entries: messages arrive, and some of the old ones are finished."""
        later = [point for point in self.points if point.index > self.state_index]
        index, arrived = self.state_index, []
        if later and data.draw(st.booleans(), "apply"):
            new = data.draw(st.sampled_from(later), "state")
            index = new.index
            arrived = [n for n in range(self.next_sequence, new.next_offset) if data.draw(st.booleans(), "stays")]
            self.next_sequence = max(self.next_sequence, int(new.next_offset))
        finished = [key for key in self.locations() if data.draw(st.booleans(), "finished")]
        membership = data.draw(st.sampled_from([None, VOTERS, SINGLE]), "membership")
        rows: dict[bytes, bytes | None] = dict(other)
        rows |= {location_key(self.generation, number): b"home" for number in arrived}
        rows |= dict.fromkeys(finished)
        self._write(index, tuple(rows.items()), membership)

    def _write(self, state_index: LogIndex, rows: tuple[StateRow, ...], membership: Membership | None) -> None:
        self.both(lambda store: store.write_state(KEY, StateWrite(state_index, rows, membership)))
        self.state_index = state_index
        self.membership = membership or self.membership
        for key, value in rows:
            if value is None:
                self.delete(key)
            else:
                self.rows[key] = value

    @precondition(lambda self: self.waiting())
    @rule(data=st.data())
    def evacuate(self, data: st.DataObject) -> None:
        """Read bodies from the log, while a write-back finishes some of their messages."""
        waiting = self.waiting()
        chosen = waiting[: data.draw(st.integers(1, len(waiting)), "bodies")]
        gone = [sequence for sequence in chosen if data.draw(st.integers(0, 3), "finished") == 0]
        self._write(self.state_index, tuple((location_key(self.generation, n), None) for n in gone), None)
        bodies = [(location_key(self.generation, number), body_of(number)) for number in chosen]
        self.both(lambda store: store.evacuate(KEY, bodies, self.evacuated_through))
        self.evacuated_through = chosen[-1]
        self.rows |= {body_key(number): body_of(number) for number in chosen if number not in gone}

    @rule(data=st.data(), rows_max=st.integers(1, 3))
    def truncate(self, data: st.DataObject, rows_max: int) -> None:
        first = min((s for s in map(sequence_of, self.locations()) if s > self.evacuated_through), default=None)
        self.both(lambda store: store.first_location(KEY, self.evacuated_through))
        assert self.memory.first_location(KEY, self.evacuated_through) == first
        allowed = [
            point
            for point in self.points
            if point.index <= self.state_index and (first is None or point.next_offset <= first)
        ]
        if allowed:
            self.position = data.draw(st.sampled_from(allowed), "position")
            self.points = [point for point in self.points if point.index >= self.position.index]
            self.both(lambda store: store.append_batch([(KEY, Update(truncation=self.position))]))
        self.both(lambda store: store.delete_truncated(KEY, rows_max))

    @rule()
    def purge(self) -> None:
        self.generation += 1

    @precondition(lambda self: self.generation)
    @rule(rows_max=st.integers(1, 4))
    def delete_dead_rows(self, rows_max: int) -> None:
        dead = (location_key(0, 0), location_key(self.generation, 0))
        self.both(lambda store: store.delete_rows(KEY, dead, rows_max))
        for key in [key for key in self.locations() if dead[0] <= key < dead[1]][:rows_max]:
            self.delete(key)

    # ---------------------------------------------------------------------------------------------- crashes, snapshots

    def _crash(self) -> None:
        """Continue from a copy of the files, as a killed process left them."""
        self.close_copies()
        self.lmdb.close(KEY)
        shutil.rmtree(self.root / str(self.lives - 1))
        self.lmdb = LmdbLogStore(self.directory, map_bytes=1 << 26, verify="tail" if self.lives % 2 else "full")
        self.memory.crash()
        self.both(lambda store: store.open(KEY).state_index)

    @rule()
    def crash(self) -> None:
        old, self.lives = self.directory, self.lives + 1
        shutil.copytree(old, self.directory)
        self._crash()

    @rule(data=st.data(), ahead=st.integers(0, 9), sequences=st.sets(st.integers(0, 30)), step=st.integers(0, 4))
    def install(self, data: st.DataObject, ahead: int, sequences: set[int], step: int) -> None:
        """Install a snapshot of another replica, and end the process before or after one of its two renames, or not at all (4).

        Its rows are given together, or were staged in chunks before.
        """
        last = self.points[-1]
        position = LogPosition(
            LogIndex(last.index + ahead), last.term, Offset(last.next_offset + ahead), last.append_time_ms
        )
        state_index = LogIndex(max(position.index + data.draw(st.integers(0, 4)), self.state_index))
        rows = {b"\x10new": b"row"}
        for sequence in sequences:
            rows |= {location_key(self.generation, sequence): b"home", body_key(sequence): body_of(sequence)}
        meta = SnapshotMeta(position, state_index, SINGLE)
        chunk_rows = data.draw(st.integers(0, 3), "rows of a chunk")

        def install(store: Store) -> None:
            self._install(store, meta, sorted(rows.items()), chunk_rows)

        if step == 4:
            self.both(install)
        else:
            old, self.lives = self.directory, self.lives + 1
            ending = mock.patch("raftmq.storage.lmdb_log_store.replace_file", self._ending_at(step, old))
            with ending, suppress(ProcessEndedError):
                install(self.lmdb)
            if step > 0:
                install(self.memory)
            self._crash()
        if step > 0:
            self._on_installed(meta, rows)

    def _install(self, store: Store, meta: SnapshotMeta, rows: list[Row], chunk_rows: int) -> None:
        hard_state = hard(5, 0, meta.position.index)
        if not chunk_rows:
            store.install(KEY, hard_state, meta, rows)
            return
        staged = store.stage(KEY, meta.position)
        for first in range(0, len(rows), chunk_rows):
            staged.put(rows[first : first + chunk_rows])
        staged.finish()
        store.install_staged(KEY, hard_state, meta, staged)

    @rule()
    def copy(self) -> None:
        """Copy the state. Whatever happens to the replica, the copy stays as it is."""
        self.close_copies()
        copies = [store.copy_state(KEY) for store in self.stores]
        self.copies = [(copy, self.position, self.state_index, sorted(self.rows.items())) for copy in copies]

    def close_copies(self) -> None:
        for copy, *_ in self.copies:
            copy.close()
        self.copies = []

    def _ending_at(self, step: int, old: Path) -> Callable[[Path, Path], None]:
        renames = iter(range(2))

        def rename(source: Path, target: Path) -> None:
            number = next(renames)
            if number < step // 2 or step % 2:
                durable_files.replace_file(source, target)
            if number == step // 2:
                shutil.copytree(old, self.directory)
                raise ProcessEndedError

        return rename

    def _on_installed(self, meta: SnapshotMeta, rows: dict[bytes, bytes]) -> None:
        position = self.position = meta.position
        self.points, self.log = [position], LogBuilder(position)
        self.state_index, self.membership = meta.state_index, meta.membership
        self.evacuated_through = position.next_offset - 1
        self.rows = {k: v for k, v in rows.items() if not is_body(k) or sequence_of(k) <= self.evacuated_through}
        self.next_sequence = max(int(position.next_offset), *(sequence_of(key) + 1 for key in self.locations()), 0)

    # ---------------------------------------------------------------------------------------------- invariants

    @invariant()
    def content_is_equal(self) -> None:
        for store in self.stores:
            snapshot = store.snapshot(KEY)
            assert list(snapshot.rows) == sorted(self.rows.items())
            assert (snapshot.position, snapshot.state_index) == (self.position, self.state_index)
            assert snapshot.membership == self.membership
            assert store.evacuated_through(KEY) == self.evacuated_through

    @invariant()
    def copies_stay_as_they_are(self) -> None:
        for copy, position, state_index, rows in self.copies:
            assert (copy.position, copy.state_index, list(copy.rows_from(b""))) == (position, state_index, rows)

    @invariant()
    def every_body_is_found(self) -> None:
        for store in self.stores:
            start = store.snapshot(KEY).position.next_offset
            for key in self.locations():
                sequence, body = sequence_of(key), store.read_body(KEY, sequence_of(key))
                if int.from_bytes(key[1:5], "big") == self.generation:
                    is_evacuated = sequence <= self.evacuated_through
                    assert body == (body_of(sequence) if is_evacuated else None)
                    assert is_evacuated or sequence >= start
                    is_here = sequence < self.log.next_offset
                    assert is_evacuated or (store.find_offset(KEY, Offset(sequence)) is not None) == is_here

    @invariant()
    def no_body_outlives_its_message(self) -> None:
        living = set(map(sequence_of, self.locations()))
        assert living >= {sequence_of(key) for key in self.rows if is_body(key)}


TestTwinStateStores = TwinStateStores.TestCase
TestTwinStateStores.settings = settings(max_examples=15, stateful_step_count=40, deadline=None)
