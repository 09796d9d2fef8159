"""The ledger by itself, and a model of a batch that is run again with any tasks: nothing may ever be there twice."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftmq.spark.batch_ledger import TASKS_MAX, BatchLedger
from raftmq.spark.sink_errors import ReplayMismatchError, SupersededError


def test_the_first_attempt_waits_for_nobody():
    ledger = BatchLedger(10).joined(10, 3).joined(10, 0).joined(10, 3)
    assert ledger == BatchLedger(10, prior=0, current=0b1001)
    assert ledger.unproved(10) == []
    assert ledger.is_entered(3)
    assert not ledger.is_entered(1)


def test_a_later_attempt_waits_for_all_who_wrote_before():
    ledger = BatchLedger(10).joined(10, 0).joined(10, 2)
    assert ledger.unproved(11) == [0, 2]
    ledger = ledger.joined(11, 2)
    assert (ledger.is_prior(2), ledger.unproved(11)) == (True, [0])
    ledger = ledger.joined(11, 5)
    assert (ledger.is_prior(5), ledger.unproved(11)) == (False, [0])
    ledger = ledger.joined(12, 5)  # and once more
    assert ledger.unproved(12) == [0, 2]
    assert ledger.joined(12, 0).joined(12, 2).unproved(12) == []


def test_an_earlier_attempt_is_superseded():
    ledger = BatchLedger(10).joined(11, 0)
    with pytest.raises(SupersededError):
        ledger.joined(10, 1)
    with pytest.raises(SupersededError):
        ledger.check_attempt(10)


def test_a_ledger_fits_a_stamp_and_comes_back_equal():
    full = BatchLedger(2**60, partition_counts={"x" * 249: 10_000}).joined(2**60, TASKS_MAX - 1)
    full = full.joined(2**60 + 1, TASKS_MAX - 1)
    assert len(full.encode()) <= 4096
    assert BatchLedger.decode(full.encode()) == full
    with pytest.raises(ReplayMismatchError):
        full.joined(2**60 + 1, TASKS_MAX)


@pytest.mark.parametrize("stamp", [b"", b"{}", b"[]", b'{"v":2}', b"\xff", b'{"v":1,"attempt":1}'])
def test_a_stamp_of_somebody_else_is_refused(stamp):
    with pytest.raises(ReplayMismatchError):
        BatchLedger.decode(stamp)


@given(
    row_count=st.integers(1, 30),
    task_counts=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    seed=st.integers(0, 2**32),
    is_striped=st.booleans(),
)
def test_no_row_is_written_twice_whatever_the_runs_of_a_batch_are(row_count, task_counts, seed, is_striped):
    """Each run divides the same rows among its own number of tasks, which go on in any order until the driver dies."""
    source = random.Random(seed)
    claims: dict[int, frozenset[int]] = {}
    written: dict[int, set[int]] = {}  # by task: brokers take each (task, sequence) once
    ledger = BatchLedger(0)
    for attempt, tasks in enumerate(task_counts):
        rows = {
            task: frozenset(
                row for row in range(row_count) if (row % tasks if is_striped else row * tasks // row_count) == task
            )
            for task in range(tasks)
        }
        waiting = [task for task in range(tasks) if rows[task]]
        for _ in range(source.randint(0, 4 * tasks)):  # the driver dies after so many steps
            if not waiting:
                break
            task = source.choice(waiting)
            if claims.setdefault(task, rows[task]) != rows[task]:
                waiting.remove(task)  # refused
                continue
            ledger = ledger.joined(attempt, task)
            if ledger.is_prior(task) or not ledger.unproved(attempt):
                count = source.randint(0, len(rows[task]))  # it may be killed in the middle
                written[task] = written.get(task, set()) | set(sorted(rows[task])[:count])
                waiting.remove(task)
    everything = [row for rows_of_task in written.values() for row in rows_of_task]
    assert len(everything) == len(set(everything))
