"""Consumer groups in the metadata state machine: ownership of partitions (KIP-848), command by command."""

import pytest
from raftmq.fsm import codes
from raftmq.fsm import metadata_commands as mc
from raftmq.fsm.consumer_groups import ConsumerGroup, GroupMemberRow
from raftmq.fsm.heartbeat_validator import MemberHeartbeat, MemberSubscription, validate_heartbeat
from raftmq.fsm.metadata import Metadata
from raftmq.raft.entry import EntryKind
from raftmq.types import LogIndex

from tests.support.fsm.harness import MetadataLog
from tests.support.fsm.histories import HOUR_MS

Target = dict[str, list[int]]


class Cluster(MetadataLog):
    """One node with topic `flights` (id 1) of six partitions and topic `other` (id 2) of two."""

    def __init__(self) -> None:
        super().__init__(nodes=1)
        for name, count in (("flights", 6), ("other", 2)):
            self.run(mc.CreateTopic(name, "log", 1, {}, (mc.PartitionPlan((1,)),) * count))

    @property
    def index(self) -> int:
        return self.log.next_index - 1

    @property
    def group(self) -> ConsumerGroup:
        group = self.state.consumer_group("g")
        assert group is not None
        return group

    def member(self, member_id: str) -> GroupMemberRow:
        return self.group.members[member_id]

    def join(self, member_id: str, **changes: object) -> mc.MetadataResult | None:
        return self.run(join(member_id, **changes))

    def validate(self, heartbeat: MemberHeartbeat) -> object:
        return validate_heartbeat(self.state.consumer_group("g"), heartbeat, self.state.applied_index)

    def assign(self, **target: list[int]) -> None:
        """Assign topic 1 in this way, for the current group epoch."""
        assert self.code(self.target(**target)) is None

    def target(self, **target: list[int]) -> mc.SetTargetAssignment:
        wanted = {name: ((1, tuple(numbers)),) if numbers else () for name, numbers in target.items()}
        changes = tuple(mc.MemberTarget(name, wanted.get(name, ())) for name in self.group.members)
        return mc.SetTargetAssignment("g", self.group.row.epoch, "sticky", ((1, 6),), changes)

    def assigned(self, member_id: str) -> list[int]:
        return [number for _, number, _ in self.member(member_id).assigned()]

    def owner_epochs(self, member_id: str) -> dict[int, int]:
        return {number: epoch for _, number, epoch in self.member(member_id).owned}

    def release(self, member_id: str, *numbers: int, epoch: int | None = None) -> mc.ReleasePartitions:
        known = self.member(member_id).epoch if epoch is None else epoch
        return mc.ReleasePartitions("g", member_id, known, tuple((1, number) for number in numbers))


def join(member_id: str, **changes: object) -> mc.JoinConsumerGroup:
    command = {
        "group": "g", "member_id": member_id, "instance_id": "", "client_id": "", "rack": "", "topics": ("flights",),
        "pattern": "", "assignor": "", "session_timeout_ms": 45_000, "rebalance_timeout_ms": 300_000,
    }  # fmt: skip
    return mc.JoinConsumerGroup(**(command | changes))


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


# ------------------------------------------------------------------------------------------------------------- joining


def test_the_first_member_creates_the_group(cluster: Cluster) -> None:
    assert cluster.state.consumer_group("g") is None
    joined = cluster.join("m1")
    assert joined == mc.MemberJoined(cluster.index, cluster.index)
    assert cluster.group.row.epoch == cluster.index
    assert cluster.assigned("m1") == []
    assert (cluster.state.consumer_group_names(), cluster.state.member_count) == (("g",), 1)


def test_repeating_a_join_changes_nothing(cluster: Cluster) -> None:
    """The answer to the first join was lost."""
    first = cluster.join("m1")
    rows = tuple(cluster.state.rows())
    assert cluster.join("m1") == first
    assert tuple(cluster.state.rows()) == rows


def test_a_change_of_subscription_raises_the_group_epoch_and_a_change_of_client_id_does_not(cluster: Cluster) -> None:
    cluster.join("m1")
    cluster.assign(m1=[0, 1])
    settled = cluster.group.row.epoch
    cluster.join("m1", client_id="renamed", session_timeout_ms=10_000)
    assert cluster.group.row.epoch == settled
    assert cluster.member("m1").session_timeout_ms == 10_000
    cluster.join("m1", topics=("other",))
    assert cluster.group.row.epoch == cluster.index
    assert cluster.assigned("m1") == [0, 1], "until an assignment says otherwise"


def test_a_member_whose_session_ended_does_not_rejoin_by_a_change(cluster: Cluster) -> None:
    cluster.join("m1")
    cluster.run(mc.LeaveConsumerGroup("g", ("m1",)))
    assert cluster.code(join("m1", must_exist=True)) == codes.UNKNOWN_MEMBER


@pytest.mark.parametrize(
    "changes",
    [
        {"group": ""}, {"group": "a\0b"}, {"group": "x" * 250}, {"member_id": ""}, {"member_id": "m\n"}, {"rack": "\x7f"},
        {"instance_id": "i" * 250}, {"topics": ("x",) * 1001}, {"topics": ("x" * 250,)}, {"pattern": "p" * 257},
        {"session_timeout_ms": 0}, {"rebalance_timeout_ms": -1}, {"session_timeout_ms": 2**40},
    ],
)  # fmt: skip
def test_malformed_joins_are_refused(cluster: Cluster, changes: dict[str, object]) -> None:
    assert cluster.code(join(**({"member_id": "m"} | changes))) == codes.INVALID_ARGUMENT


def test_a_member_keeps_its_instance_id(cluster: Cluster) -> None:
    """Otherwise two members could have the same instance id."""
    cluster.join("m1", instance_id="i1")
    cluster.join("m2", instance_id="i2")
    assert cluster.code(join("m2", instance_id="i1")) == codes.INVALID_ARGUMENT


# ---------------------------------------------------------------------------------------------------------- assignment


def test_partitions_without_an_owner_are_granted_immediately(cluster: Cluster) -> None:
    cluster.join("m1")
    cluster.assign(m1=[0, 1, 2, 3, 4, 5])
    assert cluster.owner_epochs("m1") == dict.fromkeys(range(6), cluster.index)
    assert cluster.member("m1").epoch == cluster.index
    assert cluster.group.is_settled


def test_a_partition_moves_only_after_its_owner_released_it(cluster: Cluster) -> None:
    cluster.join("m1")
    cluster.assign(m1=[0, 1, 2, 3])
    given = cluster.index
    cluster.join("m2")
    cluster.assign(m1=[0, 1], m2=[2, 3, 4])
    assert cluster.assigned("m1") == [0, 1], "it is told to give up the others"
    assert cluster.assigned("m2") == [4], "and nobody else has them before it did"
    assert not cluster.group.is_settled
    assert cluster.code(cluster.release("m1", 3)) is None
    assert cluster.assigned("m2") == [3, 4]
    assert cluster.owner_epochs("m2")[3] == cluster.index
    assert cluster.owner_epochs("m1") == {0: given, 1: given, 2: given}, "what stays keeps its epoch"
    cluster.run(cluster.release("m1", 2))
    assert cluster.group.is_settled


def test_a_partition_moves_when_its_owner_has_left(cluster: Cluster) -> None:
    cluster.join("m1")
    cluster.assign(m1=[0, 1])
    cluster.join("m2")
    cluster.assign(m1=[0], m2=[1])
    assert cluster.assigned("m2") == []
    cluster.run(mc.LeaveConsumerGroup("g", ("m1",)))
    assert cluster.assigned("m2") == [1], "it waited for this one"
    assert (1, 0) not in cluster.group.owners
    assert not cluster.group.is_settled, "the group changed: partition 0 waits for an assignment"


def test_a_release_under_an_older_epoch_is_refused(cluster: Cluster) -> None:
    """The heartbeat was under way while the partition was assigned to its owner again."""
    cluster.join("m1")
    cluster.assign(m1=[0, 1])
    cluster.join("m2")
    cluster.assign(m1=[0], m2=[1])
    told = cluster.member("m1").epoch
    cluster.run(mc.LeaveConsumerGroup("g", ("m2",)))
    cluster.assign(m1=[0, 1])
    cluster.join("m3")
    cluster.assign(m1=[0], m3=[1])
    assert cluster.code(cluster.release("m1", 1, epoch=told)) == codes.STALE_EPOCH
    assert cluster.code(cluster.release("m1", 1)) is None
    assert cluster.assigned("m3") == [1]


def test_releasing_a_partition_of_the_members_target_changes_nothing(cluster: Cluster) -> None:
    cluster.join("m1")
    cluster.assign(m1=[0, 1])
    rows = tuple(cluster.state.rows())
    assert cluster.code(cluster.release("m1", 0, 1, 5)) is None
    assert tuple(cluster.state.rows()) == rows


def test_a_partition_assigned_again_before_its_release_keeps_its_epoch(cluster: Cluster) -> None:
    cluster.join("m1")
    cluster.assign(m1=[0, 1])
    given = cluster.index
    cluster.join("m2")
    cluster.assign(m1=[0], m2=[1])
    cluster.assign(m1=[0, 1], m2=[])
    assert cluster.owner_epochs("m1") == {0: given, 1: given}
    assert cluster.group.is_settled


def test_an_assignment_for_a_group_that_changed_is_refused(cluster: Cluster) -> None:
    cluster.join("m1")
    computed = cluster.target(m1=[0])
    cluster.join("m2")
    assert cluster.code(computed) == codes.CONFLICT
    assert cluster.code(mc.SetTargetAssignment("none", 0, "sticky", (), ())) == codes.CONFLICT


def test_an_assignment_for_topics_that_changed_is_refused(cluster: Cluster) -> None:
    cluster.join("m1")
    epoch = cluster.group.row.epoch
    for topics in (((9, 1),), ((1, 7),)):
        assert cluster.code(mc.SetTargetAssignment("g", epoch, "sticky", topics, ())) == codes.CONFLICT


@pytest.mark.parametrize(
    "changes",
    [
        (("m1", ((1, (0,)),)), ("m2", ((1, (0,)),))),
        (("m1", ((1, (0, 0)),)),),
        (("m1", ((1, (1, 0)),)),),
        (("m1", ((1, (6,)),)),),
        (("m1", ((1, (-1,)),)),),
        (("m1", ((2, (0,)),)),),
        (("m1", ((1, (0,)), (1, (1,)))),),
        (("m1", ((1, ()),)),),
        (("m9", ((1, (0,)),)),),
    ],
)  # fmt: skip
def test_an_invalid_assignment_is_refused(
    cluster: Cluster, changes: tuple[tuple[str, tuple[tuple[int, tuple[int, ...]], ...]], ...]
) -> None:
    """No partition has two owners, even if an assignor says so."""
    cluster.join("m1")
    cluster.join("m2")
    command = mc.SetTargetAssignment(
        "g", cluster.group.row.epoch, "x", ((1, 6),), tuple(mc.MemberTarget(*change) for change in changes)
    )
    assert cluster.code(command) == codes.INVALID_ARGUMENT


def test_partitions_of_a_deleted_topic_need_no_release(cluster: Cluster) -> None:
    cluster.join("m1")
    cluster.assign(m1=[0, 1])
    cluster.run(mc.DeleteTopic(1))
    cluster.run(mc.SetTargetAssignment("g", cluster.group.row.epoch, "sticky", (), (mc.MemberTarget("m1", ()),)))
    assert cluster.member("m1").owned == ()
    assert cluster.group.is_settled


# ----------------------------------------------------------------------------------------------------- static members


def test_a_returning_instance_has_its_partitions_under_new_epochs(cluster: Cluster) -> None:
    cluster.join("m1", instance_id="i1")
    cluster.join("m2")
    cluster.assign(m1=[0, 1], m2=[2])
    settled = cluster.group.row.epoch
    cluster.join("m3", instance_id="i1")
    assert sorted(cluster.group.members) == ["m2", "m3"]
    assert cluster.owner_epochs("m3") == {0: cluster.index, 1: cluster.index}, "its former process is fenced"
    assert cluster.group.row.epoch == settled, "and nobody else is disturbed"
    assert cluster.group.is_settled


def test_partitions_that_the_former_process_had_to_release_are_free(cluster: Cluster) -> None:
    cluster.join("m1", instance_id="i1")
    cluster.assign(m1=[0, 1])
    cluster.join("m2")
    cluster.assign(m1=[0], m2=[1])
    cluster.join("m3", instance_id="i1")
    assert (cluster.assigned("m3"), cluster.assigned("m2")) == ([0], [1])


# ------------------------------------------------------------------------------------------------- leaving and deleting


def test_a_group_is_empty_when_the_last_member_left(cluster: Cluster) -> None:
    cluster.join("m1")
    cluster.assign(m1=[0])
    cluster.log.time_ms += 5
    assert cluster.run(mc.LeaveConsumerGroup("g", ("m1", "m9"))) == mc.Done(cluster.index)
    assert cluster.group.row.emptied_time_ms == cluster.log.time_ms
    assert cluster.group.is_settled
    assert cluster.code(mc.LeaveConsumerGroup("g", ("m1",))) == codes.UNKNOWN_MEMBER
    cluster.join("m1")
    assert cluster.group.row.emptied_time_ms == 0


def test_only_an_empty_group_is_deleted(cluster: Cluster) -> None:
    refused = cluster.run(mc.DeleteConsumerGroup("g"))
    assert refused == mc.Rejected(codes.UNKNOWN_GROUP, "there is no consumer group 'g'")
    cluster.join("m1")
    assert cluster.code(mc.DeleteConsumerGroup("g")) == codes.GROUP_NOT_EMPTY
    cluster.run(mc.LeaveConsumerGroup("g", ("m1",)))
    emptied_ms = cluster.log.time_ms
    cluster.log.time_ms += HOUR_MS
    assert cluster.code(mc.DeleteConsumerGroup("g", emptied_ms)) == codes.CONFLICT
    assert cluster.code(mc.DeleteConsumerGroup("g", emptied_ms + 1)) is None
    assert cluster.state.consumer_group("g") is None
    assert cluster.state.consumer_group_count == 0


def test_owner_epochs_are_not_reused_in_a_group_of_the_same_name(cluster: Cluster) -> None:
    cluster.join("m1")
    cluster.assign(m1=[0])
    before = cluster.owner_epochs("m1")[0]
    cluster.run(mc.LeaveConsumerGroup("g", ("m1",)))
    cluster.run(mc.DeleteConsumerGroup("g"))
    cluster.join("m1")
    cluster.assign(m1=[0])
    assert cluster.owner_epochs("m1")[0] > before


def test_a_reset_takes_an_epoch_above_all_and_owners_get_new_epochs(cluster: Cluster) -> None:
    cluster.join("m1")
    cluster.assign(m1=[0, 1])
    given = cluster.index
    assert cluster.code(mc.TakeGroupEpoch("g", must_be_empty=True)) == codes.GROUP_NOT_EMPTY
    taken = cluster.run(mc.TakeGroupEpoch("g", must_be_empty=False))
    assert taken == mc.Done(cluster.index)
    cluster.run(mc.RegrantPartitions("g", ((1, 1), (1, 5))))
    assert cluster.owner_epochs("m1") == {0: given, 1: cluster.index}
    assert cluster.member("m1").epoch == cluster.index, "it is told"
    assert cluster.run(mc.TakeGroupEpoch("nobody's", must_be_empty=True)) == mc.Done(cluster.index)
    assert cluster.code(mc.RegrantPartitions("nobody's", ())) == codes.UNKNOWN_GROUP


def test_sizes_are_counted(cluster: Cluster) -> None:
    for number in range(10):
        cluster.join(f"m{number}", topics=("flights", "x" * number))
    counted = cluster.state.subscription_bytes
    assert counted == 10 * len("flights") + sum(range(10))
    restored = Metadata()
    restored.restore(cluster.state.rows(), cluster.state.applied_index)
    assert (restored.subscription_bytes, restored.member_count) == (counted, 10)
    cluster.run(mc.LeaveConsumerGroup("g", tuple(f"m{number}" for number in range(10))))
    assert (cluster.state.subscription_bytes, cluster.state.member_count) == (0, 0)


def test_derived_maps_equal_a_scan(cluster: Cluster) -> None:
    for number in range(4):
        cluster.join(f"m{number}")
    cluster.assign(m0=[0, 1], m1=[2, 3])
    cluster.assign(m0=[2], m1=[3], m2=[0, 1], m3=[4])
    cluster.run(cluster.release("m0", 0))
    group = cluster.group
    scan = {part[:2]: name for name, member in group.members.items() for part in member.owned}
    assert group.owners == scan
    assert group.targets == {
        part: name for name, member in group.members.items() for part in member.target_partitions()
    }


# ------------------------------------------------------------------------------------------------------- the heartbeat


def beat(member_id: str = "m1", epoch: int = 0, **changes: object) -> MemberHeartbeat:
    said = MemberHeartbeat(
        "g", member_id, epoch, "", "", "", 45_000, 300_000, MemberSubscription(("flights",), "", ""), frozenset()
    )
    return said._replace(**changes)


def test_an_unknown_member_joins_or_is_refused(cluster: Cluster) -> None:
    assert cluster.validate(beat()) == join("m1")
    result = cluster.validate(beat(subscription=None))
    assert isinstance(result, mc.Rejected)
    assert result.code == codes.INVALID_ARGUMENT
    for group in (None, "g"):
        if group:
            cluster.join("m2")
        result = cluster.validate(beat(epoch=cluster.index))
        assert isinstance(result, mc.Rejected)
        assert result.code == codes.UNKNOWN_MEMBER


def test_a_member_whose_instance_rejoined_elsewhere_is_fenced(cluster: Cluster) -> None:
    """The member is not refused as unknown: two processes with one instance id would replace each other endlessly."""
    cluster.join("m1", instance_id="i1")
    cluster.join("m2", instance_id="i1")
    result = cluster.validate(beat("m1", 7, instance_id="i1"))
    assert isinstance(result, mc.Rejected)
    assert result.code == codes.FENCED


@pytest.mark.parametrize("instance_id", ["", "i1"])
def test_a_coordinator_with_a_successor_refuses_no_member_that_joined_there(cluster: Cluster, instance_id: str) -> None:
    """A static member that came back through the successor was told that another process had its instance id, and failed for good."""
    cluster.join("m1", instance_id="i1")
    result = cluster.validate(beat("m2", epoch=cluster.index + 1, instance_id=instance_id))
    assert isinstance(result, mc.Rejected)
    assert result.code == codes.NO_LEADER


def test_a_coordinator_with_a_successor_does_not_answer(cluster: Cluster) -> None:
    cluster.join("m1")
    result = cluster.validate(beat(epoch=cluster.index + 1))
    assert isinstance(result, mc.Rejected)
    assert result.code == codes.NO_LEADER


def test_members_follow_a_recovery_that_lost_their_last_assignment(cluster: Cluster) -> None:
    """The recovered coordinator told them without end that another one was taking over, and kept their sessions."""
    cluster.join("m1")
    cluster.join("m2")
    cluster.assign(m1=[0, 1])
    lost_epoch = cluster.index + 100
    index = LogIndex(cluster.index + 1000)
    assert cluster.state.found_again("recovered", 1, index) is not None
    for member_id in ("m1", "m2"):
        assert cluster.validate(beat(member_id, lost_epoch)) is None
        assert cluster.member(member_id).epoch == index
    assert cluster.owner_epochs("m1") == {0: index, 1: index}


def test_a_heartbeat_without_news_causes_no_proposal(cluster: Cluster) -> None:
    cluster.join("m1")
    cluster.assign(m1=[0, 1])
    epoch = cluster.member("m1").epoch
    assert cluster.validate(beat(epoch=epoch, owned=frozenset({(1, 0), (1, 1)}))) is None
    assert cluster.validate(beat(epoch=epoch, subscription=None)) is None
    assert cluster.validate(beat(epoch=0)) is None, "its answer was lost"
    assert cluster.validate(beat(epoch=epoch)) is None, "what it has not opened yet stays its own"


def test_a_changed_heartbeat_is_proposed_as_a_join_of_an_existing_member(cluster: Cluster) -> None:
    cluster.join("m1")
    epoch = cluster.member("m1").epoch
    assert cluster.validate(beat(epoch=epoch, rack="r1", subscription=None)) == join("m1", rack="r1", must_exist=True)
    assert cluster.validate(beat(epoch=epoch, subscription=MemberSubscription(("b", "a", "b"), "", ""))) == join(
        "m1", topics=("a", "b"), must_exist=True
    )


def test_a_release_needs_the_current_epoch(cluster: Cluster) -> None:
    cluster.join("m1")
    cluster.assign(m1=[0, 1, 2])
    old = cluster.member("m1").epoch
    cluster.join("m2")
    cluster.assign(m1=[0], m2=[1, 2])
    epoch = cluster.member("m1").epoch
    held = frozenset({(1, 0), (1, 1)})
    assert cluster.validate(beat(epoch=old, owned=held)) is None
    assert cluster.validate(beat(epoch=epoch, owned=held)) == cluster.release("m1", 2)
    assert cluster.validate(beat(epoch=epoch, owned=held | {(1, 2)})) is None


def test_entries_without_commands_change_no_group(cluster: Cluster) -> None:
    cluster.join("m1")
    rows = tuple(cluster.state.rows())
    cluster.state.apply(cluster.log.append(EntryKind.EMPTY, b""))
    assert tuple(cluster.state.rows()) == rows
