"""Entries are applied once and in order, also when the machine must wait for rows on disk."""

import asyncio
import random
from types import SimpleNamespace

import pytest
from raftmq.broker.replica.entry_applier import EntryApplier
from raftmq.errors import InvariantError
from raftmq.fsm.row_reads import RowRange, RowsNeeded
from raftmq.fsm.state_machine import DiskBackedMachine
from raftmq.raft.entry import Entry, EntryKind
from raftmq.types import LogIndex, Offset, Term

NEEDED = RowsNeeded((RowRange(b"a", b"b", 1),))


def entry(index):
    return Entry(LogIndex(index), Term(1), EntryKind.COMMAND, Offset(0), 0, 0, b"x")


class Machine(DiskBackedMachine):
    """Waits `waits[index]` times for rows before it applies an entry."""

    resident_ranges = ()
    dirty_count = 0

    def __init__(self, waits):
        self.waits = dict(waits)
        self.applied_index = LogIndex(0)
        self.current = None
        self.found = []

    def apply(self, entry):
        assert self.current is None, "an entry is half applied"
        assert entry.index == self.applied_index + 1
        self.current = entry
        return self.step()

    def resume(self, found):
        self.found.append(found)
        return self.step()

    def step(self):
        left = self.waits.get(self.current.index, 0)
        if left:
            self.waits[self.current.index] = left - 1
            return NEEDED
        self.applied_index, self.current = self.current.index, None
        return f"result {self.applied_index}"

    def level_needed(self, payload): ...
    def take_dirty_rows(self): ...
    def rows(self): ...
    def restore(self, rows, state_index): ...
    def adopt(self, other): ...
    def prefetch(self): ...
    def on_prefetched(self, needed, found): ...
    def on_rows_written(self): ...


class Replica:
    """An applier with everything around it recorded."""

    def __init__(self, waits=()):
        self.machine = Machine(waits)
        self.core = SimpleNamespace(applied_index=0, state_floor=0, apply_done=self.apply_done)
        self.answered, self.heard, self.loads, self.progress = [], [], [], 0
        proposals = SimpleNamespace(
            queue=[1],
            on_applied=lambda entry, result: self.answered.append((entry.index, result)),
            on_committed=lambda index: None,
        )
        self.applier = EntryApplier(
            self.machine, self.core, proposals, lambda needed, on_found: self.loads.append(on_found), self.on_progress
        )
        self.applier.listeners.append(lambda entry, result: self.heard.append((entry.index, result)))

    def apply_done(self, index):
        assert index > self.core.applied_index
        self.core.applied_index = index

    def on_progress(self):
        assert not self.machine.current
        self.progress += 1

    def load(self):
        self.loads.pop(0)("rows")


def results(*indexes):
    return [(index, f"result {index}") for index in indexes]


def test_entries_are_applied_together_when_nothing_is_missing():
    replica = Replica()
    replica.applier.apply([entry(1), entry(2)])
    assert replica.heard == replica.answered == results(1, 2)
    assert replica.core.applied_index == 2
    assert replica.progress == 1
    assert not replica.applier.is_suspended


def test_a_missing_row_delays_its_entry_and_those_after_it():
    replica = Replica({2: 2})
    replica.applier.apply([entry(1), entry(2), entry(3)])
    assert replica.heard == results(1)
    assert replica.core.applied_index == 1
    assert replica.applier.is_suspended
    replica.applier.apply([entry(4)])
    replica.load()
    assert replica.heard == results(1), "it needs other rows, too"
    replica.load()
    assert replica.heard == replica.answered == results(1, 2, 3, 4)
    assert replica.core.applied_index == 4
    assert not replica.applier.is_suspended


def test_rows_that_were_read_before_a_snapshot_replaced_the_state_are_ignored():
    replica = Replica({1: 1})
    replica.applier.apply([entry(1), entry(2)])
    replica.applier.drop()
    assert not replica.applier.is_suspended
    replica.machine.current, replica.machine.applied_index, replica.core.applied_index = None, LogIndex(7), LogIndex(7)
    replica.load()
    assert replica.machine.found == []
    replica.applier.apply([entry(8)])
    assert replica.heard == results(8)


def test_a_machine_at_another_index_than_the_core_stops_the_replica():
    replica = Replica()
    replica.core.state_floor = 5
    with pytest.raises(InvariantError):
        replica.applier.apply([entry(1)])


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_arrivals_and_reads_applies_each_entry_once(seed):
    rng = random.Random(seed)
    replica = Replica({index: rng.randrange(3) for index in range(1, 40) if rng.random() < 0.4})
    index = 1
    while index < 40 or replica.applier.is_suspended:
        if replica.loads and rng.random() < 0.5:
            replica.load()
        elif index < 40:
            count = rng.randrange(1, 6)
            replica.applier.apply([entry(number) for number in range(index, min(index + count, 40))])
            index = min(index + count, 40)
    assert replica.heard == replica.answered == results(*range(1, 40))
    assert replica.core.applied_index == 39


async def hold(replica, taken, name):
    async with replica.applier.held():
        assert not replica.applier.is_suspended
        taken.append((name, replica.machine.applied_index))
        await asyncio.sleep(0)
        assert taken[-1] == (name, replica.machine.applied_index)


async def test_a_machine_that_reads_for_every_entry_is_held_between_two_of_them():
    replica, taken = Replica({1: 1, 2: 1, 3: 1}), []
    replica.applier.apply([entry(1), entry(2)])
    async with asyncio.TaskGroup() as tasks:
        for name in "ab":
            tasks.create_task(hold(replica, taken, name))
        await asyncio.sleep(0)
        assert taken == []
        replica.load()
        assert not replica.loads, "the second entry waits for the holder"
        replica.applier.apply([entry(3)])
        await asyncio.sleep(0.01)
        assert taken == [("a", 1)]
        for _ in range(2):
            replica.load()
            await asyncio.sleep(0.01)
        assert taken == [("a", 1), ("b", 3)], "what came while the first one looked is applied before the next looks"
    assert replica.heard == results(1, 2, 3)


async def test_many_holders_do_not_make_each_entry_wait_for_a_look():
    """While clients browsed a queue whose messages were all on disk, only one entry was applied for each page."""
    replica, taken = Replica(dict.fromkeys(range(1, 100), 1)), []
    replica.applier.apply([entry(1)])
    async with asyncio.TaskGroup() as tasks:
        for name in range(5):
            tasks.create_task(hold(replica, taken, name))
        await asyncio.sleep(0)
        for first in range(2, 52, 10):
            replica.load()
            replica.applier.apply([entry(index) for index in range(first, first + 10)])
            while len(taken) < first // 10 + 1:
                await asyncio.sleep(0)
            for _ in range(9):
                await asyncio.sleep(0)
                replica.load()
        replica.load()
    assert [index for _, index in taken] == [1, 11, 21, 31, 41]


async def test_those_who_give_up_waiting_for_the_machine_hold_up_nobody():
    replica, taken = Replica({1: 1}), []
    replica.applier.apply([entry(1), entry(2)])
    waiting = [asyncio.ensure_future(hold(replica, taken, name)) for name in "abc"]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    replica.load()
    waiting[1].cancel()  # which had just been let in
    await asyncio.wait(waiting)
    assert taken == [("c", 2)]
    assert replica.heard == results(1, 2)
    assert not replica.applier._holders


async def test_the_machine_is_held_at_once_when_it_is_at_rest():
    replica = Replica()
    async with replica.applier.held():
        replica.applier.apply([entry(1)])
        assert replica.heard == []
    assert replica.heard == results(1)


@pytest.mark.parametrize("seed", range(20))
async def test_holders_and_entries_take_turns_in_any_order(seed):
    rng = random.Random(seed)
    replica = Replica({index: rng.randrange(3) for index in range(1, 40) if rng.random() < 0.6})
    taken, waiting, index = [], [], 1
    while index < 40 or replica.applier.is_suspended or replica.applier._delayed:
        choice = rng.random()
        if replica.loads and choice < 0.4:
            replica.load()
        elif choice < 0.6:
            waiting.append(asyncio.ensure_future(hold(replica, taken, len(waiting))))
        elif choice < 0.7 and waiting:
            rng.choice(waiting).cancel()
        elif index < 40:
            replica.applier.apply([entry(index)])
            index += 1
        if choice > 0.5:
            await asyncio.sleep(0)
    await asyncio.gather(*waiting, return_exceptions=True)
    assert replica.heard == replica.answered == results(*range(1, 40))
    done = {number for number, task in enumerate(waiting) if not task.cancelled()}
    assert done <= {number for number, _ in taken}


@pytest.mark.parametrize("is_suspended", [True, False])
async def test_those_who_wait_for_the_machine_are_let_in_after_its_state_was_dropped(is_suspended):
    replica, taken = Replica({1: 1} if is_suspended else {2: 1}), []
    replica.applier.apply([entry(1), entry(2)])
    waiting = asyncio.ensure_future(hold(replica, taken, "a"))
    await asyncio.sleep(0)
    replica.applier.give_up()
    replica.applier.drop()  # the replica is closed, or a snapshot is installed
    replica.machine.current = None
    async with asyncio.timeout(1):
        await waiting
