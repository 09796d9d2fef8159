"""An order is carried out although its broker comes back with another directory, address, label or disk, or is there twice."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest
from raftmq import Admin, Consumer, Producer, TopicPartition
from raftmq.broker.node import Node

from tests.broker.test_identity import (
    LOCKS,
    MOVED,
    brokers_of,
    cluster_of_three,
    holds,
    kept_out,
)
from tests.support.broker.whole_nodes import WAIT_SECONDS, Nodes, until

STABLE: dict[str, object] = {"stable_seconds": 0.3}
VALUES = [os.urandom(300_000) for _ in range(10)]
SLOW = 65_536
"""Bytes per second of moves. A copy of the partition takes longer than any event."""


@dataclass(frozen=True)
class Case:
    """A cluster of four brokers, one of which the order is about."""

    nodes: Nodes
    target: Node
    """The broker of the order."""
    other: Node
    """The broker that a second directory belongs to."""
    watch: Node
    """A broker to which nothing happens."""

    @property
    def target_id(self) -> int:
        return int(self.target.view.node_id)


# ------------------------------------------------------------------------------------------------------------------ orders


async def drain(case: Case, admin: Admin) -> Callable[[], bool]:
    await admin.drain_broker(case.target_id)
    machine = case.watch.view.metadata.state_machine

    def is_done() -> bool:
        node = machine.node(case.target_id)
        is_empty = not machine.replica_count_of_node(case.target_id)
        return node.state == "draining" and is_empty and node.metadata_replica_id not in machine.metadata_voters

    return is_done


async def move(case: Case, admin: Admin) -> Callable[[], bool]:
    wanted = [*brokers_of(case.watch)[:2], case.target_id]
    await admin.move_partition("flights", 0, wanted)
    return lambda: set(brokers_of(case.watch)) == set(wanted)


async def raise_factor(case: Case, admin: Admin) -> Callable[[], bool]:
    await admin.set_replication_factor("flights", 4)
    return lambda: set(brokers_of(case.watch)) == {1, 2, 3, 4}


ORDERS = {"drain": drain, "move": move, "factor": raise_factor}


# ------------------------------------------------------------------------------------------------------------------ events


async def elsewhere(case: Case) -> Node:
    """Rename the directory, and start it at other addresses and under other labels."""
    name = case.target.config.data_dir.name
    await case.nodes.stop(case.target)
    (case.nodes.directory / name).rename(case.nodes.directory / "elsewhere")
    back = await case.nodes.serve("elsewhere", host="elsewhere", rack="r", **MOVED, **STABLE)
    machine = case.watch.view.metadata.state_machine
    await holds(lambda: machine.node(case.target_id).peer_address == back.addresses.peer)
    assert (machine.node(case.target_id).host, machine.node(case.target_id).rack) == ("elsewhere", "r")
    return back


async def swapped(case: Case) -> Node:
    """Exchange the directories of two brokers."""
    directory, pair = case.nodes.directory, (case.target, case.other)
    names = [node.config.data_dir.name for node in pair]
    for node in pair:
        await case.nodes.stop(node)
    (directory / names[0]).rename(directory / "aside")
    (directory / names[1]).rename(directory / names[0])
    (directory / "aside").rename(directory / names[1])
    other, back = (case.nodes.begin(name, **STABLE) for name in names)
    for node, before in ((back, case.target), (other, case.other)):
        await until(node)
        assert node.view.node_id == before.view.node_id
        assert node.addresses.peer != before.addresses.peer
    return back


async def wiped(case: Case) -> Node:
    """Start the broker on an empty disk."""
    name = case.target.config.data_dir.name
    for node in case.nodes.running():
        node.grpc.nodes.admitted_at.clear()
    await case.nodes.stop(case.target)
    shutil.rmtree(case.nodes.directory / name)
    join = tuple(node.addresses.peer for node in case.nodes.running())
    back = await case.nodes.serve(name, join=join, broker_id=case.target_id, **STABLE)
    assert back.registry.uuid != case.target.registry.uuid
    return back


async def copied(case: Case) -> Node:
    """Start a copy of the directory beside the broker."""
    name = case.target.config.data_dir.name
    with case.target.registry._changing:
        shutil.copytree(case.nodes.directory / name, case.nodes.directory / "copy", ignore=LOCKS)
    said = re.compile("is still connected as boot|of the same data directory|stale data directory")
    assert not (await kept_out(case.nodes, "copy", said)).partitions
    return case.target


async def doubled(case: Case) -> Node:
    """Give the broker's number to a new broker."""
    second = case.nodes.begin("empty", join=(case.watch.addresses.peer,), broker_id=case.target_id)
    refused = await case.nodes.failure(second)
    await case.nodes.stop(second)
    assert f"broker {case.target_id} is running at" in str(refused)
    return case.target


EVENTS: dict[str, Callable[[Case], Awaitable[Node]]] = {
    "elsewhere": elsewhere,
    "swapped": swapped,
    "wiped": wiped,
    "copied": copied,
    "doubled": doubled,
}


# ------------------------------------------------------------------------------------------------------------------- tests


async def case_of(nodes: Nodes, *, is_holder: bool) -> Case:
    """Start the brokers. The target holds a replica of the only partition, or is the one that does not."""
    running = await cluster_of_three(nodes)
    running.append(await nodes.serve("four", join=(running[0].addresses.peer,), **STABLE))
    async with Admin(bootstrap_servers=running[0].addresses.client) as admin:
        await admin.create_topic("flights", 1, 3)
    async with Producer(bootstrap_servers=running[0].addresses.client) as producer:
        for value in VALUES:
            await (await producer.send("flights", value, partition=0))
    holders = brokers_of(running[0])
    target, other, watch, *_ = sorted(running, key=lambda node: (node.view.node_id in holders) != is_holder)
    return Case(nodes, target, other, watch)


async def check_values(node: Node) -> None:
    got: list[bytes | None] = []
    async with Consumer(bootstrap_servers=node.addresses.client, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("flights", 0)])
        async with asyncio.timeout(WAIT_SECONDS):
            while len(got) < len(VALUES):
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    got += [record.value for record in records]
    assert got == VALUES


@pytest.mark.long
@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("order", ORDERS)
async def test_an_order_is_carried_out_whatever_happens_to_the_identity_of_its_broker(
    nodes: Nodes, order: str, event: str
) -> None:
    case = await case_of(nodes, is_holder=order == "drain")
    machine = case.watch.view.metadata.state_machine
    async with Admin(bootstrap_servers=case.watch.addresses.client) as admin:
        await admin.set_balancing(bytes_per_second=SLOW)
        is_carried_out = await ORDERS[order](case, admin)

        def is_done() -> bool:
            return is_carried_out() and not machine.unsettled_partitions()

        back = await EVENTS[event](case)
        assert not is_done() or event == "wiped", "only a lost replica is rebuilt faster than the rate"
        await admin.set_balancing(bytes_per_second=0)
        await holds(is_done)
    assert [node.node_id for node in machine.nodes()] == [1, 2, 3, 4]
    await until(back)
    for node in (case.watch, back):
        await check_values(node)
