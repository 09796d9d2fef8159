"""Queue topics on whole brokers: messages, leases and delays survive restarts and changes of the leader."""

from __future__ import annotations

import asyncio
import contextlib
import time
from datetime import UTC, datetime
from typing import cast

import grpc.aio
import pytest
from raftmq import Admin, NewMessage, Queue
from raftmq.broker.grpc_port.admission_interceptor import STREAM_REQUESTS_UNANSWERED_MAX
from raftmq.broker.node import Node
from raftmq.client.connection.data_port import DataPort
from raftmq.errors import LeaseLostError, LeaseUnknownError, UnknownTopicError
from raftmq.fsm.queue.partition import QueuePartition
from raftmq.proto import queue_pb2 as pb
from raftmq.proto import queue_pb2_grpc as pb_grpc

from tests.support.broker.waiting import until
from tests.support.broker.whole_nodes import Nodes, three_voters


async def started(nodes: Nodes, *names: str) -> list[Node]:
    """Start brokers as one cluster."""
    first = await nodes.serve(names[0], bootstrap=True)
    others = [await nodes.serve(name, join=[first.addresses.peer]) for name in names[1:]]
    return [first, *others]


async def written_back(node: Node) -> None:
    """Write the state of the partition to its file."""
    (partition,) = node.partitions.values()
    index = partition.replica.state_machine.applied_index
    node.engine.write_backs.start(partition.replica)
    async with asyncio.timeout(10):
        while partition.replica.durable_state_index < index:
            await asyncio.sleep(0.01)


async def create(address: str, **settings: object) -> None:
    async with Admin(bootstrap_servers=address) as admin:
        await admin.create_topic("jobs", kind="queue", **settings)


def leaders(running: list[Node]) -> list[Node]:
    """Return the brokers that lead the only partition. On a busy machine there may be none, or an earlier leader that does not know of the next."""
    found = [(one, two.replica) for one in running for two in one.partitions.values() if two.replica.is_leader]
    return [one for one, _ in sorted(found, key=lambda pair: -pair[1].term)]


async def leader_of(running: list[Node]) -> Node:
    """Return the broker that leads the only partition."""
    await until(lambda: leaders(running))
    return leaders(running)[0]


async def hand_over(running: list[Node], target: Node) -> None:
    """Let another broker lead the only partition."""
    (wanted,) = target.partitions.values()
    async with asyncio.timeout(30):
        while not wanted.replica.is_leader:
            for node in running:
                for partition in node.partitions.values():
                    if partition.replica.is_leader and node is not target:
                        partition.replica.core.transfer_leader(wanted.replica.replica_id)
                        node.engine.mark_dirty(partition.replica)
            await asyncio.wait([asyncio.ensure_future(wanted.replica.wait_progress())], timeout=0.2)


async def test_put_get_and_settle(nodes: Nodes):
    (node,) = await started(nodes, "one")
    address = node.addresses.client
    await create(address, config={"backoff.base.ms": "0"})
    async with Queue("jobs", bootstrap_servers=address) as queue:
        await queue.put(b"later", delay_ms=300)
        await queue.put(b"low", priority=5)
        await queue.put(b"high", priority=-5)
        high = await queue.get(wait_ms=10_000)
        low = await queue.get(wait_ms=10_000)
        assert high is not None
        assert low is not None
        assert (high.value, low.value) == (b"high", b"low")
        await high.ack()
        await low.release()
        again = await queue.get(wait_ms=10_000)
        assert again is not None
        assert (again.value, again.attempt) == (b"low", 2)
        await again.reject(error="no")
        later = await queue.get(wait_ms=10_000)
        assert later is not None
        assert later.value == b"later"
        await later.ack()
        assert await queue.get(wait_ms=50) is None


async def test_each_time_of_a_message_is_its_own(nodes: Nodes):
    (node,) = await started(nodes, "one")
    await create(node.addresses.client)
    async with Queue("jobs", bootstrap_servers=node.addresses.client) as queue:
        before_ms = time.time_ns() // 1_000_000
        await queue.put(b"delayed", delay_ms=1_000_000, expires_ms=3_000_000)
        await queue.put(b"dated", not_before=datetime.fromtimestamp(before_ms / 1000 + 5_000, UTC))
        await queue.put(b"leased", expires_ms=4_000_000)
        message = await queue.get(lease_ms=200_000, wait_ms=10_000)
        assert message is not None
        assert message.value == b"leased"
        delayed, dated, leased = sorted([one async for one in queue.browse()], key=lambda one: one.sequence)
    assert 900_000 < delayed.due_in_ms <= 1_000_000
    assert 2_900_000 < (delayed.expires_in_ms or 0) <= 3_000_000
    assert 4_900_000 < dated.due_in_ms <= 5_000_000
    assert (dated.expires_in_ms, dated.lease_left_ms, delayed.lease_left_ms) == (None, 0, 0)
    assert leased.due_in_ms <= 0
    assert 100_000 < leased.lease_left_ms <= 200_000
    assert 3_900_000 < (leased.expires_in_ms or 0) <= 4_000_000
    assert all(before_ms - 5_000 <= one.enqueued_ms < before_ms + 90_000 for one in (delayed, dated, leased))


async def test_a_consumer_may_change_its_credit_without_end(nodes: Nodes):
    (node,) = await started(nodes, "one")
    await create(node.addresses.client)
    async with grpc.aio.insecure_channel(node.addresses.client) as channel:
        stream = pb_grpc.QueueStub(channel).PollStream()
        (topic,) = node.view.metadata.state_machine.topics()
        opening = pb.QueueStreamOpen(topic_id=topic.topic_id)
        await stream.write(pb.QueueStreamRequest(open=opening, messages_limit=1, bytes_limit=1 << 20))
        for _ in range(STREAM_REQUESTS_UNANSWERED_MAX + 2):
            await stream.write(pb.QueueStreamRequest())
        await stream.write(pb.QueueStreamRequest(messages_limit=1, bytes_limit=1 << 20))
        async with Queue("jobs", bootstrap_servers=node.addresses.client) as queue:
            await queue.put(b"x")
        async with asyncio.timeout(10):
            response = await stream.read()
        assert len(response.messages) == 1


async def test_messages_leases_and_bodies_survive_a_restart(nodes: Nodes):
    node = await nodes.serve("one", bootstrap=True)
    await create(node.addresses.client)
    values = {b"%d" % number for number in range(300)}
    async with Queue("jobs", bootstrap_servers=node.addresses.client) as queue:
        await queue.put_many(sorted(values))
        taken = await queue.get_many(max_messages=100, wait_ms=10_000, lease_ms=60_000)
        for message in taken[:50]:
            await message.ack()
        held = taken[50:]
        await written_back(node)
        await queue.put(b"after the write-back")
        values.add(b"after the write-back")
        await nodes.stop(node)
        node = await nodes.serve("one")
        await held[0].ack()
        for message in held[1:]:
            await message.release(delay_ms=0)
        found = {message.value for message in taken[:51]}
        while len(found) < 301:
            messages = await queue.get_many(max_messages=100, wait_ms=20_000)
            assert messages
            for message in messages:
                assert message.value not in found
                found.add(message.value)
                await message.ack()
        assert found == values
        assert await queue.get(wait_ms=50) is None


async def test_messages_of_a_key_go_to_one_partition_of_an_ordered_topic(nodes: Nodes):
    (node,) = await started(nodes, "one")
    await create(node.addresses.client, partitions=4, config={"ordered.by.key": "true"})
    async with Queue("jobs", bootstrap_servers=node.addresses.client) as queue:
        results = [await queue.put(b"x", key=b"k", id=f"id-{number}") for number in range(8)]
        assert len({result.partition for result in results}) == 1
        others = [await queue.put(b"x", key=b"k-%d" % number) for number in range(8)]
        assert len({result.partition for result in others}) > 1


async def test_redriving_and_purging_tell_how_many_messages_it_were(nodes: Nodes):
    (node,) = await started(nodes, "one")
    await create(node.addresses.client)
    async with Queue("jobs", bootstrap_servers=node.addresses.client) as queue:
        await queue.put_many([b"%d" % number for number in range(20)])
        for message in await queue.get_many(max_messages=20, wait_ms=10_000):
            await message.reject()
        while (await queue.stats()).dead < 20:
            for message in await queue.get_many(max_messages=20, wait_ms=1000):
                await message.reject()
        assert await queue.redrive() == 20
        assert await queue.purge("ready") == 20


async def test_a_topic_that_is_deleted_takes_its_messages_and_settings_with_it(nodes: Nodes):
    (node,) = await started(nodes, "one")
    address = node.addresses.client
    await create(address, config={"attempts.max": "1", "dedupe.window.ms": "60000"})
    async with Queue("jobs", bootstrap_servers=address) as queue:
        await queue.put_many([NewMessage(b"%d" % number, id=f"id-{number}") for number in range(20)])
    await written_back(node)
    (partition,) = node.partitions.values()
    state_file = next(nodes.directory.rglob(f"{partition.replica.group_id}-*.state.mdb"))
    async with Admin(bootstrap_servers=address) as admin:
        await admin.delete_topic("jobs")
    await create(address)
    async with Queue("jobs", bootstrap_servers=address) as queue:
        assert await queue.get(wait_ms=50) is None
        again = await queue.put(b"new", id="id-3")
        assert (again.sequence, again.is_deduplicated) == (0, False)
        message = await queue.get(wait_ms=10_000)
        assert message is not None
        assert await message.release(), "with the old settings its only attempt is used up"
        stats = await queue.stats()
        assert (stats.ready + stats.delayed, stats.dead, stats.leased) == (1, 0, 0)
    async with asyncio.timeout(30):
        while state_file.exists():
            await asyncio.sleep(0.05)


async def test_a_deposed_leader_delivers_nothing_more(nodes: Nodes):
    """Its stream is open, has credit, and its replica still knows of ready messages."""
    running = await started(nodes, "one", "two", "three")
    await three_voters(running[0])
    await create(running[0].addresses.client, replication_factor=3)
    servers = ",".join(node.addresses.client for node in running)
    async with Queue("jobs", bootstrap_servers=servers) as queue:
        await queue.put_many([b"0", b"1", b"2"])
        old = await leader_of(running)
        (topic,) = old.view.metadata.state_machine.topics()
        async with grpc.aio.insecure_channel(old.addresses.client) as channel:
            stream = pb_grpc.QueueStub(channel).PollStream()
            opening = pb.QueueStreamOpen(topic_id=topic.topic_id, lease_ms=60_000)
            await stream.write(pb.QueueStreamRequest(open=opening, messages_limit=1, bytes_limit=1 << 20))
            async with asyncio.timeout(10):
                assert len((await stream.read()).messages) == 1
            await hand_over(running, next(node for node in running if node is not old))
            (partition,) = old.partitions.values()
            assert cast("QueuePartition", partition.replica.state_machine).ready_count == 2
            await stream.write(pb.QueueStreamRequest(messages_limit=10, bytes_limit=1 << 20))
            reading = asyncio.ensure_future(stream.read())
            await asyncio.wait([reading], timeout=0.3)
            assert not reading.done() or not reading.result().messages
            found = await queue.get_many(max_messages=9, wait_ms=10_000)
            while len(found) < 2:
                found += await queue.get_many(max_messages=9, wait_ms=10_000)
            assert sorted(message.value for message in found) == [b"1", b"2"]
            assert [message.attempt for message in found] == [1, 1]
            stream.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading


async def test_a_leader_that_returns_goes_on_after_the_messages_of_its_successor(nodes: Nodes):
    running = await started(nodes, "one", "two", "three")
    await three_voters(running[0])
    await create(running[0].addresses.client, replication_factor=3)
    servers = ",".join(node.addresses.client for node in running)
    async with Queue("jobs", bootstrap_servers=servers) as queue:
        sequences = [(await queue.put(b"0")).sequence]
        first = await leader_of(running)
        for number, leader in enumerate((next(node for node in running if node is not first), first), 1):
            await hand_over(running, leader)
            sequences += [(await queue.put(b"%d" % number)).sequence, (await queue.put(b"%d+" % number)).sequence]
        assert await leader_of(running) is first
        assert sequences == [0, 1, 2, 3, 4]
        left = [message async for message in queue.browse(with_values=True)]
        assert [(one.sequence, one.value) for one in left] == [(0, b"0"), (1, b"1"), (2, b"1+"), (3, b"2"), (4, b"2+")]


async def test_a_settlement_of_a_deleted_topic_fails_immediately(nodes: Nodes):
    (node,) = await started(nodes, "one")
    await create(node.addresses.client)
    async with Queue("jobs", bootstrap_servers=node.addresses.client) as queue:
        await queue.put_many([b"x", b"y"])
        first = await queue.get(wait_ms=10_000)
        second = await queue.get(wait_ms=10_000)
        assert first is not None
        assert second is not None
        async with Admin(bootstrap_servers=node.addresses.client) as admin:
            await admin.delete_topic("jobs")
        for message in (first, second):
            with pytest.raises(UnknownTopicError):
                await asyncio.wait_for(message.ack(), 10)


async def test_a_chain_of_jobs_goes_on_through_a_change_of_the_leader(nodes: Nodes):
    """Each job of a chain puts the next one with its acceptance. Whatever stops, there is exactly one next job."""
    running = await started(nodes, "one", "two", "three")
    await three_voters(running[0])
    await create(running[0].addresses.client, replication_factor=3)
    servers = ",".join(node.addresses.client for node in running)
    async with Queue("jobs", bootstrap_servers=servers) as queue:
        await queue.put_many([b"%d 0" % chain for chain in range(5)])
        steps: dict[int, list[int]] = {chain: [] for chain in range(5)}
        async with asyncio.timeout(60):
            while any(len(done) < 6 for done in steps.values()):
                messages = await queue.get_many(max_messages=5, wait_ms=10_000, lease_ms=2_000)
                acks = []
                for message in messages:
                    chain, step = map(int, message.value.split())
                    acks.append(asyncio.ensure_future(message.ack(put=[b"%d %d" % (chain, step + 1)])))
                if running and any(len(done) == 3 for done in steps.values()):
                    await asyncio.sleep(0)  # the settlements are on their way
                    for leader in leaders(running)[:1]:
                        running.clear()
                        await nodes.stop(leader)
                for message, ended in zip(messages, await asyncio.gather(*acks, return_exceptions=True), strict=True):
                    chain, step = map(int, message.value.split())
                    assert ended is None or isinstance(ended, LeaseLostError | LeaseUnknownError), ended
                    if not isinstance(ended, LeaseLostError):
                        steps[chain].append(step)
        assert all(done[:6] == list(range(6)) for done in steps.values()), steps
        left = [message async for message in queue.browse(with_values=True)]
        assert sorted(int(message.value.split()[0]) for message in left) == [0, 1, 2, 3, 4]


async def test_the_messages_of_a_chain_survive_a_restart(nodes: Nodes):
    node = await nodes.serve("one", bootstrap=True)
    await create(node.addresses.client)
    async with Queue("jobs", bootstrap_servers=node.addresses.client) as queue:
        await queue.put_many([b"a", b"b"])
        first, second = await queue.get_many(max_messages=2, wait_ms=10_000, lease_ms=60_000)
        await first.ack(put=[b"after a", b"and after a"])
        await written_back(node)
        await second.ack(put=[b"after b"])
        await nodes.stop(node)
        await nodes.serve("one")
        found: list[bytes] = []
        while len(found) < 3:
            found += [message.value for message in await queue.get_many(max_messages=9, wait_ms=20_000)]
        assert sorted(found) == [b"after a", b"after b", b"and after a"]


async def test_a_second_consumer_follows_the_single_active_one(nodes: Nodes):
    (node,) = await started(nodes, "one")
    address = node.addresses.client
    await create(address, config={"single.active.consumer": "true", "backoff.base.ms": "0"})
    async with Queue("jobs", bootstrap_servers=address) as producer:
        active, standby = Queue("jobs", bootstrap_servers=address), Queue("jobs", bootstrap_servers=address)
        await active.start()
        await producer.put(b"0")
        first = await active.get(wait_ms=10_000)
        assert first is not None
        async with standby:
            waiting = asyncio.ensure_future(standby.get())
            await first.ack()
            for number in range(1, 5):
                await producer.put(b"%d" % number)
                message = await active.get(wait_ms=10_000)
                assert message is not None
                assert message.value == b"%d" % number
                if number < 4:
                    await message.ack()
            assert not waiting.done()
            await active.close()
            await producer.put(b"5")
            assert await producer.settle(message.token, "release")
            following = [await asyncio.wait_for(waiting, 20), await standby.get(wait_ms=20_000)]
            assert sorted(one.value for one in following if one is not None) == [b"4", b"5"]


@pytest.mark.parametrize("is_over_grpc", [False, True], ids=["data", "grpc"])
async def test_work_goes_on_when_the_leader_stops(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_over_grpc: bool
):
    if is_over_grpc:
        monkeypatch.setattr(DataPort, "connection", lambda *_: None)
    caplog.set_level("DEBUG", "raftmq")
    running = await started(nodes, "one", "two", "three")
    await three_voters(running[0])
    address = running[0].addresses.client
    await create(address, replication_factor=3)
    servers = ",".join(node.addresses.client for node in running)
    async with Queue("jobs", bootstrap_servers=servers) as queue:
        await queue.put_many([b"%d" % number for number in range(100)])
        first = await queue.get(wait_ms=10_000, lease_ms=60_000)
        assert first is not None
        await nodes.stop(await leader_of(running))
        await first.ack()
        found = {first.value}
        async with asyncio.timeout(60):
            while len(found) < 100:
                for message in await queue.get_many(max_messages=20, wait_ms=10_000):
                    found.add(message.value)
                    with contextlib.suppress(LeaseLostError):  # delivered again
                        await message.ack()
        assert len(found) == 100
    assert any("data_connection_opened" in record.getMessage() for record in caplog.records) != is_over_grpc
