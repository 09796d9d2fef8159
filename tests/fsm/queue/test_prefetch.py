"""Reading ahead, and reading together: how many reads it takes until messages are leased."""

from __future__ import annotations

import pytest
from raftmq.fsm.queue import commands as qc
from raftmq.fsm.queue.fairness import Strategy
from raftmq.fsm.queue.limits import WINDOWS_TOGETHER_MAX, MemoryBounds
from raftmq.fsm.queue.settings import QueueSettings
from raftmq.fsm.queue.store import MessageStore

from tests.support.fsm.queue.host import COLD, Queue

TENANTS = 3 * WINDOWS_TOGETHER_MAX
STRATEGIES = [Strategy.NONE.value, Strategy.ROUND_ROBIN.value]


def queue_of_many(strategy: str, each: int = 2) -> Queue:
    """Return a queue with messages of many tenants, all of them on disk alone."""
    queue = Queue()
    queue.do(qc.Configure(QueueSettings(fairness=strategy)))
    for _ in range(each):
        queue.put(TENANTS, tenant=[f"t{number}" for number in range(TENANTS)])
    queue.host.restart()
    queue.host.reads = 0
    return queue


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_windows_of_many_tenants_are_read_together(strategy: str) -> None:
    """Each tenant once cost a read of its own, during which nothing was applied."""
    queue = queue_of_many(strategy)
    for _ in range(TENANTS // 8):
        queue.do(qc.Lease(0, 0, 8, 60_000))
    assert queue.host.machine.leased_count == TENANTS
    assert queue.host.reads <= TENANTS // WINDOWS_TOGETHER_MAX


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_windows_of_the_next_tenants_are_read_ahead(strategy: str) -> None:
    queue = queue_of_many(strategy)
    queue.do(qc.Lease(0, 0, 1, 60_000))
    for leased in range(TENANTS):
        if leased == WINDOWS_TOGETHER_MAX:
            queue.host.reads = 0
        queue.do(qc.Lease(0, 0, 1, 60_000))
        queue.host.prefetch()
        queue.host.hand_over()
    assert queue.host.reads == 0


def test_a_lease_by_filter_reads_the_windows_of_its_tenants_together() -> None:
    queue = Queue()
    queue.do(qc.Configure(QueueSettings(fairness="round_robin")))
    queue.put(100, tenant=[f"{top}.{number}" for top in "ab" for number in range(50)])
    queue.host.restart()
    queue.host.reads = 0
    queue.do(qc.Lease(0, 0, 50, 60_000, ("b",)))
    assert (queue.host.machine.leased_count, queue.host.reads) == (50, 1)


@pytest.mark.parametrize("bounds", [COLD, MemoryBounds(), MemoryBounds(read_rows=0)])
@pytest.mark.parametrize("windows", [0, 1, 5_000])
@pytest.mark.parametrize("tenants", [0, 1, 100_000])
def test_each_window_gets_a_row(bounds: MemoryBounds, windows: int, tenants: int) -> None:
    """A part of zero rows once divided by zero, and would otherwise be read forever."""
    assert MessageStore(bounds).rows_of_each(windows, tenants) >= 1
