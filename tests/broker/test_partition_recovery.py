"""Whole nodes: a partition that has lost its majority is revived from one replica, and its old group is never served again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import pytest
from raftmq import (
    Admin,
    Consumer,
    Message,
    Output,
    PartitionRecovery,
    Producer,
    Queue,
    Record,
    TopicPartition,
    Transformer,
    Worker,
)
from raftmq.broker.node import Node
from raftmq.broker.partitions.log import PartitionLog
from raftmq.cli.doctor import recovery_findings
from raftmq.client.admin.recovery import LostPartitions
from raftmq.errors import DeliveryTimeoutError, FailedPreconditionError, LeaseLostError, OffsetOutOfRangeError
from raftmq.fsm.metadata_views import PartitionView
from raftmq.spark.cluster.cluster import Cluster
from raftmq.spark.errors import RecordsLostError
from raftmq.spark.source.options import read_source_options
from raftmq.spark.source.planning import OffsetRange
from raftmq.spark.source.range_fetch import fetch_range
from raftmq.spark.source.stream_plan import UNLIMITED, StreamPlan
from raftmq.storage.doctor import Severity
from raftmq.types import GroupId

from tests.support.broker.whole_nodes import WAIT_SECONDS, Nodes, three_voters

TP = TopicPartition("flights", 0)


async def cluster_of_three(nodes: Nodes) -> list[Node]:
    first = await nodes.serve("one", bootstrap=True, stable_seconds=0.3)
    join = (first.addresses.peer,)
    others = [await nodes.serve(name, join=join, stable_seconds=0.3) for name in ("two", "three")]
    await three_voters(first)
    return [first, *others]


def partition_of(node: Node) -> PartitionView:
    machine = node.view.metadata.state_machine
    (topic,) = machine.topics()
    found = machine.partition(topic.group_ids[0])
    assert found is not None
    return found


@asynccontextmanager
async def admin_of(node: Node) -> AsyncIterator[Admin]:
    async with Admin(bootstrap_servers=node.addresses.client) as admin:
        yield admin


async def until(condition) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():
            await asyncio.sleep(0.02)


async def until_lost(admin: Admin, kept_id: int) -> LostPartitions:
    """Wait until the metadata leader, perhaps just elected, knows that the only partition is lost and reaches the broker that keeps it."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            found = await admin.list_lost_partitions()
            replicas = [replica for partition in found.partitions for replica in partition.replicas]
            if any((one.broker_id, one.condition) == (kept_id, "served") for one in replicas):
                return found
            await asyncio.sleep(0.05)


async def test_a_partition_is_recovered_from_one_replica(nodes: Nodes) -> None:
    running = await cluster_of_three(nodes)
    by_id = {int(node.view.node_id): node for node in running}
    async with admin_of(running[0]) as admin:
        await admin.create_topic("flights", 1, 2)
        async with Producer(bootstrap_servers=running[0].addresses.client) as producer:
            for number in range(10):
                await producer.send("flights", b"%d" % number)
        old = partition_of(running[0])
        kept_id, lost_id = (replica.node_id for replica in old.replicas)
        with pytest.raises(FailedPreconditionError, match="needs no recovery"):
            await admin.recover_partition("flights", 0, kept_id, unsafe=True)
    kept, lost = by_id[kept_id], by_id[lost_id]
    async with Producer(bootstrap_servers=kept.addresses.client) as running_producer:
        await (await running_producer.send("flights", b"10", partition=0))
        await lose_and_recover(nodes, running, kept, lost, old, running_producer)
    await nodes.stop(kept)
    (note,) = recovery_findings(kept.config.data_dir)
    assert note.severity is Severity.NOTE
    assert f"partition flights/0 was recovered from its replica on broker {kept_id}" in note.problem
    assert "records from offset 11 on that were acknowledged before may be missing" in note.problem


async def lose_and_recover(
    nodes: Nodes, running: list[Node], kept: Node, lost: Node, old: PartitionView, running_producer: Producer
) -> None:
    kept_id, lost_id = int(kept.view.node_id), int(lost.view.node_id)
    (third,) = (node for node in running if node not in (kept, lost))
    group_id = GroupId(old.group_id)
    await until(lambda: kept.partitions[group_id].high_watermark == 11)
    term = kept.partitions[group_id].replica.term
    await nodes.stop(lost)
    async with admin_of(kept) as admin:
        await until(lambda: not kept.partitions[group_id].replica.core.leader_id)
        found = await until_lost(admin, kept_id)
        assert found.count == 1
        (listed,) = found.partitions
        assert (listed.topic, listed.partition, listed.group_id) == ("flights", 0, old.group_id)
        held = {one.broker_id: one for one in listed.replicas}
        assert (held[kept_id].condition, held[kept_id].log_end_offset) == ("served", 11)
        assert held[lost_id].condition == "unreachable"
        assert held[lost_id].unreachable_seconds > 0
        with pytest.raises(FailedPreconditionError, match="does not answer: start it, or name another one"):
            await admin.recover_partition("flights", 0, lost_id, unsafe=True)
        with pytest.raises(FailedPreconditionError, match="has no replica"):
            await admin.recover_partition("flights", 0, int(third.view.node_id), unsafe=True)
        with pytest.raises(FailedPreconditionError, match="no longer served by group 99"):
            await admin.recover_partition("flights", 0, kept_id, unsafe=True, group_id=99)
        planned = await admin.recover_partition("flights", 0, kept_id, unsafe=True, dry_run=True)
        assert partition_of(kept).group_id == old.group_id
        done = await admin.recover_partition("flights", 0, kept_id, unsafe=True, group_id=old.group_id)
        assert isinstance(done, PartitionRecovery)
        assert (done.kept_broker_id, done.log_end_offset, done.known_loss) == (kept_id, 11, 0)
        assert (planned.log_end_offset, planned.other_broker_ids) == (11, (lost_id,))
        assert done.leader_epoch > term
        await until(lambda: partition_of(kept).group_id != old.group_id)
        new = GroupId(partition_of(kept).group_id)
        assert new > group_id
        await until(lambda: new in kept.partitions and kept.partitions[new].replica.is_leader)
        assert group_id not in kept.partitions
        # a producer that has run since before the loss finds the new group
        delivery = await running_producer.send("flights", b"11", partition=0)
        assert (await delivery).offset == 11
        # the controller gives the partition another replica on the broker that is there
        await until(lambda: len(partition_of(kept).replicas) == 2)
        await until(lambda: new in third.partitions and third.partitions[new].high_watermark == 12)
        found = await admin.list_lost_partitions("flights")
        assert (found.count, found.recoveries) == (0, (done,))
        await check_returned(nodes, lost, kept, old)
        async with Consumer(bootstrap_servers=kept.addresses.client, auto_offset_reset="none") as consumer:
            consumer.assign([TP])
            await consumer.seek(TP, 0)
            got: list[bytes | None] = []
            while len(got) < 12:
                for records in (await consumer.getmany(timeout_ms=1000)).values():
                    got += [record.value for record in records]
            assert got == [b"%d" % number for number in range(12)]
            await consumer.seek(TP, 500)
            with pytest.raises(OffsetOutOfRangeError):
                await consumer.getmany(timeout_ms=1000)


async def check_returned(nodes: Nodes, lost: Node, kept: Node, old: PartitionView) -> None:
    """The broker of the abandoned replica comes back: its replica of the old group is retired, and never served."""
    back = await nodes.serve(lost.config.data_dir.name, stable_seconds=0.3)
    group_id = GroupId(old.group_id)
    assert group_id not in back.partitions
    await until(lambda: not any(key.group_id == group_id for key in back.replicas._registry.live_replicas()))
    assert not list((back.config.data_dir / "groups").glob(f"{group_id}-*.mdb"))
    assert partition_of(back) == partition_of(kept)


async def three_of_five(nodes: Nodes, kind: str = "log") -> tuple[GroupId, Node, list[Node], Node]:
    """Start five brokers, three of which have flights/0.

    Returns:
        The group of the partition, the broker to keep, the two that will be lost, and one without a replica.
    """
    first = await nodes.serve("1", bootstrap=True, stable_seconds=30.0, metadata_voters=5)
    join = (first.addresses.peer,)
    running = [first, *[await nodes.serve(n, join=join, stable_seconds=30.0, metadata_voters=5) for n in "2345"]]
    await until(lambda: len(first.view.metadata.core.membership.voters) == 5)
    by_id = {int(node.view.node_id): node for node in running}
    async with admin_of(first) as admin:
        await admin.create_topic("flights", 1, 3, kind=kind)
    old = partition_of(first)
    group_id = GroupId(old.group_id)
    kept, *lost = (by_id[replica.node_id] for replica in reversed(old.replicas))
    other = next(node for node in running if node is not kept and node not in lost)
    return group_id, kept, lost, other


async def recover_from_old(
    nodes: Nodes, group_id: GroupId, kept: Node, lost: Iterable[Node], other: Node
) -> tuple[Node, PartitionRecovery]:
    """Stop the lost brokers, start the one that was stopped before them, and recover flights/0 from its replica.

    Return the started broker, and the recovery.
    """
    for node in lost:
        await nodes.stop(node)
    kept = await nodes.serve(kept.config.data_dir.name, stable_seconds=30.0, metadata_voters=5)
    await until(lambda: group_id in kept.partitions)
    async with admin_of(other) as admin:
        await until_lost(admin, int(kept.view.node_id))
        return kept, await admin.recover_partition("flights", 0, int(kept.view.node_id), unsafe=True)


async def test_records_that_only_the_lost_replicas_had_are_lost_and_their_readers_and_writers_are_told(
    nodes: Nodes,
) -> None:
    group_id, kept, lost, other = await three_of_five(nodes)
    async with (
        Producer(bootstrap_servers=other.addresses.client, delivery_timeout_ms=20_000) as producer,
        Consumer(bootstrap_servers=other.addresses.client, auto_offset_reset="none") as consumer,
    ):
        await (await producer.send("flights", b"0", partition=0))
        await until(lambda: kept.partitions[group_id].high_watermark == 1)
        await nodes.stop(kept)
        for number in (1, 2, 3):
            await (await producer.send("flights", b"%d" % number, partition=0))
        consumer.assign([TP])
        await consumer.seek(TP, 4)
        kept, done = await recover_from_old(nodes, group_id, kept, lost, other)
        assert done.log_end_offset == 1
        assert len(done.other_broker_ids) == 2
        with pytest.raises(OffsetOutOfRangeError):
            while True:
                await consumer.getmany(timeout_ms=200)
        delivery = await producer.send("flights", b"4", partition=0)
        assert (await delivery).offset == 1, "a lost offset is given again"


async def two_of_five_replicas(nodes: Nodes) -> tuple[GroupId, Node, Node, Node]:
    """Start six brokers. Five have flights/0, and only two of these are left: their logs differ.

    1. `ahead` leads, loses all others and appends records that nobody acknowledges.
    2. The others go on in a later term without it, and acknowledge one record.
    3. Three of the others are lost, and `ahead` comes back.

    Returns:
        The group of the partition, `ahead`, the other replica that is left, and the broker without a replica.
    """
    settings = {"stable_seconds": 30.0, "metadata_voters": 3}
    first = await nodes.serve("1", bootstrap=True, **settings)
    running = [first, *[await nodes.serve(name, join=(first.addresses.peer,), **settings) for name in "23456"]]
    await three_voters(first)
    voters = [node for node in range(1, 7) if is_voter(first, node)]
    others = [node for node in range(1, 7) if node not in voters]
    by_id = {int(node.view.node_id): node for node in running}
    (ahead_id, newer_id, outside_id), lost_ids = voters, others
    held = [ahead_id, newer_id, *lost_ids]
    async with admin_of(first) as admin:
        await admin.create_topic("flights", 1, 5)
        await admin.move_partition("flights", 0, held)
        await until(lambda: sorted(one.node_id for one in partition_of(first).replicas) == sorted(held))
        await until(lambda: not partition_of(first).retiring)
        group_id = GroupId(partition_of(first).group_id)
        ahead, newer, outside = by_id[ahead_id], by_id[newer_id], by_id[outside_id]
        await until(lambda: group_id in ahead.partitions)
        await admin.transfer_leader("flights", 0, ahead_id)
        await until(lambda: ahead.partitions[group_id].replica.is_leader)
    rest = [newer, *[by_id[node_id] for node_id in lost_ids]]
    async with Producer(bootstrap_servers=outside.addresses.client) as producer:
        await (await producer.send("flights", b"0", partition=0))
        await until(lambda: all(node.partitions[group_id].high_watermark == 1 for node in rest))
    for node in rest:
        await nodes.stop(node)
    async with Producer(bootstrap_servers=ahead.addresses.client, delivery_timeout_ms=500) as producer:
        given_up = [await producer.send("flights", b"never acknowledged", partition=0) for _ in range(20)]
        for delivery in given_up:
            with pytest.raises(DeliveryTimeoutError):
                await delivery
    assert ahead.partitions[group_id].replica.core.log.next_offset > 2
    await nodes.stop(ahead)
    rest = [await nodes.serve(node.config.data_dir.name, **settings) for node in rest]
    async with Producer(bootstrap_servers=outside.addresses.client) as producer:
        await (await producer.send("flights", b"1", partition=0))
    newer, *lost = rest
    await until(lambda: newer.partitions[group_id].replica.core.log.next_offset == 2)
    for node in lost:
        await nodes.stop(node)
    ahead = await nodes.serve(ahead.config.data_dir.name, **settings)
    await until(lambda: group_id in ahead.partitions)
    return group_id, ahead, newer, outside


def is_voter(node: Node, node_id: int) -> bool:
    replica = node.view.metadata
    return any(replica.node_of(voter) == node_id for voter in replica.core.membership.voters)


@pytest.mark.long
async def test_the_replica_with_the_later_last_term_is_newer_than_one_with_a_higher_end(nodes: Nodes) -> None:
    """A leader that was cut off has a higher end, and lacks what the next leader acknowledged (thesis 3.6.1)."""
    _, ahead, newer, outside = await two_of_five_replicas(nodes)
    ahead_id, newer_id = int(ahead.view.node_id), int(newer.view.node_id)
    async with admin_of(outside) as admin:
        await until_lost(admin, ahead_id)
        found = await until_lost(admin, newer_id)
        (listed,) = found.partitions
        held = {one.broker_id: one for one in listed.replicas}
        assert held[ahead_id].log_end_offset > held[newer_id].log_end_offset == 2
        assert held[newer_id].last_leader_epoch > held[ahead_id].last_leader_epoch > 0
        assert listed.newest is not None
        assert (listed.newest.broker_id, listed.is_newest_certain) == (newer_id, True)
        wrong = await admin.recover_partition("flights", 0, ahead_id, unsafe=True, dry_run=True)
        assert wrong.newer is not None
        assert wrong.newer.broker_id == newer_id
        right = await admin.recover_partition("flights", 0, newer_id, unsafe=True)
        assert (right.newer, right.known_loss) == (None, 0), "nobody acknowledged the other one's records"
        async with Consumer(bootstrap_servers=outside.addresses.client, auto_offset_reset="none") as consumer:
            consumer.assign([TP])
            await consumer.seek(TP, 0)
            assert await read_until(consumer, 2) == [b"0", b"1"]


@pytest.mark.long
async def test_readers_are_told_of_lost_records_even_after_others_have_taken_their_offsets(nodes: Nodes) -> None:
    """They would go on after records that they never saw, or commit such an offset for the next reader."""
    group_id, kept, lost, other = await three_of_five(nodes)
    servers = other.addresses.client
    async with (
        Producer(bootstrap_servers=servers, delivery_timeout_ms=20_000) as producer,
        Consumer(bootstrap_servers=servers, group_id="g", auto_offset_reset="none", enable_auto_commit=False) as strict,
        Consumer(bootstrap_servers=servers, auto_offset_reset="latest") as lenient,
    ):
        await (await producer.send("flights", b"0", partition=0))
        await until(lambda: kept.partitions[group_id].high_watermark == 1)
        await nodes.stop(kept)
        for number in (1, 2, 3):
            await (await producer.send("flights", b"%d" % number, partition=0))
        for consumer in (strict, lenient):
            consumer.assign([TP])
            await consumer.seek(TP, 0)
            await read_until(consumer, 4)
            consumer.pause(TP)
        await recover_from_old(nodes, group_id, kept, lost, other)
        for number in range(1, 9):
            await (await producer.send("flights", b"new %d" % number, partition=0))
        with pytest.raises(OffsetOutOfRangeError, match="records from offset 1 on were lost"):
            await strict.commit({TP: 4})
        for consumer in (strict, lenient):
            consumer.resume(TP)
        with pytest.raises(OffsetOutOfRangeError, match="go on from 1") as raised:
            while True:
                await strict.getmany(timeout_ms=200)
        assert raised.value.kept_end_offset == 1
        assert await read_until(lenient, 9) == [b"new %d" % number for number in range(1, 9)]
        await strict.seek(TP, 1)
        assert await read_until(strict, 9) == [b"new %d" % number for number in range(1, 9)]
        await strict.commit({TP: 9})


def committed_at(node: Node, group_id: GroupId) -> int:
    partition = node.partitions[group_id]
    assert isinstance(partition, PartitionLog)
    return partition.offsets.of("g").offset


async def test_a_worker_works_again_on_what_was_kept_and_goes_on_with_new_records(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    """Its second record is in work when a recovery takes the two after it, which it has finished."""
    group_id, kept, lost, other = await three_of_five(nodes)
    begun: list[bytes | None] = []
    may_end = asyncio.Event()

    async def handle(record: Record) -> None:
        begun.append(record.value)
        if record.value == b"1":
            await may_end.wait()

    worker = Worker(
        "flights",
        "g",
        handle,
        bootstrap_servers=other.addresses.client,
        auto_offset_reset="earliest",
        commit_interval_ms=50,
    )
    working = asyncio.create_task(worker.serve())
    async with Producer(bootstrap_servers=other.addresses.client, delivery_timeout_ms=20_000) as producer:
        for number in range(2):
            await (await producer.send("flights", b"%d" % number, partition=0))
        await until(lambda: kept.partitions[group_id].high_watermark == 2)
        await until(lambda: committed_at(kept, group_id) == 1)
        await nodes.stop(kept)
        for number in (2, 3):
            await (await producer.send("flights", b"%d" % number, partition=0))
        await until(lambda: begun == [b"0", b"1", b"2", b"3"])
        kept, done = await recover_from_old(nodes, group_id, kept, lost, other)
        assert done.log_end_offset == 2
        for number in (2, 3):
            await (await producer.send("flights", b"new %d" % number, partition=0))
        await until(lambda: len(begun) == 7)
        assert set(begun[4:]) == {b"1", b"new 2", b"new 3"}
        new = GroupId(partition_of(kept).group_id)
        assert committed_at(kept, new) == 1, "its outcome before the recovery does not count"
        may_end.set()
        await until(lambda: committed_at(kept, new) == 4)
    worker.stop()
    await working
    assert begun[7:] == []
    assert "work_begun_again topic=flights partition=0" in caplog.text


async def test_a_spark_query_is_told_of_lost_records_even_after_others_have_taken_their_offsets(nodes: Nodes) -> None:
    group_id, kept, lost, other = await three_of_five(nodes)
    servers = other.addresses.client
    options = read_source_options({"bootstrap.servers": servers, "subscribe": "flights"}, is_streaming=True)[0]
    async with Producer(bootstrap_servers=servers, delivery_timeout_ms=20_000) as producer:
        await (await producer.send("flights", b"0", partition=0))
        await until(lambda: kept.partitions[group_id].high_watermark == 1)
        await nodes.stop(kept)
        for number in (1, 2, 3):
            await (await producer.send("flights", b"%d" % number, partition=0))
        cluster = await asyncio.to_thread(Cluster, options.client)
        start = await asyncio.to_thread(StreamPlan(cluster, options).initial)
        assert start.to_json() == {"flights": {"0": 4, "topic_id": 1, "group_ids": {"0": group_id}}}
        await recover_from_old(nodes, group_id, kept, lost, other)
        for number in range(1, 9):
            await (await producer.send("flights", b"new %d" % number, partition=0))
    with pytest.raises(RecordsLostError, match="has reached offset 4, and records from offset 1 on were lost"):
        await asyncio.to_thread(StreamPlan(cluster, options).next_end, start, UNLIMITED)
    planned = OffsetRange("flights", 1, 0, 4, 9, group_id)
    with pytest.raises(RecordsLostError, match="records from offset 1 on were lost when the partition was recovered"):
        await asyncio.to_thread(lambda: list(fetch_range(cluster, planned, timeout_ms=20_000, fail_on_data_loss=True)))
    await asyncio.to_thread(cluster.close)


@pytest.mark.parametrize("goes_on", [False, True])
async def test_a_transformer_writes_the_outputs_of_records_that_take_the_offsets_of_lost_ones(
    nodes: Nodes, caplog: pytest.LogCaptureFixture, goes_on: bool
) -> None:
    """Outputs of the lost records exist under the same sequences, so brokers would take the new ones for repetitions."""
    group_id, kept, lost, other = await three_of_five(nodes)
    servers = other.addresses.client

    def transformer() -> asyncio.Task[None]:
        made = Transformer(
            "flights", "g", lambda record: Output("out", record.value, partition=0), bootstrap_servers=servers
        )
        return asyncio.create_task(made.serve())

    async with (
        admin_of(other) as admin,
        Producer(bootstrap_servers=servers, delivery_timeout_ms=20_000) as producer,
        Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as outputs,
    ):
        await admin.create_topic("out", 1, 5)
        outputs.assign([TopicPartition("out", 0)])
        running = transformer()
        await (await producer.send("flights", b"0", partition=0))
        await until(lambda: kept.partitions[group_id].high_watermark == 1)
        await until(lambda: committed_at(kept, group_id) == 1)
        await nodes.stop(kept)
        for number in (1, 2, 3):
            await (await producer.send("flights", b"%d" % number, partition=0))
        assert [record.value for record in await read_some(outputs, 4)] == [b"0", b"1", b"2", b"3"]
        if not goes_on:
            running.cancel()
            await asyncio.wait((running,))
        await recover_from_old(nodes, group_id, kept, lost, other)
        for number in (1, 2, 3, 4):
            await (await producer.send("flights", b"new %d" % number, partition=0))
        running = running if goes_on else transformer()
        assert [record.value for record in await read_some(outputs, 4)] == [
            b"new %d" % number for number in (1, 2, 3, 4)
        ]
        running.cancel()
        await asyncio.wait((running,))
    offset = 4 if goes_on else 1
    assert f"transform_input_recovered topic=flights partition=0 offset={offset} kept_end_offset=1" in caplog.text


async def read_some(consumer: Consumer[bytes, bytes], count: int) -> list[Record[bytes, bytes]]:
    """Read that many records."""
    got: list[Record[bytes, bytes]] = []
    async with asyncio.timeout(WAIT_SECONDS):
        while len(got) < count:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                got += records
    return got


async def read_until(consumer: Consumer[bytes, bytes], end: int) -> list[bytes | None]:
    """Read until the consumer is at the offset `end`."""
    got: list[bytes | None] = []
    async with asyncio.timeout(WAIT_SECONDS):
        while await consumer.position(TP) < end:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                got += [record.value for record in records]
    return got


async def test_messages_and_leases_of_a_queue_stay(nodes: Nodes) -> None:
    running = await cluster_of_three(nodes)
    by_id = {int(node.view.node_id): node for node in running}
    async with admin_of(running[0]) as admin:
        await admin.create_topic("jobs", 1, 2, kind="queue")
    old = partition_of(running[0])
    kept, lost = (by_id[replica.node_id] for replica in old.replicas)
    group_id = GroupId(old.group_id)
    async with Queue("jobs", bootstrap_servers=kept.addresses.client) as queue:
        for number in range(3):
            await queue.put(b"%d" % number)
        done, leased = await queue.get(), await queue.get()
        assert done is not None
        assert leased is not None
        await done.ack()
        both = (kept, lost)
        await until(lambda: any(node.partitions[group_id].replica.is_leader for node in both))
        leader = next(node for node in both if node.partitions[group_id].replica.is_leader)
        end = leader.partitions[group_id].replica.core.last_index
        await until(lambda: kept.partitions[group_id].replica.core.applied_index >= end)
        await nodes.stop(lost)
        await until(lambda: not kept.partitions[group_id].replica.core.leader_id)
        async with admin_of(kept) as admin:
            await until_lost(admin, int(kept.view.node_id))
            await admin.recover_partition("jobs", 0, int(kept.view.node_id), unsafe=True)
        await leased.ack()
        remaining = await queue.get(wait_ms=10_000)
        assert remaining is not None
        assert {done.value, leased.value, remaining.value} == {b"0", b"1", b"2"}
        await remaining.ack()
        assert await queue.get(wait_ms=500) is None, "settled messages are not delivered again"
    (new,) = (group for group in kept.partitions if group != group_id)
    assert kept.partitions[new].replica.key.group_id > group_id


async def leased_then_recovered(nodes: Nodes, first: Queue, group_id: GroupId, *brokers: Node) -> list[Message]:
    """Recover a queue from a replica that knows the first of two messages, and neither lease. Return both messages, as they were leased."""
    kept, other, *lost = brokers
    await first.put(b"0")
    end = kept.partitions[group_id].replica.core.last_index
    await until(lambda: kept.partitions[group_id].replica.core.applied_index >= end)
    await nodes.stop(kept)
    await first.put(b"lost")
    leased = [await first.get(), await first.get()]
    await until(lambda: all(partition._session for partition in first._desk._settler._partitions.values()))
    await recover_from_old(nodes, group_id, kept, lost, other)
    return [one for one in leased if one is not None]


async def test_a_lost_lease_does_not_settle_the_message_that_got_its_sequence(nodes: Nodes) -> None:
    """The acknowledgement of a lost message accepted another one, at which another consumer was working. Had it died, nobody had worked it."""
    group_id, kept, lost, other = await three_of_five(nodes, "queue")
    servers = other.addresses.client
    async with (
        Queue("flights", bootstrap_servers=servers) as first,
        Queue("flights", bootstrap_servers=servers) as second,
    ):
        _, lost_one = await leased_then_recovered(nodes, first, group_id, kept, other, *lost)
        put = await second.put(b"new")
        assert put.sequence == lost_one.sequence
        found = [await second.get(wait_ms=10_000), await second.get(wait_ms=10_000)]
        (new,) = (one for one in found if one is not None and one.value == b"new")
        with pytest.raises(LeaseLostError):
            await lost_one.ack()
        await new.ack()


async def test_a_lost_session_does_not_get_the_answers_of_the_session_that_got_its_number(nodes: Nodes) -> None:
    """An acknowledgement was answered with the result of another consumer's, and was never applied."""
    group_id, kept, lost, other = await three_of_five(nodes, "queue")
    servers = other.addresses.client
    async with (
        Queue("flights", bootstrap_servers=servers) as first,
        Queue("flights", bootstrap_servers=servers) as second,
    ):
        zero, _ = await leased_then_recovered(nodes, first, group_id, kept, other, *lost)
        await second.put(b"new")
        found = [await second.get(wait_ms=10_000), await second.get(wait_ms=10_000)]
        again, new = sorted((one for one in found if one is not None), key=lambda one: one.sequence)
        await new.ack()
        (earlier,) = await asyncio.gather(zero.ack(), return_exceptions=True)
        (later,) = await asyncio.gather(again.ack(), return_exceptions=True)
        assert [earlier, later].count(None) == 1, "one of two holders of a lease settled it"


async def test_the_number_of_a_lost_lease_is_not_given_again(nodes: Nodes) -> None:
    """The holder of a lost lease released a message that another consumer worked on. By a token, it acknowledged one that it never had."""
    group_id, kept, lost, other = await three_of_five(nodes, "queue")
    servers = other.addresses.client
    async with (
        Queue("flights", bootstrap_servers=servers) as first,
        Queue("flights", bootstrap_servers=servers) as second,
    ):
        zero, lost_one = await leased_then_recovered(nodes, first, group_id, kept, other, *lost)
        await second.put(b"new")
        found = [await second.get(wait_ms=10_000), await second.get(wait_ms=10_000)]
        again, new = sorted((one for one in found if one is not None), key=lambda one: one.sequence)
        assert (again.sequence, new.sequence) == (zero.sequence, lost_one.sequence)
        for token in (zero.token, lost_one.token):
            with pytest.raises(LeaseLostError):
                await second.settle(token)
        with pytest.raises(LeaseLostError):
            await zero.release()
        await again.ack()
        await new.ack()
