"""A node ends, in order or not, with real disk, sockets and cores in this process."""

from __future__ import annotations

import asyncio
import threading

import pytest
from raftmq.broker.replica import log_tail
from raftmq.broker.services.call import Call
from raftmq.proto import queue_pb2 as pb
from raftmq.storage.errors import DamagedReplicaError, RegistryError, StorageUnavailableError
from raftmq.storage.registry import Registry

from tests.support.broker.engine_cluster import state_durable
from tests.support.broker.whole_nodes import WAIT_SECONDS


async def test_a_node_ends_even_if_its_orderly_end_fails(nodes, monkeypatch):
    """When a step of its end failed it waited for that end without limit, and ignored every further signal."""
    node = await nodes.serve("one", bootstrap=True)

    def fail(*, is_clean):
        raise RegistryError("no space left on device")

    monkeypatch.setattr(node.registry, "close", fail)
    stopping = asyncio.ensure_future(nodes.stop(node))
    await asyncio.wait_for(node.wait_stopped(), WAIT_SECONDS)
    with pytest.raises(RegistryError):
        await stopping
    monkeypatch.undo()
    node.registry.close(is_clean=False)


async def test_a_registry_that_cannot_be_written_ends_the_process(nodes, monkeypatch):
    """After a failed commit the disk's contents are unknown. Nothing noticed the failure, and the next write continued."""
    node = await nodes.serve("one", bootstrap=True)
    has_ended = threading.Event()

    def fail(*arguments):
        raise RegistryError("cannot be written")

    monkeypatch.setattr(node.registry, "set_seeds", fail)
    monkeypatch.setattr(node._parts, "end_process", has_ended.set)
    node._peers.refresh()
    assert await asyncio.to_thread(has_ended.wait, WAIT_SECONDS)


async def test_a_quarantine_that_waits_to_be_written_is_remembered(nodes, monkeypatch):
    node = await nodes.serve("one", bootstrap=True)
    request = pb.CreateTopicRequest(name="flights", partitions=1)
    await node.grpc.admin.create_topic(request, Call(node.loop.time() + WAIT_SECONDS))
    (replica,) = node.view.partition_replicas()
    may_go_on = threading.Event()
    for _ in range(node.limits.upkeep_threads):
        node._storage.readers.upkeep.submit(may_go_on.wait)
    node.engine.break_replica(replica, DamagedReplicaError(replica.key, "a flipped byte"))
    shutdown = node._storage.readers.upkeep.shutdown

    def go_on_and_shutdown(**arguments):  # all of it waits until nobody waits any longer
        may_go_on.set()
        shutdown(**arguments)

    monkeypatch.setattr(node._storage.readers.upkeep, "shutdown", go_on_and_shutdown)
    await nodes.stop(node)
    registry = Registry(node.config.data_dir / "node.mdb")
    assert registry.quarantined() == {replica.key: f"{DamagedReplicaError(replica.key, 'a flipped byte')}"}
    registry.close(is_clean=True)


async def test_a_temporarily_unreadable_metadata_file_does_not_end_the_node(nodes, monkeypatch):
    """Trimming its log read a row. A lack of resources in the operating system during that read ended the process."""
    node = await nodes.serve("one", bootstrap=True)
    monkeypatch.setattr(log_tail, "TAIL_ENTRIES", 1)
    replica = node.view.metadata

    def refuse(key, index):
        raise StorageUnavailableError(key, "no memory")

    monkeypatch.setattr(node.store, "header", refuse)
    await state_durable(node.engine, replica)
    replica.log.clear()
    await node.upkeep.housekeeping._trim_metadata()
    assert not replica.is_closed
    assert replica.pending_truncation is None
