"""Every reason of /readyz, on whole nodes in this process: real disk, sockets and cores, shortened times."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from raftmq.broker.config import BrokerConfig
from raftmq.broker.node import Node
from raftmq.broker.readiness import NotReady, Reason
from raftmq.broker.request_error import RequestError
from raftmq.broker.services.call import Call
from raftmq.proto import queue_pb2 as pb
from raftmq.storage.errors import DamagedReplicaError
from raftmq.types import METADATA_GROUP_ID

WAIT_SECONDS = 30.0
NOBODY = "127.0.0.1:1"
"""A port where nothing listens."""


def config(directory: Path, **settings: object) -> BrokerConfig:
    usual = {"listen": "127.0.0.1:0", "peer_listen": "127.0.0.1:0", "http_listen": "127.0.0.1:0", "writer_threads": 1}
    usual |= {
        "data_tick_seconds": 0.05,
        "metadata_tick_seconds": 0.05,
        "controller_seconds": 0.05,
        "map_bytes": 1 << 28,
    }
    return BrokerConfig(data_dir=directory, **(usual | settings))


class Nodes:
    """Nodes by directory name; all are stopped at the end."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._running: dict[Node, asyncio.Task[None]] = {}
        self._addresses: dict[Path, dict[str, object]] = {}
        """Where a node was when it stopped: it comes back there, else nobody would find it."""

    def begin(self, name: str, **settings: object) -> Node:
        """Start a node, without waiting until it serves."""
        directory = self.directory / name
        directory.mkdir(exist_ok=True)
        node = Node(config(directory, **(self._addresses.get(directory, {}) | settings)), "0.test")
        self._running[node] = asyncio.ensure_future(node.start())
        return node

    async def serve(self, name: str, **settings: object) -> Node:
        """Start a node and wait until it serves."""
        node = self.begin(name, **settings)
        await asyncio.wait_for(asyncio.shield(self._running[node]), WAIT_SECONDS)
        return node

    async def failure(self, node: Node) -> BaseException:
        """What the node's start ended with."""
        with pytest.raises(RequestError) as raised:
            await asyncio.wait_for(self._running[node], WAIT_SECONDS)
        return raised.value

    async def stop(self, node: Node) -> None:
        starting = self._running.pop(node)
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError, RequestError):
            await starting
        if node.peer_address:
            listened: dict[str, object] = {
                "listen": node.client_address,
                "peer_listen": node.peer_address,
                "http_listen": node.http_address,
            }
            self._addresses[node.config.data_dir] = listened
        await node.stop()

    async def stop_all(self) -> None:
        for node in list(self._running):
            await self.stop(node)


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    made = Nodes(tmp_path)
    try:
        yield made
    finally:
        await made.stop_all()


async def until(node: Node, *wanted: Reason) -> list[NotReady]:
    """The node's reasons, once they are the wanted ones."""
    async with asyncio.timeout(WAIT_SECONDS):
        while [one.reason for one in node.not_ready_reasons()] != [*wanted]:  # noqa: ASYNC110 -- what shows from outside
            await asyncio.sleep(0.02)
    return node.not_ready_reasons()


async def three_voters(node: Node) -> None:
    """Until three nodes vote on metadata."""
    async with asyncio.timeout(WAIT_SECONDS):
        while len(node.metadata.core.membership.voters) < 3:
            await asyncio.shield(node.metadata.wait_progress())


async def test_a_node_that_nobody_has_admitted_is_joining(nodes):
    node = nodes.begin("one", join=(NOBODY,))
    (reason,) = await until(node, Reason.JOINING)
    assert NOBODY in reason.message


async def test_a_node_whose_metadata_no_majority_confirmed_is_recovering_and_one_that_loses_it_has_no_leader(nodes):
    first = await nodes.serve("one", bootstrap=True)
    others = [await nodes.serve(name, join=(first.client_address,)) for name in ("two", "three")]
    await three_voters(first)
    await until(first)
    for node in others:
        await nodes.stop(node)
    (reason,) = await until(first, Reason.NO_METADATA_LEADER)
    assert "no metadata leader for" in reason.message
    assert not first.is_led(METADATA_GROUP_ID)
    await nodes.stop(first)
    again = nodes.begin("one")
    (reason,) = await until(again, Reason.RECOVERING_METADATA)
    assert "majority" in reason.message
    await nodes.serve("two")
    await until(again)


async def test_a_node_whose_replicas_are_not_open_yet_says_how_many(nodes, monkeypatch):
    node = await nodes.serve("one", bootstrap=True)
    may_go_on = asyncio.Event()
    bring_up = node.replicas._bring_up

    async def later(*arguments):
        await may_go_on.wait()
        await bring_up(*arguments)

    monkeypatch.setattr(node.replicas, "_bring_up", later)
    request = pb.CreateTopicRequest(name="flights", partitions=2)
    creating = asyncio.ensure_future(node.grpc.admin.create_topic(request, Call(node.loop.time() + WAIT_SECONDS)))
    (reason,) = await until(node, Reason.STARTING_REPLICAS)
    assert "2 replicas" in reason.message
    may_go_on.set()
    await creating
    await until(node)


async def test_a_node_on_a_full_disk_starts_and_is_not_ready(nodes):
    node = await nodes.serve("one", bootstrap=True, disk_reserve_bytes=1 << 60)
    (reason,) = await until(node, Reason.DISK_RESERVE)
    assert "reserve" in reason.message


async def test_a_node_that_stops_is_not_ready_before_it_hands_over(nodes):
    node = await nodes.serve("one", bootstrap=True)
    stopping = asyncio.ensure_future(node.stop())
    await asyncio.sleep(0)
    assert [one.reason for one in node.not_ready_reasons()] == [Reason.STOPPING]
    await stopping


async def test_a_loop_that_stood_still_a_moment_ago_is_not_ready(nodes):
    node = await nodes.serve("one", bootstrap=True)
    await until(node)
    time.sleep(node.timing.stall_seconds + 0.3)  # noqa: ASYNC251 -- it is the stall
    (reason,) = await until(node, Reason.LOOP_STALLED)
    assert "stood still" in reason.message
    await until(node)


async def test_a_node_whose_disk_was_replaced_is_told_so_once_and_for_ever(nodes):
    first = await nodes.serve("one", bootstrap=True)
    second = await nodes.serve("two", join=(first.client_address,), node_id=2)
    third = await nodes.serve("three", join=(first.client_address,), node_id=3)
    await three_voters(first)
    await nodes.stop(third)
    await nodes.serve("other", join=(first.client_address,), node_id=3, replace_lost=True)
    removed = nodes.begin("three")
    (reason,) = await until(removed, Reason.REMOVED)
    assert "for ever" in reason.message
    assert "empty data directory" in reason.message
    await until(first)
    await until(second)


async def test_a_quarantined_replica_leaves_the_node_ready_with_a_warning(nodes):
    node = await nodes.serve("one", bootstrap=True)
    await node.grpc.admin.create_topic(pb.CreateTopicRequest(name="flights"), Call(node.loop.time() + 10))
    await until(node)
    (group,) = node.partition_groups()
    node.engine.break_group(group, DamagedReplicaError(group.key, "a checksum is wrong"))
    async with asyncio.timeout(WAIT_SECONDS):
        while not node.warnings():  # noqa: ASYNC110 -- the registry is written in a thread
            await asyncio.sleep(0.02)
    assert "a checksum is wrong" in node.warnings()[0]
    assert node.not_ready_reasons() == []


async def test_a_data_directory_of_another_cluster_than_the_seeds_refuses_to_start(nodes):
    first = await nodes.serve("one", bootstrap=True)
    other = await nodes.serve("other", bootstrap=True)
    await nodes.stop(first)
    failed = nodes.begin("one", join=(NOBODY, other.client_address))
    error = await nodes.failure(failed)
    assert error.code == pb.WRONG_CLUSTER
    assert other.cluster_id in str(error)
    assert other.client_address in str(error)


async def test_seeds_that_cannot_be_reached_do_not_keep_a_node_from_starting(nodes):
    first = await nodes.serve("one", bootstrap=True)
    cluster_id = first.cluster_id
    await nodes.stop(first)
    again = await nodes.serve("one", join=(NOBODY,))
    assert again.cluster_id == cluster_id


async def test_a_stale_seed_of_another_cluster_is_a_warning_while_another_says_ours(nodes):
    first = await nodes.serve("one", bootstrap=True)
    second = await nodes.serve("two", join=(first.client_address,))
    stranger = await nodes.serve("other", bootstrap=True)
    await nodes.stop(second)
    again = nodes.begin("two", join=(stranger.client_address, first.client_address))
    await until(again)
    assert again.cluster_id == first.cluster_id
