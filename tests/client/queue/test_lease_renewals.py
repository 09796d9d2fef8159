"""Leases are renewed in time, from a thread that the program cannot block."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Sequence
from typing import cast

import pytest
from raftmq.client.base import settings
from raftmq.client.membership.member_calls import GroupCall
from raftmq.client.queue.lease import Lease, LeaseOffice
from raftmq.client.queue.lease_renewals import LeaseRenewals
from raftmq.client.queue.queue import Queue
from raftmq.client.queue.topic import QueuePartition
from raftmq.errors import BrokenConnectionError
from raftmq.proto import queue_pb2 as pb

from tests.support.client.fake_broker import FakeCluster

PARTITION = QueuePartition(9, 0, 1)


def lease_of(sequence: int, seconds: float = 30.0, partition: QueuePartition = PARTITION) -> Lease:
    return Lease(cast("LeaseOffice", None), partition, sequence, 1, seconds, 0)


def renewals() -> LeaseRenewals:
    made = LeaseRenewals()
    made.record_leaders({1: "a:1", 2: "b:1"})
    return made


def call_at(made: LeaseRenewals, now: float) -> GroupCall:
    call = made.next_call(now)
    assert isinstance(call, GroupCall)
    return call


def sequences_in(call: GroupCall) -> list[int]:
    request = cast("pb.AckRequest", call.request)
    return [
        first + step
        for part in request.partitions
        for first, count in zip(part.first_sequences, part.counts, strict=True)
        for step in range(count)
    ]


def answer(call: GroupCall, *codes: int, granted_ms: Sequence[int] = ()) -> pb.AckResponse:
    request = cast("pb.AckRequest", call.request)
    return pb.AckResponse(
        partitions=[
            pb.PartitionAckResult(
                topic_id=p.topic_id, partition=p.partition, codes=codes, counts=[1] * len(codes), granted_ms=granted_ms
            )
            for p in request.partitions
        ]
    )


def test_a_lease_is_renewed_after_a_third_of_it() -> None:
    made, lease = renewals(), lease_of(5)
    made.hold((lease,), 100.0)
    assert made.next_call(109.9) == 109.9 + settings.LEASE_TICK_SECONDS
    call = call_at(made, 110.0)
    assert (call.address, sequences_in(call)) == ("a:1", [5])
    made.on_answer(call, answer(call, pb.OK), 110.0)
    assert isinstance(made.next_call(119.9), float)
    assert sequences_in(call_at(made, 120.0)) == [5]
    assert made.renewed_total == 1


def test_a_lease_is_renewed_after_a_third_of_what_was_granted() -> None:
    made, lease = renewals(), lease_of(5)
    made.hold((lease,), 100.0)
    call = call_at(made, 110.0)
    made.on_answer(call, answer(call, pb.OK, granted_ms=[6000]), 110.0)
    assert isinstance(made.next_call(111.9), float)
    call = call_at(made, 112.0)
    made.on_answer(call, answer(call, pb.OK, granted_ms=[60_000]), 112.0)
    assert sequences_in(call_at(made, 114.0)) == [5]  # as planned before that answer
    assert isinstance(made.next_call(133.9), float)
    assert sequences_in(call_at(made, 134.0)) == [5]


def test_a_frozen_broker_costs_no_short_lease_of_another_one() -> None:
    """There is one call at a time, and it waited two seconds for the frozen broker. A lease of one second ended in the meantime."""
    made = renewals()
    frozen, short = lease_of(5), lease_of(7, 1.0, QueuePartition(9, 1, 2))
    made.hold((frozen,), 90.0)
    made.hold((short,), 99.9)
    call = call_at(made, 100.0)
    now = 100.0 + call.timeout_seconds
    made.on_error(call, BrokenConnectionError("no answer"), now)
    assert call_at(made, now).address == "b:1"
    assert now < 99.9 + 1.0


def test_leases_of_other_lengths_get_the_time_of_their_own_run() -> None:
    made, lease, longer = renewals(), lease_of(5), lease_of(6)
    longer.renewal_ms = 90_000
    made.hold((lease, longer), 0.0)
    call = call_at(made, 10.0)
    longer.renewal_ms = 0  # by the program, while the call is in flight
    made.on_answer(call, answer(call, pb.OK, pb.OK, granted_ms=[30_000, 90_000]), 10.0)
    assert (lease.lease_seconds, longer.lease_seconds) == (30.0, 90.0)


def test_more_leases_of_a_partition_than_a_request_may_name_are_renewed_in_several() -> None:
    made = renewals()
    leases = [lease_of(sequence) for sequence in range(settings.ACK_MESSAGES_MAX + 20)]
    made.hold(leases, 0.0)
    found = []
    for _ in range(2):
        call = call_at(made, 10.0)
        found.append(sequences_in(call))
        made.on_answer(call, answer(call, *[pb.OK] * len(found[-1])), 10.0)
    assert [len(one) for one in found] == [settings.ACK_MESSAGES_MAX, 20]
    assert sorted(found[0] + found[1]) == list(range(len(leases)))


def test_neighbours_are_renewed_in_one_run() -> None:
    made = renewals()
    leases = [lease_of(sequence) for sequence in (7, 5, 6, 9)]
    for lease in leases:
        made.hold((lease,), 0.0)
    (part,) = cast("pb.AckRequest", call_at(made, 10.0).request).partitions
    assert (list(part.first_sequences), list(part.counts)) == ([5, 9], [3, 1])
    assert not part.session


def test_a_settled_or_forgotten_lease_is_not_renewed() -> None:
    made, settled, forgotten = renewals(), lease_of(1), lease_of(2)
    made.hold((settled,), 0.0)
    made.hold((forgotten,), 0.0)
    made.drop((settled,))
    del forgotten
    gc.collect()
    assert isinstance(made.next_call(10.0), float)


def test_a_lease_that_a_broker_does_not_know_is_lost() -> None:
    made, kept, lost = renewals(), lease_of(1), lease_of(2)
    made.hold((kept,), 0.0)
    made.hold((lost,), 0.0)
    call = call_at(made, 10.0)
    made.on_answer(call, answer(call, pb.OK, pb.LEASE_LOST), 10.0)
    assert made.take_news()
    assert list(made.take_lost()) == [lost]
    assert (kept.is_lost, lost.is_lost) == (False, True)
    assert sequences_in(call_at(made, 30.0)) == [1]


def test_a_lease_settled_during_its_renewal_is_not_lost() -> None:
    made, lease = renewals(), lease_of(1)
    made.hold((lease,), 0.0)
    call = call_at(made, 10.0)
    made.drop((lease,))
    made.on_answer(call, answer(call, pb.LEASE_UNKNOWN), 10.0)
    assert not lease.is_lost
    assert not made.take_news()


def test_a_lease_that_its_settlement_ended_is_not_lost() -> None:
    """It is renewed until the answer to the settlement."""
    made, lease = renewals(), lease_of(1)
    made.hold((lease,), 0.0)
    lease.is_settled = True
    call = call_at(made, 10.0)
    made.on_answer(call, answer(call, pb.LEASE_UNKNOWN), 10.0)
    assert not lease.is_lost
    assert not made.take_news()
    assert isinstance(made.next_call(30.0), float)


def test_a_failed_renewal_is_repeated_before_the_lease_ends() -> None:
    made, lease = renewals(), lease_of(1)
    made.hold((lease,), 0.0)
    call = call_at(made, 10.0)
    made.on_error(call, BrokenConnectionError("cut off"), 12.0)
    assert isinstance(made.next_call(14.0), float)
    assert sequences_in(call_at(made, 14.5)) == [1]


def test_renewals_follow_the_hint_of_a_broker_that_does_not_lead() -> None:
    made, lease = renewals(), lease_of(1)
    made.hold((lease,), 0.0)
    call = call_at(made, 10.0)
    refused = pb.ErrorDetail(code=pb.NOT_LEADER, leader=pb.LeaderHint(broker_id=2, address="b:1", leader_epoch=2))
    result = pb.PartitionAckResult(topic_id=9, partition=0, error=refused)
    made.on_answer(call, pb.AckResponse(partitions=[result]), 10.0)
    assert call_at(made, 12.5).address == "b:1"


def test_each_broker_is_asked_about_its_own_partitions() -> None:
    made = renewals()
    leases = [lease_of(1), lease_of(1, partition=QueuePartition(9, 1, 2))]
    for lease in leases:
        made.hold((lease,), 0.0)
    assert {call_at(made, 10.0).address, call_at(made, 10.0).address} == {"a:1", "b:1"}


@pytest.mark.parametrize("is_settling", [False, True])
async def test_leases_are_renewed_while_the_program_blocks_its_loop(is_settling: bool) -> None:
    """The brokers run in a thread of their own, as other processes would. A settlement that waits for the loop is not sent yet."""
    ready, done = threading.Event(), threading.Event()
    shared: dict[str, str] = {}
    renewed = threading.Event()

    async def run_brokers() -> None:
        async with FakeCluster() as cluster:
            (fake,) = cluster.create_queue("jobs")
            shared["address"] = cluster.bootstrap_servers
            ready.set()
            await cluster.wait_queue(lambda: ("RENEW", 0) in fake.settled)
            renewed.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=lambda: asyncio.run(run_brokers()))
    thread.start()
    try:
        await asyncio.to_thread(ready.wait)
        async with Queue("jobs", bootstrap_servers=shared["address"]) as queue:
            await queue.put(b"x")
            message = await queue.get(lease_ms=1500)
            assert message is not None
            acking = asyncio.ensure_future(message.ack()) if is_settling else None
            await asyncio.sleep(0)
            assert renewed.wait(20)  # blocks the event loop
            await (acking or message.ack())
    finally:
        done.set()
        await asyncio.to_thread(thread.join)


def test_leases_from_before_and_after_a_recovery_are_renewed_apart() -> None:
    """An answer names partitions and no groups. Both were in one call, and the thread ended, so that no lease was renewed any more."""
    made = LeaseRenewals()
    made.record_leaders({1: "a:1", 2: "a:1"})
    old = [lease_of(5), lease_of(6)]
    new = lease_of(7, partition=QueuePartition(9, 0, 2))
    made.hold([*old, new], 100.0)
    calls = []
    while isinstance(call := made.next_call(110.0), GroupCall):
        calls.append(sequences_in(call))
        made.on_answer(call, answer(call, *[pb.OK] * len(calls[-1])), 110.0)
    assert calls == [[5, 6], [7]]
    assert made.renewed_total == 3


async def test_a_lease_is_renewed_at_the_new_leader_after_a_recovery() -> None:
    """Its partition has another group then, and the lease was renewed at the broker that was lost, until it ended unnoticed."""
    async with FakeCluster(brokers=2) as cluster:
        cluster.create_queue("jobs")
        partition = cluster.topics["jobs"].partitions[0]
        async with Queue("jobs", bootstrap_servers=cluster.bootstrap_servers) as queue:
            await queue.put(b"x")
            message = await queue.get(lease_ms=1_000)
            assert message is not None
            lost = cluster.brokers[partition.leader]
            partition.group_id += 1_000
            cluster.move_leader("jobs", 0, 3 - partition.leader)
            await lost.stop()
            await asyncio.sleep(1.5)
            partition.queue.expire(partition.queue.now_ms())
            assert [one.attempts for one in partition.queue.messages.values() if one.lease_until_ms] == [1]
            await message.ack()
