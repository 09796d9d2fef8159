"""Consumers that wait for messages of a partition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.partitions.queue.leases import Filter, QueueLeases
from raftmq.fsm.queue.commands import Item, Lease, Operation
from raftmq.fsm.queue.results import Leased
from raftmq.proto import queue_pb2 as pb

from tests.support.broker.queue_node import queue_node


class RefusingPartition:
    """A leader with a ready message whose proposals all fail, as while its leadership is transferred."""

    def __init__(self) -> None:
        self.is_leader = True
        self.applier = SimpleNamespace(is_suspended=False, listeners=[])
        self.core = SimpleNamespace(term=1)
        self.state_machine = SimpleNamespace(leasable_count=lambda subtrees=(): 1, is_leasable=lambda subtrees=(): True)
        self.proposers: list[Callable[[], None]] = []
        self.progress_listeners: list[Callable[[], None]] = []
        self.role_listeners: list[Callable[[object], None]] = []
        self.submitted = 0

    def wake_proposers(self) -> None:
        asyncio.get_running_loop().call_soon(lambda: [propose() for propose in self.proposers])

    def submit(self, _item: object) -> asyncio.Future[object]:
        self.submitted += 1
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        future.set_exception(RequestError(pb.NOT_LEADER, "another broker is about to lead"))
        return future


class Waiting:
    """A consumer with credit for one message."""

    filter = Filter()
    lease_ms = 1_000
    is_gone = False

    def __init__(self) -> None:
        self.failures = 0

    def reserve(self, leases: QueueLeases, messages_max: int) -> tuple[int, int]:
        return 1, 1_000

    def on_refused(self, leases: QueueLeases, reserved: tuple[int, int]) -> None:
        raise AssertionError("a lease was proposed")

    def on_leased(self, leases: QueueLeases, reserved: tuple[int, int], leased: Leased | None) -> None:
        self.failures += leased is None


async def test_a_consumer_whose_lease_fails_rests_before_it_tries_again() -> None:
    """It once tried again immediately, and the loop did nothing else: seed 34 of the simulation with queues."""
    partition, consumer = RefusingPartition(), Waiting()
    leases = QueueLeases(
        asyncio.get_running_loop(),
        cast("Any", partition),
        cast("Any", partition),
        enqueued=lambda _subtrees: 0,
        is_single_active=lambda: False,
        coming=lambda _filter, _count_max: 0,
    )

    leases.add(consumer)
    for _ in range(100):
        await asyncio.sleep(0)

    assert partition.submitted == consumer.failures == 1


class Taking(Waiting):
    """A consumer that takes one message, and keeps its sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.sequences: list[int] = []

    def reserve(self, leases: QueueLeases, messages_max: int) -> tuple[int, int]:
        return (0, 0) if self.sequences else (1, 1_000)

    def on_leased(self, leases: QueueLeases, reserved: tuple[int, int], leased: Leased | None) -> None:
        self.sequences += () if leased is None else leased.first_sequences


async def test_a_due_message_is_leased_by_the_entry_that_promotes_it(tmp_path: Path) -> None:
    async with queue_node(tmp_path) as node:
        queue, consumer = await node.queue(), Taking()
        await queue.put(1, delay=1_000)
        queue.partition.leases.add(consumer)
        entries = queue.partition.replica.core.last_index
        node.pass_time(1_000)
        await queue.progress_until(lambda: bool(consumer.sequences))
        assert queue.partition.replica.core.last_index == entries + 1


async def test_a_message_whose_lease_has_ended_reaches_a_waiting_consumer_in_the_next_commit(tmp_path: Path) -> None:
    """The entry that ends the lease decides whether the message comes back now, later or dead, so it is leased by the one after it."""
    async with queue_node(tmp_path) as node:
        queue, consumer = await node.queue(), Taking()
        await queue.put(1)
        await queue.lease(1, 60_000)
        queue.partition.leases.add(consumer)
        entries = queue.partition.replica.core.last_index
        node.pass_time(60_000)
        async with asyncio.timeout(5):
            while not consumer.sequences:
                await asyncio.sleep(0)
        assert queue.partition.replica.core.last_index == entries + 2


async def test_nothing_is_leased_for_due_messages_that_no_consumer_may_get(tmp_path: Path) -> None:
    async with queue_node(tmp_path) as node:
        queue, consumer = await node.queue(**{"partition.tenant.max.leased": "1"}), Taking()
        await queue.put(1, tenant="a")
        await queue.lease(1)
        await queue.put(1, tenant="a", delay=1_000)
        queue.partition.leases.add(consumer)
        entries = queue.partition.replica.core.last_index
        node.pass_time(1_000)
        await queue.progress_until(lambda: queue.partition.statistics.counts().ready == 1)
        await asyncio.sleep(0.05)
        assert queue.partition.replica.core.last_index == entries + 1, "the tick alone"
        assert not consumer.sequences


class Insatiable(Waiting):
    """A consumer with credit for ten messages, again and again."""

    def reserve(self, leases: QueueLeases, messages_max: int) -> tuple[int, int]:
        return min(10, messages_max), 1_000_000

    def on_leased(self, leases: QueueLeases, reserved: tuple[int, int], leased: Leased | None) -> None:
        pass


async def test_no_more_is_leased_than_limits_allow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While all credit was reserved for a tenant at its limit, a message of another tenant had to wait for it."""
    async with queue_node(tmp_path) as node:
        queue = await node.queue(**{"partition.tenant.max.leased": "2"})
        await queue.put(100, tenant="noisy")
        tokens = await queue.lease(2)
        proposed: list[int] = []
        submit = queue.partition.commands.submit

        def watch(item: Item) -> asyncio.Future[object]:
            if isinstance(item, Lease):
                proposed.append(item.messages_max)
            return submit(item)

        monkeypatch.setattr(queue.partition.commands, "submit", watch)
        for _ in range(3):
            queue.partition.leases.add(Insatiable())
        await queue.settle(Operation.ACCEPT, tokens[0])
        await queue.progress_until(lambda: queue.machine.leased_count == 2)
        assert proposed == [1]


async def test_messages_that_are_given_back_keep_their_place(tmp_path: Path) -> None:
    """They once went behind all others, which may be a million, because they were due again now."""
    async with queue_node(tmp_path) as node:
        queue = await node.queue()
        await queue.put(5)
        node.offset_ms += 1_000
        deadline = node.loop.time() + 5
        leased = await queue.partition.commands.execute(Lease(0, 0, 2, 60_000), Leased, deadline)
        assert isinstance(leased, Leased)
        queue.partition.leases.give_back(leased)
        assert await queue.lease(5) == [(0, 2), (1, 2), (2, 1), (3, 1), (4, 1)]
