"""The Groups service and the coordinator on one node keep members, sessions, plans, resets and limits."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from raftmq.broker.base.limits import Limits
from raftmq.broker.base.request_error import RequestError, timed_out
from raftmq.broker.consumer_groups import coordinator, partition_leaders
from raftmq.broker.consumer_groups.assignor_process import PlanError
from raftmq.broker.consumer_groups.planner import Plan, PlanRequest
from raftmq.broker.services import locator
from raftmq.offset_ranges import encode_ranges
from raftmq.proto import peer_pb2 as peer_pb
from raftmq.proto import queue_pb2 as pb
from raftmq.raft.entry import Proposal
from raftmq.raft.ready import Appended
from raftmq.types import METADATA_GROUP_ID, GroupId, NodeId, Term

from tests.support.broker.harness import Harness, batch, running


class Member:
    """A member whose heartbeats the test determines."""

    def __init__(self, node: Harness, member_id: str, group: str = "g", **said: object) -> None:
        self.node = node
        self.member_id = member_id
        self.group = group
        self.said = said
        self.epoch = 0
        self.subscription: pb.Subscription | None = pb.Subscription(topics=["flights"])
        self.assignment: dict[tuple[int, int], int] = {}
        self.held: set[tuple[int, int]] = set()

    async def heartbeat(self, **changes: object) -> pb.HeartbeatResponse:
        request = pb.HeartbeatRequest(
            group=self.group, member_id=self.member_id, member_epoch=self.epoch, subscription=self.subscription,
            **(self.said | changes),
        )  # fmt: skip
        for topic_id, number in sorted(self.held):
            request.owned.add(topic_id=topic_id, partitions=[number])
        answer = await self.node.groups_service.heartbeat(request, self.node.call())
        self.epoch = answer.member_epoch
        if answer.has_assignment:
            self.assignment = {
                (topic.topic_id, number): epoch
                for topic in answer.assignment
                for number, epoch in zip(topic.partitions, topic.owner_epochs, strict=True)
            }
        return answer

    async def follow(self) -> None:
        """Send heartbeats and adopt the assignment until it no longer changes."""
        await self.heartbeat()
        self.held = set(self.assignment)
        await self.heartbeat()
        self.held = set(self.assignment)

    async def open(self, *parts: tuple[int, int], epoch: int = 0) -> list[pb.PartitionOpenResult]:
        request = pb.OpenPartitionsRequest(group=self.group, member_id=self.member_id)
        for topic_id, number in parts or sorted(self.assignment):
            owner_epoch = epoch or self.assignment[topic_id, number]
            request.partitions.add(topic_id=topic_id, partition=number, owner_epoch=owner_epoch)
        return list((await self.node.offsets.open_partitions(request, self.node.call())).partitions)

    async def commit(self, part: tuple[int, int], offset: int, epoch: int = 0, finished: bytes = b"") -> int:
        """Commit, and return the error's code, or 0 after a success."""
        request = pb.CommitOffsetsRequest(group=self.group, member_id=self.member_id)
        owner_epoch = epoch or self.assignment.get(part, 0)
        request.partitions.add(
            topic_id=part[0], partition=part[1], owner_epoch=owner_epoch, offset=offset, finished=finished
        )
        return (await self.node.offsets.commit_offsets(request, self.node.call())).partitions[0].error.code


@pytest.fixture
async def node() -> AsyncIterator[Harness]:
    async with running() as harness:
        yield harness


async def tick(node: Harness) -> None:
    """Tick the coordinator once, and wait for everything that the tick starts."""
    await node.coordinator.tick()
    await node.coordinator.planned()


async def settle(node: Harness, *members: Member) -> None:
    for _ in range(4):
        for member in members:
            await member.follow()
        await tick(node)


def code_of(raised: pytest.ExceptionInfo[RequestError]) -> int:
    return raised.value.code


async def test_the_metadata_leader_is_never_named_as_the_leader_of_a_partition(node: Harness) -> None:
    """Clients took it for the partition's, in a term of metadata, and then ignored every true leader of a lower one."""
    topic = await node.topic(partitions=1)
    member = Member(node, "m1")
    await settle(node, member)
    node.lose_leadership(METADATA_GROUP_ID, to=NodeId(2))
    with pytest.raises(RequestError) as raised:
        await member.open((topic.topic_id, 0), epoch=99)
    assert raised.value.detail.retriable
    assert not raised.value.detail.HasField("leader")


async def test_finished_ranges_reach_the_next_owner_and_descriptions(node: Harness) -> None:
    topic = await node.topic(partitions=1)
    await node.append(topic, batch(20))
    part = (topic.topic_id, 0)
    first = Member(node, "m1")
    await settle(node, first)
    await first.open()
    finished = encode_ranges(4, [(6, 8), (10, 15)])
    assert await first.commit(part, 4, finished=finished) == 0
    assert await first.commit(part, 4, finished=finished + b"\x00\x01") == pb.INVALID_ARGUMENT
    assert await first.commit(part, 4, finished=encode_ranges(4, [(6, 21)])) == pb.OFFSET_OUT_OF_RANGE
    request = pb.FetchOffsetsRequest(group="g", partitions=[pb.PartitionId(topic_id=part[0], partition=0)])
    (seen,) = (await node.offsets.fetch_offsets(request, node.call())).partitions
    assert (seen.offset, seen.lag_records, seen.finished_records) == (4, 16, 7)
    (opened,) = await first.open()
    assert (opened.offset, opened.finished) == (4, finished)
    assert await first.commit(part, 5) == 0, "a commit without ranges clears them"
    (opened,) = await first.open()
    assert (opened.offset, opened.finished) == (5, b"")


# ------------------------------------------------------------------------------------------------------------- members


async def test_a_member_joins_and_gets_everything(node: Harness) -> None:
    topic = await node.topic(partitions=3)
    member = Member(node, "m1")
    joined = await member.heartbeat()
    assert (joined.has_assignment, len(joined.assignment), joined.is_rebalancing) == (True, 0, True)
    await tick(node)
    answer = await member.heartbeat()
    assert answer.assignment[0].topic == "flights"
    assert list(answer.assignment[0].partitions) == [0, 1, 2]
    assert not answer.is_rebalancing
    assert answer.coordinator.address == "node-1:9400"
    assert answer.metadata_revision >= topic.topic_id
    again = await member.heartbeat()
    assert not again.has_assignment, "the member already knows it"


async def test_heartbeats_write_nothing(node: Harness) -> None:
    await node.topic(partitions=3)
    member = Member(node, "m1")
    await settle(node, member)
    index = node.metadata.state_machine.applied_index
    for _ in range(50):
        await member.heartbeat()
        await tick(node)
    assert node.metadata.core.last_index == node.metadata.state_machine.applied_index == index


async def test_a_newcomer_gets_partitions_only_after_others_gave_them_up(node: Harness) -> None:
    await node.topic(partitions=4)
    first, second = Member(node, "m1"), Member(node, "m2")
    await settle(node, first)
    assert len(first.held) == 4
    await second.heartbeat()
    await tick(node)
    await second.heartbeat()
    assert second.assignment == {}
    await first.heartbeat()
    assert len(first.assignment) == 2
    await second.heartbeat()
    assert second.assignment == {}, "the first still holds them"
    first.held = set(first.assignment)
    await first.heartbeat()
    await second.heartbeat()
    assert len(second.assignment) == 2
    assert not set(second.assignment) & first.held


async def test_a_lost_answer_costs_nothing(node: Harness) -> None:
    await node.topic(partitions=2)
    member = Member(node, "m1")
    await member.heartbeat()
    member.epoch = 0
    await member.heartbeat()
    assert node.metadata.state_machine.member_count == 1
    await tick(node)
    known = member.epoch
    await member.heartbeat()
    member.epoch, expected = known, member.assignment
    member.assignment = {}
    await member.heartbeat()
    assert member.assignment == expected


async def test_leaving_frees_partitions_immediately(node: Harness) -> None:
    await node.topic(partitions=4)
    first, second = Member(node, "m1"), Member(node, "m2")
    await settle(node, first, second)
    await node.groups_service.leave(pb.LeaveRequest(group="g", member_id="m1"), node.call())
    await settle(node, second)
    assert len(second.held) == 4
    with pytest.raises(RequestError) as raised:
        await first.heartbeat()
    assert code_of(raised) == pb.UNKNOWN_MEMBER
    with pytest.raises(RequestError) as raised:
        await node.groups_service.leave(pb.LeaveRequest(group="g", member_id="m1"), node.call())
    assert code_of(raised) == pb.UNKNOWN_MEMBER


async def test_a_static_member_comes_back_to_its_partitions(node: Harness) -> None:
    await node.topic(partitions=4)
    first, second = Member(node, "m1", instance_id="i1"), Member(node, "m2")
    await settle(node, first, second)
    had = dict(first.assignment)
    reborn = Member(node, "m3", instance_id="i1")
    await reborn.heartbeat()
    assert reborn.assignment.keys() == had.keys()
    assert all(reborn.assignment[part] > had[part] for part in had)
    with pytest.raises(RequestError) as raised:
        await first.heartbeat()
    assert code_of(raised) == pb.FENCED
    left = await node.groups_service.leave(pb.LeaveRequest(group="g", instance_id="i1"), node.call())
    assert left.metadata_revision
    assert node.metadata.state_machine.member_count == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"session_timeout_ms": 10}, {"session_timeout_ms": 3_600_000}, {"subscription": pb.Subscription()}, {"group": "\n"},
        {"subscription": pb.Subscription(topics=["t"], assignor="best")}, {"subscription": pb.Subscription(pattern="(a")},
        {"member_id": ""}, {"rack": "r\0"}, {"subscription": pb.Subscription(topics=map(str, range(1001)))},
    ],
)  # fmt: skip
async def test_an_invalid_join_is_refused(node: Harness, changes: dict[str, object]) -> None:
    said: dict[str, object] = {"group": "g", "member_id": "m", "subscription": pb.Subscription(topics=["t"])}
    with pytest.raises(RequestError) as raised:
        await node.groups_service.heartbeat(pb.HeartbeatRequest(**(said | changes)), node.call())
    assert code_of(raised) == pb.INVALID_ARGUMENT
    assert node.metadata.state_machine.consumer_group_count == 0


async def test_a_heartbeat_that_names_too_much_is_refused(node: Harness) -> None:
    request = pb.HeartbeatRequest(group="g", member_id="m", member_epoch=5)
    request.owned.add(topic_id=1, partitions=range(100_001))
    with pytest.raises(RequestError) as raised:
        await node.groups_service.heartbeat(request, node.call())
    assert code_of(raised) == pb.INVALID_ARGUMENT


async def test_other_nodes_forward_heartbeats_to_the_coordinator(node: Harness) -> None:
    node.lose_leadership(METADATA_GROUP_ID, NodeId(2))
    node.forwarder.answer = pb.HeartbeatResponse(member_epoch=7)
    member = Member(node, "m1")
    assert (await member.heartbeat()).member_epoch == 7
    assert [call[:2] for call in node.forwarder.calls] == [(2, "/raftmq.v1.Groups/Heartbeat")]


# -------------------------------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize(
    ("limits", "refused"),
    [
        (Limits(group_members_max=1), ("g", "m2")),
        (Limits(members_max=1), ("h", "m2")),
        (Limits(consumer_groups_max=1), ("h", "m2")),
        (Limits(subscription_bytes_max=5), ("h", "m2")),
    ],
)
async def test_limits_are_kept(limits: Limits, refused: tuple[str, str]) -> None:
    async with running(limits) as node:
        first = Member(node, "m1", instance_id="i1")
        await first.heartbeat()
        with pytest.raises(RequestError) as raised:
            await Member(node, refused[1], refused[0]).heartbeat()
        assert code_of(raised) == pb.TOO_MANY_MEMBERS
        assert raised.value.detail.retriable
        await first.heartbeat(client_id="who is in may change")
        assert node.metadata.state_machine.member_count == 1


# -------------------------------------------------------------------------------------------------------------- topics


async def test_new_topics_and_partitions_are_picked_up_and_deleted_ones_dropped(node: Harness) -> None:
    await node.topic(partitions=2)
    member = Member(node, "m1")
    member.subscription = pb.Subscription(topics=["flights", "later"])
    await settle(node, member)
    assert len(member.held) == 2
    later = await node.topic("later", partitions=1)
    await node.admin.add_partitions(pb.AddPartitionsRequest(name="flights", total=4), node.call())
    await settle(node, member)
    assert len(member.held) == 5
    await node.admin.delete_topic(pb.DeleteTopicRequest(name="flights"), node.call())
    await settle(node, member)
    assert member.held == {(later.topic_id, 0)}


async def test_a_pattern_finds_topics_as_they_come(node: Harness) -> None:
    member = Member(node, "m1")
    member.subscription = pb.Subscription(pattern="flights-.*")
    await settle(node, member)
    assert member.held == set()
    found = await node.topic("flights-eu", partitions=2)
    await node.topic("boats", partitions=2)
    await settle(node, member)
    assert member.held == {(found.topic_id, 0), (found.topic_id, 1)}
    plans = node.coordinator.plans_total
    await settle(node, member)
    assert node.coordinator.plans_total == plans, "nothing is planned while no topic changes"


# ------------------------------------------------------------------------------------------------------------ sessions


async def test_a_silent_member_is_removed_after_its_session(node: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    await node.topic(partitions=2)
    clock = VirtualTime(node, monkeypatch)
    silent, other = Member(node, "m1", session_timeout_ms=6000), Member(node, "m2", session_timeout_ms=10_000)
    await settle(node, silent, other)
    for _ in range(59):
        await clock.advance(0.1)
        await other.heartbeat()
        await tick(node)
    assert node.metadata.state_machine.member_count == 2
    await clock.advance(0.2)
    await tick(node)
    assert node.metadata.state_machine.member_count == 1
    assert node.coordinator.expired_total == 1
    await settle(node, other)
    assert len(other.held) == 2


async def test_a_new_coordinator_gives_everyone_a_full_session(node: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    await node.topic(partitions=2)
    clock = VirtualTime(node, monkeypatch)
    member = Member(node, "m1", session_timeout_ms=6000)
    await settle(node, member)
    for _ in range(50):
        await clock.advance(0.1)
        await tick(node)
    node.lose_leadership(METADATA_GROUP_ID)
    for _ in range(50):
        await clock.advance(0.1)
        await tick(node)
    node.campaign(METADATA_GROUP_ID)
    await node.metadata.wait_progress()
    await asyncio.sleep(0)
    assert node.metadata.is_leader
    for _ in range(59):
        await clock.advance(0.1)
        await tick(node)
    assert node.metadata.state_machine.member_count == 1
    await clock.advance(0.3)
    await tick(node)
    assert node.metadata.state_machine.member_count == 0


async def test_a_stall_of_the_node_does_not_shorten_sessions(node: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    await node.topic(partitions=2)
    clock = VirtualTime(node, monkeypatch)
    member = Member(node, "m1", session_timeout_ms=6000)
    await settle(node, member)
    await clock.advance(60)
    await tick(node)
    assert node.metadata.state_machine.member_count == 1
    await member.heartbeat()


async def test_a_member_that_gives_nothing_up_is_finally_removed(
    node: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.topic(partitions=2)
    clock = VirtualTime(node, monkeypatch)
    holding = Member(node, "m1", rebalance_timeout_ms=3000)
    await settle(node, holding)
    waiting = Member(node, "m2")
    await waiting.heartbeat()
    await tick(node)
    for _ in range(40):
        await clock.advance(0.1)
        if "m1" in node.metadata.state_machine.consumer_group("g").members:
            await holding.heartbeat()
        await waiting.heartbeat()
        await tick(node)
    assert list(node.metadata.state_machine.consumer_group("g").members) == ["m2"]


async def test_each_revocation_has_the_whole_rebalance_timeout(node: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second revocation inherited the deadline of the first one if it came before the first was reported as done."""
    await node.topic(partitions=3)
    clock = VirtualTime(node, monkeypatch)
    holding, others = Member(node, "m1", rebalance_timeout_ms=3000), [Member(node, "m2"), Member(node, "m3")]
    await settle(node, holding)
    await others[0].heartbeat()
    await tick(node)
    await holding.heartbeat()
    first = holding.held - holding.assignment.keys()
    for _ in range(20):
        await clock.advance(0.1)
        await holding.heartbeat()
        await tick(node)
    await others[1].heartbeat()
    await tick(node)
    await holding.heartbeat()
    second = holding.held - holding.assignment.keys() - first
    assert (len(first), len(second)) == (1, 1)
    holding.held -= first
    for _ in range(29):
        await clock.advance(0.1)
        await holding.heartbeat()
        await tick(node)
    assert "m1" in node.metadata.state_machine.consumer_group("g").members
    await clock.advance(0.2)
    await tick(node)
    assert "m1" not in node.metadata.state_machine.consumer_group("g").members, "it gave up only the first"


async def test_later_revocations_do_not_prolong_an_earlier_one(node: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    await node.topic(partitions=3)
    clock = VirtualTime(node, monkeypatch)
    holding, others = Member(node, "m1", rebalance_timeout_ms=3000), [Member(node, "m2"), Member(node, "m3")]
    await settle(node, holding)
    for other in others:
        await other.heartbeat()
        await tick(node)
        await holding.heartbeat()
        for _ in range(14):
            await clock.advance(0.1)
            await holding.heartbeat()
            await tick(node)
    assert "m1" in node.metadata.state_machine.consumer_group("g").members
    await clock.advance(0.3)
    await tick(node)
    assert "m1" not in node.metadata.state_machine.consumer_group("g").members


async def test_a_stall_prolongs_revocations_too(node: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    await node.topic(partitions=2)
    clock = VirtualTime(node, monkeypatch)
    holding, other = Member(node, "m1", rebalance_timeout_ms=3000), Member(node, "m2")
    await settle(node, holding)
    await other.heartbeat()
    await tick(node)
    await holding.heartbeat()
    await clock.advance(60)
    for _ in range(25):
        await tick(node)
        await holding.heartbeat()
        await clock.advance(0.1)
    assert "m1" in node.metadata.state_machine.consumer_group("g").members


async def test_an_interrupted_join_still_has_a_session(node: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would never end, because its client disappeared before the answer."""
    clock = VirtualTime(node, monkeypatch)
    node.hold_commits = True
    joining = asyncio.create_task(Member(node, "m1", session_timeout_ms=6000).heartbeat())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    joining.cancel()
    node.release_commits()
    await node.metadata.wait_progress()
    assert node.metadata.state_machine.member_count == 1
    for _ in range(62):
        await clock.advance(0.1)
        await tick(node)
    assert node.metadata.state_machine.member_count == 0


async def test_a_heartbeat_is_refused_while_the_members_removal_is_written(
    node: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was answered as a member, and removed a moment later. Seed 1001 of the simulation."""
    await node.topic(partitions=2)
    clock = VirtualTime(node, monkeypatch)
    late, other = Member(node, "m1", session_timeout_ms=6000), Member(node, "m2", session_timeout_ms=60_000)
    await settle(node, late, other)
    for _ in range(59):
        await clock.advance(0.1)
        await tick(node)
    node.hold_commits = True
    await clock.advance(0.2)
    await node.coordinator.tick()
    await asyncio.sleep(0)
    with pytest.raises(RequestError) as refused:
        await late.heartbeat()
    assert code_of(refused) == pb.THROTTLED
    await other.heartbeat()
    node.release_commits()
    await node.coordinator.planned()
    with pytest.raises(RequestError) as refused:
        await late.heartbeat()
    assert code_of(refused) == pb.UNKNOWN_MEMBER


async def test_an_expiry_that_could_not_be_proposed_is_repeated(node: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualTime(node, monkeypatch)
    member = Member(node, "m1", session_timeout_ms=6000)
    await settle(node, member)
    for _ in range(59):
        await clock.advance(0.1)
        await tick(node)
    node.uncommitted = node.limits.uncommitted_bytes_max
    await clock.advance(0.3)
    await tick(node)
    assert node.coordinator.expired_total == 0
    node.uncommitted = 0
    await clock.advance(0.1)
    await tick(node)
    assert node.metadata.state_machine.member_count == 0
    assert node.coordinator.expired_total == 1


async def test_no_group_becomes_empty_by_a_clock_that_was_not_compared(
    node: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that is days behind, a group would be forgotten minutes after its last member left."""
    clock = VirtualTime(node, monkeypatch)
    member = Member(node, "m1", session_timeout_ms=6000)
    await settle(node, member)
    node.time_refusal = RequestError(pb.NOT_READY, "not compared", retry_after_ms=50)
    with pytest.raises(RequestError) as refused:
        await node.groups_service.leave(pb.LeaveRequest(group="g", member_id="m1"), node.call())
    assert code_of(refused) == pb.NOT_READY
    for _ in range(65):
        await clock.advance(0.1)
        await tick(node)
    assert node.metadata.state_machine.member_count == 1
    node.time_refusal = None
    await clock.advance(0.1)
    await tick(node)
    assert node.metadata.state_machine.member_count == 0


async def test_commits_that_are_slow_prolong_no_session(node: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time for which a tick waited for the removal of members counted as a stall, and was added to all sessions."""
    clock = VirtualTime(node, monkeypatch)
    dead = [Member(node, f"m{n}", f"g{n}", session_timeout_ms=6000 + n * 1000) for n in range(3)]
    await settle(node, *dead)
    for _ in range(60):
        await clock.advance(0.1)
        await tick(node)
    node.hold_commits = True
    for _ in range(30):
        await clock.advance(0.1)
        await node.coordinator.tick()
    node.release_commits()
    for _ in range(2):
        await tick(node)
    assert node.metadata.state_machine.member_count == 0


async def test_many_groups_share_a_commit(node: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a commit for each of thousands of groups, sessions and empty groups ended late."""
    clock = VirtualTime(node, monkeypatch)
    await settle(node, *(Member(node, f"m{n}", f"g{n}", session_timeout_ms=6000) for n in range(20)))
    propose, proposed = node.metadata.propose, []

    def recording(proposals: Sequence[Proposal]) -> tuple[Appended, asyncio.Future[list[object]]]:
        proposed.append(len(proposals))
        return propose(proposals)

    monkeypatch.setattr(node.metadata, "propose", recording)
    for _ in range(62):
        await clock.advance(0.1)
        await tick(node)
    assert (node.metadata.state_machine.member_count, proposed) == (0, [20])
    node.clock_ms += 8 * 86_400_000
    monkeypatch.setattr(coordinator, "COMMANDS_MAX", 15)
    await node.coordinator.expire_groups()
    assert (node.metadata.state_machine.consumer_group_count, proposed) == (0, [20, 15, 5])


async def test_a_group_whose_assignor_fails_does_not_delay_others(
    node: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = VirtualTime(node, monkeypatch)
    await node.topic(partitions=2)
    bad, good = Member(node, "m1", "a-bad-one"), Member(node, "m2", "good")
    run = node.coordinator._runner.run

    async def failing(request: PlanRequest) -> Plan:
        if request.group == "a-bad-one":
            raise PlanError("no")
        return await run(request)

    monkeypatch.setattr(node.coordinator._runner, "run", failing)
    await settle(node, bad, good)
    assert (len(good.held), bad.held) == (2, set())
    monkeypatch.setattr(node.coordinator._runner, "run", run)
    for _ in range(11):
        await clock.advance(0.1)
        await tick(node)
    await settle(node, bad)
    assert len(bad.held) == 2, "the plan is tried again"


async def test_groups_with_a_hanging_assignor_do_not_delay_others(
    node: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All other groups waited until each of them had used up the time of a plan."""
    clock = VirtualTime(node, monkeypatch)
    monkeypatch.setattr(node.groups_service, "_assignors", {"sticky", "hanging"})
    run, planned = node.coordinator._runner.run, []

    async def hanging(request: PlanRequest) -> Plan:
        planned.append(request.group)
        if request.assignor == "hanging":
            await clock.advance(10)
            raise PlanError("no answer")
        return await run(request)

    monkeypatch.setattr(node.coordinator._runner, "run", hanging)
    for name in ("a", "b", "z"):
        member = Member(node, "m", name)
        member.subscription = pb.Subscription(topics=["flights"], assignor="" if name == "z" else "hanging")
        await member.heartbeat()
    await tick(node)
    await Member(node, "m", "y").heartbeat()
    await tick(node)
    await tick(node)
    assert planned == ["z", "a", "y", "b", "a"]


async def test_plans_of_many_groups_leave_the_event_loop_to_others(node: Harness) -> None:
    """A new topic has all groups with patterns planned. Thousands of plans without a change blocked the coordinator for seconds."""
    members = [Member(node, "m", f"g{number}") for number in range(20)]
    for member in members:
        member.subscription = pb.Subscription(pattern="flights.*")
    await settle(node, *members)
    await node.topic("other")
    plans = node.coordinator.plans_total
    await node.coordinator.tick()
    turns = []
    while node.coordinator.plans_total < plans + 20:
        await asyncio.sleep(0)
        turns.append(node.coordinator.plans_total)
    assert len(turns) >= 20


async def test_a_static_member_that_comes_back_while_a_plan_is_computed_delays_nobody(
    node: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The plan named the member's former id, which counted as a failure of the assignor: the next plan came a second later."""
    await node.topic(partitions=2)
    static, other = Member(node, "m1", instance_id="i1"), Member(node, "m2")
    await settle(node, static)
    await other.heartbeat()
    reborn = Member(node, "m3", instance_id="i1")
    run = node.coordinator._runner.run

    async def slow(request: PlanRequest) -> Plan:
        found = await run(request)
        await reborn.heartbeat()
        return found

    monkeypatch.setattr(node.coordinator._runner, "run", slow)
    await tick(node)
    monkeypatch.setattr(node.coordinator._runner, "run", run)
    await settle(node, reborn, other)
    assert (len(reborn.held), len(other.held)) == (1, 1)
    assert "assignor_failed" not in caplog.text


async def test_an_empty_group_whose_assignor_failed_is_not_checked_again(
    node: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its failure stayed on the list, and every tick checked all groups until another node coordinated."""

    async def failing(request: PlanRequest) -> Plan:
        raise PlanError("no")

    monkeypatch.setattr(node.coordinator._runner, "run", failing)
    member = Member(node, "m1")
    await member.heartbeat()
    await tick(node)
    assert node.coordinator._must_look, "the plan is tried again"
    await node.groups_service.leave(pb.LeaveRequest(group="g", member_id="m1"), node.call())
    for _ in range(2):
        await tick(node)
    assert not node.coordinator._must_look


async def test_empty_groups_are_forgotten_after_the_retention(node: Harness) -> None:
    member = Member(node, "m1")
    await settle(node, member)
    await node.groups_service.leave(pb.LeaveRequest(group="g", member_id="m1"), node.call())
    node.clock_ms += 7 * 86_400_000 - 1000
    await node.coordinator.expire_groups()
    assert node.metadata.state_machine.consumer_group_count == 1
    node.clock_ms += 2000
    node.trusts_clock = False
    await node.coordinator.expire_groups()
    assert node.metadata.state_machine.consumer_group_count == 1, (
        "a coordinator without a trusted clock forgets nothing"
    )
    node.trusts_clock = True
    await node.coordinator.expire_groups()
    assert node.metadata.state_machine.consumer_group_count == 0


async def test_heartbeats_are_rare_in_large_clusters_and_frequent_during_a_rebalance(node: Harness) -> None:
    await node.topic(partitions=2)
    member = Member(node, "m1")
    joined = await member.heartbeat()
    assert joined.next_heartbeat_ms == 100
    await settle(node, member)
    assert (await member.heartbeat()).next_heartbeat_ms == 500
    others = [Member(node, f"o{number}", "other") for number in range(400)]
    for other in others:
        await other.heartbeat()
    assert (await member.heartbeat()).next_heartbeat_ms == 2005
    assert (await member.heartbeat(session_timeout_ms=3000)).next_heartbeat_ms == 1000, "at least three in a session"


# ------------------------------------------------------------------------------------------------- fences and offsets


async def test_only_the_owner_opens_and_commits(node: Harness) -> None:
    topic = await node.topic(partitions=1)
    await node.append(topic, batch(10))
    part = (topic.topic_id, 0)
    first, second = Member(node, "m1"), Member(node, "m2")
    await settle(node, first)
    assert await first.commit(part, 3) == pb.FENCED, "it must open the partition first"
    (opened,) = await first.open()
    assert (opened.offset, opened.high_watermark) == (-1, 10)
    assert await first.commit(part, 3) == 0
    assert await first.commit(part, 11) == pb.OFFSET_OUT_OF_RANGE
    (refused,) = await second.open(part, epoch=first.assignment[part])
    assert refused.error.code == pb.FENCED
    (refused,) = await second.open(part, epoch=2**62)
    assert refused.error.code == pb.FENCED, "no member may fence a partition under an epoch that was not assigned"

    # the first is frozen; its session ends; the second takes over
    await node.groups_service.leave(pb.LeaveRequest(group="g", member_id="m1"), node.call())
    await settle(node, second)
    (opened,) = await second.open()
    assert opened.offset == 3
    assert await first.commit(part, 9) == pb.FENCED
    (refused,) = await first.open(part, epoch=first.assignment[part])
    assert refused.error.code == pb.FENCED
    assert await second.commit(part, 5) == 0


async def test_offsets_without_members(node: Harness) -> None:
    topic = await node.topic(partitions=1)
    await node.append(topic, batch(10))
    part = (topic.topic_id, 0)
    nobody = Member(node, "", "plain")
    assert await nobody.commit(part, 4) == 0
    request = pb.FetchOffsetsRequest(group="plain")
    (known,) = (await node.offsets.fetch_offsets(request, node.call())).partitions
    assert (known.offset, known.lag_records, known.high_watermark, known.member_id) == (4, 6, 10, "")


async def test_lag_in_records_and_in_time(node: Harness) -> None:
    topic = await node.topic(partitions=2)
    await node.append(topic, batch(10))
    node.clock_ms += 5000
    await node.append(topic, batch(10, sequence=10))
    node.clock_ms += 2000
    parts = [pb.PartitionId(topic_id=topic.topic_id, partition=number) for number in (0, 1)]
    expected = {10: (10, 2000), 3: (17, 7000), 20: (0, 0), 0: (20, 7000)}
    nobody = Member(node, "", "plain")
    for offset, lag in expected.items():
        assert await nobody.commit((topic.topic_id, 0), offset) == 0
        request = pb.FetchOffsetsRequest(group="plain", partitions=parts)
        answer = (await node.offsets.fetch_offsets(request, node.call())).partitions
        assert (answer[0].lag_records, answer[0].lag_ms) == lag
        assert (answer[1].offset, answer[1].lag_records, answer[1].lag_ms) == (-1, -1, -1)


async def test_a_group_is_described_with_its_lag(node: Harness) -> None:
    topic = await node.topic(partitions=2)
    await node.append(topic, batch(10))
    member = Member(node, "m1", client_id="c", rack="r")
    await settle(node, member)
    await member.open()
    assert await member.commit((topic.topic_id, 0), 4) == 0
    found = await node.groups_service.describe(pb.DescribeGroupRequest(group="g"), node.call())
    assert (found.group.state, found.group.members, found.group.assignor) == ("stable", 1, "sticky")
    (described,) = found.members
    assert (described.member_id, described.client_id, described.rack) == ("m1", "c", "r")
    assert list(described.target[0].partitions) == list(described.owned[0].partitions) == [0, 1]
    assert 0 < described.session_left_ms <= 45_000
    assert [(offset.partition, offset.offset, offset.lag_records) for offset in found.offsets] == [
        (0, 4, 6),
        (1, -1, -1),
    ]
    assert [entry.name for entry in found.topics] == ["flights"]
    listed = await node.groups_service.list_groups(pb.ListGroupsRequest(), node.call())
    assert [(entry.group, entry.state, entry.partitions, entry.lag_records) for entry in listed.groups] == [
        ("g", "stable", 1, 6)
    ]
    with pytest.raises(RequestError) as raised:
        await node.groups_service.describe(pb.DescribeGroupRequest(group="none"), node.call())
    assert code_of(raised) == pb.UNKNOWN_GROUP


async def test_a_member_may_have_more_partitions_than_a_request_names(
    node: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await node.topic(partitions=3)
    member = Member(node, "m1")
    await settle(node, member)
    for module in (locator, partition_leaders):
        monkeypatch.setattr(module, "PARTITIONS_PER_REQUEST_MAX", 2)
    found = await node.groups_service.describe(pb.DescribeGroupRequest(group="g"), node.call())
    assert [(one.topic_id, one.error.message) for one in found.offsets] == [(topic.topic_id, "")] * 3


async def test_a_group_that_only_commits_is_listed_with_its_lag(node: Harness) -> None:
    topic = await node.topic(partitions=2)
    await node.append(topic, batch(10))
    request = pb.CommitOffsetsRequest(group="spark")
    request.partitions.add(topic_id=topic.topic_id, partition=0, offset=3)
    (committed,) = (await node.offsets.commit_offsets(request, node.call())).partitions
    assert not committed.HasField("error")
    (listed,) = (await node.groups_service.list_groups(pb.ListGroupsRequest(), node.call())).groups
    assert (listed.group, listed.state, listed.members) == ("spark", "empty", 0)
    assert (listed.partitions, listed.lag_records) == (1, 7)


async def test_the_lag_of_listed_groups_is_unknown_while_a_partition_has_no_leader(node: Harness) -> None:
    topic = await node.topic(partitions=2)
    request = pb.CommitOffsetsRequest(group="spark")
    request.partitions.add(topic_id=topic.topic_id, partition=0, offset=0)
    await node.offsets.commit_offsets(request, node.call())
    node.lose_leadership(node.partition(topic, 1).replica.group_id)
    (listed,) = (await node.groups_service.list_groups(pb.ListGroupsRequest(), node.call())).groups
    assert (listed.group, listed.partitions, listed.lag_records) == ("spark", 1, -1)


async def test_a_description_says_if_partitions_that_know_the_group_may_be_missing(node: Harness) -> None:
    """Without a member nothing but a partition's leader knows that the group has offsets in it."""
    topic = await node.topic(partitions=2)
    request = pb.CommitOffsetsRequest(group="spark")
    request.partitions.add(topic_id=topic.topic_id, partition=1, offset=0)
    await node.offsets.commit_offsets(request, node.call())
    describe = pb.DescribeGroupRequest(group="spark")
    whole = await node.groups_service.describe(describe, node.call())
    assert ([one.partition for one in whole.offsets], whole.is_partial) == ([1], False)
    node.lose_leadership(node.partition(topic, 1).replica.group_id)
    found = await node.groups_service.describe(describe, node.call())
    assert (found.group.state, list(found.offsets), found.is_partial) == ("empty", [], True)
    other = await node.groups_service.describe(pb.DescribeGroupRequest(group="none"), node.call())
    assert other.is_partial, "nobody can say that there is no such group"
    without = pb.DescribeGroupRequest(group="none", without_offsets=True)
    with pytest.raises(RequestError) as raised:
        await node.groups_service.describe(without, node.call())
    assert code_of(raised) == pb.UNKNOWN_GROUP


async def test_a_partition_without_a_leader_has_an_error_and_the_others_an_answer(node: Harness) -> None:
    topic = await node.topic(partitions=2)
    member = Member(node, "m1")
    await settle(node, member)
    node.lose_leadership(node.partition(topic, 1).replica.group_id)
    found = await node.groups_service.describe(pb.DescribeGroupRequest(group="g"), node.call())
    assert [offset.error.code for offset in found.offsets] == [0, pb.NO_LEADER]


# ------------------------------------------------------------------------------------------------------ reset and delete


def reset_request(topic: pb.Topic, *offsets: int, fence_members: bool = False) -> pb.ResetOffsetsRequest:
    request = pb.ResetOffsetsRequest(group="g", fence_members=fence_members)
    for number, offset in enumerate(offsets):
        request.partitions.add(topic_id=topic.topic_id, partition=number, offset=offset)
    return request


async def test_offsets_of_a_group_without_members_are_reset(node: Harness) -> None:
    topic = await node.topic(partitions=2)
    await node.append(topic, batch(10))
    member = Member(node, "m1")
    await settle(node, member)
    await member.open()
    with pytest.raises(RequestError) as raised:
        await node.groups_service.reset_offsets(reset_request(topic, 7), node.call())
    assert code_of(raised) == pb.GROUP_NOT_EMPTY
    await node.groups_service.leave(pb.LeaveRequest(group="g", member_id="m1"), node.call())
    done = await node.groups_service.reset_offsets(reset_request(topic, 7, 5), node.call())
    assert [result.error.code for result in done.partitions] == [0, pb.OFFSET_OUT_OF_RANGE]
    assert await member.commit((topic.topic_id, 0), 3) == pb.FENCED, "the earlier owner is fenced"
    again = Member(node, "m2")
    await settle(node, again)
    assert [opened.offset for opened in await again.open()] == [7, -1]


async def test_a_reset_under_members_makes_them_begin_again(node: Harness) -> None:
    topic = await node.topic(partitions=2)
    await node.append(topic, batch(10))
    part = (topic.topic_id, 0)
    member = Member(node, "m1")
    await settle(node, member)
    await member.open()
    before = dict(member.assignment)
    await node.groups_service.reset_offsets(reset_request(topic, 7, fence_members=True), node.call())
    assert await member.commit(part, 3) == pb.FENCED
    await member.heartbeat()
    assert member.assignment[part] > before[part]
    assert member.assignment[topic.topic_id, 1] == before[topic.topic_id, 1]
    assert (await member.open(part))[0].offset == 7
    assert await member.commit(part, 3) == 0


async def test_owners_get_new_epochs_even_if_a_slow_leader_used_up_the_time_of_a_reset(
    node: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await node.topic(partitions=2)
    await node.append(topic, batch(10))
    member = Member(node, "m1")
    await settle(node, member)
    await member.open()
    before = dict(member.assignment)
    partitions = node.groups_service._partitions
    write = partitions.reset
    call = node.call()

    async def slow(group, epoch, resets, call):
        results = await write(group, epoch, resets, call)
        results[topic.topic_id, 1].error.CopyFrom(timed_out().detail)
        monkeypatch.setattr(node.loop, "time", lambda: call.deadline + 1)
        return results

    monkeypatch.setattr(partitions, "reset", slow)
    await node.groups_service.reset_offsets(reset_request(topic, 7, 0, fence_members=True), call)
    monkeypatch.undo()
    await member.heartbeat()
    assert member.assignment[topic.topic_id, 0] > before[topic.topic_id, 0]
    assert member.assignment[topic.topic_id, 1] > before[topic.topic_id, 1], "its offset may have been written, too"
    assert (await member.open((topic.topic_id, 0)))[0].offset == 7


async def test_a_group_is_deleted_with_its_offsets(node: Harness) -> None:
    topic = await node.topic(partitions=2)
    await node.append(topic, batch(10))
    member = Member(node, "m1")
    await settle(node, member)
    await member.open()
    assert await member.commit((topic.topic_id, 0), 4) == 0
    with pytest.raises(RequestError) as raised:
        await node.groups_service.delete(pb.DeleteGroupRequest(group="g"), node.call())
    assert code_of(raised) == pb.GROUP_NOT_EMPTY
    await node.groups_service.leave(pb.LeaveRequest(group="g", member_id="m1"), node.call())
    done = await node.groups_service.delete(pb.DeleteGroupRequest(group="g"), node.call())
    assert done.partitions == 2
    assert await member.commit((topic.topic_id, 0), 4) == pb.FENCED
    with pytest.raises(RequestError) as raised:
        await node.groups_service.delete(pb.DeleteGroupRequest(group="g"), node.call())
    assert code_of(raised) == pb.UNKNOWN_GROUP


async def test_a_deletion_keeps_the_offsets_of_a_member_that_joined_meanwhile(
    node: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its acknowledged commit was forgotten, and its next one was refused, because the offsets go after the group."""
    topic = await node.topic(partitions=2)
    await node.append(topic, batch(10))
    part, idle = (topic.topic_id, 0), (topic.topic_id, 1)
    first, second = Member(node, "m1"), Member(node, "m2")
    await settle(node, first)
    await first.open()
    assert await first.commit(part, 4) == 0
    await node.groups_service.leave(pb.LeaveRequest(group="g", member_id="m1"), node.call())
    partitions = node.groups_service._partitions
    forget = partitions.forget

    async def late(*arguments: object) -> partition_leaders.ForgottenOffsets:
        await settle(node, second)
        await second.open(part)
        assert await second.commit(part, 7) == 0
        return await forget(*arguments)

    monkeypatch.setattr(partitions, "forget", late)
    assert (await node.groups_service.delete(pb.DeleteGroupRequest(group="g"), node.call())).partitions == 1
    assert [opened.offset for opened in await second.open(part, idle)] == [7, -1]
    assert await second.commit(part, 8) == 0


async def test_a_group_of_commits_only_is_deleted_too(node: Harness) -> None:
    topic = await node.topic()
    await node.append(topic, batch(10))
    assert await Member(node, "", "g").commit((topic.topic_id, 0), 4) == 0
    described = await node.groups_service.describe(pb.DescribeGroupRequest(group="g"), node.call())
    assert (described.group.state, described.offsets[0].offset) == ("empty", 4)
    assert (await node.groups_service.delete(pb.DeleteGroupRequest(group="g"), node.call())).partitions == 1


async def test_a_deletion_keeps_an_offset_whose_commit_is_under_way(node: Harness) -> None:
    """It was acknowledged, and forgotten at once."""
    topic = await node.topic()
    await node.append(topic, batch(10))
    part, member = (topic.topic_id, 0), Member(node, "", "g")
    assert await member.commit(part, 4) == 0
    node.clock_ms += 1
    node.hold_commits = True
    committing = asyncio.create_task(member.commit(part, 7))
    await asyncio.sleep(0.01)
    request = peer_pb.WriteOffsetsRequest(group="g", owner_epoch=99, forget=True)
    forgetting = asyncio.create_task(node.offsets.write_offsets(request, node.call()))
    await asyncio.sleep(0.01)
    node.release_commits()
    assert (await committing, (await forgetting).forgotten) == (0, 0)
    assert node.partition(topic).offsets.of("g").offset == 7


async def test_a_group_is_deleted_while_a_broker_that_leads_nothing_is_down(node: Harness) -> None:
    """No group could be deleted until the broker returned or was removed."""
    topic = await node.topic()
    await node.append(topic, batch(10))
    await node.register(2, "uuid-2")
    assert await Member(node, "", "g").commit((topic.topic_id, 0), 4) == 0
    assert (await node.groups_service.delete(pb.DeleteGroupRequest(group="g"), node.call())).partitions == 1
    group_id = GroupId(topic.partitions[0].group_id)
    node.leadership.claim(group_id, Term(99), NodeId(2))
    with pytest.raises(RequestError) as raised:
        await node.groups_service.delete(pb.DeleteGroupRequest(group="g"), node.call(0.1))
    assert code_of(raised) == pb.NO_LEADER, "its partition has no other leader"
    assert raised.value.detail.outcome == pb.NOT_APPLIED


async def test_a_deletion_that_a_leader_missed_is_in_doubt_and_ends_when_the_leader_returns(node: Harness) -> None:
    """The group was deleted with the offsets of other partitions, and the error said that nothing was done."""
    topic = await node.topic(partitions=2)
    await node.append(topic, batch(10))
    await node.register(2, "uuid-2")
    member = Member(node, "", "g")
    for number in (0, 1):
        assert await member.commit((topic.topic_id, number), 0) == 0
    group_id = GroupId(topic.partitions[1].group_id)
    before = node.leadership.get(group_id)
    node.leadership.claim(group_id, Term(99), NodeId(2))
    with pytest.raises(RequestError, match="broker 2 may keep offsets of group 'g'") as raised:
        await node.groups_service.delete(pb.DeleteGroupRequest(group="g"), node.call(0.1))
    assert raised.value.detail.outcome == pb.UNKNOWN_OUTCOME, "the other partition's offset is forgotten"
    assert await member.commit((topic.topic_id, 0), 4) == 0
    deleting = asyncio.create_task(node.groups_service.delete(pb.DeleteGroupRequest(group="g"), node.call()))
    await asyncio.sleep(0.01)
    node.leadership.claim(group_id, Term(100), before.node_id)
    assert (await deleting).partitions == 1


async def test_a_deletion_whose_answer_was_lost_does_not_call_the_group_unknown(
    node: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its repetition found no offsets any more, and the error said that there was no such group and nothing was done."""
    topic = await node.topic()
    await node.append(topic, batch(10))
    assert await Member(node, "", "g").commit((topic.topic_id, 0), 4) == 0
    offsets = node.partition(topic).offsets
    forget = offsets.forget

    async def forgetting_in_doubt(groups: tuple[str, ...], before_ms: int, deadline: float) -> int:
        await forget(groups, before_ms, deadline)
        raise timed_out()

    monkeypatch.setattr(offsets, "forget", forgetting_in_doubt)
    assert (await node.groups_service.delete(pb.DeleteGroupRequest(group="g"), node.call())).partitions == 0
    with pytest.raises(RequestError) as raised:
        await node.groups_service.delete(pb.DeleteGroupRequest(group="g"), node.call())
    assert code_of(raised) == pb.UNKNOWN_GROUP


async def test_a_deletion_that_a_leader_carried_out_in_part_is_in_doubt(
    node: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of the leader's other partition hid that the first one had forgotten its offset."""
    topic = await node.topic(partitions=2)
    await node.append(topic, batch(10))
    member = Member(node, "", "g")
    for number in (0, 1):
        assert await member.commit((topic.topic_id, number), 0) == 0

    async def refuse(groups: tuple[str, ...], before_ms: int, deadline: float) -> int:
        raise RequestError(pb.DISK_FULL, "no space")

    monkeypatch.setattr(node.partition(topic, 1).offsets, "forget", refuse)
    with pytest.raises(RequestError) as raised:
        await node.groups_service.delete(pb.DeleteGroupRequest(group="g"), node.call(0.1))
    assert (code_of(raised), raised.value.detail.outcome) == (pb.DISK_FULL, pb.UNKNOWN_OUTCOME)


async def test_a_deletion_waits_for_a_partition_without_a_leader_and_names_it(node: Harness) -> None:
    """It passed over the partition and was done. The offset was there again when the partition had a leader."""
    topic = await node.topic(partitions=2)
    await node.append(topic, batch(10))
    member = Member(node, "", "g")
    for number in (0, 1):
        assert await member.commit((topic.topic_id, number), 0) == 0
    group_id = GroupId(topic.partitions[1].group_id)
    node.lose_leadership(group_id)
    words = f"partition 1 of topic {topic.name} has no leader at the moment: it may keep offsets of group 'g'"
    with pytest.raises(RequestError, match=words) as raised:
        await node.groups_service.delete(pb.DeleteGroupRequest(group="g"), node.call(0.1))
    assert (code_of(raised), raised.value.detail.retriable) == (pb.NO_LEADER, True)
    assert raised.value.detail.outcome == pb.UNKNOWN_OUTCOME, "the other partition's offset is forgotten"
    deleting = asyncio.create_task(node.groups_service.delete(pb.DeleteGroupRequest(group="g"), node.call()))
    await asyncio.sleep(0.01)
    node.campaign(group_id)
    assert (await deleting).partitions == 1


async def test_a_deletion_is_repeated_if_a_leadership_moves_in_the_meantime(
    node: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new leader was asked before it led, and the old one when it no longer did: neither had an offset to forget."""
    topic = await node.topic()
    await node.append(topic, batch(10))
    assert await Member(node, "", "g").commit((topic.topic_id, 0), 4) == 0
    await node.register(2, "uuid-2")
    group_id = GroupId(topic.partitions[0].group_id)
    node.lose_leadership(group_id)
    node.leadership.claim(group_id, Term(1), NodeId(2))

    async def lead_no_longer(*_: object) -> peer_pb.WriteOffsetsResponse:
        node.campaign(group_id)
        await asyncio.sleep(0.01)
        return peer_pb.WriteOffsetsResponse()

    monkeypatch.setattr(node.forwarder, "forward", lead_no_longer)
    assert (await node.groups_service.delete(pb.DeleteGroupRequest(group="g"), node.call())).partitions == 1


class VirtualTime:
    """A loop clock that moves only when the test advances it, in steps as long as the coordinator's own ticks."""

    def __init__(self, node: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
        self._now = node.loop.time()
        monkeypatch.setattr(node.loop, "time", lambda: self._now)

    async def advance(self, seconds: float) -> None:
        self._now += seconds
        await asyncio.sleep(0)
