"""Rows of the table "Identity" in the operations guide, with whole nodes: a directory, an address or a number that is not where it was."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from raftmq import Admin, Consumer, Producer, TopicPartition
from raftmq.broker.base.readiness import Reason
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.node import Node
from raftmq.proto import queue_pb2 as pb

from tests.support.broker.whole_nodes import WAIT_SECONDS, Nodes, three_voters, until

MOVED = {"listen": "127.0.0.1:0", "peer_listen": "127.0.0.1:0", "http_listen": "127.0.0.1:0"}
"""Any other addresses."""
NAMES = ("one", "two", "three")
RECORDS = 5


async def cluster_of_three(nodes: Nodes) -> list[Node]:
    one = await nodes.serve("one", bootstrap=True, stable_seconds=0.3)
    others = [await nodes.serve(name, join=(one.addresses.peer,), stable_seconds=0.3) for name in NAMES[1:]]
    await three_voters(one)
    return [one, *others]


async def holds(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():
            await asyncio.sleep(0.02)


async def write(node: Node, replication_factor: int) -> None:
    async with Admin(bootstrap_servers=node.addresses.client) as admin:
        await admin.create_topic("flights", 1, replication_factor)
    async with Producer(bootstrap_servers=node.addresses.client) as producer:
        for number in range(RECORDS):
            await (await producer.send("flights", b"%d" % number, partition=0))


async def check_records(node: Node) -> None:
    got: list[bytes | None] = []
    async with Consumer(bootstrap_servers=node.addresses.client, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("flights", 0)])
        async with asyncio.timeout(WAIT_SECONDS):
            while len(got) < RECORDS:
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    got += [record.value for record in records]
    assert got == [b"%d" % number for number in range(RECORDS)]


def words(node: Node) -> str:
    return " ".join(one.message for one in node.standing.not_ready_reasons())


async def test_a_directory_of_another_broker_than_the_configured_one_is_refused(nodes: Nodes) -> None:
    """Swapped directories: under the other's configuration each broker would silently have the other's number."""
    _, two, _ = await cluster_of_three(nodes)
    await nodes.stop(two)
    swapped = nodes.begin("two", broker_id=3)
    refused = await nodes.failure(swapped)
    await nodes.stop(swapped)
    assert isinstance(refused, RequestError)
    assert refused.code == pb.INVALID_ARGUMENT
    assert "belongs to broker 2" in str(refused)
    assert "broker_id = 3" in str(refused)
    await until(await nodes.serve("two", broker_id=2))


@pytest.mark.long
async def test_swapped_directories_are_each_others_brokers_at_each_others_addresses(nodes: Nodes) -> None:
    """Without configured numbers nothing is wrong: the directory is the broker, and its address and host label may change."""
    one, two, three = await cluster_of_three(nodes)
    await write(one, 3)
    for node in (two, three):
        await nodes.stop(node)
    (nodes.directory / "two").rename(nodes.directory / "aside")
    (nodes.directory / "three").rename(nodes.directory / "two")
    (nodes.directory / "aside").rename(nodes.directory / "three")
    for name, node in (("two", three), ("three", two)):
        moved = await nodes.serve(name, host=f"host-{name}")
        assert moved.view.node_id == node.view.node_id
        await until(moved)
        machine = one.view.metadata.state_machine
        await holds(lambda: machine.node(moved.view.node_id).client_address == moved.addresses.client)  # noqa: B023
        assert machine.node(moved.view.node_id).host == f"host-{name}"
    await check_records(moved)


async def test_a_lone_broker_may_be_renamed_and_get_other_addresses_and_another_label(nodes: Nodes) -> None:
    one = await nodes.serve("one", bootstrap=True)
    await write(one, 1)
    await nodes.stop(one)
    (nodes.directory / "one").rename(nodes.directory / "uno")
    one = await nodes.serve("uno", host="another", **MOVED)
    await until(one)
    await check_records(one)


@pytest.mark.long
async def test_brokers_that_all_moved_say_whom_they_miss_and_meet_at_a_named_address(nodes: Nodes) -> None:
    """No metadata leader can be told the new addresses, and no broker is at a known one."""
    running = await cluster_of_three(nodes)
    await write(running[0], 3)
    missed = running[1].addresses.peer
    for node in running:
        await nodes.stop(node)
    one = nodes.begin("one", **MOVED)
    await holds(lambda: f"broker 2 at {missed}" in words(one))
    assert "--join" in words(one)
    (reason,) = one.standing.not_ready_reasons()
    assert reason.reason is Reason.RECOVERING_METADATA
    others = [nodes.begin(name, join=(one.addresses.peer,), **MOVED) for name in NAMES[1:]]
    for node in (one, *others):
        await until(node)
    machine = one.view.metadata.state_machine
    await holds(
        lambda: [node.peer_address for node in machine.nodes()] == [node.addresses.peer for node in (one, *others)]
    )
    await check_records(one)


async def test_the_number_of_a_broker_that_was_just_admitted_is_not_given_again(nodes: Nodes) -> None:
    """Two brokers are started with one number, one after the other: the first one may not be connected yet."""
    one = await nodes.serve("one", bootstrap=True)
    first = await nodes.serve("two", join=(one.addresses.peer,), broker_id=7)
    one.view.is_connected = lambda node_id: node_id == one.view.node_id  # type: ignore[method-assign]
    second = nodes.begin("three", join=(one.addresses.peer,), broker_id=7)
    await holds(lambda: "a moment ago" in words(second))
    assert one.view.metadata.state_machine.node(7).uuid == first.registry.uuid


async def test_the_number_of_a_broker_whose_connection_broke_is_not_given_away(nodes: Nodes) -> None:
    one = await nodes.serve("one", bootstrap=True)
    first = await nodes.serve("two", join=(one.addresses.peer,), broker_id=7)
    one.grpc.nodes.admitted_at.clear()
    one.view.unreachable_seconds = lambda node_id: 0.01  # type: ignore[method-assign]
    one.view.is_connected = lambda node_id: node_id == one.view.node_id  # type: ignore[method-assign]
    second = nodes.begin("three", join=(one.addresses.peer,), broker_id=7)
    await holds(lambda: "was connected" in words(second))
    assert one.view.metadata.state_machine.node(7).uuid == first.registry.uuid
