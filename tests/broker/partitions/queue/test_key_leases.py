"""A consumer that waits for one key gets its head as soon as it is ready, and proposes nothing while it is blocked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from raftmq.broker.partitions.queue.leases import Filter, QueueLeases
from raftmq.fsm.queue import commands as qc
from raftmq.fsm.queue.commands import Operation
from raftmq.fsm.queue.results import ItemResult, Leased
from raftmq.fsm.queue.settings import QueueSettings

from tests.support.fsm.queue.host import Queue


class Waiting:
    """A consumer with credit for one message."""

    filter = Filter(("a",), b"k")
    lease_ms = 60_000
    is_gone = False

    def __init__(self) -> None:
        self.credit = 1
        self.sequences: list[int] = []
        self.refusals = 0

    def reserve(self, leases: QueueLeases, messages_max: int) -> tuple[int, int]:
        reserved, self.credit = min(self.credit, messages_max), 0
        return reserved, 1_000 if reserved else 0

    def on_refused(self, leases: QueueLeases, reserved: tuple[int, int]) -> None:
        raise AssertionError("every lease is proposed")

    def on_leased(self, leases: QueueLeases, reserved: tuple[int, int], leased: Leased | None) -> None:
        self.credit = 1
        if leased is not None and leased.counts:
            self.sequences += leased.first_sequences
        else:
            self.refusals += 1


class Door:
    """A leader of one real machine, whose commands are applied when `run` is called."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.queue = Queue()
        self.queue.do(qc.Configure(QueueSettings(is_ordered_by_key=True)))
        self.proposed: list[tuple[qc.Item, asyncio.Future[ItemResult]]] = []
        self.replica = SimpleNamespace(
            is_leader=True,
            state_machine=self.queue.host.machine,
            applier=SimpleNamespace(is_suspended=False, listeners=[]),
            core=SimpleNamespace(term=1),
            proposers=[],
            progress_listeners=[],
            role_listeners=[],
            wake_proposers=lambda: None,
        )
        self.enqueued = 0
        self.leases = QueueLeases(
            loop, self.replica, self, lambda _subtrees: self.enqueued, lambda: False, self._coming
        )

    def _coming(self, wanted: Filter, count_max: int) -> int:
        return self.queue.host.machine.due_by(self.queue.now, wanted.tenants, wanted.key, count_max)

    def submit(self, item: qc.Item) -> asyncio.Future[ItemResult]:
        future: asyncio.Future[ItemResult] = self.loop.create_future()
        self.proposed.append((item, future))
        return future

    def run(self) -> int:
        """Let consumers propose, and apply their leases. Return how many there were."""
        for propose in self.replica.proposers:
            propose()
        proposed, self.proposed = self.proposed, []
        for item, future in proposed:
            future.set_result(self.queue.do(item))
        self.loop.run_until_complete(asyncio.sleep(0))
        return len(proposed)

    def accept(self, sequence: int) -> None:
        self.queue.do(qc.Settle(0, 0, (Operation.ACCEPT,), (sequence,), (1,), (1,)))


@pytest.fixture
def door() -> Iterator[Door]:
    loop = asyncio.new_event_loop()
    yield Door(loop)
    loop.close()


def test_a_consumer_of_a_key_proposes_nothing_while_its_head_is_leased(door: Door) -> None:
    consumer = Waiting()
    door.queue.put(3, tenant="a", key=["k", "k", "other"])
    door.leases.add(consumer)
    assert door.run() == 1
    assert consumer.sequences == [0]
    assert door.run() == 0


def test_a_consumer_that_found_its_key_blocked_gets_the_next_head_without_a_rest(door: Door) -> None:
    consumer = Waiting()
    door.queue.put(2, tenant="a", key="k")
    door.leases.add(consumer)
    door.run()
    door.enqueued = 1  # it may be a message of this key
    assert (door.run(), consumer.refusals) == (1, 1)
    assert door.run() == 0
    door.accept(0)
    assert door.run() == 1
    assert consumer.sequences == [0, 1]
