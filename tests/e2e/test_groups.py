"""Consumer groups on real brokers: members that speak the protocol directly, a killed coordinator, a frozen consumer."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from raftmq import Admin, Producer
from raftmq.proto import queue_pb2 as pb
from raftmq.testing import LocalCluster

from bench.group_members import Brokers, Leaders, ProtocolMember, wait_settled
from bench.groups import check_division
from tests.support.e2e.helpers import cluster_with_topic

pytestmark = [pytest.mark.e2e]

TOPIC = "groups"
PARTITIONS = 12
WAIT_SECONDS = 90.0
SESSION_MS = 6000


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with cluster_with_topic(TOPIC, PARTITIONS) as running:
        yield running


@pytest.fixture
async def brokers(cluster: LocalCluster) -> AsyncIterator[Brokers]:
    found = Brokers(cluster.bootstrap_servers.split(","))
    yield found
    await found.close()


def start(members: list[ProtocolMember]) -> list[ProtocolMember]:
    for member in members:
        member.start()
    return members


@pytest.mark.slow
@pytest.mark.long
async def test_a_killed_coordinator_expires_no_member_and_moves_no_partition(
    cluster: LocalCluster, brokers: Brokers
) -> None:
    """200 members form 10 groups. Each session is shorter than the following wait, so an expired session would be noticed."""
    members = start([
        ProtocolMember(brokers, f"g{number % 10}", (TOPIC,), session_timeout_ms=2 * SESSION_MS) for number in range(200)
    ])  # fmt: skip
    await wait_settled(members, WAIT_SECONDS)
    check_division(members)
    epochs = [member.epoch for member in members]
    coordinator = brokers.coordinator_broker_id
    cluster.kill(coordinator)
    async with asyncio.timeout(WAIT_SECONDS):
        while brokers.coordinator_broker_id in (0, coordinator):
            await asyncio.sleep(0.05)
    await asyncio.sleep(2.5 * SESSION_MS / 1000)
    await wait_settled(members, WAIT_SECONDS)
    assert [member.lost for member in members] == [0] * len(members)
    assert [member.epoch for member in members] == epochs
    check_division(members)
    for member in members:
        member.kill()


@pytest.mark.long
async def test_unmoved_partitions_keep_their_owner_epochs_and_those_of_a_leaver_are_reassigned(
    cluster: LocalCluster, brokers: Brokers
) -> None:
    leaders = Leaders(brokers)
    members = start([ProtocolMember(brokers, "g", (TOPIC,), leaders=leaders) for _ in range(2)])
    await wait_settled(members, WAIT_SECONDS)
    before = {part: epoch for member in members for part, epoch in member.held.items()}
    assert len(before) == PARTITIONS
    members += start([ProtocolMember(brokers, "g", (TOPIC,), leaders=leaders)])
    await wait_settled(members, WAIT_SECONDS)
    check_division(members)
    kept = {part: epoch for member in members[:2] for part, epoch in member.held.items()}
    assert kept.items() <= before.items()
    assert len(members[2].held) == PARTITIONS // 3
    await members[0].leave()
    await wait_settled(members[1:], WAIT_SECONDS)
    async with asyncio.timeout(WAIT_SECONDS):
        while sum(len(member.held) for member in members[1:]) < PARTITIONS:
            await asyncio.sleep(0.05)
    check_division(members[1:])
    for member in members:
        member.kill()


@pytest.mark.long
async def test_a_frozen_consumer_is_fenced(cluster: LocalCluster, brokers: Brokers) -> None:
    """Its session expires and another member takes over. Its late commit is refused, and the other member's commit stays."""
    async with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        await producer.send_many(TOPIC, ((b"%d" % number, b"value") for number in range(500)))
    leaders = Leaders(brokers)
    (frozen,) = start([
        ProtocolMember(brokers, "g", (TOPIC,), leaders=leaders, session_timeout_ms=SESSION_MS)
    ])  # fmt: skip
    await wait_settled([frozen], WAIT_SECONDS)
    part, old_epoch = min(frozen.held.items())
    assert await commit(brokers, leaders, frozen.member_id, part, old_epoch, 1) == 0
    frozen.kill()

    (other,) = start([ProtocolMember(brokers, "g", (TOPIC,), leaders=leaders)])
    async with asyncio.timeout(WAIT_SECONDS):
        while part not in other.held:
            await asyncio.sleep(0.05)
    assert other.held[part] > old_epoch
    assert await commit(brokers, leaders, other.member_id, part, other.held[part], 2) == 0
    assert await commit(brokers, leaders, frozen.member_id, part, old_epoch, 3) == pb.FENCED

    request = pb.DescribeGroupRequest(group="g")
    found = await brokers.call("/raftmq.v1.Groups/Describe", request, pb.DescribeGroupResponse)
    (offset,) = (one for one in found.offsets if (one.topic_id, one.partition) == part)
    assert (offset.offset, offset.member_id) == (2, other.member_id)
    assert [member.member_id for member in found.members] == [other.member_id]
    assert len(found.offsets) == PARTITIONS
    assert not any(one.HasField("error") for one in found.offsets)
    other.kill()


async def test_unused_offsets_expire_and_those_of_a_group_with_members_do_not() -> None:
    settings = ("--set", "offsets_retention_seconds=2", "--set", "retention_check_seconds=0.2")
    async with LocalCluster(brokers=1, broker_arguments=settings) as cluster:
        async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            await admin.create_topic(TOPIC, partitions=1, replication_factor=1)
        brokers = Brokers(cluster.bootstrap_servers.split(","))
        leaders = Leaders(brokers)
        (member,) = start([ProtocolMember(brokers, "g", (TOPIC,), leaders=leaders)])
        await wait_settled([member], WAIT_SECONDS)
        ((part, epoch),) = member.held.items()
        assert await commit(brokers, leaders, member.member_id, part, epoch, 0) == 0
        assert await commit(brokers, leaders, "", part, 0, 0, group="plain") == 0
        assert await knows(brokers, leaders, part, "plain")
        async with asyncio.timeout(WAIT_SECONDS):
            while await knows(brokers, leaders, part, "plain"):
                await asyncio.sleep(0.1)
        await asyncio.sleep(0.5)
        assert await knows(brokers, leaders, part, "g"), "equally old, but its group has a member"
        member.kill()
        await brokers.close()


async def knows(brokers: Brokers, leaders: Leaders, part: tuple[int, int], group: str) -> bool:
    request = pb.FetchOffsetsRequest(group=group)
    address = await leaders.address(part)
    answer = await brokers.call("/raftmq.v1.Log/FetchOffsets", request, pb.FetchOffsetsResponse, address)
    return bool(answer.partitions)


async def commit(
    brokers: Brokers,
    leaders: Leaders,
    member_id: str,
    part: tuple[int, int],
    owner_epoch: int,
    offset: int,
    group: str = "g",
) -> int:
    request = pb.CommitOffsetsRequest(group=group, member_id=member_id)
    request.partitions.add(topic_id=part[0], partition=part[1], owner_epoch=owner_epoch, offset=offset)
    address = await leaders.address(part)
    answer = await brokers.call("/raftmq.v1.Log/CommitOffsets", request, pb.CommitOffsetsResponse, address)
    return int(answer.partitions[0].error.code)
