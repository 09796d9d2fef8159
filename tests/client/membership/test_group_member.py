"""The SDK's group member, without I/O: examples, and a model in which real members meet the rules of the real coordinator.

Real in the model: `GroupMember`, the metadata state machine, the validator of heartbeats, the planner, the partitions' fences. Modelled:
the network, which loses and delays messages, sessions that end at any time, and slow programs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from raftmq.broker.consumer_groups.planner import is_planned_for, plan, plan_request
from raftmq.client.membership.group_member import (
    Grant,
    GroupMember,
    MemberSettings,
    PartitionId,
    Standing,
    Subscription,
)
from raftmq.errors import FencedError
from raftmq.fsm import codes
from raftmq.fsm import metadata_commands as mc
from raftmq.fsm.heartbeat_validator import MemberHeartbeat, MemberSubscription, validate_heartbeat
from raftmq.fsm.log_commands import CommitOffset, Committed, Opened, OpenPartition
from raftmq.fsm.log_partition import LogPartition
from raftmq.fsm.metadata import Metadata
from raftmq.proto import queue_pb2 as pb

from tests.support.fsm.histories import LogBuilder, register

P0, P1, P2 = (PartitionId(7, number) for number in range(3))


def member(instance_id: str = "") -> GroupMember:
    numbers = count(1)
    made = GroupMember(MemberSettings("g", instance_id, "c", "", 45_000, 300_000), lambda: f"m{next(numbers)}")
    made.subscribe(Subscription(("t",), "", "sticky"))
    return made


def answer(epoch: int, owned: dict[int, int] | None = None) -> pb.HeartbeatResponse:
    """Answer for topic 7, with owner epochs by partition number. None: no new assignment."""
    response = pb.HeartbeatResponse(member_epoch=epoch, has_assignment=owned is not None)
    if owned:
        response.assignment.add(topic_id=7, topic="t", partitions=owned.keys(), owner_epochs=owned.values())
    return response


def hear(made: GroupMember, epoch: int, owned: dict[int, int] | None = None) -> bool:
    return made.on_answer(made.heartbeat(), answer(epoch, owned))


def holding(owned: dict[int, int], epoch: int = 5) -> GroupMember:
    made = member()
    hear(made, epoch, owned)
    assert made.hold({PartitionId(7, n): e for n, e in owned.items()}) == {PartitionId(7, n) for n in owned}
    return made


def owned_of(made: GroupMember) -> list[int]:
    return [number for topic in made.heartbeat().owned for number in topic.partitions]


# ------------------------------------------------------------------------------------------------------------- examples


def test_a_member_joins_opens_and_reports_its_partitions() -> None:
    made = member()
    assert (made.standing, made.heartbeat().member_epoch) == (Standing.JOINING, 0)
    hear(made, 5, {0: 5, 1: 5})
    assert made.steps().open == {P0: Grant("t", 5), P1: Grant("t", 5)}
    assert owned_of(made) == []
    made.hold({P0: 5})
    assert (owned_of(made), set(made.steps().open)) == ([0], {P1})


def test_revoked_partitions_are_reported_until_they_are_released() -> None:
    made = holding({0: 5, 1: 5})
    hear(made, 8, {0: 5})
    assert made.steps().revoke == {P1: 5}
    assert (made.heartbeat().member_epoch, owned_of(made)) == (8, [0, 1])
    assert made.may_commit(P1, 5)
    made.release([P1])
    assert (owned_of(made), made.steps().is_empty, made.may_commit(P1, 5)) == ([0], True, False)


def test_an_older_answer_changes_nothing() -> None:
    made = holding({0: 5}, epoch=8)
    assert not hear(made, 6, {})
    assert made.steps().is_empty


def test_a_partition_with_another_owner_epoch_was_lost() -> None:
    made = holding({0: 5})
    hear(made, 9, {0: 9})
    steps = made.steps()
    assert (steps.lose, steps.revoke, steps.open) == ({P0: 5}, {}, {})
    made.release(steps.lose)
    assert made.steps().open == {P0: Grant("t", 9)}


def test_a_partition_revoked_while_it_is_opened_is_not_held() -> None:
    made = member()
    hear(made, 5, {0: 5, 1: 5})
    hear(made, 8, {0: 5, 1: 8})
    assert made.hold({P0: 5, P1: 5, P2: 5}) == {P0}


def test_an_unknown_member_loses_everything_and_joins_under_a_new_id() -> None:
    made = holding({0: 5})
    request = made.heartbeat()
    made.on_unknown(request)
    assert (made.standing, made.member_id, made.heartbeat().member_epoch) == (Standing.JOINING, "m2", 0)
    assert made.steps().lose == {P0: 5}
    assert not made.may_commit(P0, 5)
    made.on_unknown(request)
    assert made.member_id == "m2", "said of the life before"
    made.on_answer(request, answer(9, {1: 9}))
    assert made.standing is Standing.JOINING


def test_after_a_silence_nothing_is_opened_until_the_next_answer() -> None:
    made = holding({0: 5})
    made.on_silence()
    assert made.steps().lose == {P0: 5}
    made.release([P0])
    assert made.steps().is_empty
    assert made.hold({P0: 5}) == set()
    assert made.heartbeat().member_epoch == 5, "an epoch of 0 would take the place of who has its instance id by now"
    hear(made, 5)
    assert made.steps().open == {P0: Grant("t", 5)}


def test_a_refusal_is_permanent() -> None:
    made = holding({0: 5})
    made.on_refused(made.heartbeat(), FencedError("another"))
    assert (made.standing, made.steps().lose) == (Standing.FAILED, {P0: 5})
    made.join()
    assert made.standing is Standing.FAILED


def test_unsubscribing_releases_partitions_before_the_member_leaves() -> None:
    made = holding({0: 5})
    made.subscribe(Subscription((), "", ""))
    assert (made.steps().revoke, made.may_leave, owned_of(made)) == ({P0: 5}, False, [0])
    made.release([P0])
    assert made.may_leave
    made.leave()
    assert (made.standing, made.may_leave) == (Standing.OUT, False)
    made.join()
    assert made.standing is Standing.OUT
    made.subscribe(Subscription(("t",), "", ""))
    assert made.standing is Standing.JOINING


# ---------------------------------------------------------------------------------------------------------------- model


@dataclass
class Program:
    """A consumer: the SDK's member, and its operations in progress."""

    member: GroupMember
    opening: dict[PartitionId, int] = field(default_factory=dict)
    """Partitions fenced in their logs, which the member has not been told yet."""
    asking: list[pb.HeartbeatRequest] = field(default_factory=list)
    """Heartbeats on their way to the coordinator. One that timed out may still arrive and be answered."""
    answers: list[tuple[pb.HeartbeatRequest, pb.HeartbeatResponse | int]] = field(default_factory=list)
    """Answers on their way back, which may overtake each other. A number is an error code."""
    lives: dict[str, int] = field(default_factory=dict)
    """The incarnation of each member id."""
    granted: dict[PartitionId, Grant] = field(default_factory=dict)
    """The assignment in the newest answer of this incarnation."""

    def shows(self) -> object:
        """Return the member's visible state."""
        made = self.member
        return made.standing, made.incarnation, made.heartbeat(), made.steps(), made.failure, made.may_leave

    def hear(self, request: pb.HeartbeatRequest, found: pb.HeartbeatResponse | int) -> None:
        """Deliver an answer. One to an earlier life, to a former member, or of an older epoch must change nothing."""
        made, before = self.member, self.shows()
        is_of_this_life = request.member_id == made.member_id and made.standing in (Standing.JOINING, Standing.IN)
        if isinstance(found, pb.HeartbeatResponse):
            is_old = is_of_this_life and found.member_epoch < made.epoch
            assert made.on_answer(request, found) is not is_old
            if not is_of_this_life or is_old:
                assert self.shows() == before
                return
            if found.has_assignment:
                self.granted = {
                    PartitionId(topic.topic_id, number): Grant(topic.topic, epoch)
                    for topic in found.assignment
                    for number, epoch in zip(topic.partitions, topic.owner_epochs, strict=True)
                }
            assert (made.standing, made.epoch) == (Standing.IN, found.member_epoch)
            return
        if found == codes.UNKNOWN_MEMBER:
            made.on_unknown(request)
        else:
            assert found == codes.FENCED, found
            made.on_refused(request, FencedError("another"))
        if not is_of_this_life:
            assert self.shows() == before
            return
        assert made.standing is (Standing.JOINING if found == codes.UNKNOWN_MEMBER else Standing.FAILED)
        self.granted = {}


class MembersAndCoordinator(RuleBasedStateMachine):
    """Members and the coordinator, with random faults."""

    @initialize()
    def form(self) -> None:
        self.log, self.metadata = LogBuilder(), Metadata()
        self.fences: dict[PartitionId, tuple[LogBuilder, LogPartition]] = {}
        self.programs: list[Program] = []
        self.ids = count(1)
        self.apply(mc.InitializeCluster("c", 1, "u1"))
        self.apply(register("u1"))
        self.apply(mc.CreateTopic("t", "log", 1, {}, (mc.PartitionPlan((1,)),) * 4))
        self.a_program_starts("")
        self.a_program_starts("i1")
        self.everyone_says()

    def apply(self, command: mc.MetadataCommand) -> mc.MetadataResult | None:
        return self.metadata.apply(self.log.metadata(command))

    def fence(self, partition: PartitionId) -> tuple[LogBuilder, LogPartition]:
        if partition not in self.fences:
            log, state = LogBuilder(), LogPartition()
            state.apply(log.batch(0, 0, 0, 10))
            self.fences[partition] = log, state
        return self.fences[partition]

    def is_member(self, program: Program) -> bool:
        group = self.metadata.consumer_group("g")
        return group is not None and program.member.member_id in group.members

    # -------------------------------------------------------------------------------------------------- the coordinator

    def receive(self, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse | int:
        """Answer a heartbeat as the service does. A number is an error code."""
        said = request.subscription
        heartbeat = MemberHeartbeat(
            "g", request.member_id, request.member_epoch, request.instance_id, request.client_id, request.rack,
            request.session_timeout_ms, request.rebalance_timeout_ms,
            MemberSubscription(tuple(said.topics), said.pattern, said.assignor),
            frozenset((topic.topic_id, number) for topic in request.owned for number in topic.partitions),
        )  # fmt: skip
        for _ in range(4):
            result = validate_heartbeat(self.metadata.consumer_group("g"), heartbeat, self.metadata.applied_index)
            if result is None:
                break
            if isinstance(result, mc.Rejected):
                return result.code
            self.apply(result)
        group = self.metadata.consumer_group("g")
        assert group is not None
        row = group.members[request.member_id]
        response = pb.HeartbeatResponse(member_epoch=row.epoch, has_assignment=row.epoch != request.member_epoch)
        for topic_id, number, owner_epoch in row.assigned() if response.has_assignment else ():
            response.assignment.add(topic_id=topic_id, topic="t", partitions=[number], owner_epochs=[owner_epoch])
        return response

    @rule()
    def divide(self) -> None:
        group = self.metadata.consumer_group("g")
        if group is not None and not is_planned_for(self.metadata, group):
            request = plan_request(self.metadata, group)
            assert isinstance(self.apply(plan(request).command(request)), mc.Done)

    @precondition(lambda self: self.programs)
    @rule(data=st.data())
    def a_session_ends(self, data: st.DataObject) -> None:
        program = data.draw(st.sampled_from(self.programs))
        self.apply(mc.LeaveConsumerGroup("g", (program.member.member_id,)))

    @precondition(lambda self: self.metadata.consumer_group("g") is not None)
    @rule(number=st.integers(0, 3))
    def an_offset_is_reset(self, number: int) -> None:
        self.apply(mc.RegrantPartitions("g", ((1, number),)))

    # ------------------------------------------------------------------------------------------------------ the members

    @precondition(lambda self: sum(program.member.standing is not Standing.FAILED for program in self.programs) < 4)
    @rule(instance=st.sampled_from(["", "", "i1"]))
    def a_program_starts(self, instance: str) -> None:
        self.programs = [program for program in self.programs if program.member.standing is not Standing.FAILED]
        made = GroupMember(MemberSettings("g", instance, "c", "", 45_000, 300_000), lambda: f"m{next(self.ids)}")
        made.subscribe(Subscription(("t",), "", "sticky"))
        self.programs.append(Program(made))

    @precondition(lambda self: self.programs)
    @rule(data=st.data(), is_late=st.sampled_from([False, False, False, True]))
    def say(self, data: st.DataObject, is_late: bool) -> None:
        program = data.draw(st.sampled_from(self.programs))
        if len(program.asking) < 2 and program.member.standing in (Standing.JOINING, Standing.IN):
            request = program.member.heartbeat()
            if is_late:
                program.asking.append(request)
            else:
                self.exchange(program, request)

    @precondition(lambda self: any(program.asking for program in self.programs))
    @rule(data=st.data(), is_lost=st.sampled_from([False, False, True]))
    def a_late_heartbeat_arrives(self, data: st.DataObject, is_lost: bool) -> None:
        program = data.draw(st.sampled_from([program for program in self.programs if program.asking]))
        request = program.asking.pop(data.draw(st.integers(0, len(program.asking) - 1)))
        if not is_lost:
            program.answers = [*program.answers, (request, self.receive(request))][-3:]

    @precondition(lambda self: any(program.answers for program in self.programs))
    @rule(data=st.data(), is_lost=st.sampled_from([False, False, True]))
    def a_late_answer_arrives(self, data: st.DataObject, is_lost: bool) -> None:
        program = data.draw(st.sampled_from([program for program in self.programs if program.answers]))
        answer = program.answers.pop(data.draw(st.integers(0, len(program.answers) - 1)))
        if not is_lost:
            program.hear(*answer)

    @precondition(lambda self: self.programs)
    @rule(data=st.data())
    def an_answer_is_overtaken(self, data: st.DataObject) -> None:
        """Delay an answer past a quiet period, in which its member may also have begun another life."""
        program = data.draw(st.sampled_from(self.programs))
        if program.member.standing not in (Standing.JOINING, Standing.IN):
            return
        request = program.member.heartbeat()
        found = self.receive(request)
        answer = data.draw(st.sampled_from([found, found, found, codes.UNKNOWN_MEMBER, codes.FENCED]))
        meanwhile = data.draw(st.sampled_from(["nothing", "its session ends", "an offset is reset"]))
        if meanwhile == "its session ends":
            self.apply(mc.LeaveConsumerGroup("g", (program.member.member_id,)))
        elif meanwhile == "an offset is reset":
            for number in range(4):
                self.an_offset_is_reset(number)
        self.all_is_well_for_a_while()
        program.hear(request, answer)
        self.happens(program, data.draw(st.sampled_from(["come", "silence"])))

    def exchange(self, program: Program, request: pb.HeartbeatRequest) -> None:
        program.hear(request, self.receive(request))

    @precondition(lambda self: self.programs)
    @rule()
    def everyone_says(self) -> None:
        """Let all members send heartbeats. The coordinator assigns immediately, and the programs act later."""
        for program in self.programs * 3:
            if program.member.standing in (Standing.JOINING, Standing.IN):
                self.exchange(program, program.member.heartbeat())
            self.divide()

    @rule()
    def all_is_well_for_a_while(self) -> None:
        """Let everyone send, receive and act, so that the next fault meets a working group."""
        for _ in range(2):
            self.divide()
            for program in self.programs:
                if program.member.standing in (Standing.JOINING, Standing.IN):
                    self.exchange(program, program.member.heartbeat())
                self.step(program)
                self.step(program)

    @precondition(lambda self: self.programs)
    @rule(data=st.data())
    def act(self, data: st.DataObject) -> None:
        self.step(data.draw(st.sampled_from(self.programs)))

    def step(self, program: Program) -> None:
        """Take a step as the SDK does: lose, else revoke, else open, which takes two steps."""
        if program.opening:
            may_hold = program.member.steps().open
            kept = program.member.hold(program.opening)
            assert kept == {
                p for p, epoch in program.opening.items() if p in may_hold and may_hold[p].owner_epoch == epoch
            }
            program.opening = {}
            return
        steps = program.member.steps()
        if steps.lose or steps.revoke:
            program.member.release(steps.lose or steps.revoke)
            assert not self.held(program).keys() & (steps.lose or steps.revoke).keys()
            return
        for partition, grant in steps.open.items():
            log, state = self.fence(partition)
            done = state.apply(log.log(OpenPartition("g", program.member.member_id, grant.owner_epoch)))
            if isinstance(done, Opened):
                program.opening[partition] = grant.owner_epoch

    @precondition(lambda self: self.programs)
    @rule(data=st.data(), what=st.sampled_from(["silence", "go", "come", "unsubscribe", "subscribe"]))
    def something_happens(self, data: st.DataObject, what: str) -> None:
        self.happens(data.draw(st.sampled_from(self.programs)), what)

    @precondition(lambda self: self.programs)
    @rule(
        data=st.data(), what=st.lists(st.sampled_from(["silence", "go", "come", "unsubscribe"]), min_size=1, max_size=3)
    )
    def something_happens_at_work(self, data: st.DataObject, what: list[str]) -> None:
        """Apply several faults in a row to a member that holds partitions and is opening another one."""
        self.all_is_well_for_a_while()
        program = data.draw(st.sampled_from(self.programs))
        if self.held(program) and program.member.standing is Standing.IN:
            self.an_offset_is_reset(min(self.held(program)).partition)
            self.exchange(program, program.member.heartbeat())
            self.step(program)
            self.step(program)
        for one in what:
            self.happens(program, one)
            self.step(program)

    def happens(self, program: Program, what: str) -> None:
        made = program.member
        before = made.standing
        if what == "silence":
            held, said = self.held(program), made.heartbeat()
            made.on_silence()
            assert made.heartbeat() == said, (
                "with an epoch of 0 it would take the place of who has its instance id by now"
            )
            if before is Standing.IN:
                assert set(made.steps().lose) == set(held), "any of it may be another's"
                assert not made.steps().open
        elif what == "come":
            made.join()
            assert made.standing is before or (before, made.standing) == (Standing.OUT, Standing.JOINING)
            assert made.standing is not Standing.JOINING or made.subscription
        elif what == "go" or (what == "unsubscribe" and made.may_leave):
            is_leaving = made.may_leave
            self.apply(mc.LeaveConsumerGroup("g", (made.member_id,)))
            made.leave()
            program.granted = {}
            assert made.standing in (Standing.OUT, Standing.FAILED)
            assert not (is_leaving and made.subscription), "it would come back by itself"
        else:
            made.subscribe(Subscription(("t",) if what == "subscribe" else (), "", "sticky"))
            assert made.standing in (before, Standing.JOINING)
            if what == "unsubscribe":
                steps = made.steps()
                assert steps.lose.keys() | steps.revoke.keys() == set(self.held(program)), "all of it is given up"
                assert not steps.open

    @precondition(lambda self: self.programs)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        """Commit for every member that believes it may. It either succeeds, or the member is no longer the owner in the metadata, either."""
        program = data.draw(st.sampled_from(self.programs))
        made = program.member
        group = self.metadata.consumer_group("g")
        for partition in list(self.fences):
            log, state = self.fences[partition]
            for epoch in {grant_epoch for p, grant_epoch in self.held(program).items() if p == partition}:
                if made.may_commit(partition, epoch):
                    done = state.apply(log.log(CommitOffset("g", made.member_id, epoch, 5)))
                    owner = group.owners.get(partition) if group is not None else None
                    assert isinstance(done, Committed) or owner != made.member_id or self.epoch_of(partition) != epoch

    def held(self, program: Program) -> dict[PartitionId, int]:
        return dict(program.member._held)

    def epoch_of(self, partition: PartitionId) -> int | None:
        group = self.metadata.consumer_group("g")
        owner = group.owners.get(partition) if group is not None else None
        if group is None or owner is None:
            return None
        return {part[:2]: part[2] for part in group.members[owner].owned}[partition]

    # ------------------------------------------------------------------------------------------------- what must hold

    @invariant()
    def each_life_has_an_id_of_its_own_and_begins_at_no_epoch(self) -> None:
        for program in self.programs:
            made = program.member
            assert program.lives.setdefault(made.member_id, made.incarnation) == made.incarnation
            assert made.epoch == 0 or made.standing is Standing.IN
            assert made.heartbeat().member_epoch == made.epoch

    @invariant()
    def it_opens_only_what_the_newest_answer_of_this_life_granted_it(self) -> None:
        for program in self.programs:
            for partition, grant in program.member.steps().open.items():
                assert program.member.standing is Standing.IN
                assert program.granted.get(partition) == grant
                assert partition not in self.held(program)

    @invariant()
    def it_says_what_it_holds_and_leaves_with_nothing(self) -> None:
        for program in self.programs:
            said = {(topic.topic_id, n) for topic in program.member.heartbeat().owned for n in topic.partitions}
            assert said == set(self.held(program))
            assert not (program.member.may_leave and said)

    @invariant()
    def what_is_not_granted_any_more_is_given_up_and_what_is_lost_is_not_committed(self) -> None:
        for program in self.programs:
            made, steps = program.member, program.member.steps()
            for partition, owner_epoch in self.held(program).items():
                grant = program.granted.get(partition)
                is_lost = partition in steps.lose
                assert is_lost or partition in steps.revoke or grant == Grant("t", owner_epoch)
                assert made.may_commit(partition, owner_epoch) is not is_lost
                assert not made.may_commit(partition, owner_epoch + 1)

    @invariant()
    def a_member_of_the_group_reads_nothing_that_is_given_to_another(self) -> None:
        group = self.metadata.consumer_group("g")
        for program in self.programs:
            made = program.member
            if group is None or not self.is_member(program):
                continue  # it was removed and will be told: the fence protects against it until then
            lost = made.steps().lose
            for partition in self.held(program):
                if partition not in lost:
                    assert group.owners.get(partition) in (made.member_id, None)

    @invariant()
    def no_partition_is_read_by_two_members_of_the_group(self) -> None:
        read = [
            partition
            for program in self.programs
            if self.is_member(program)
            for partition in self.held(program)
            if partition not in program.member.steps().lose
        ]
        assert len(read) == len(set(read))

    def teardown(self) -> None:
        """Check that every partition is read again when the faults end."""
        for program in self.programs:
            program.asking.clear()
            program.answers.clear()
            program.opening = {}
        able = [p for p in self.programs if p.member.standing is not Standing.FAILED]
        for program in able:
            program.member.subscribe(Subscription(("t",), "", "sticky"))
        for _ in range(6):
            self.all_is_well_for_a_while()
        living = [p for p in able if p.member.standing is Standing.IN]
        group = self.metadata.consumer_group("g")
        if living and group is not None and set(group.members) == {p.member.member_id for p in living}:
            held = [(*partition, epoch) for p in living for partition, epoch in self.held(p).items()]
            assert sorted(held) == sorted(part for row in group.members.values() for part in row.owned)
            assert len(held) == 4


TestMembersAndCoordinator = MembersAndCoordinator.TestCase
TestMembersAndCoordinator.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)


def test_the_model_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that holds a partition that was revoked while it was opened is detected."""

    def careless(self: GroupMember, opened: dict[PartitionId, int]) -> set[PartitionId]:
        self._held.update(opened)
        return set(opened)

    monkeypatch.setattr(GroupMember, "hold", careless)
    machine = MembersAndCoordinator()
    machine.form()
    machine.programs.clear()
    machine.apply(mc.LeaveConsumerGroup("g", tuple(machine.metadata.consumer_group("g").members)))
    machine.a_program_starts("")
    machine.a_program_starts("")
    first, second = machine.programs

    def heartbeat(program: Program) -> None:
        request = program.member.heartbeat()
        found = machine.receive(request)
        assert isinstance(found, pb.HeartbeatResponse)
        program.member.on_answer(request, found)

    heartbeat(first)
    machine.divide()
    heartbeat(first)
    opening = {partition: grant.owner_epoch for partition, grant in first.member.steps().open.items()}
    heartbeat(second)
    machine.divide()
    heartbeat(first)
    heartbeat(first)
    first.member.hold(opening)
    with pytest.raises(AssertionError):
        machine.a_member_of_the_group_reads_nothing_that_is_given_to_another()
