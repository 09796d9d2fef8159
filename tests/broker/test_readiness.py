"""Every reason of /readyz appears on whole nodes in this process, with real disk, sockets and cores, and shortened times."""

from __future__ import annotations

import asyncio
import time

import pytest
from raftmq.broker.base.readiness import Reason
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.services.call import Call
from raftmq.proto import queue_pb2 as pb
from raftmq.storage.errors import DamagedReplicaError
from raftmq.types import METADATA_GROUP_ID, Term

from tests.support.broker.whole_nodes import NOBODY, WAIT_SECONDS, three_voters, until


async def test_a_node_that_no_cluster_has_admitted_is_joining(nodes):
    node = nodes.begin("one", join=(NOBODY,))
    (reason,) = await until(node, Reason.JOINING)
    assert NOBODY in reason.message


async def test_a_node_whose_metadata_no_majority_confirmed_is_recovering_and_one_that_loses_it_has_no_leader(nodes):
    first = await nodes.serve("one", bootstrap=True)
    others = [await nodes.serve(name, join=(first.addresses.peer,)) for name in ("two", "three")]
    await three_voters(first)
    await until(first)
    for node in others:
        await nodes.stop(node)
    (reason,) = await until(first, Reason.NO_METADATA_LEADER)
    assert "no metadata leader for" in reason.message
    assert not first.view.is_led(METADATA_GROUP_ID)
    await nodes.stop(first)
    again = nodes.begin("one")
    (reason,) = await until(again, Reason.RECOVERING_METADATA)
    assert "majority" in reason.message
    await nodes.serve("two")
    await until(again)


async def test_an_order_at_a_survivor_names_the_time_without_a_metadata_leader(nodes, monkeypatch):
    """The leader is one of the dead. The answer was only that it cannot be reached, however long ago it had died."""
    monkeypatch.setattr("raftmq.broker.services.metadata_leader._OUTAGE_SECONDS", 1.0)
    first = await nodes.serve("one", bootstrap=True)
    second, third = [await nodes.serve(name, join=(first.addresses.peer,)) for name in ("two", "three")]
    await three_voters(first)
    await until(third)
    assert first.view.metadata.is_leader
    leader = first.view.leadership.get(METADATA_GROUP_ID)
    for node in (first, second):
        await nodes.stop(node)
    third.view.leadership.claim(
        METADATA_GROUP_ID, Term(leader.term + 9), leader.node_id
    )  # a killed one withdraws nothing
    request = pb.CreateTopicRequest(name="flights", partitions=1)
    said = ""
    async with asyncio.timeout(WAIT_SECONDS):
        while "no metadata leader for" not in said:
            with pytest.raises(RequestError) as refused:
                await third.grpc.admin.create_topic(request, Call(third.loop.time() + 1.0))
            said = str(refused.value)
            assert refused.value.detail.retriable, said
            await asyncio.sleep(0.1)
    assert "raftmq recover metadata" in said


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
    assert [one.reason for one in node.standing.not_ready_reasons()] == [Reason.STOPPING]
    await stopping


async def test_a_recently_stalled_loop_is_not_ready(nodes):
    node = await nodes.serve("one", bootstrap=True)
    await until(node)
    time.sleep(node.timing.stall_seconds + 0.3)  # noqa: ASYNC251 -- it is the stall
    (reason,) = await until(node, Reason.LOOP_STALLED)
    assert "stood still" in reason.message
    await until(node)


async def test_a_node_whose_disk_was_replaced_is_refused_permanently(nodes):
    first = await nodes.serve("one", bootstrap=True)
    second = await nodes.serve("two", join=(first.addresses.peer,), broker_id=2)
    third = await nodes.serve("three", join=(first.addresses.peer,), broker_id=3)
    await three_voters(first)
    await nodes.stop(third)
    await nodes.serve("other", join=(first.addresses.peer,), broker_id=3, replace_lost=True)
    removed = nodes.begin("three")
    (reason,) = await until(removed, Reason.REMOVED)
    assert "permanently" in reason.message
    assert "empty data directory" in reason.message
    await until(first)
    await until(second)


async def test_a_node_that_waits_to_replace_a_lost_disk_reports_the_reason(nodes):
    first = await nodes.serve("one", bootstrap=True)
    second = await nodes.serve("two", join=(first.addresses.peer,), broker_id=2)
    third = await nodes.serve("three", join=(first.addresses.peer,), broker_id=3)
    await three_voters(first)
    request = pb.CreateTopicRequest(name="flights", partitions=3, replication_factor=1)
    await first.grpc.admin.create_topic(request, Call(first.loop.time() + 10))
    await nodes.stop(third)
    waiting = nodes.begin("other", join=(first.addresses.peer,), broker_id=3)
    async with asyncio.timeout(WAIT_SECONDS):
        while "majority" not in "".join(one.message for one in waiting.standing.not_ready_reasons()):
            await asyncio.sleep(0.02)
    (reason,) = waiting.standing.not_ready_reasons()
    assert reason.reason is Reason.JOINING
    assert "flights/" in reason.message
    assert "--replace-lost" in reason.message
    await until(first)
    await until(second)


async def test_a_quarantined_replica_leaves_the_node_ready_with_a_warning(nodes):
    node = await nodes.serve("one", bootstrap=True)
    await node.grpc.admin.create_topic(pb.CreateTopicRequest(name="flights"), Call(node.loop.time() + 10))
    await until(node)
    (replica,) = node.view.partition_replicas()
    node.engine.break_replica(replica, DamagedReplicaError(replica.key, "a checksum is wrong"))
    async with asyncio.timeout(WAIT_SECONDS):
        while not node.standing.warnings():
            await asyncio.sleep(0.02)
    assert "a checksum is wrong" in node.standing.warnings()[0]
    await until(node)


async def test_a_data_directory_of_another_cluster_than_the_seeds_refuses_to_start(nodes):
    first = await nodes.serve("one", bootstrap=True)
    other = await nodes.serve("other", bootstrap=True)
    await nodes.stop(first)
    failed = nodes.begin("one", join=(NOBODY, other.addresses.peer))
    error = await nodes.failure(failed)
    assert error.code == pb.WRONG_CLUSTER
    assert other.view.cluster_id in str(error)
    assert other.addresses.peer in str(error)


async def test_seeds_that_cannot_be_reached_do_not_keep_a_node_from_starting(nodes):
    first = await nodes.serve("one", bootstrap=True)
    cluster_id = first.view.cluster_id
    await nodes.stop(first)
    again = await nodes.serve("one", join=(NOBODY,))
    assert again.view.cluster_id == cluster_id


async def test_a_seed_of_another_cluster_is_only_a_warning_while_another_seed_is_ours(nodes):
    first = await nodes.serve("one", bootstrap=True)
    second = await nodes.serve("two", join=(first.addresses.peer,))
    stranger = await nodes.serve("other", bootstrap=True)
    await nodes.stop(second)
    again = nodes.begin("two", join=(stranger.addresses.peer, first.addresses.peer))
    await until(again)
    assert again.view.cluster_id == first.view.cluster_id


async def test_a_stranger_at_a_peers_old_address_does_not_keep_a_moved_node_from_announcing_itself(nodes):
    """Its refusal is permanent, but not on behalf of the cluster. It was asked first each time, and then no other seed was."""
    leader = await nodes.serve("three", bootstrap=True, broker_id=3, metadata_voters=1)
    gone = await nodes.serve("one", join=(leader.addresses.peer,), broker_id=1)
    moving = await nodes.serve("two", join=(leader.addresses.peer,), broker_id=2)
    await until(moving)
    await nodes.stop(gone)
    stranger = await nodes.serve("other", bootstrap=True, peer_listen=gone.addresses.peer)
    assert stranger.view.cluster_id != leader.view.cluster_id
    await nodes.stop(moving)
    moved = nodes.begin("two", listen="127.0.0.1:0", peer_listen="127.0.0.1:0", http_listen="127.0.0.1:0")
    async with asyncio.timeout(WAIT_SECONDS):
        while leader.view.metadata.state_machine.node(2).client_address in (moving.addresses.client, ""):
            await asyncio.shield(leader.view.metadata.wait_progress())
    assert leader.view.metadata.state_machine.node(2).client_address == moved.addresses.client
