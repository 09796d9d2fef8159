"""The rules for repeated runs of a batch: each rule by itself, and all of them under arbitrary runs of tasks and drivers."""

from __future__ import annotations

import random
from collections.abc import Generator
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raftmq.spark.batch_ledger import (
    TASKS_MAX,
    Ask,
    BatchLedger,
    Claim,
    Pause,
    WriteIdentity,
    enter_batch,
    open_batch,
)
from raftmq.spark.sink_errors import ReplayMismatchError, SupersededError

T = TypeVar("T")


class Stamps:
    """The part of the cluster: a stamp per name, changed by compare and swap."""

    def __init__(self) -> None:
        self.by_name: dict[str, bytes] = {}

    def answer(self, ask: Ask) -> bytes:
        if isinstance(ask, Pause):
            return b""
        known = self.by_name.get(ask.name)
        if known is None or ask.replaces == known:
            self.by_name[ask.name] = ask.stamp
        return self.by_name[ask.name]

    def run(self, steps: Generator[Ask, bytes, T]) -> T:
        try:
            ask = next(steps)
            while True:
                if isinstance(ask, Pause):
                    raise TimeoutError(ask.waiting_for)
                ask = steps.send(self.answer(ask))
        except StopIteration as end:
            value: T = end.value
            return value


def digest(rows: object) -> bytes:
    assert isinstance(rows, list | tuple | range)
    return len(rows).to_bytes(8, "little") + repr(list(rows)).encode()


def enter(stamps: Stamps, attempt: int, task: int, rows: object) -> BatchLedger:
    identity = WriteIdentity("q", 0, attempt)
    return stamps.run(enter_batch(identity, task, digest(rows), stamps.run(open_batch(identity, {}))))


def test_in_the_first_run_no_task_waits():
    stamps = Stamps()
    for task in (3, 0, 3):
        ledger = enter(stamps, 10, task, range(task))
    assert ledger == BatchLedger(10, 10, written=0b1001, proved=0b1001)
    assert ledger.missing(10) == []


def test_the_first_opener_of_a_batch_fixes_its_partition_counts():
    stamps = Stamps()
    for attempt, counts in ((1, {"t": 3}), (1, {"t": 4}), (2, {})):
        assert stamps.run(open_batch(WriteIdentity("q", 0, attempt), counts)).partition_counts == {"t": 3}


def test_a_new_task_waits_until_all_earlier_writers_have_entered_again():
    stamps = Stamps()
    enter(stamps, 1, 0, [1])
    enter(stamps, 1, 2, [2])
    with pytest.raises(TimeoutError):
        enter(stamps, 2, 5, [3])
    assert enter(stamps, 2, 2, [2]).missing(2) == [0]
    with pytest.raises(TimeoutError):
        enter(stamps, 2, 5, [3])
    assert enter(stamps, 2, 0, [1]).missing(2) == []
    assert enter(stamps, 2, 5, [3]).has(5)


def test_other_rows_are_refused_once_a_task_may_have_written():
    stamps = Stamps()
    enter(stamps, 1, 0, [1])
    for attempt in (1, 2):
        with pytest.raises(ReplayMismatchError):
            enter(stamps, attempt, 0, [2])
    enter(stamps, 3, 0, [1])


def test_a_claim_of_a_task_that_never_entered_does_not_bind_later_attempts():
    """Its process died between the two steps. Copies within one attempt are bound, because the other copy may be about to enter."""
    stamps = Stamps()
    identity = WriteIdentity("q", 0, 1)
    steps = enter_batch(identity, 0, digest([1]), stamps.run(open_batch(identity, {})))
    ask = next(steps)
    assert isinstance(ask, Claim)
    steps.send(stamps.answer(ask))  # the task claims, and dies
    with pytest.raises(ReplayMismatchError):
        enter(stamps, 1, 0, [2])
    enter(stamps, 2, 0, [2])


def test_a_run_that_was_replaced_stops():
    stamps = Stamps()
    identity = WriteIdentity("q", 0, 1)
    opened = stamps.run(open_batch(identity, {}))
    enter(stamps, 2, 0, [1])
    for steps in (open_batch(identity, {}), enter_batch(identity, 1, digest([2]), opened)):
        with pytest.raises(SupersededError):
            stamps.run(steps)


def test_the_largest_ledger_fits_a_stamp_and_decodes_to_an_equal_one():
    full = BatchLedger(2**60, 2**60, partition_counts={"x" * 249: 10_000}).with_proved(TASKS_MAX - 1)
    assert len(full.encode()) <= 4096
    assert BatchLedger.decode(full.encode()) == full
    with pytest.raises(ReplayMismatchError):
        next(enter_batch(WriteIdentity("q", 0, 1), TASKS_MAX, digest([]), full))


@pytest.mark.parametrize("stamp", [b"", b"{}", b"[]", b'{"v":2}', b"\xff", b'{"v":1,"attempt":1}'])
def test_a_foreign_stamp_is_refused(stamp):
    with pytest.raises(ReplayMismatchError):
        BatchLedger.decode(stamp)


class Task:
    """One run of one task in single steps: it enters the ledger, then writes its rows one by one."""

    def __init__(self, attempt: int, task: int, rows: list[int]) -> None:
        self.task = task
        self.rows = rows
        self.is_done = False
        self.is_refused = False
        self._left = list(enumerate(rows))
        self._steps = self._enter(WriteIdentity("q", 0, attempt))
        self._answer: bytes | None = None

    def _enter(self, identity: WriteIdentity) -> Generator[Ask, bytes, None]:
        ledger = yield from open_batch(identity, {})
        yield from enter_batch(identity, self.task, digest(self.rows), ledger)

    def step(self, stamps: Stamps, log: dict[tuple[int, int], int]) -> None:
        if self._answer is not None or self._left == list(enumerate(self.rows)):
            try:
                ask = next(self._steps) if self._answer is None else self._steps.send(self._answer)
            except StopIteration:
                self._answer = None
                self._steps = iter(())  # type: ignore[assignment] # entered
            except (ReplayMismatchError, SupersededError):
                self.is_refused = True
                return
            else:
                self._answer = stamps.answer(ask)
                return
        sequence, row = self._left.pop(0)
        log.setdefault((self.task, sequence), row)  # brokers accept each sequence number of a task once
        self.is_done = not self._left


@given(
    row_count=st.integers(1, 12),
    runs=st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=5),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=300)
def test_no_row_is_written_twice_in_any_series_of_runs_of_a_batch(row_count, runs, seed):
    """Each run divides the same rows among tasks and copies of tasks. Its driver dies after some steps, and its tasks may live on."""
    source = random.Random(seed)
    stamps = Stamps()
    log: dict[tuple[int, int], int] = {}
    alive: list[Task] = []
    for attempt, (count, is_striped) in enumerate(runs, 1):
        rows = [
            [row for row in range(row_count) if (row % count if is_striped else row * count // row_count) == task]
            for task in range(count)
        ]
        tasks = [Task(attempt, task, rows[task]) for task in range(count) if rows[task]]
        copies = [Task(attempt, task.task, task.rows) for task in tasks if source.random() < 0.3]
        alive = [task for task in alive if source.random() < 0.3] + tasks + copies
        for _ in range(source.choice([5, 20, 60, 400])):
            if not alive:
                break
            task = source.choice(alive)
            task.step(stamps, log)
            if task.is_done or task.is_refused:
                alive.remove(task)
        found = list(log.values())
        assert len(found) == len(set(found))
        if all(any(t.is_done for t in [*tasks, *copies] if t.task == task.task) for task in tasks):
            assert set(found) == set(range(row_count))
