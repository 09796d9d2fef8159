"""Rows of the table "Identity" in the operations guide, with whole nodes: a directory, an address or a number that is not where it was."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
from collections.abc import Callable

import pytest
from raftmq import Admin, Consumer, Producer, TopicPartition
from raftmq.broker.base.config import BrokerConfig
from raftmq.broker.base.readiness import Reason
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.environment import NodeEnvironment
from raftmq.broker.node import Node
from raftmq.errors import BrokerInUseError, FailedPreconditionError, WrongClusterError
from raftmq.proto import queue_pb2 as pb

from tests.support.broker.whole_nodes import WAIT_SECONDS, Nodes, three_voters, until

MOVED = {"listen": "127.0.0.1:0", "peer_listen": "127.0.0.1:0", "http_listen": "127.0.0.1:0"}
"""Any other addresses."""
LOCKS = shutil.ignore_patterns("lock", "*-lock")
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


def brokers_of(node: Node) -> list[int]:
    """Return the brokers of the only partition."""
    machine = node.view.metadata.state_machine
    (topic,) = machine.topics()
    partition = machine.partition(topic.group_ids[0])
    assert partition is not None
    return [replica.node_id for replica in partition.replicas]


async def restore_older_copy(nodes: Nodes, name: str, node: Node) -> None:
    """Stop a node, and put a copy of its directory from one boot ago in place, which all others have met."""
    directory, backup = nodes.directory / name, nodes.directory / "backup"
    await nodes.stop(node)
    shutil.copytree(directory, backup, ignore=LOCKS)
    later = await nodes.serve(name, stable_seconds=0.3)
    await until(later)
    others = [one for one in nodes.running() if one is not later]
    await holds(
        lambda: all(one.registry.known_boots()[later.registry.uuid][0] == later.registry.boot for one in others)
    )
    await nodes.stop(later)
    shutil.rmtree(directory)
    backup.rename(directory)


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
async def test_running_clients_follow_brokers_that_all_move_one_after_the_other(nodes: Nodes) -> None:
    """In the end nobody is at an address that the clients were given."""
    running = await cluster_of_three(nodes)
    given = ",".join(node.addresses.client for node in running)
    await write(running[0], 3)
    async with Producer(bootstrap_servers=given) as producer, Consumer(bootstrap_servers=given) as consumer:
        consumer.assign([TopicPartition("flights", 0)])
        await consumer.seek(TopicPartition("flights", 0), RECORDS)
        for number, name in enumerate(NAMES):
            await nodes.stop(running[number])
            running[number] = await nodes.serve(name, stable_seconds=0.3, **MOVED)
            for node in running:
                await until(node)
                machine = node.view.metadata.state_machine
                await holds(lambda: machine.node(number + 1).client_address == running[number].addresses.client)  # noqa: B023
            await (await producer.send("flights", b"%d" % number, partition=0))
            got: list[bytes | None] = []
            async with asyncio.timeout(WAIT_SECONDS):
                while not got:
                    got += [one.value for found in (await consumer.getmany(timeout_ms=500)).values() for one in found]
            assert got == [b"%d" % number]
    assert not set(given.split(",")) & {node.addresses.client for node in running}


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


@pytest.mark.long
async def test_another_host_label_has_replicas_moved_apart(nodes: Nodes) -> None:
    settings: dict[str, object] = {"stable_seconds": 0.3}
    one = await nodes.serve("one", bootstrap=True, host="a", **settings)
    join = (one.addresses.peer,)
    two = await nodes.serve("two", join=join, host="b", **settings)
    three = await nodes.serve("three", join=join, host="c", **settings)
    await three_voters(one)
    await write(one, 2)
    machine = one.view.metadata.state_machine
    first, second = brokers_of(one)
    by_id = {int(node.view.node_id): (name, node) for name, node in zip(NAMES, (one, two, three), strict=True)}
    name, moving = by_id[second if by_id[second][0] != "one" else first]
    other = first if int(moving.view.node_id) == second else second
    label = machine.node(other).host
    await nodes.stop(moving)
    await until(await nodes.serve(name, host=label, **settings))
    await holds(lambda: len({machine.node(broker_id).host for broker_id in brokers_of(one)}) == 2)
    await holds(lambda: not machine.unsettled_partitions())
    await check_records(one)


@pytest.mark.long
async def test_a_wiped_broker_at_another_address_is_a_new_one_beside_the_dead_one(nodes: Nodes) -> None:
    one, _, three = await cluster_of_three(nodes)
    await write(one, 3)
    await nodes.stop(three)
    added = await nodes.serve("empty", join=(one.addresses.peer,), stable_seconds=0.3)
    assert added.view.node_id == 4
    assert [node.node_id for node in one.view.metadata.state_machine.nodes()] == [1, 2, 3, 4]
    async with Admin(bootstrap_servers=one.addresses.client) as admin:
        await admin.remove_broker(3, force=True)
    await holds(lambda: brokers_of(one) == [1, 2, 4] and not one.view.metadata.state_machine.unsettled_partitions())
    await check_records(added)


@pytest.mark.long
async def test_a_broker_that_is_wiped_while_it_is_drained_goes_on_to_be_drained(nodes: Nodes) -> None:
    one, _, three = await cluster_of_three(nodes)
    await write(one, 2)
    async with Admin(bootstrap_servers=one.addresses.client) as admin:
        await nodes.stop(three)
        await admin.drain_broker(3)
        shutil.rmtree(nodes.directory / "three")
        three = await nodes.serve("three", join=(one.addresses.peer,), broker_id=3, stable_seconds=0.3)
        machine = one.view.metadata.state_machine
        assert machine.node(3).state == "draining"
        await holds(
            lambda: (
                not machine.replica_count_of_node(3)
                and machine.node(3).metadata_replica_id not in machine.metadata_voters
            )
        )
        await check_records(one)
        await admin.remove_broker(3)


@pytest.mark.long
async def test_a_broker_that_is_wiped_while_a_replica_moves_to_it_gets_it_again(nodes: Nodes) -> None:
    """With two replicas it would wait until the move is given up, because metadata does not know which of the two brokers votes."""
    running = await cluster_of_three(nodes)
    running.append(await nodes.serve("four", join=(running[0].addresses.peer,), stable_seconds=0.3))
    await write(running[0], 3)
    (target,) = (node for node in running if node.view.node_id not in brokers_of(running[0]))
    others = [node for node in running if node is not target]
    free, name = int(target.view.node_id), target.config.data_dir.name
    wanted = [*brokers_of(running[0])[:2], free]
    for node in running:
        node.grpc.nodes.admitted_at.clear()
    async with Admin(bootstrap_servers=others[0].addresses.client) as admin:
        await admin.move_partition("flights", 0, wanted)
        await nodes.stop(target)
        shutil.rmtree(nodes.directory / name)
        join = tuple(node.addresses.peer for node in others)
        back = await nodes.serve(name, join=join, broker_id=free, stable_seconds=0.3)
    machine = others[0].view.metadata.state_machine
    await holds(lambda: set(brokers_of(others[0])) == set(wanted) and not machine.unsettled_partitions())
    await until(back)
    await check_records(others[0])


@pytest.mark.long
async def test_orders_for_a_broker_with_a_refused_directory_are_refused_or_done_without_it(nodes: Nodes) -> None:
    one, two, three = await cluster_of_three(nodes)
    four = await nodes.serve("four", join=(one.addresses.peer,), stable_seconds=0.3)
    await write(one, 3)
    (free,) = {1, 2, 3, 4} - set(brokers_of(one))
    by_id = {
        int(node.view.node_id): (name, node)
        for name, node in zip((*NAMES, "four"), (one, two, three, four), strict=True)
    }
    stale_id = next(broker_id for broker_id in brokers_of(one) if broker_id != 1)
    name, node = by_id[stale_id]
    await restore_older_copy(nodes, name, node)
    stale = nodes.begin(name, stable_seconds=0.3)
    (reason,) = await until(stale, Reason.STALE_DIRECTORY)
    assert "--broker-id" in reason.message
    rest = [broker_id for broker_id in brokers_of(one) if broker_id != stale_id]
    async with Admin(bootstrap_servers=one.addresses.client) as admin:
        with pytest.raises(FailedPreconditionError, match=f"broker {stale_id} is unreachable: start it first"):
            await admin.transfer_leader("flights", 0, stale_id)
        assert (await admin.rebalance(dry_run=True)).replica_move_count == 0
        with pytest.raises(BrokerInUseError, match="drain it first"):
            await admin.remove_broker(stale_id)
        await admin.drain_broker(stale_id)
        await holds(lambda: set(brokers_of(one)) == {*rest, free})
        await holds(lambda: not one.view.metadata.state_machine.replica_count_of_node(stale_id))
        with pytest.raises(FailedPreconditionError, match="is being drained"):
            await admin.move_partition("flights", 0, [*rest, stale_id])
        await check_records(one)


class Mortal(NodeEnvironment):
    """The environment of a node whose process ends without the process of the test."""

    def __init__(self, config: BrokerConfig) -> None:
        super().__init__(config)
        self.ended = asyncio.Event()

    def end_process(self) -> None:
        self.ended.set()


async def kept_out(nodes: Nodes, name: str, said: re.Pattern[str]) -> Node:
    """Start a copy until it says why it is kept out, and again whenever its process ends, as a service manager does.

    A leader of the originals may reach a copy before the two are told apart. A copy whose log is shorter than the leader's commit index
    then ends.
    """
    environments: list[Mortal] = []

    def parts(config: BrokerConfig) -> Mortal:
        environments.append(Mortal(config))
        return environments[-1]

    while True:
        copied = nodes.begin(name, parts, **MOVED)
        ended = environments[-1].ended
        await holds(lambda: ended.is_set() or said.search(words(copied)) is not None)  # noqa: B023 -- awaited here
        if not ended.is_set():
            return copied
        await nodes.stop(copied)


@pytest.mark.long
async def test_copies_of_all_brokers_elsewhere_are_kept_out_while_the_originals_run(nodes: Nodes) -> None:
    """A copy of the whole cluster, made for a test system, knows the addresses of the originals."""
    running = await cluster_of_three(nodes)
    await write(running[0], 3)
    for name in NAMES:
        shutil.copytree(nodes.directory / name, nodes.directory / f"copy-{name}", ignore=LOCKS)
    said = re.compile("is still connected as boot|of the same data directory|stale data directory")
    copies = await asyncio.gather(*(kept_out(nodes, f"copy-{name}", said) for name in NAMES))
    for node in running:
        await until(node)
    await check_records(running[0])
    assert not any(copied.partitions for copied in copies)


@pytest.mark.long
async def test_a_copy_of_a_lone_broker_that_is_told_the_original_is_refused(nodes: Nodes) -> None:
    one = await nodes.serve("one", bootstrap=True)
    shutil.copytree(nodes.directory / "one", nodes.directory / "copy", ignore=LOCKS)
    copied = nodes.begin("copy", join=(one.addresses.peer,), **MOVED)
    (reason,) = await until(copied, Reason.STALE_DIRECTORY)
    assert "this broker runs as boot 1 of the same data directory" in reason.message
    await until(one)
    second = nodes.begin("empty", join=(one.addresses.peer,), broker_id=1)
    refused = await nodes.failure(second)
    assert "broker 1 is running at" in str(refused)


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


async def test_a_lone_broker_without_its_disk_forms_another_cluster_that_running_clients_refuse(nodes: Nodes) -> None:
    one = await nodes.serve("one", bootstrap=True)
    await write(one, 1)
    async with Producer(bootstrap_servers=one.addresses.client, delivery_timeout_ms=20_000) as producer:
        await (await producer.send("flights", b"before", partition=0))
        await nodes.stop(one)
        shutil.rmtree(nodes.directory / "one")
        empty = nodes.begin("one")
        refused = await nodes.failure(empty)
        await nodes.stop(empty)
        assert "belongs to no cluster: start with --bootstrap" in str(refused)
        other = await nodes.serve("one", bootstrap=True)
        assert other.view.cluster_id != one.view.cluster_id
        await write(other, 1)
        async with asyncio.timeout(WAIT_SECONDS):  # until the client has noticed: a record on its way would be in doubt
            while producer._dispatcher.failure is None:
                await asyncio.sleep(0.02)
        with pytest.raises(WrongClusterError):
            await (await producer.send("flights", b"after", partition=0))
    await check_records(other)


@pytest.mark.long
async def test_a_broker_announces_itself_to_a_peer_that_it_met_elsewhere(nodes: Nodes) -> None:
    """It knows only outdated addresses, and nobody else knows its new one."""
    one, two, three = await cluster_of_three(nodes)
    await write(one, 3)
    await nodes.stop(three)
    await nodes.stop(one)
    one = await nodes.serve("one", stable_seconds=0.3, **MOVED)
    await until(one)
    await nodes.stop(two)
    two = await nodes.serve("two", stable_seconds=0.3, **MOVED)
    await until(two)
    back = nodes.begin("three", stable_seconds=0.3, **MOVED)  # it knows nobody's address, and nobody knows its own
    await holds(lambda: "--join" in " ".join(one.message for one in back.standing.not_ready_reasons()))
    with contextlib.suppress(RequestError):  # two asks all that it was told of, as it does while there is no leader
        await two._bootstrap.seeds.register_once((back.addresses.peer,))
    for _ in range(50):  # let the other one lead the metadata
        if one.view.metadata.core.role.name == "LEADER":
            break
        if two.view.metadata.core.role.name == "LEADER":
            two.view.transfer_leadership(two.view.metadata, one.view.metadata.core.replica_id)
        await asyncio.sleep(0.2)
    assert one.view.metadata.core.role.name == "LEADER"
    await holds(lambda: back.view.is_connected(two.view.node_id))
    await until(back)
    await check_records(back)
