"""Plans resolve subscriptions and keep present owners. A child process computes them."""

import asyncio
import io
import os
import struct
import sys
import time
from pathlib import Path

import lmdb
import msgspec
import pytest
import uvloop
from raftmq.assignors.assignor import Assignment, ConsumerGroup
from raftmq.broker.consumer_groups import assignor_process
from raftmq.broker.consumer_groups.assignor_process import InlinePlanRunner, PlanError, ProcessPlanRunner, serve
from raftmq.broker.consumer_groups.planner import (
    Plan,
    PlannedMember,
    PlannedTopic,
    PlanRequest,
    assignor_names,
    is_planned_for,
    load_assignor,
    plan,
    plan_request,
)
from raftmq.fsm import metadata_commands as mc
from raftmq.fsm.metadata import Metadata

from tests.support.fsm.histories import LogBuilder, register

TOPICS = (PlannedTopic(1, "flights", 4), PlannedTopic(2, "boats", 2), PlannedTopic(3, "__internal", 2))


def request(*members: PlannedMember, assignor: str = "sticky") -> PlanRequest:
    return PlanRequest("g", 7, assignor, members, TOPICS)


def member(member_id: str, *topics: str, pattern: str = "", **more: object) -> PlannedMember:
    fields: dict[str, object] = {"rack": "", "target": (), "kept": ()}
    return PlannedMember(member_id, topics, pattern, **(fields | more))


def test_names_and_patterns_become_topics() -> None:
    found = plan(request(member("m1", "boats", "nothing"), member("m2", pattern=".*")))
    assert found.topics == ((1, 4), (2, 2)), "reserved topics only by name"
    assert {change.member_id: change.partitions for change in found.changes} == {
        "m1": ((2, (0, 1)),),
        "m2": ((1, (0, 1, 2, 3)),),
    }
    assert plan(request(member("m1", "__internal"))).topics == ((3, 2),)


def test_a_plan_contains_only_changes() -> None:
    settled = request(member("m1", "flights", target=((1, (0, 1)),)), member("m2", "flights", target=((1, (2, 3)),)))
    assert plan(settled) == Plan(((1, 4),), ())
    command = plan(settled).command(settled)
    assert (command.group, command.expected_epoch, command.assignor) == ("g", 7, "sticky")


def test_an_untargeted_partition_stays_with_its_present_owner() -> None:
    """m3 should have got 0 and 1 from m1 but left before: they need not move at all."""
    found = plan(request(member("m1", "flights", target=((1, (2, 3)),), kept=((1, (0, 1)),))))
    assert found.changes == (mc.MemberTarget("m1", ((1, (0, 1, 2, 3)),)),)
    both = plan(
        request(
            member("m1", "flights", kept=((1, (0, 1)),)),
            member("m2", "flights", target=((1, (2,)),)),
        )
    )
    assert {change.member_id: change.partitions for change in both.changes} == {
        "m1": ((1, (0, 1)),),
        "m2": ((1, (2, 3)),),
    }


def test_a_request_is_a_copy_of_the_group() -> None:
    log, state = LogBuilder(), Metadata()
    for command in (
        mc.InitializeCluster("c", 1, "u1"),
        register("u1", rack="r1"),
        mc.CreateTopic("flights", "log", 1, {}, (mc.PartitionPlan((1,)),) * 2),
        mc.CreateTopic("boats", "log", 1, {}, (mc.PartitionPlan((1,)),)),
        mc.JoinConsumerGroup("g", "m1", "", "", "r1", ("flights",), "", "", 1, 1),
        mc.JoinConsumerGroup("g", "m2", "", "", "", ("flights",), "", "range", 1, 1),
    ):
        state.apply(log.metadata(command))
    group = state.consumer_group("g")
    assert group is not None
    copied = plan_request(state, group)
    assert [topic.name for topic in copied.topics] == ["flights"]
    assert copied.topics[0].racks == (("r1",), ("r1",))
    assert copied.assignor == "range", "of equally many votes the first by name"
    assert (copied.epoch, [one.member_id for one in copied.members]) == (group.row.epoch, ["m1", "m2"])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(copied), type=PlanRequest) == copied


def test_only_logs_are_assigned() -> None:
    """A member may have subscribed to a name before a topic of another kind got it, and a pattern may match any name."""
    log, state = LogBuilder(), Metadata()
    for command in (
        mc.InitializeCluster("c", 2, "u1"),
        register("u1", feature_level_max=2),
        mc.JoinConsumerGroup("named", "m1", "", "", "", ("flights", "jobs"), "", "", 1, 1),
        mc.JoinConsumerGroup("matched", "m1", "", "", "", (), ".*", "", 1, 1),
        mc.CreateTopic("flights", "log", 1, {}, (mc.PartitionPlan((1,)),)),
        mc.CreateTopic("jobs", "queue", 1, {}, (mc.PartitionPlan((1,)),)),
    ):
        state.apply(log.metadata(command))
    for name, is_planned in (("named", True), ("matched", None)):
        group = state.consumer_group(name)
        assert group is not None
        asked = plan_request(state, group)
        assert [topic.name for topic in asked.topics] == ["flights"]
        state.apply(log.metadata(plan(asked).command(asked)))
        assert is_planned_for(state, group) is is_planned, "and the topic that is left out asks for no further plan"


def test_assignors_are_known_by_name() -> None:
    assert assignor_names() >= {"sticky", "range", "round_robin"}
    assert load_assignor("nobody") is None
    with pytest.raises(LookupError):
        plan(request(member("m1", "flights"), assignor="nobody"))


# ------------------------------------------------------------------------------------------------------------- processes


async def test_both_runners_compute_the_same_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignor_process, "INLINE_SIZE_MAX", 0)
    asked = request(member("m1", "flights"), member("m2", pattern="f.*"))
    runner = ProcessPlanRunner(seconds_max=60)
    try:
        assert await runner.run(asked) == await InlinePlanRunner().run(asked)
        first = runner._child
        assert await runner.run(asked) == plan(asked)
        assert runner._child is first, "the process is kept"
        with pytest.raises(PlanError, match="nobody"):
            await runner.run(request(member("m1"), assignor="nobody"))
        assert runner._child is first
        assert first is not None
        first.kill()
        await first.wait()
        assert await runner.run(asked) == plan(asked), "a dead process is replaced"
    finally:
        await ended(runner)


def test_many_different_subscriptions_are_no_small_plan() -> None:
    """A plan for 140 members and as many topics took a tenth of a second, and was computed on the event loop."""
    members = [member(f"m{number}", *(f"t{topic}" for topic in range(number))) for number in range(140)]
    assert request(*members).size > assignor_process.INLINE_SIZE_MAX


async def test_an_assignor_that_takes_too_long_or_fails_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The assignor is installed beside RaftMQ, found by its entry point, and runs in the child. It may print, which is no part of its answer."""
    (tmp_path / "foreign.py").write_text(
        "import time\n"
        "class Slow:\n    name = 'slow'\n    def assign(self, group): time.sleep(600)\n"
        "class Bad:\n    name = 'bad'\n    def assign(self, group): raise ValueError('no')\n"
        "class Own:\n    name = 'own'\n    def assign(self, group):\n"
        "        print('x' * 100_000)\n        return {m.member_id: ((1, 0),) for m in group.members}\n"
    )
    info = tmp_path / "foreign-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[raftmq.assignors]\nslow = foreign:Slow\nbad = foreign:Bad\nown = foreign:Own\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    runner = ProcessPlanRunner(seconds_max=60)
    try:
        assert (await runner.run(request(member("m1", "flights"), assignor="own"))).changes == (
            mc.MemberTarget("m1", ((1, (0,)),)),
        )
        with pytest.raises(PlanError, match="ValueError"):
            await runner.run(request(member("m1", "flights"), assignor="bad"))
        runner._seconds_max = 0.2
        started = time.monotonic()
        with pytest.raises(PlanError, match="no answer within"):
            await runner.run(request(member("m1", "flights"), assignor="slow"))
        assert time.monotonic() - started < 60
        runner._seconds_max = 60
        assert (await runner.run(request(member("m1", "flights"), assignor="own"))).changes
    finally:
        await ended(runner)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_the_child_keeps_no_file_of_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LMDB and uvloop leave the descriptor of each data file open for it, which would keep the space of a deleted file."""
    monkeypatch.setattr(assignor_process, "INLINE_SIZE_MAX", 0)

    async def planned(runner: ProcessPlanRunner) -> int:
        await runner.run(request(member("m1", "flights")))
        assert runner._child is not None
        return runner._child.pid

    with (
        lmdb.open(str(tmp_path / "file.mdb"), subdir=False),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop,
    ):
        runner = ProcessPlanRunner(seconds_max=60)
        try:
            descriptors = Path(f"/proc/{loop.run(planned(runner))}/fd")
            kept = [link for one in descriptors.iterdir() if (link := one.readlink()).is_relative_to(tmp_path)]
        finally:
            loop.run(ended(runner))
    assert kept == []


async def ended(runner: ProcessPlanRunner) -> None:
    child = runner._child
    runner.close()
    if child is not None:
        await child.wait()
        await asyncio.sleep(0)


def test_the_child_ends_with_its_requests() -> None:
    encoded = msgspec.msgpack.encode(request(member("m1", "flights")))
    answers = io.BytesIO()
    serve(io.BytesIO(struct.pack("<I", len(encoded)) + encoded + b"\x01"), answers)
    (length,) = struct.unpack("<I", answers.getvalue()[:4])
    assert len(answers.getvalue()) == 4 + length


class Twice:
    """An assignor that assigns one partition to every member."""

    name = "range"

    def assign(self, group: ConsumerGroup) -> Assignment:
        return {member.member_id: ((1, 0),) for member in group.members}


def test_a_custom_assignors_plan_is_checked_when_it_is_applied() -> None:
    log, state = LogBuilder(), Metadata()
    for command in (
        mc.InitializeCluster("c", 1, "u1"),
        register("u1"),
        mc.CreateTopic("flights", "log", 1, {}, (mc.PartitionPlan((1,)),) * 2),
        mc.JoinConsumerGroup("g", "m1", "", "", "", ("flights",), "", "range", 1, 1),
        mc.JoinConsumerGroup("g", "m2", "", "", "", ("flights",), "", "range", 1, 1),
    ):
        state.apply(log.metadata(command))
    group = state.consumer_group("g")
    assert group is not None
    asked = plan_request(state, group)
    result = state.apply(log.metadata(plan(asked, {"range": Twice()}).command(asked)))
    assert isinstance(result, mc.Rejected)
