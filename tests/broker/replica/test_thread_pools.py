"""Reads of clients must not delay the repair of replicas, so each kind of work has its own threads."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

import pytest
from raftmq.broker.node import Node
from raftmq.broker.services.call import Call
from raftmq.proto import queue_pb2 as pb
from raftmq.storage.errors import DamagedReplicaError
from raftmq.types import LogIndex

from tests.support.broker.whole_nodes import WAIT_SECONDS, Nodes


@contextlib.contextmanager
def clients_that_read_without_end(node: Node) -> Iterator[None]:
    """Start more reads of clients than there are threads. They never end."""
    may_end = threading.Event()
    for _ in range(2 * node.limits.client_reader_threads):
        node._storage.readers.clients.submit(may_end.wait)
    try:
        yield
    finally:
        may_end.set()


@pytest.fixture
async def node(nodes: Nodes) -> Node:
    node = await nodes.serve("one", bootstrap=True)
    request = pb.CreateTopicRequest(name="flights", partitions=1)
    await node.grpc.admin.create_topic(request, Call(node.loop.time() + WAIT_SECONDS))
    return node


async def test_a_damaged_replica_is_remembered_while_clients_read(node: Node) -> None:
    (replica,) = node.view.partition_replicas()
    with clients_that_read_without_end(node):
        node.engine.break_replica(replica, DamagedReplicaError(replica.key, "a flipped byte"))
        async with asyncio.timeout(WAIT_SECONDS):
            while replica.key not in node.registry.quarantined():
                await asyncio.sleep(0.01)


async def test_a_follower_catches_up_while_clients_read(node: Node) -> None:
    (replica,) = node.view.partition_replicas()
    log, last = replica.log, replica.core.last_index
    log.recent.clear()
    first = LogIndex(replica.log_start.index + 1)
    with clients_that_read_without_end(node):
        assert log.entries(first, last, 1024) is None, "a thread must read it"
        async with asyncio.timeout(WAIT_SECONDS):
            while log.entries(first, last, 1024) is None:
                await asyncio.sleep(0.01)


async def test_a_snapshot_is_read_while_clients_read(node: Node) -> None:
    sender = node.engine.snapshots._sender
    (replica,) = node.view.partition_replicas()
    with clients_that_read_without_end(node):
        async with asyncio.timeout(WAIT_SECONDS):
            _, index, _, rows = await node.loop.run_in_executor(sender._readers, node.store.snapshot, replica.key)
    rows.close()
    assert index == replica.durable_state_index
