"""The metrics of a whole node agree with the events on it."""

from __future__ import annotations

import asyncio

import grpc.aio
import pytest
from prometheus_client.parser import text_string_to_metric_families
from raftmq.broker.http_port import consumer_lag
from raftmq.broker.node import Node
from raftmq.broker.services.call import Call
from raftmq.proto import queue_pb2 as pb
from raftmq.proto import queue_pb2_grpc as pb_grpc

from tests.support.broker.harness import append_request, batch, poll_request
from tests.support.broker.whole_nodes import WAIT_SECONDS


async def scrape(node: Node) -> dict[str, float]:
    """Return the samples, by name and labels as on the page."""
    text = (await node.http._metrics.render()).decode()
    assert list(text_string_to_metric_families(text))
    samples = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in samples}


async def test_requests_of_streams_and_refusals_before_the_handler_are_counted(nodes):
    """Every append of the SDK is sent on a stream, so a count of calls would miss all of them."""
    node = await nodes.serve("one", bootstrap=True)
    create = pb.CreateTopicRequest(name="flights")
    topic = (await node.grpc.admin.create_topic(create, Call(node.loop.time() + 10))).topic
    (group,) = node.view.partition_replicas()
    while not group.is_leader:  # it has been elected, but is not confirmed yet
        await asyncio.shield(group.wait_progress())
    async with grpc.aio.insecure_channel(node.addresses.client) as channel:
        queue = pb_grpc.LogStub(channel)
        stream = queue.AppendStream()
        for number in range(3):
            await stream.write(append_request(topic, batch(2, sequence=2 * number), correlation_id=number))
            answer = await stream.read()
            assert not answer.partitions[0].HasField("error")
        before = await scrape(node)
        assert before['raftmq_streams{method="AppendStream"}'] == 1
        for both in ("raftmq_requests_total", "raftmq_partition_refusals_total"):
            assert before[both + '{code="THROTTLED",method="Append"}'] == 0, "the alert on throttling needs both"
        await stream.write(append_request(topic, b"garbage", correlation_id=9))
        assert (await stream.read()).partitions[0].error.code == pb.CORRUPT_BATCH
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF
        assert len((await queue.Poll(poll_request(topic, 0))).partitions[0].batches) == 3
        with pytest.raises(grpc.aio.AioRpcError):
            await queue.Poll(pb.PollRequest())
        malformed = channel.unary_unary("/raftmq.v1.Log/Poll")
        with pytest.raises(grpc.aio.AioRpcError):
            await malformed(b"\xff\xff\xff")
    values = await scrape(node)
    assert values['raftmq_requests_total{code="OK",method="AppendStream"}'] == 4
    assert values['raftmq_partition_refusals_total{code="CORRUPT_BATCH",method="Append"}'] == 1
    assert values['raftmq_requests_total{code="OK",method="Poll"}'] == 1
    assert values['raftmq_requests_total{code="INVALID_ARGUMENT",method="Poll"}'] == 2  # by the handler, and before it
    assert values['raftmq_request_seconds_count{kind="append"}'] == 4
    assert values['raftmq_request_seconds_sum{kind="append"}'] > 0
    assert values['raftmq_request_seconds_count{kind="poll"}'] == 2
    assert values['raftmq_streams{method="AppendStream"}'] == 0
    assert values["raftmq_appended_batches_total"] == 3
    size = 3 * len(batch(2))
    assert values["raftmq_appended_bytes_total"] == values["raftmq_polled_bytes_total"] == size
    assert values["raftmq_client_received_bytes_total"] > size
    assert values["raftmq_client_sent_bytes_total"] > size
    assert values['raftmq_partition_high_watermark{partition="0",topic="flights"}'] == 6
    assert values['raftmq_partition_file_bytes{partition="0",topic="flights"}'] > 0


async def append(topic: pb.Topic, number: int, *nodes: Node) -> Node:
    """Append one record at the present leader, as an idempotent producer does. Return the leader."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            for node in nodes:
                request = append_request(topic, batch(1, sequence=number))
                answer = await node.grpc.log.append(request, Call(node.loop.time() + 10))
                if not answer.partitions[0].HasField("error"):
                    return node
                assert answer.partitions[0].error.retriable
            await asyncio.sleep(0.02)  # until there is a leader


async def test_commits_elections_and_peers_are_counted(nodes):
    first = await nodes.serve("one", bootstrap=True)
    second = await nodes.serve("two", join=(first.addresses.peer,))
    create = pb.CreateTopicRequest(name="flights", replication_factor=2)
    topic = (await first.grpc.admin.create_topic(create, Call(first.loop.time() + 10))).topic
    for number in range(5):
        leader = await append(topic, number, first, second)
    values = await scrape(leader)
    assert values["raftmq_commit_seconds_count"] == values["raftmq_commit_disk_seconds_count"] >= 5
    assert values["raftmq_commit_entries_sum"] >= 5
    assert values["raftmq_commit_bytes_sum"] >= 5 * len(batch())
    assert 0 < values["raftmq_commit_disk_seconds_sum"] < values["raftmq_commit_seconds_sum"]
    assert values["raftmq_engine_pass_seconds_count"] >= 5
    assert values["raftmq_elections_won_total"] >= 1
    assert values["raftmq_elections_started_total"] >= values["raftmq_elections_won_total"]
    other = second if leader is first else first
    assert values[f'raftmq_peer_connected{{peer_id="{other.view.node_id}"}}'] == 1
    assert values['raftmq_peer_sent_bytes_total{channel="append"}'] > 5 * len(batch())
    received = await scrape(other)
    assert received['raftmq_peer_received_bytes_total{channel="append"}'] > 5 * len(batch())
    assert values["raftmq_snapshots_sent_total"] + received["raftmq_snapshots_sent_total"] == 1
    assert received["raftmq_partitions_without_leader"] == 0
    lag = 'raftmq_partition_follower_lag_entries{partition="0",topic="flights"}'
    async with asyncio.timeout(10):
        while (await scrape(leader))[lag]:
            await asyncio.sleep(0.02)
    assert lag not in received


async def test_a_partition_whose_leader_died_without_a_majority_is_reported(nodes):
    """No broker claims a higher term then. The dead leader stays the best hint, but must not be reported as a leader."""
    first = await nodes.serve("one", bootstrap=True)
    second = await nodes.serve("two", join=(first.addresses.peer,))
    create = pb.CreateTopicRequest(name="flights", partitions=2, replication_factor=2)
    topic = (await first.grpc.admin.create_topic(create, Call(first.loop.time() + 10))).topic
    led_by_second = [
        p.group_id for p in topic.partitions if first.view.leadership.get(p.group_id).node_id == second.view.node_id
    ]
    assert led_by_second
    await second.transport.close()  # without transferring leadership, so the first sees a crash
    async with asyncio.timeout(30):
        while (await scrape(first))["raftmq_partitions_without_leader"] < 2:
            await asyncio.sleep(0.05)
    call = Call(first.loop.time() + 10)
    described = await first.grpc.admin.describe_cluster(pb.DescribeClusterRequest(), call)
    assert described.partitions_without_leader == 2
    assert first.view.leadership.get(led_by_second[0]).node_id == second.view.node_id


async def test_the_lag_of_a_group_is_on_the_page_of_the_leader(nodes):
    node = await nodes.serve("one", bootstrap=True)
    create = pb.CreateTopicRequest(name="flights")
    topic = (await node.grpc.admin.create_topic(create, Call(node.loop.time() + 10))).topic
    for number in range(3):
        await append(topic, number, node)
    part = pb.PartitionCommit(topic_id=topic.topic_id, partition=0, offset=1)
    answer = await node.grpc.offsets.commit_offsets(
        pb.CommitOffsetsRequest(group='b"ill', partitions=[part]), Call(node.loop.time() + 10)
    )
    assert not answer.partitions[0].HasField("error")
    values = await scrape(node)
    labels = r'{group="b\"ill",topic="flights"}'
    assert values[f"raftmq_consumer_lag_records{labels}"] == 2
    assert 0 <= values[f"raftmq_consumer_lag_seconds{labels}"] < 60
    assert values['raftmq_consumer_lag_left_out{what="readers"}'] == 0
    async with asyncio.timeout(10):  # a new leader knows nothing of its own disk before its first heartbeats
        while (await scrape(node))["raftmq_metadata_voters_behind"]:
            await asyncio.sleep(0.05)


async def test_a_partition_removed_during_a_scrape_does_not_fail_the_page(nodes, monkeypatch):
    monkeypatch.setattr(consumer_lag, "_STEPS_PER_TURN", 1)
    node = await nodes.serve("one", bootstrap=True)
    create = pb.CreateTopicRequest(name="flights", partitions=2)
    topic = (await node.grpc.admin.create_topic(create, Call(node.loop.time() + 10))).topic
    for part in topic.partitions:
        ack = pb.PartitionCommit(topic_id=topic.topic_id, partition=part.partition, offset=0)
        answer = await node.grpc.offsets.commit_offsets(
            pb.CommitOffsetsRequest(group="g", partitions=[ack]), Call(node.loop.time() + 10)
        )
        assert not answer.partitions[0].HasField("error")
    last = list(node._partitions)[-1]
    page = asyncio.create_task(node.http._metrics.render())
    await asyncio.sleep(0)  # it has measured the first partition
    del node._partitions[last]
    assert b"raftmq_consumer_lag_records" in await page
