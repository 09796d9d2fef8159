"""Dead letter topics on whole brokers: copies survive the end of leaders, and go to leaders elsewhere."""

from __future__ import annotations

import asyncio

import pytest
from raftmq import Admin, NewMessage, Queue
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.node import Node
from raftmq.broker.partitions.queue.partition import PartitionQueue
from raftmq.broker.services.queue.dead_letters import DeadLetterCopier
from raftmq.proto import queue_pb2 as pb

from tests.support.broker.whole_nodes import Nodes, three_voters

HEADER = "raftmq.dead_letter."


async def create(address: str, **settings: object) -> None:
    async with Admin(bootstrap_servers=address) as admin:
        await admin.create_topic("letters", kind="queue", **settings)
        await admin.create_topic("jobs", kind="queue", config={"dead.letter.topic": "letters"}, **settings)


async def reject_all(servers: str, *values: bytes) -> None:
    async with Queue("jobs", bootstrap_servers=servers) as queue:
        await queue.put_many(NewMessage(value, tenant="acme") for value in values)
        left = len(values)
        while left:
            for message in await queue.get_many(max_messages=left, wait_ms=10_000):
                await message.reject("no such user")
                left -= 1


async def take_letters(servers: str, count: int) -> list[tuple[bytes, dict[str, bytes | None]]]:
    """Take all letters, and make sure that there is no other one."""
    found = []
    async with Queue("letters", bootstrap_servers=servers) as queue:
        async with asyncio.timeout(60):
            while len(found) < count:
                for message in await queue.get_many(max_messages=20, wait_ms=10_000):
                    assert message.tenant == "acme"
                    found.append((message.value, dict(message.headers)))
                    await message.ack()
        assert await queue.get(wait_ms=50) is None
    return found


def leader_of(nodes: list[Node], topic: str) -> tuple[Node, PartitionQueue]:
    """Return the leader of a topic's only partition."""
    for node in nodes:
        view = node.view.metadata.state_machine.topic_by_name(topic)
        assert view is not None
        for partition in node.partitions.values():
            if partition.replica.group_id == view.group_ids[0] and partition.replica.is_leader:
                assert isinstance(partition, PartitionQueue)
                return node, partition
    raise AssertionError(f"{topic} has no leader")


async def test_a_program_takes_dead_messages_from_another_topic(nodes: Nodes) -> None:
    node = await nodes.serve("one", bootstrap=True)
    address = node.addresses.client
    await create(address)
    await reject_all(address, b"a", b"b")
    found = await take_letters(address, 2)
    assert [value for value, _ in found] == [b"a", b"b"]
    assert found[1][1][HEADER + "error"] == b"no such user"
    assert found[1][1][HEADER + "sequence"] == b"1"
    async with Admin(bootstrap_servers=address) as admin:
        described = await admin.describe_topic("jobs")
    assert described.config["dead.letter.topic"] == "letters"


async def test_the_successor_of_a_leader_repeats_no_copy(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    first = await nodes.serve("one", bootstrap=True)
    running = [first, *[await nodes.serve(name, join=[first.addresses.peer]) for name in ("two", "three")]]
    await three_voters(first)
    servers = ",".join(node.addresses.client for node in running)
    await create(servers, replication_factor=3)
    append, unanswered = DeadLetterCopier._append, asyncio.Event()

    async def without_answer(self: DeadLetterCopier, *arguments: object) -> None:
        assert await append(self, *arguments) is None
        unanswered.set()
        raise RequestError(pb.LEADERSHIP_LOST, "the answer was lost")

    values = [b"%d" % number for number in range(30)]
    with monkeypatch.context() as lossy:
        lossy.setattr(DeadLetterCopier, "_append", without_answer)
        await reject_all(servers, *values)
        async with asyncio.timeout(30):
            await unanswered.wait()
        leader, partition = leader_of(running, "jobs")
        assert partition.replica.state_machine.state.scalars.copied_dead == 0
        running.remove(leader)
        await nodes.stop(leader)
    servers = ",".join(node.addresses.client for node in running)
    assert [value for value, _ in await take_letters(servers, 30)] == values
