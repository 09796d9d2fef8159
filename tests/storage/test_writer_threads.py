"""Order, batching, and errors of the writers."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from raftmq.broker.replica.initial_state import founder_state
from raftmq.errors import InvariantError
from raftmq.raft.entry import Entry, EntryKind
from raftmq.raft.hard_state import HardState
from raftmq.raft.membership import Membership
from raftmq.storage.errors import (
    CommitFailedError,
    DamagedReplicaError,
    ReplicaClosedError,
    StorageFullError,
    StorageUnavailableError,
)
from raftmq.storage.lmdb_log_store import LmdbLogStore
from raftmq.storage.log_store import ReplicaKey, Update
from raftmq.storage.memory_log_store import MemoryLogStore
from raftmq.storage.writer_threads import Completion, InlineWriter, WriterThreads
from raftmq.types import GroupId, ReplicaId

from tests.support.storage.log_builder import KEY, OTHER, LogBuilder, hard, index, initial_state, lmdb_store

WAIT_SECONDS = 30.0


class Reports:
    """The reported completions, one item per report."""

    def __init__(self) -> None:
        self.batches: queue.Queue[list[Completion]] = queue.Queue()
        self.errors: queue.Queue[BaseException] = queue.Queue()

    def take(self, count: int) -> list[Completion]:
        taken: list[Completion] = []
        while len(taken) < count:
            taken += self.batches.get(timeout=WAIT_SECONDS)
        return taken


class Recorder(MemoryLogStore):
    """A store that records each transaction and its thread. It can be blocked, and can be full."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[ReplicaKey, int, str]] = []
        self.may_go = threading.Event()
        self.may_go.set()
        self.entered = threading.Event()
        self.full: set[ReplicaKey] = set()
        self.error: BaseException | None = None

    def append_batch(self, updates: Sequence[tuple[ReplicaKey, Update]]) -> None:
        self.entered.set()
        assert self.may_go.wait(WAIT_SECONDS)
        if self.error is not None:
            raise self.error
        key = updates[0][0]
        self.calls.append((key, len(updates), threading.current_thread().name))
        if key in self.full:
            raise StorageFullError(key, "full on purpose")
        super().append_batch(updates)


def add_replicas(store: MemoryLogStore, *keys: ReplicaKey) -> None:
    for key in keys:
        store.create(key, initial_state(), [])
        store.open(key)


def update(entry: Entry) -> Update:
    return Update(entries=(entry,))


@pytest.fixture
def reports() -> Reports:
    return Reports()


@pytest.fixture
def recorder() -> Recorder:
    recorder = Recorder()
    add_replicas(recorder, KEY, OTHER)
    return recorder


def threads(store: MemoryLogStore, reports: Reports, count: int = 2) -> WriterThreads:
    return WriterThreads(store, count, on_done=reports.batches.put, on_error=reports.errors.put)


def inline(store: MemoryLogStore, reports: Reports) -> InlineWriter:
    return InlineWriter(store, on_done=reports.batches.put, on_error=reports.errors.put)


def test_updates_complete_in_order_with_their_tokens(tmp_path: Path, reports: Reports) -> None:
    keys = [ReplicaKey(GroupId(1), ReplicaId(number)) for number in range(1, 6)]
    with lmdb_store(tmp_path) as store:
        writers = WriterThreads(store, 3, on_done=reports.batches.put, on_error=reports.errors.put)
        logs = {key: LogBuilder() for key in keys}
        for key in keys:
            writers.run(key, lambda key=key: store.create(key, initial_state(), [])).result(WAIT_SECONDS)  # type: ignore[misc]
            writers.run(key, lambda key=key: store.open(key)).result(WAIT_SECONDS)  # type: ignore[misc]
        for number in range(20):
            for key in keys:
                writers.submit(key, update(logs[key].data()), (key, number))
        done = reports.take(100)
        writers.close()
        for key in keys:
            tokens = [completion.token for completion in done if completion.key == key]
            assert tokens == [(key, number) for number in range(20)]
            assert len(store.entries(key, index(6), index(25), 1 << 20)) == 20
        assert all(completion.error is None for completion in done)
    assert reports.errors.empty()


def test_updates_queued_during_a_commit_become_one_transaction_and_one_report(
    recorder: Recorder, reports: Reports
) -> None:
    log = LogBuilder()
    writers = threads(recorder, reports, 1)
    recorder.may_go.clear()
    writers.submit(KEY, update(log.data()), 0)
    assert recorder.entered.wait(WAIT_SECONDS)
    for number in range(1, 10):
        writers.submit(KEY, update(log.data()), number)
    recorder.may_go.set()
    first = reports.batches.get(timeout=WAIT_SECONDS)
    second = reports.batches.get(timeout=WAIT_SECONDS)
    writers.close()
    assert [completion.token for completion in first] == [0]
    assert [completion.token for completion in second] == list(range(1, 10))
    assert [count for _, count, _ in recorder.calls] == [1, 9]


def test_a_transaction_is_bounded_in_bytes(recorder: Recorder, reports: Reports) -> None:
    log = LogBuilder()
    writer = inline(recorder, reports)
    for number in range(5):
        writer.submit(KEY, update(log.data(1, b"x" * (3 << 20))), number)
    writer.pump()
    assert [count for _, count, _ in recorder.calls] == [2, 2, 1]


def test_a_replica_stays_on_its_thread_and_replicas_are_spread(recorder: Recorder, reports: Reports) -> None:
    writers = threads(recorder, reports, 2)
    logs = {KEY: LogBuilder(), OTHER: LogBuilder()}
    for number in range(10):
        for key in (KEY, OTHER):
            writers.submit(key, update(logs[key].data()), number)
            reports.take(1)
    writers.close()
    names = {key: {name for other, _, name in recorder.calls if other == key} for key in (KEY, OTHER)}
    assert all(len(used) == 1 for used in names.values())
    assert names[KEY] != names[OTHER]


def test_a_call_runs_after_the_updates_before_it(recorder: Recorder, reports: Reports) -> None:
    log = LogBuilder()
    writers = threads(recorder, reports, 1)
    recorder.may_go.clear()
    for number in range(5):
        writers.submit(KEY, update(log.data()), number)
    seen = writers.run(KEY, lambda: recorder.header(KEY, index(10)).index)
    writers.submit(KEY, update(log.data()), 5)
    recorder.may_go.set()
    assert seen.result(WAIT_SECONDS) == 10
    writers.close()
    assert [completion.token for completion in reports.take(6)] == list(range(6))


def test_the_error_of_a_call_goes_to_its_future_only(recorder: Recorder, reports: Reports) -> None:
    writers = threads(recorder, reports)
    recorder.damage(KEY)
    with pytest.raises(DamagedReplicaError):
        writers.run(KEY, lambda: recorder.header(KEY, index(6))).result(WAIT_SECONDS)
    assert writers.run(KEY, lambda: 5).result(WAIT_SECONDS) == 5
    writers.close()
    assert reports.errors.empty()


def test_a_failed_commit_in_a_call_ends_the_work(recorder: Recorder, reports: Reports) -> None:
    def fail() -> None:
        raise CommitFailedError(KEY, "on purpose")

    writers = threads(recorder, reports)
    with pytest.raises(CommitFailedError):
        writers.run(KEY, fail).result(WAIT_SECONDS)
    assert isinstance(reports.errors.get(timeout=WAIT_SECONDS), CommitFailedError)
    writers.close()


def test_any_other_error_is_reported_once_and_ends_the_work(recorder: Recorder, reports: Reports) -> None:
    """A commit error ends the process and is never retried: fsyncgate."""
    log = LogBuilder()
    writers = threads(recorder, reports, 1)
    recorder.error = CommitFailedError(KEY, "input/output error")
    writers.submit(KEY, update(log.data()), 0)
    assert reports.errors.get(timeout=WAIT_SECONDS) is recorder.error
    recorder.error = None
    writers.submit(KEY, update(log.data()), 1)
    writers.close()
    assert reports.batches.empty()
    assert reports.errors.empty()
    assert recorder.calls == []


@pytest.mark.parametrize(
    "error",
    [
        DamagedReplicaError(KEY, "on purpose"),
        InvariantError("on_purpose", {}),
        ReplicaClosedError(KEY, "on purpose"),
        StorageUnavailableError(KEY, "on purpose"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_one_replica_ends_no_work(recorder: Recorder, reports: Reports, error: Exception) -> None:
    """A broken invariant, or a file that could not be opened again, ended the process and with it all other replicas."""
    writers = threads(recorder, reports, 1)
    recorder.error = error
    writers.submit(KEY, update(LogBuilder().data()), 0)
    assert [(one.token, one.error) for one in reports.take(1)] == [(0, error)]
    recorder.error = None
    writers.submit(OTHER, update(LogBuilder().data()), 1)
    assert [(one.token, one.error) for one in reports.take(1)] == [(1, None)]
    writers.close()
    assert reports.errors.empty()


def test_errors_of_several_threads_are_reported_once(recorder: Recorder, reports: Reports) -> None:
    writers = threads(recorder, reports, 2)
    recorder.may_go.clear()
    recorder.error = CommitFailedError(KEY, "input/output error")
    for key in (KEY, OTHER):
        writers.submit(key, update(LogBuilder().data()), key)
    recorder.may_go.set()
    writers.close()
    assert reports.errors.qsize() == 1


def test_close_finishes_what_is_queued_and_takes_nothing_more(recorder: Recorder, reports: Reports) -> None:
    log = LogBuilder()
    writers = threads(recorder, reports)
    for number in range(50):
        writers.submit(KEY, update(log.data()), number)
    writers.close()
    assert [completion.token for completion in reports.take(50)] == list(range(50))
    with pytest.raises(RuntimeError, match="closed"):
        writers.submit(KEY, update(log.data()), 50)


# ---------------------------------------------------------------------------------------------------- no room


def test_a_full_replica_refuses_later_updates_until_the_first_is_retried(recorder: Recorder, reports: Reports) -> None:
    """A later update that was applied first would leave a gap, or would be a vote that overtakes the entries before it."""
    log = LogBuilder()
    writer = inline(recorder, reports)
    updates = [update(log.data()), Update(hard_state=hard(9, 2)), update(log.data())]
    recorder.full.add(KEY)
    for number in (0, 1):
        writer.submit(KEY, updates[number], number)
    writer.pump()
    assert [completion.token for completion in reports.take(2) if completion.error] == [0, 1]
    recorder.full.clear()
    writer.submit(KEY, updates[2], 2)
    writer.submit(KEY, updates[1], 1)
    writer.pump()
    assert [(completion.token, completion.error is None) for completion in reports.take(2)] == [(2, False), (1, False)]
    for number in (0, 1, 2):
        writer.submit(KEY, updates[number], number)
    writer.pump()
    assert [(completion.token, completion.error is None) for completion in reports.take(3)] == [
        (0, True),
        (1, True),
        (2, True),
    ]
    recorder.close(KEY)
    restored = recorder.open(KEY)
    assert (restored.last_index, restored.hard_state) == (7, hard(9, 2))


def test_a_retry_that_is_refused_again_keeps_its_place(recorder: Recorder, reports: Reports) -> None:
    log = LogBuilder()
    writer = inline(recorder, reports)
    first, second = update(log.data()), update(log.data())
    recorder.full.add(KEY)
    writer.submit(KEY, first, "first")
    writer.submit(KEY, second, "second")
    writer.submit(KEY, first, "first")
    writer.pump()
    writer.submit(KEY, first, "first")
    writer.pump()
    recorder.full.clear()
    writer.submit(KEY, second, "second")
    writer.submit(KEY, first, "first")
    writer.submit(KEY, second, "second")
    writer.pump()
    outcomes = [(completion.token, completion.error is None) for completion in reports.take(7)]
    assert outcomes[-3:] == [("second", False), ("first", True), ("second", True)]


def test_a_full_replica_does_not_block_others(recorder: Recorder, reports: Reports) -> None:
    writer = inline(recorder, reports)
    recorder.full.add(KEY)
    writer.submit(KEY, update(LogBuilder().data()), "full")
    writer.submit(OTHER, update(LogBuilder().data()), "fine")
    writer.pump()
    assert {completion.token: completion.error is None for completion in reports.take(2)} == {
        "full": False,
        "fine": True,
    }


def test_a_full_map_refuses_the_update_and_leaves_the_replica_unchanged(tmp_path: Path, reports: Reports) -> None:
    log = LogBuilder()
    with lmdb_store(tmp_path, map_bytes=1 << 20) as store:
        store.create(KEY, initial_state(), [])
        store.open(KEY)
        writer = InlineWriter(store, on_done=reports.batches.put, on_error=reports.errors.put)
        small = log.data(1, b"small")
        writer.submit(KEY, update(small), "small")
        writer.pump()
        big = log.data(1, b"x" * (2 << 20))
        writer.submit(KEY, update(big), "big")
        writer.pump()
        assert [(completion.token, completion.error is None) for completion in reports.take(2)] == [
            ("small", True),
            ("big", False),
        ]
        assert reports.errors.empty()
        store.close(KEY)
        assert store.open(KEY).last_index == small.index
        assert store.map_fraction(KEY) < 0.1
        store.grow_map(KEY, 1 << 24)
        writer.submit(KEY, update(big), "big")
        writer.pump()
        assert reports.take(1)[0].error is None
        assert store.entries(KEY, big.index, big.index, 1) == (big,)


# ---------------------------------------------------------------------------------------------------- inline


def test_an_inline_writer_does_nothing_before_it_is_pumped(recorder: Recorder, reports: Reports) -> None:
    log = LogBuilder()
    writer = inline(recorder, reports)
    writer.submit(KEY, update(log.data()), 0)
    future = writer.run(KEY, lambda: 1)
    writer.submit(KEY, update(log.data()), 1)
    assert (recorder.calls, future.done(), writer.waiting_count) == ([], False, 3)
    writer.pump(1)
    assert [completion.token for completion in reports.take(1)] == [0]
    assert not future.done()
    writer.pump()
    assert future.result(0) == 1
    assert [completion.token for completion in reports.take(1)] == [1]


def test_a_crash_drops_queued_inline_updates(recorder: Recorder, reports: Reports) -> None:
    writer = inline(recorder, reports)
    writer.submit(KEY, update(LogBuilder().data()), 0)
    writer.drop()
    recorder.crash()
    writer.pump()
    assert reports.batches.empty()
    assert recorder.open(KEY).last_index == 5


def test_an_inline_error_is_reported_once(recorder: Recorder, reports: Reports) -> None:
    writer = inline(recorder, reports)
    recorder.error = CommitFailedError(KEY, "on purpose")
    for number in range(2):
        writer.submit(KEY, update(LogBuilder().data()), number)
        writer.pump()
    assert reports.errors.get(timeout=0) is recorder.error
    assert reports.errors.empty()


class WatchedStore(LmdbLogStore):
    """A store that records the thread that writes each file."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, map_bytes=1 << 20)
        self.writing: dict[ReplicaKey, set[str]] = {}

    def append_batch(self, updates) -> None:
        for key, _ in updates:
            self.writing.setdefault(key, set()).add(threading.current_thread().name)
        super().append_batch(updates)


def test_each_file_is_written_by_one_thread_for_all_submitters(tmp_path: Path) -> None:
    """aioraft-ng shared one SQLite connection among the threads of a pool."""
    store = WatchedStore(tmp_path)
    keys = [ReplicaKey(group_id, 1) for group_id in range(1, 7)]
    done: list[object] = []
    everything = threading.Event()
    count = len(keys) * 20

    def on_done(completions) -> None:
        done.extend(completions)
        if len(done) == count:
            everything.set()

    writers = WriterThreads(store, thread_count=3, on_done=on_done, on_error=lambda error: pytest.fail(str(error)))
    for key in keys:
        store.create(key, founder_state(Membership((1,))), ())
        store.open(key)

    def submit_all(key: ReplicaKey) -> None:
        for number in range(6, 26):
            entry = Entry(number, 6, EntryKind.DATA, number - 6, 1, 0, b"x")
            writers.submit(key, Update(hard_state=HardState(6, 0, 5), entries=(entry,)), object())

    with ThreadPoolExecutor(4) as askers:
        list(askers.map(submit_all, keys))
    assert everything.wait(30)
    writers.close()
    assert set(store.writing) == set(keys)
    assert all(len(threads) == 1 for threads in store.writing.values())
    assert len(set.union(*store.writing.values())) == 3, "and the files are spread over all of them"
    for key in keys:
        store.close(key)
