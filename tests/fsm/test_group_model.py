"""A model of a whole group: members, a coordinator, and messages that are lost, late and duplicated.

Real are the metadata state machine, the validation of heartbeats, the planner with the sticky assignor, and the partitions' fences.
Modelled are members that follow the protocol, the network, and sessions, which end at random times.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from raftmq.broker.consumer_groups.planner import is_planned_for, plan, plan_request
from raftmq.fsm import metadata_commands as mc
from raftmq.fsm.consumer_groups import ConsumerGroup, PartitionId
from raftmq.fsm.heartbeat_validator import MemberHeartbeat, MemberSubscription, validate_heartbeat
from raftmq.fsm.log_commands import CommitOffset, Committed, Opened, OpenPartition
from raftmq.fsm.log_partition import LogPartition
from raftmq.fsm.metadata import Metadata

from tests.support.fsm.histories import LogBuilder, register

Owned = tuple[tuple[int, int, int], ...]


@dataclass
class Answer:
    """The coordinator's answer to one heartbeat. None means that it does not know the member."""

    member_epoch: int | None
    assignment: Owned = ()


@dataclass
class Consumer:
    """A member that behaves like the SDK: one heartbeat at a time, old answers are ignored, and only partitions no longer read are released."""

    member_id: str
    instance_id: str = ""
    topics: tuple[str, ...] = ("t1",)
    epoch: int = 0
    assigned: Owned = ()
    held: dict[PartitionId, int] = field(default_factory=dict)
    """The partitions that it reads, with the owner epochs under which it opened them."""
    is_dead: bool = False
    """Whether its session has ended without its knowledge, which makes it a zombie."""

    def heartbeat(self) -> MemberHeartbeat:
        return MemberHeartbeat(
            "g", self.member_id, self.epoch, self.instance_id, "", "", 45_000, 300_000,
            MemberSubscription(self.topics, "", ""), frozenset(self.held),
        )  # fmt: skip

    def hear(self, answer: Answer) -> None:
        if answer.member_epoch is None or answer.member_epoch < self.epoch:
            return
        if answer.member_epoch != self.epoch:
            self.assigned = answer.assignment
        self.epoch = answer.member_epoch


class GroupModel(RuleBasedStateMachine):
    """The members, the coordinator and the network, with random steps as rules."""

    @initialize()
    def form(self) -> None:
        self.log = LogBuilder()
        self.metadata = Metadata()
        self.partitions: dict[PartitionId, tuple[LogBuilder, LogPartition]] = {}
        self.consumers: list[Consumer] = []
        self.mailbox: list[tuple[Consumer, MemberHeartbeat]] = []
        """Sent heartbeats, which may arrive later, repeatedly, or never."""
        self.born = 0
        self.apply(mc.InitializeCluster("c", 1, "u1"))
        self.apply(register("u1"))
        self.topic("t1", 4)

    def apply(self, command: mc.MetadataCommand) -> mc.MetadataResult | None:
        return self.metadata.apply(self.log.metadata(command))

    @property
    def group(self) -> ConsumerGroup | None:
        return self.metadata.consumer_group("g")

    @property
    def living(self) -> list[Consumer]:
        return [consumer for consumer in self.consumers if not consumer.is_dead]

    def topic(self, name: str, count: int) -> None:
        self.apply(mc.CreateTopic(name, "log", 1, {}, (mc.PartitionPlan((1,)),) * count))

    def fence(self, partition: PartitionId) -> tuple[LogBuilder, LogPartition]:
        if partition not in self.partitions:
            log, state = LogBuilder(), LogPartition()
            state.apply(log.batch(0, 0, 0, 10))
            self.partitions[partition] = log, state
        return self.partitions[partition]

    # ------------------------------------------------------------------------------------------------ the coordinator

    def receive(self, heartbeat: MemberHeartbeat) -> Answer:
        """Handle a heartbeat as the service does."""
        for _ in range(4):
            result = validate_heartbeat(self.group, heartbeat, self.metadata.applied_index)
            if result is None:
                break
            if isinstance(result, mc.Rejected):
                return Answer(None)
            before = set(self.group.members) if self.group is not None else set()
            self.apply(result)
            assert self.group is not None
            replaced = before - set(self.group.members)
            for consumer in self.consumers:
                consumer.is_dead |= consumer.member_id in replaced  # it will receive FENCED
        group = self.group
        assert group is not None
        member = group.members[heartbeat.member_id]
        return Answer(member.epoch, member.assigned())

    @rule()
    def plan(self) -> None:
        group = self.group
        if group is None or is_planned_for(self.metadata, group):
            return
        request = plan_request(self.metadata, group)
        found = plan(request)
        # no needless moves: a valid assignment stays unless balance requires a move
        self.check_moves(group, found.changes)
        result = self.apply(found.command(request))
        assert isinstance(result, mc.Done)

    def check_moves(self, group: ConsumerGroup, changes: tuple[mc.MemberTarget, ...]) -> None:
        if len({member.topics for member in group.members.values()}) != 1:
            return
        targets = {member_id: set(member.target_partitions()) for member_id, member in group.members.items()}
        after = dict(targets)
        for change in changes:
            after[change.member_id] = {(topic, n) for topic, numbers in change.partitions for n in numbers}
        sizes = sorted(map(len, after.values()))
        assert sizes[-1] - sizes[0] <= 1
        for member_id, before in targets.items():
            alive = {
                p
                for p in before
                if (topic := self.metadata.topic(p[0])) and topic.name in group.members[member_id].topics
            }
            assert len(alive & after[member_id]) >= min(len(alive), sizes[0])

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        """End a session, perhaps wrongly: the member may be alive and continue as a zombie."""
        consumer = data.draw(st.sampled_from(self.consumers))
        consumer.is_dead = True
        self.apply(mc.LeaveConsumerGroup("g", (consumer.member_id,)))

    # ------------------------------------------------------------------------------------------------ the members

    @rule(instance=st.sampled_from(["", "", "i1"]), topics=st.sampled_from([("t1",), ("t1", "t2"), ("t2",)]))
    def start(self, instance: str, topics: tuple[str, ...]) -> None:
        if len(self.consumers) >= 6:
            return
        self.born += 1
        self.consumers.append(Consumer(f"m{self.born}", instance, topics))

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), is_answer_lost=st.booleans(), is_late=st.booleans())
    def send_heartbeat(self, data: st.DataObject, is_answer_lost: bool, is_late: bool) -> None:
        consumer = data.draw(st.sampled_from(self.consumers))
        heartbeat = consumer.heartbeat()
        if is_late:
            self.mailbox = [*self.mailbox[-5:], (consumer, heartbeat)]
            return
        self.exchange(consumer, heartbeat, is_answer_lost=is_answer_lost)

    @precondition(lambda self: self.mailbox)
    @rule(data=st.data(), is_again=st.booleans())
    def deliver_late(self, data: st.DataObject, is_again: bool) -> None:
        """Deliver a heartbeat that its sender gave up long ago. Nobody receives the answer."""
        at = data.draw(st.integers(0, len(self.mailbox) - 1))
        consumer, heartbeat = self.mailbox[at]
        if not is_again:
            del self.mailbox[at]
        if heartbeat.member_epoch == 0 and consumer.is_dead:
            return  # a join that arrives after the end of the session creates a member without a process, which expires as in `expire`
        self.exchange(consumer, heartbeat, is_answer_lost=True)

    def exchange(self, consumer: Consumer, heartbeat: MemberHeartbeat, *, is_answer_lost: bool) -> None:
        if heartbeat.member_epoch == 0 and consumer.is_dead:
            self.consumers.remove(consumer)
            return
        answer = self.receive(heartbeat)
        if is_answer_lost:
            return
        if answer.member_epoch is None:
            assert consumer.is_dead, "who is alive is known"
            self.consumers.remove(consumer)
        else:
            consumer.hear(answer)

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        """Stop reading partitions that are not assigned (any more), or that are assigned under a new epoch."""
        consumer = data.draw(st.sampled_from(self.consumers))
        allowed = {part[:2]: part[2] for part in consumer.assigned}
        consumer.held = {part: epoch for part, epoch in consumer.held.items() if allowed.get(part) == epoch}

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def open(self, data: st.DataObject) -> None:
        consumer = data.draw(st.sampled_from(self.consumers))
        self.open_all(consumer)

    def open_all(self, consumer: Consumer) -> None:
        for topic_id, number, epoch in consumer.assigned:
            if (topic_id, number) not in consumer.held:
                log, state = self.fence((topic_id, number))
                result = state.apply(log.log(OpenPartition("g", consumer.member_id, epoch)))
                if isinstance(result, Opened):
                    consumer.held[topic_id, number] = epoch

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        """Commit: only the last opener of a partition succeeds, and of the living members only the owner."""
        consumer = data.draw(st.sampled_from(self.consumers))
        for partition, epoch in sorted(consumer.held.items()):
            log, state = self.fence(partition)
            result = state.apply(log.log(CommitOffset("g", consumer.member_id, epoch, 5)))
            fence = state.group_offset("g")
            assert fence is not None
            is_owner = (fence.member, fence.owner_epoch) == (consumer.member_id, epoch)
            assert isinstance(result, Committed) == is_owner
            if not consumer.is_dead:
                assert is_owner, "a living owner is never fenced"

    # ------------------------------------------------------------------------------------------------ the topics

    @rule(name=st.sampled_from(["t1", "t2"]), count=st.integers(1, 3))
    def change_topics(self, name: str, count: int) -> None:
        topic = self.metadata.topic_by_name(name)
        if topic is None:
            self.topic(name, count)
        elif len(topic.group_ids) + count <= 8:
            self.apply(mc.AddPartitions(topic.topic_id, len(topic.group_ids), (mc.PartitionPlan((1,)),) * count))
        else:
            self.apply(mc.DeleteTopic(topic.topic_id))

    # ------------------------------------------------------------------------------------------------ what must hold

    @invariant()
    def no_partition_is_held_by_two_living_members(self) -> None:
        held = [partition for consumer in self.living for partition in consumer.held]
        assert len(held) == len(set(held))

    @invariant()
    def rows_and_derived_maps_agree(self) -> None:
        group = self.group
        if group is not None:
            owned = [part[:2] for member in group.members.values() for part in member.owned]
            assert len(owned) == len(set(owned)) == len(group.owners)

    @rule()
    def settle(self) -> None:
        """Let the group settle without further faults: every member soon has its target, and every partition has an owner."""
        for _ in range(12):
            for consumer in list(self.consumers):
                self.exchange(consumer, consumer.heartbeat(), is_answer_lost=False)
            self.expire_ghosts()
            self.plan()
            for consumer in self.consumers:
                allowed = {part[:2]: part[2] for part in consumer.assigned}
                consumer.held = {part: epoch for part, epoch in consumer.held.items() if allowed.get(part) == epoch}
                self.open_all(consumer)
        group = self.group
        if group is None:
            return
        assert group.is_settled
        wanted = set(self.wanted(group))
        assert set(group.owners) == wanted
        held = {partition: consumer.member_id for consumer in self.living for partition in consumer.held}
        assert held == group.owners
        epoch = group.row.epoch
        self.plan()
        assert group.row.epoch == epoch, "nothing is planned again"

    def expire_ghosts(self) -> None:
        """Expire members that a late join created for ended consumers, since nobody sends their heartbeats."""
        group = self.group
        known = {consumer.member_id for consumer in self.consumers}
        ghosts = sorted(set(group.members) - known) if group is not None else []
        if ghosts:
            self.apply(mc.LeaveConsumerGroup("g", tuple(ghosts)))

    def wanted(self, group: ConsumerGroup) -> Iterator[PartitionId]:
        names = {name for member in group.members.values() for name in member.topics}
        for topic in self.metadata.topics():
            if topic.name in names:
                yield from ((topic.topic_id, number) for number in range(len(topic.group_ids)))


GroupModel.TestCase.settings = settings(max_examples=90, stateful_step_count=40, deadline=None)
TestGroupModel = GroupModel.TestCase
