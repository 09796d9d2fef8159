"""How many partition replicas a process takes: as configured, and as many as it may have files open."""

import contextlib
import resource

import pytest
from raftmq.broker.limits import FILES_PER_REPLICA, Limits, within_open_files, within_this_process
from raftmq.broker.request_error import RequestError
from raftmq.proto import queue_pb2 as pb

from tests.broker.harness import running


@pytest.mark.parametrize(
    ("open_files_max", "partitions_max"),
    [(1_000_000, 1000), (1024 + 3000, 1000), (1024 + 2999, 999), (2048, 341), (1024, 170), (64, 10), (2, 1)],
)
def test_replicas_leave_files_to_connections(open_files_max: int, partitions_max: int) -> None:
    limits = within_open_files(Limits(), open_files_max)
    assert limits.partitions_max == partitions_max
    used = partitions_max * FILES_PER_REPLICA
    assert open_files_max - used >= min(Limits().connection_files_max, open_files_max // 2) or partitions_max == 1


@contextlib.contextmanager
def open_files(count: int):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_process_is_asked_what_it_may_open() -> None:
    with open_files(1024):
        assert within_this_process(Limits()).partitions_max == 170
        assert within_this_process(Limits(partitions_max=7)) == Limits(partitions_max=7)


async def test_partitions_beyond_the_open_files_are_refused_and_told_why() -> None:
    async with running(within_open_files(Limits(), 64)) as node:
        await node.topic("a", partitions=10)
        with pytest.raises(RequestError) as refused:
            await node.admin.create_topic(pb.CreateTopicRequest(name="b", partitions=1), node.call())
    assert refused.value.code == pb.TOO_MANY_PARTITIONS
    assert "RLIMIT_NOFILE = 64" in refused.value.detail.message


async def test_partitions_beyond_the_setting_are_refused_by_its_name() -> None:
    async with running(Limits(partitions_max=1)) as node:
        with pytest.raises(RequestError) as refused:
            await node.admin.create_topic(pb.CreateTopicRequest(name="b", partitions=2), node.call())
    assert "partitions_max" in refused.value.detail.message


async def test_each_node_is_given_what_it_takes_itself_not_what_the_leader_takes() -> None:
    async with running(Limits(partitions_max=10)) as node:
        for number, takes in ((2, 1), (3, 30)):
            request = pb.RegisterNodeRequest(
                uuid=f"uuid-{number}", node_id=number, client_address="a:1", peer_address="a:2", host=f"h{number}",
                version="1", feature_level_max=1, partitions_max=takes,
            )  # fmt: skip
            await node.nodes.register_node(request, node.call())
        node.connected = {2, 3}
        assert [n.partitions_max for n in node.metadata.machine.nodes()] == [
            0,
            1,
            30,
        ]  # 0: registered by an older version
        create = pb.CreateTopicRequest(name="wide", partitions=30, replication_factor=1, timeout_ms=200)
        await node.admin.create_topic(create, node.call())
        machine = node.metadata.machine
        counts = [machine.replica_count_of_node(number) for number in (1, 2, 3)]
        assert counts == [10, 1, 19]
        create = pb.CreateTopicRequest(name="more", partitions=1, replication_factor=2)
        with pytest.raises(RequestError) as refused:
            await node.admin.create_topic(create, node.call())
        assert refused.value.code == pb.TOO_MANY_PARTITIONS
        message = refused.value.detail.message
        assert "node 1 has 10 of the 10 it takes (its setting partitions_max)" in message
        assert "node 2 has 1 of the 1 it takes" in message
