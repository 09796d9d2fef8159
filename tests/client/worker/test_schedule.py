"""The choice of the next record, compared with a twin that searches one list of everything each time."""

from collections.abc import Hashable
from dataclasses import dataclass

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from raftmq.client.worker.schedule import LaneSchedule, Ordering, lane_of
from raftmq.errors import InvariantError
from raftmq.types import Record, TopicPartition

PARTITIONS = [TopicPartition("t", number) for number in range(3)]


@dataclass(eq=False)
class Task:
    partition: TopicPartition
    lane: Hashable
    offset: int
    key: bytes | None
    state: str = "queued"
    """One of queued, running, waiting, finished, dropped."""
    due: float = 0.0
    starts: int = 0
    sent_back: int = 0


def task(partition: int = 0, lane: Hashable = "a", offset: int = 0) -> Task:
    return Task(PARTITIONS[partition], lane, offset, None)


class SlowTwin:
    """One list, oldest first."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []

    def blocks(self, task: Task) -> list[Task]:
        """Return the unfinished tasks before a task in its lane."""
        before = self.tasks[: self.tasks.index(task)]
        return [
            other
            for other in before
            if (other.partition, other.lane) == (task.partition, task.lane)
            and other.state in ("queued", "running", "waiting")
        ]

    def startable(self, now: float) -> list[Task]:
        return [
            task
            for task in self.tasks
            if (task.state == "queued" or (task.state == "waiting" and task.due <= now)) and not self.blocks(task)
        ]

    def count(self, state: str) -> int:
        return sum(task.state == state for task in self.tasks)

    def next_due(self) -> float | None:
        return min((task.due for task in self.tasks if task.state == "waiting"), default=None)


class ScheduleMachine(RuleBasedStateMachine):
    """Random adds, starts, finishes, retries and revocations. Partitions are assigned again after they were revoked."""

    @initialize(ordering=st.sampled_from(["key", "partition", "none"]))
    def begin(self, ordering: Ordering) -> None:
        self.ordering: Ordering = ordering
        self.schedule: LaneSchedule[Task] = LaneSchedule()
        self.twin = SlowTwin()
        self.now = 0.0
        self.offsets = dict.fromkeys(PARTITIONS, 0)

    def running(self) -> list[Task]:
        return [task for task in self.twin.tasks if task.state == "running"]

    @rule(partition=st.sampled_from(PARTITIONS), key=st.sampled_from([None, b"a", b"b", b"c"]))
    def add(self, partition: TopicPartition, key: bytes | None) -> None:
        offset = self.offsets[partition]
        self.offsets[partition] += 1
        record = Record(partition.topic, partition.partition, offset, 0, key, b"")
        added = Task(partition, lane_of(self.ordering, record), offset, key)
        self.twin.tasks.append(added)
        self.schedule.add(added)

    @rule()
    def start(self) -> None:
        allowed = self.twin.startable(self.now)
        started = self.schedule.start_next(self.now)
        # Waiting tasks that became due are counted as queued from now on.
        for task in self.twin.tasks:
            if task.state == "waiting" and task.due <= self.now:
                task.state = "queued"
        if started is None:
            assert allowed == []
            return
        assert started in allowed
        for other in self.running():
            assert not self.must_not_run_beside(started, other)
        started.state = "running"
        started.starts += 1

    def must_not_run_beside(self, one: Task, other: Task) -> bool:
        """Return whether the ordering forbids it. It is stated for keys and partitions, not lanes, as it is promised to users."""
        if one.partition != other.partition:
            return False
        return self.ordering == "partition" or (self.ordering == "key" and one.key is not None and one.key == other.key)

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        done = data.draw(st.sampled_from(self.running()))
        self.schedule.finish(done)
        done.state = "finished"

    @precondition(lambda self: self.running())
    @rule(data=st.data(), seconds=st.sampled_from([0.0, 1.0, 2.0, 5.0]))
    def retry(self, data: st.DataObject, seconds: float) -> None:
        failed = data.draw(st.sampled_from(self.running()))
        failed.due = self.now + seconds
        self.schedule.retry(failed, failed.due)
        failed.state = "waiting"
        failed.sent_back += 1

    @rule(seconds=st.sampled_from([0.5, 1.0, 3.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def abandon(self, data: st.DataObject) -> None:
        """End a record that is not done and not tried again: no later record of its lane may start."""
        left = data.draw(st.sampled_from(self.running()))
        behind = [t for t in self.twin.tasks if (t.partition, t.lane) == (left.partition, left.lane)]
        behind = [t for t in behind if t.state in ("queued", "waiting")]
        assert {id(task) for task in self.schedule.abandon(left)} == {id(task) for task in behind}
        for gone in (left, *behind):
            gone.state = "dropped"

    @rule(partition=st.sampled_from(PARTITIONS), last=st.integers(-1, 10))
    def leave(self, partition: TopicPartition, last: int) -> None:
        """Leave a partition: records above `last` are dropped, and waiting ones are due."""
        dropped = self.schedule.leave(partition, last)
        waiting = [t for t in self.twin.tasks if t.partition == partition and t.state in ("queued", "waiting")]
        assert {id(task) for task in dropped} == {id(task) for task in waiting if task.offset > last}
        for one in waiting:
            one.state = "dropped" if one.offset > last else "queued"

    @rule(partition=st.sampled_from(PARTITIONS))
    def revoke(self, partition: TopicPartition) -> None:
        dropped = self.schedule.drop(partition)
        expected = [t for t in self.twin.tasks if t.partition == partition and t.state in ("queued", "waiting")]
        assert {id(task) for task in dropped} == {id(task) for task in expected}
        assert len(dropped) == len(expected)
        for gone in expected:
            gone.state = "dropped"
        self.offsets[partition] = max(
            0, self.offsets[partition] - 3
        )  # the next assignment begins at the committed offset

    @invariant()
    def counts_are_equal(self) -> None:
        if not hasattr(self, "twin"):
            return
        assert self.schedule.queued_count == self.twin.count("queued")
        assert self.schedule.running_count == self.twin.count("running")
        assert self.schedule.waiting_count == self.twin.count("waiting")
        assert self.schedule.next_due() == self.twin.next_due()

    @invariant()
    def nothing_starts_more_often_than_it_was_handed_in(self) -> None:
        if hasattr(self, "twin"):
            assert all(task.starts <= 1 + task.sent_back for task in self.twin.tasks)

    def teardown(self) -> None:
        """Check that the rest can be processed: nothing is stuck, and nothing remains."""
        if not hasattr(self, "twin"):
            return
        for _ in range(2 * len(self.twin.tasks) + 1):
            for running in self.running():
                self.schedule.finish(running)
                running.state = "finished"
            self.now += 10.0
            while (started := self.schedule.start_next(self.now)) is not None:
                started.state = "running"
        assert {task.state for task in self.twin.tasks} <= {"finished", "dropped"}
        assert list(self.schedule.partitions()) == []


ScheduleMachine.TestCase.settings = hypothesis_settings(max_examples=90, stateful_step_count=60, deadline=None)
TestSchedule = ScheduleMachine.TestCase


def test_lanes_take_turns() -> None:
    """A key with a thousand records does not keep others waiting."""
    schedule: LaneSchedule[Task] = LaneSchedule()
    for offset in range(1000):
        schedule.add(task(lane="busy", offset=offset))
    quiet = task(lane="quiet", offset=1000)
    schedule.add(quiet)
    first = schedule.start_next(0.0)
    assert first is not None
    assert first.lane == "busy"
    schedule.finish(first)
    assert schedule.start_next(0.0) is quiet


def test_jobs_of_released_partitions_come_first() -> None:
    """Their next owner waits for them."""
    schedule: LaneSchedule[Task] = LaneSchedule()
    others = [task(lane=f"other-{offset}", offset=offset) for offset in range(5)]
    left = [task(partition=1, lane="a", offset=0), task(partition=1, lane="a", offset=1)]
    above = task(partition=1, lane="b", offset=2)
    for one in (*others, *left, above):
        schedule.add(one)
    assert schedule.leave(PARTITIONS[1], 1) == [above]
    for one in left:
        assert schedule.start_next(0.0) is one
        schedule.finish(one)
    assert schedule.start_next(0.0) is others[0]


def test_a_retry_blocks_only_its_lane() -> None:
    schedule: LaneSchedule[Task] = LaneSchedule()
    failing, behind, other, elsewhere = task(), task(offset=1), task(lane="b", offset=2), task(partition=1)
    for one in (failing, behind, other, elsewhere):
        schedule.add(one)
    assert schedule.start_next(0.0) is failing
    schedule.retry(failing, due=10.0)
    assert [schedule.start_next(9.9) for _ in range(3)] == [other, elsewhere, None]
    assert schedule.next_due() == 10.0
    assert schedule.start_next(10.0) is failing
    schedule.finish(failing)
    assert schedule.start_next(10.0) is behind


def test_a_running_job_blocks_its_lane_after_its_partition_is_assigned_again() -> None:
    """Otherwise one record, or two records of one key, would be processed simultaneously in one process."""
    schedule: LaneSchedule[Task] = LaneSchedule()
    old = task()
    schedule.add(old)
    assert schedule.start_next(0.0) is old
    assert schedule.drop(PARTITIONS[0]) == []
    again, other = task(), task(lane="b")
    schedule.add(again)
    schedule.add(other)
    assert schedule.start_next(0.0) is other
    assert schedule.start_next(0.0) is None
    schedule.finish(old)
    assert schedule.start_next(0.0) is again


@pytest.mark.parametrize(
    ("ordering", "same"),
    [("key", [(0, 2)]), ("partition", [(0, 1), (0, 2), (0, 3), (0, 4)]), ("none", [])],
)
def test_each_ordering_has_its_lanes(ordering: Ordering, same: list[tuple[int, int]]) -> None:
    """Records without a key have no order to keep: two of them do not share a key."""
    keys = [b"a", b"b", b"a", None, None]
    lanes = [lane_of(ordering, Record("t", 0, offset, 0, key, None)) for offset, key in enumerate(keys)]
    for one in range(5):
        for other in range(one + 1, 5):
            is_same = (one, other) in same or ordering == "partition"
            assert (lanes[one] == lanes[other]) == is_same


def test_only_a_running_job_ends() -> None:
    schedule: LaneSchedule[Task] = LaneSchedule()
    queued = task()
    schedule.add(queued)
    with pytest.raises(InvariantError, match="only_a_running_job_ends"):
        schedule.finish(queued)
