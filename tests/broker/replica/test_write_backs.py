"""A write-back carries a whole state under its exact index, one at a time, and its rows are kept until they are durable."""

import asyncio
from types import SimpleNamespace

import pytest
from raftmq.broker.base.limits import Limits, Timing
from raftmq.broker.replica import write_backs
from raftmq.broker.replica.disk import IDLE, Installing
from raftmq.broker.replica.write_backs import WriteBacks
from raftmq.fsm.state_machine import DiskBackedMachine
from raftmq.raft.entry import Entry, EntryKind
from raftmq.storage.errors import CommitFailedError, DamagedReplicaError, ReplicaClosedError, StorageFullError
from raftmq.storage.log_store import ReplicaKey
from raftmq.types import GroupId, LogIndex, Offset, ReplicaId, Term

from tests.broker.replica.test_row_loads import Host, Threads

KEY = ReplicaKey(GroupId(1), ReplicaId(1))
LIMITS = Limits(write_back_rows_max=10, write_back_backlog_rows_max=20, write_back_bytes_max=1000)


class Machine(DiskBackedMachine):
    """A machine with a number of changed rows, which it keeps from `take_dirty_rows` to `on_rows_written`."""

    resident_ranges = ()
    dirty_count = 0

    def __init__(self):
        self.applied_index = LogIndex(1)
        self.kept = None

    def change(self, rows, index):
        self.dirty_count += rows
        self.applied_index = LogIndex(index)

    def take_dirty_rows(self):
        assert self.kept is None, "the rows of the last write-back are not durable"
        self.kept, self.dirty_count = tuple((b"%d" % row, b"") for row in range(self.dirty_count)), 0
        return self.kept

    def on_rows_written(self):
        assert self.kept is not None
        self.kept = None

    def apply(self, entry): ...
    def resume(self, found): ...
    def level_needed(self, payload): ...
    def rows(self): ...
    def restore(self, rows, state_index): ...
    def adopt(self, other): ...
    def prefetch(self): ...
    def on_prefetched(self, needed, found): ...


class Loads:
    """Stands for reads of rows that end on demand."""

    def __init__(self):
        self.are_under_way = False
        self.waiting = []

    def after_current(self, key, action):
        if self.are_under_way:
            self.waiting.append(action)
        else:
            action()


class World:
    def __init__(self, loop):
        self.now = 0.0
        self.loop = SimpleNamespace(
            time=lambda: self.now,
            call_soon_threadsafe=loop.call_soon,
            call_later=lambda seconds, *call: loop.call_soon(*call),
        )
        self.host, self.threads, self.loads, self.written = FatalHost(), Threads(), Loads(), []
        self.machine = Machine()
        store = SimpleNamespace(write_state=lambda key, write: self.written.append(write))
        self.write_backs = WriteBacks(
            self.loop, self.host, store, self.threads, self.loads, LIMITS, Timing(write_back_seconds=5.0)
        )
        self.replica = SimpleNamespace(
            key=KEY, group_id=KEY.group_id, is_closed=False, disk=IDLE, state_machine=self.machine, progress_listeners=[],
            applier=SimpleNamespace(is_suspended=False, listeners=[]), durable_state_index=LogIndex(1),
            durable_membership="old", core=SimpleNamespace(membership="old", log=SimpleNamespace(snapshot=None)),
            on_state_written=self.on_state_written,
        )  # fmt: skip
        self.write_backs.add(self.replica)

    def on_state_written(self, write):
        self.replica.durable_state_index = write.state_index
        if write.membership is not None:
            self.replica.durable_membership = write.membership

    def progress(self):
        for listener in self.replica.progress_listeners:
            listener()

    async def end(self, error=None):
        self.threads.end(error)
        for _ in range(4):
            await asyncio.sleep(0)


class FatalHost(Host):
    def __init__(self):
        super().__init__()
        self.fatal = []

    def on_fatal(self, error):
        self.fatal.append(error)


@pytest.fixture
async def world():
    return World(asyncio.get_running_loop())


async def test_a_number_of_rows_is_written_under_the_index_that_they_describe(world):
    world.machine.change(9, 5)
    world.progress()
    assert not world.threads.work
    world.machine.change(1, 6)
    world.progress()
    world.machine.change(3, 9)
    await world.end()
    (write,) = world.written
    assert (len(write.rows), write.state_index, write.membership) == (10, 6, None)
    assert world.replica.durable_state_index == 6
    assert world.machine.kept is None


async def test_one_is_in_flight_and_the_next_begins_after_it(world):
    world.machine.change(10, 2)
    world.progress()
    world.machine.change(12, 3)
    world.progress()
    assert len(world.threads.work) == 1
    await world.end()
    await world.end()
    assert [write.state_index for write in world.written] == [2, 3]
    assert not world.threads.work


async def test_bytes_to_replay_make_it_due(world):
    entry = Entry(LogIndex(2), Term(1), EntryKind.DATA, Offset(0), 1, 0, b"x" * 400)
    for index in (2, 3, 4):
        for listener in world.replica.applier.listeners:
            listener(entry, None)
        world.machine.change(1, index)
        world.progress()
        assert bool(world.threads.work) == (index == 4)


async def test_time_makes_it_due_and_an_unchanged_state_is_not_written(world):
    world.now = 6.0
    world.write_backs.tick()
    assert not world.threads.work, "nothing was applied"
    world.machine.change(1, 2)
    world.now = 10.0
    world.write_backs.tick()
    assert len(world.threads.work) == 1
    await world.end()
    world.now = 12.0
    world.machine.change(1, 3)
    world.write_backs.tick()
    assert not world.threads.work
    world.now = 15.5
    world.write_backs.tick()
    assert len(world.threads.work) == 1


async def test_a_closed_replica_s_write_back_does_not_reach_the_file_that_was_opened_again(world):
    """It waited for another replica's. The later life began from the state before it, read rows of the state after it, and was given up."""
    world.machine.change(10, 5)
    world.progress()
    ((_, write, arguments),) = world.threads.work
    world.write_backs.remove(world.replica)
    world.replica.is_closed = True
    with pytest.raises(ReplicaClosedError):
        write(*arguments)
    assert world.written == []
    await world.end(ReplicaClosedError(KEY, "closed"))
    assert not world.host.broken
    assert not world.host.fatal


async def test_a_changed_membership_is_written_with_the_next_tick(world):
    world.replica.core.membership = "new"
    world.machine.change(0, 2)
    world.write_backs.tick()
    await world.end()
    assert world.written[0].membership == "new"
    assert world.replica.durable_membership == "new"
    world.write_backs.tick()
    assert not world.threads.work


@pytest.mark.parametrize("obstacle", ["suspended", "installing", "snapshot"])
async def test_none_begins_while_the_state_is_that_of_no_index(world, obstacle):
    world.machine.change(10, 2)
    if obstacle == "suspended":
        world.replica.applier.is_suspended = True
    elif obstacle == "installing":
        world.replica.disk = Installing(0.0)
    else:
        world.replica.core.log.snapshot = "a snapshot"
    world.write_backs.start(world.replica)
    assert not world.threads.work
    assert world.machine.kept is None
    world.replica.applier.is_suspended, world.replica.disk, world.replica.core.log.snapshot = False, IDLE, None
    world.progress()
    assert len(world.threads.work) == 1, "it was asked for before"


async def test_rows_stay_until_they_are_durable_also_while_the_disk_is_full(world, monkeypatch):
    monkeypatch.setattr(write_backs, "SPACE_RETRY_SECONDS", 0.0)
    world.machine.change(10, 2)
    world.progress()
    await world.end(StorageFullError(KEY, "no room"))
    assert world.machine.kept is not None
    assert world.replica.durable_state_index == 1
    assert len(world.threads.work) == 1, "it was submitted again"
    await world.end()
    assert world.machine.kept is None
    assert world.replica.durable_state_index == 2


async def test_rows_stay_until_the_reads_that_began_before_have_arrived(world):
    world.machine.change(10, 2)
    world.progress()
    world.loads.are_under_way = True
    await world.end()
    assert world.machine.kept is not None
    world.loads.waiting.pop()()
    assert world.machine.kept is None
    assert world.replica.durable_state_index == 2


async def test_a_failed_commit_ends_the_process_and_damage_stops_the_replica(world):
    world.machine.change(10, 2)
    world.progress()
    error = CommitFailedError(KEY, "fsync failed")
    await world.end(error)
    assert world.host.fatal == [error]
    damage = DamagedReplicaError(KEY, "a flipped byte")
    world.write_backs._submit(world.write_backs._of[KEY])
    await world.end(damage)
    assert world.host.broken == [damage]


async def test_a_snapshot_waits_for_the_write_back_and_takes_the_place_of_its_state(world):
    done = []
    world.write_backs.when_idle(world.replica, lambda: done.append("idle"))
    world.machine.change(10, 2)
    world.progress()
    world.replica.disk = Installing(0.0)
    world.write_backs.when_idle(world.replica, lambda: done.append("installed after it"))
    assert done == ["idle"]
    await world.end()
    assert done == ["idle", "installed after it"]
    assert world.replica.durable_state_index == 1, "the state of the snapshot counts"


async def test_appends_are_refused_while_too_many_rows_wait(world):
    world.machine.change(20, 2)
    assert not world.write_backs.is_behind(world.replica)
    world.machine.change(1, 3)
    assert world.write_backs.is_behind(world.replica)
    world.write_backs.remove(world.replica)
    assert not world.write_backs.is_behind(world.replica)


async def test_a_log_machine_has_none(world):
    log_replica = SimpleNamespace(key=ReplicaKey(GroupId(2), ReplicaId(2)), state_machine=object())
    world.write_backs.add(log_replica)
    world.write_backs.start(log_replica)
    assert not world.threads.work
