"""The number of partition replicas in a process is the configured one, as far as its limit of open files allows."""

import contextlib
import resource

import pytest
from raftmq.broker.base.limits import (
    ACCEPT_FILES,
    CHANNELS_PER_PEER,
    DESCRIPTORS_PER_FILE,
    DESCRIPTORS_PER_REPLICA,
    ENGINE_FILES,
    ENTRY_BYTES_MAX,
    FILES_PER_PEER,
    GIB,
    OPEN_FILES_MIN,
    SPARE_MAPS,
    Limits,
    why_process_is_too_small,
    within_address_space,
    within_open_files,
    within_this_process,
)
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.peers.codec import FRAME_HEADER, encode_message
from raftmq.fsm.metadata_commands import AlterTopicConfig, encode_command
from raftmq.fsm.topic_config import MAX_BATCH_BYTES
from raftmq.proto import peer_pb2 as peer_pb
from raftmq.proto import queue_pb2 as pb
from raftmq.raft.entry import Entry, EntryKind, Proposal
from raftmq.raft.messages import AppendRequest
from raftmq.types import GroupId, LogIndex, Offset, ReplicaId, Term

from tests.support.broker.harness import running


@pytest.mark.parametrize(
    ("open_files_max", "partitions_max"),
    [(1_000_000, 1000), (1024 + 6003, 1000), (1024 + 6002, 999), (2048, 170), (1024, 84), (64, 4), (2, 1)],
)
def test_replicas_leave_files_to_connections(open_files_max: int, partitions_max: int) -> None:
    limits = within_open_files(Limits(), open_files_max)
    assert limits.partitions_max == partitions_max
    used = partitions_max * DESCRIPTORS_PER_REPLICA
    assert open_files_max - used >= min(Limits().connection_files_max, open_files_max // 2) or partitions_max == 1


@pytest.mark.parametrize("replica_files", [0, 100])
@pytest.mark.parametrize("open_files_max", [OPEN_FILES_MIN, 600, 1024, 4096, 16_384, 100_000])
def test_all_limits_together_fit_into_the_open_files(open_files_max: int, replica_files: int) -> None:
    replica_files = min(replica_files, (open_files_max - OPEN_FILES_MIN // 2) // DESCRIPTORS_PER_FILE)
    limits = within_open_files(Limits(), open_files_max, replica_files)
    connections = (
        limits.client_connections_max
        + limits.data_connections_max
        + limits.data_handshakes_max
        + limits.http_connections_max
        + limits.peer_handshakes_max
        + limits.peer_connections_max // CHANNELS_PER_PEER * FILES_PER_PEER
    )
    files = max(limits.partitions_max * DESCRIPTORS_PER_REPLICA, replica_files * DESCRIPTORS_PER_FILE)
    assert connections + files + ENGINE_FILES + ACCEPT_FILES <= open_files_max
    assert min(limits.client_connections_max, limits.http_connections_max, limits.peer_handshakes_max) >= 8
    assert limits.peer_connections_max >= CHANNELS_PER_PEER * 4, "a cluster of five"


def test_limits_that_fit_stay_as_they_are() -> None:
    assert within_open_files(Limits(), 20_000) == Limits()


def test_maps_fit_into_the_address_space() -> None:
    limits = within_address_space(Limits(), 1024 * GIB, 16 * GIB)
    assert limits.partitions_max == ((1024 - 4) // 16 - SPARE_MAPS) // 2, "a queue has two files"
    assert "RLIMIT_AS" in limits.partitions_max_reason
    assert within_address_space(Limits(), 1024 * GIB, 1024 * 1024) == Limits()


@pytest.mark.parametrize(("open_files_max", "replicas", "needed"), [(48, 0, 512), (512, 86, 514), (600, 200, 856)])
def test_a_process_with_too_few_files_is_refused_with_the_needed_number(
    open_files_max: int, replicas: int, needed: int
) -> None:
    with open_files(open_files_max):
        problem = why_process_is_too_small(GIB, replicas)
    assert problem is not None
    assert f"may open {open_files_max} files" in problem
    assert f"at least {needed}" in problem
    assert f"{replicas} replica files" in problem
    with open_files(needed):
        assert why_process_is_too_small(GIB, replicas) is None


def test_a_process_with_too_small_files_is_refused() -> None:
    """A commit that met the limit ended the broker with "Input/output error", again after each restart."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (GIB - 1, hard))
    try:
        problem = why_process_is_too_small(GIB, 0)
        assert why_process_is_too_small(GIB - 1, 0) is None
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert problem is not None
    assert f"{GIB - 1} bytes (RLIMIT_FSIZE)" in problem


@pytest.mark.parametrize("count", [OPEN_FILES_MIN, 516, 700, 1024, 4096])
def test_a_broker_with_all_the_queues_that_it_accepts_can_be_restarted(count: int) -> None:
    """A replica of a queue has two files, and was counted as one: creating 85 of them ended a broker that may open 512."""
    with open_files(count):
        accepted = within_this_process(Limits()).partitions_max
        assert why_process_is_too_small(0, 2 * accepted + 1) is None


@contextlib.contextmanager
def open_files(count: int):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_limits_follow_the_open_files_limit_of_the_process() -> None:
    with open_files(1024):
        assert within_this_process(Limits()).partitions_max == 84
        assert within_this_process(Limits(partitions_max=7)).partitions_max == 7
        assert within_this_process(Limits()).client_connections_max < 1024


async def test_partitions_beyond_the_open_files_are_refused_and_told_why() -> None:
    async with running(within_open_files(Limits(), 64)) as node:
        await node.topic("a", partitions=4)
        with pytest.raises(RequestError) as refused:
            await node.admin.create_topic(pb.CreateTopicRequest(name="b", partitions=1), node.call())
    assert refused.value.code == pb.TOO_MANY_PARTITIONS
    assert "RLIMIT_NOFILE = 64" in refused.value.detail.message


async def test_partitions_beyond_the_setting_are_refused_by_its_name() -> None:
    async with running(Limits(partitions_max=1)) as node:
        with pytest.raises(RequestError) as refused:
            await node.admin.create_topic(pb.CreateTopicRequest(name="b", partitions=2), node.call())
    assert "partitions_max" in refused.value.detail.message


async def test_placement_uses_each_nodes_own_maximum_not_the_leaders() -> None:
    async with running(Limits(partitions_max=10)) as node:
        for number, takes in ((2, 1), (3, 30)):
            request = peer_pb.RegisterBrokerRequest(
                uuid=f"uuid-{number}", broker_id=number, client_address=f"a{number}:1", peer_address=f"a{number}:2", host=f"h{number}",
                version="1", feature_level_max=1, partitions_max=takes,
            )  # fmt: skip
            await node.nodes.register_node(request, node.call())
        node.connected = {2, 3}
        assert [n.partitions_max for n in node.metadata.state_machine.nodes()] == [
            0,
            1,
            30,
        ]  # 0: registered by an older version
        create = pb.CreateTopicRequest(name="wide", partitions=30, replication_factor=1, timeout_ms=200)
        await node.admin.create_topic(create, node.call())
        machine = node.metadata.state_machine
        counts = [machine.replica_count_of_node(number) for number in (1, 2, 3)]
        assert counts == [10, 1, 19]
        create = pb.CreateTopicRequest(name="more", partitions=1, replication_factor=2)
        with pytest.raises(RequestError) as refused:
            await node.admin.create_topic(create, node.call())
        assert refused.value.code == pb.TOO_MANY_PARTITIONS
        message = refused.value.detail.message
        assert "broker 1 has 10 of the 10 it takes (its setting partitions_max)" in message
        assert "broker 2 has 1 of the 1 it takes" in message


def test_a_peer_frame_holds_the_largest_entry_and_the_largest_batch_is_one() -> None:
    entry = Entry(LogIndex(1), Term(1), EntryKind.COMMAND, Offset(0), 0, 0, bytes(ENTRY_BYTES_MAX))
    request = AppendRequest(ReplicaId(1), ReplicaId(2), Term(1), LogIndex(0), Term(0), (entry,), LogIndex(0))
    frame = sum(len(part) for part in encode_message(GroupId(1), request))
    assert frame + FRAME_HEADER.size <= Limits().frame_bytes_max
    batch_bytes_max = int(MAX_BATCH_BYTES.value_in({MAX_BATCH_BYTES.name: str(3_670_016)}))
    assert max(batch_bytes_max + 64 * 1024, Limits().grpc_message_bytes_max + 64 * 1024) <= ENTRY_BYTES_MAX


@pytest.mark.parametrize("kind", [EntryKind.DATA, EntryKind.COMMAND])
async def test_an_entry_that_no_peer_frame_holds_is_refused_and_appends_nothing(kind: EntryKind) -> None:
    """It once cut the channel of all groups, again and again, and was never replicated."""
    async with running() as node:
        metadata = node.metadata
        payload = encode_command(AlterTopicConfig(1, {"a": "v" * (ENTRY_BYTES_MAX + 1)}))
        index = metadata.core.last_index
        with pytest.raises(RequestError, match="use several requests") as refused:
            metadata.propose([Proposal(kind, payload)])
        assert refused.value.code == pb.INVALID_ARGUMENT
        assert metadata.core.last_index == index
        assert node.uncommitted == 0
