"""Commits of one partition that arrive while one is under way become one entry, and no caller waits without end."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace

import pytest
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.partitions import committed_offsets
from raftmq.broker.partitions.committed_offsets import GATHERING, PartitionOffsets
from raftmq.broker.partitions.log import PartitionLog
from raftmq.fsm.log_commands import CommitOffset, OpenPartition, ResetOffset
from raftmq.offset_ranges import encode_ranges
from raftmq.proto import queue_pb2 as pb
from raftmq.types import LogIndex

from tests.support.broker.harness import Harness, batch, running


@pytest.fixture
async def node() -> AsyncIterator[Harness]:
    async with running() as harness:
        yield harness


@pytest.fixture
async def partition(node: Harness) -> PartitionLog:
    topic = await node.topic()
    await node.append(topic, batch(100))
    return node.partition(topic)


def commit(
    node: Harness, partition: PartitionLog, offset: int, group: str = "g", member: str = ""
) -> asyncio.Task[None]:
    deadline = node.loop.time() + 10
    return asyncio.create_task(partition.offsets.commit(CommitOffset(group, member, 0, offset), deadline))


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_waiting_commits_become_one_entry_with_each_owners_latest(node: Harness, partition: PartitionLog) -> None:
    node.hold_commits = True
    first = commit(node, partition, 1)
    await turn()
    index = partition.replica.core.last_index
    waiting = [commit(node, partition, offset) for offset in range(2, 50)]
    other = commit(node, partition, 7, "h")
    await turn()
    assert partition.replica.core.last_index == index, "one entry in flight"
    node.release_commits()
    await asyncio.gather(first, other, *waiting)
    assert partition.replica.core.last_index == index + 1
    assert [partition.offsets.of(group).offset for group in ("g", "h")] == [49, 7]


async def test_each_commit_of_an_entry_has_its_own_answer(node: Harness, partition: PartitionLog) -> None:
    node.hold_commits = True
    first = commit(node, partition, 1)
    await turn()
    fenced, good = commit(node, partition, 2, "g", "zombie"), commit(node, partition, 3, "h")
    await turn()
    node.release_commits()
    await first
    await good
    with pytest.raises(RequestError) as raised:
        await fenced
    assert raised.value.code == pb.FENCED


async def test_stepping_down_leaves_the_outcome_unknown_and_refuses_waiting_commits(
    node: Harness, partition: PartitionLog
) -> None:
    node.hold_commits = True
    proposed = commit(node, partition, 1)
    await turn()
    waiting = commit(node, partition, 2, "h")
    await turn()
    node.lose_leadership(partition.replica.group_id)
    with pytest.raises(RequestError) as raised:
        await proposed
    assert raised.value.detail.outcome == pb.UNKNOWN_OUTCOME
    with pytest.raises(RequestError) as raised:
        await waiting
    assert raised.value.detail.outcome == pb.NOT_APPLIED
    assert raised.value.detail.retriable


@pytest.mark.parametrize(("member", "note"), [("m" * 250, ""), ("", "n" * 4_097), ("", "\xe4" * 2_049)])
async def test_a_commit_of_a_longer_text_is_refused_alone(
    node: Harness, partition: PartitionLog, member: str, note: str
) -> None:
    """It made the entry too large for all commits that were gathered with it, of other groups, too."""
    node.hold_commits = True
    first = commit(node, partition, 1)
    await turn()
    large = partition.offsets.commit(CommitOffset("g", member, 0, 1, note), node.loop.time() + 10)
    refused, good = asyncio.create_task(large), commit(node, partition, 2, "h", "m")
    await turn()
    index = partition.replica.core.last_index
    assert refused.done()
    node.release_commits()
    await first
    with pytest.raises(RequestError) as raised:
        await refused
    assert raised.value.code == pb.INVALID_ARGUMENT
    with pytest.raises(RequestError) as raised:
        await good
    assert raised.value.code == pb.FENCED, "it was judged by itself"
    assert partition.replica.core.last_index == index + 1


async def test_a_cancelled_commit_stops_no_other(node: Harness, partition: PartitionLog) -> None:
    node.hold_commits = True
    gone, stays = commit(node, partition, 1), commit(node, partition, 2, "h")
    await turn()
    gone.cancel()
    node.release_commits()
    await stays
    assert [partition.offsets.of(group).offset for group in ("g", "h")] == [1, 2]


async def test_waiting_owners_are_bounded(
    node: Harness, partition: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committed_offsets, "GATHERING", replace(GATHERING, waiting_max=3))
    partition.offsets = PartitionOffsets(node.loop, partition.replica, lambda: 1000.0)
    node.hold_commits = True
    tasks = [commit(node, partition, 1, f"g{number}") for number in range(4)]
    await turn()
    assert [task.done() for task in tasks] == [False, False, False, True]
    with pytest.raises(RequestError) as raised:
        await tasks[-1]
    assert raised.value.code == pb.THROTTLED
    node.release_commits()
    await asyncio.gather(*tasks[:-1])


async def test_a_commit_that_times_out_has_an_unknown_outcome(node: Harness, partition: PartitionLog) -> None:
    node.hold_commits = True
    with pytest.raises(RequestError) as raised:
        await partition.offsets.commit(CommitOffset("g", "", 0, 1), node.loop.time() + 0.01)
    assert raised.value.code == pb.REQUEST_TIMED_OUT
    assert raised.value.detail.outcome == pb.UNKNOWN_OUTCOME
    with pytest.raises(RequestError) as raised:
        await partition.offsets.commit(CommitOffset("g", "", 0, 1), node.loop.time() - 1)
    assert raised.value.detail.outcome == pb.NOT_APPLIED, "it was never proposed"


async def test_unused_offsets_are_forgotten_unless_their_group_lives(node: Harness, partition: PartitionLog) -> None:
    await commit(node, partition, 1, "old")
    await commit(node, partition, 1, "alive")
    node.clock_ms += 1000
    await commit(node, partition, 1, "new")
    before_ms = node.clock_ms - 500
    deadline = node.loop.time() + 10
    assert await partition.offsets.expire(lambda group: group == "alive", before_ms, deadline) == 1
    assert [group for group, _ in partition.replica.state_machine.group_offsets()] == ["alive", "new"]
    index = partition.replica.core.last_index
    assert await partition.offsets.expire(lambda group: group == "alive", before_ms, deadline) == 0
    assert partition.replica.core.last_index == index, "nothing is written if there is nothing to forget"
    node.lose_leadership(partition.replica.group_id)
    assert await partition.offsets.expire(lambda _: False, before_ms, deadline) == 0


@pytest.mark.parametrize(("is_trusted", "left"), [(True, ["new"]), (False, ["new", "old"])])
async def test_offsets_are_forgotten_only_by_a_clock_that_is_trusted(
    node: Harness, partition: PartitionLog, is_trusted: bool, left: list[str]
) -> None:
    await commit(node, partition, 1, "old")
    node.clock_ms += int(node.timing.offsets_retention_seconds * 1000) + 1
    await commit(node, partition, 1, "new")
    node.trusts_clock = is_trusted
    await partition.maintain()
    assert [group for group, _ in partition.replica.state_machine.group_offsets()] == left


async def test_offsets_are_written_only_by_a_clock_that_was_compared(node: Harness, partition: PartitionLog) -> None:
    """Stamped by a clock that is days behind, an offset would be forgotten minutes after its commit."""
    offsets, deadline = partition.offsets, node.loop.time() + 10
    await commit(node, partition, 1)
    index = partition.replica.core.last_index
    node.time_refusal = RequestError(pb.NOT_READY, "not compared", retry_after_ms=50)
    for attempt in (
        offsets.commit(CommitOffset("g", "", 0, 2), deadline),
        offsets.open(OpenPartition("g", "m", 1), deadline),
        offsets.reset(ResetOffset("g", 1, 2), deadline),
    ):
        with pytest.raises(RequestError) as refused:
            await attempt
        assert refused.value.code == pb.NOT_READY
    assert partition.replica.core.last_index == index
    await commit(node, partition, 1)  # it changes nothing, so it writes no time
    node.time_refusal = None
    await commit(node, partition, 2)
    assert offsets.of("g").offset == 2
    node.time_refusal = RequestError(pb.NOT_READY, "not compared", retry_after_ms=50)
    node.lose_leadership(partition.replica.group_id)
    for late in (offsets.open(OpenPartition("g", "m", 1), deadline), commit(node, partition, 3)):
        with pytest.raises(RequestError) as refused:
            await late
        assert refused.value.code in {pb.NOT_LEADER, pb.NO_LEADER}, "another broker may lead, whose clock was compared"


async def test_an_offset_in_use_survives_when_its_retention_is_lowered(node: Harness, partition: PartitionLog) -> None:
    """Under the old retention it is touched once an hour, so it looks unused under one of half an hour until its next commit."""
    await commit(node, partition, 1)
    node.clock_ms += int(committed_offsets.TOUCH_SECONDS_MAX * 1000) - 1
    await commit(node, partition, 1)
    await partition.maintain()
    node.timing = replace(node.timing, offsets_retention_seconds=1800.0)
    await partition.maintain()
    assert partition.offsets.is_known("g")
    await commit(node, partition, 1)
    assert partition.offsets.of("g").touched_time_ms == node.clock_ms
    node.clock_ms += int(committed_offsets.TOUCHED_SECONDS_MAX * 1000) + 1
    await partition.maintain()
    assert not partition.offsets.is_known("g"), "it is unused whatever the retention was"


async def test_a_short_retention_counts_when_a_leader_has_followed_it_that_long(
    node: Harness, partition: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, retention = 1000.0, 60.0
    offsets = PartitionOffsets(node.loop, partition.replica, lambda: retention)
    monkeypatch.setattr(offsets, "_loop", SimpleNamespace(time=lambda: clock))
    longest = committed_offsets.TOUCHED_SECONDS_MAX
    assert offsets.kept_seconds() == longest
    clock += 59
    assert offsets.kept_seconds() == longest
    clock += 1
    assert offsets.kept_seconds() == 60
    retention = 30.0
    assert offsets.kept_seconds() == longest, "it was lowered"
    clock += 30
    assert offsets.kept_seconds() == 30
    retention = 7200.0
    assert offsets.kept_seconds() == 7200
    retention = 30.0
    assert offsets.kept_seconds() == longest, "it was lowered again"
    clock += 30
    assert offsets.kept_seconds() == 30
    monkeypatch.setattr(offsets, "_replica", SimpleNamespace(term=partition.replica.term + 2))
    assert offsets.kept_seconds() == longest, "another leader may have touched offsets less often"


async def test_a_commit_that_changes_nothing_writes_nothing(node: Harness, partition: PartitionLog) -> None:
    """An entry stays on every replica as long as the records around it, so a commit without effect must not write one."""
    await commit(node, partition, 7)
    index = partition.replica.core.last_index
    for _ in range(20):
        await commit(node, partition, 7)
    assert partition.replica.core.last_index == index
    await commit(node, partition, 8)
    await commit(node, partition, 7)
    assert partition.replica.core.last_index == index + 2
    await partition.offsets.commit(CommitOffset("g", "", 0, 7, "a note"), node.loop.time() + 10)
    assert partition.replica.core.last_index == index + 3


async def test_the_same_offset_with_other_finished_ranges_is_a_change(node: Harness, partition: PartitionLog) -> None:
    for ranges in ([(9, 10)], [(9, 12)], []):
        finished = encode_ranges(7, ranges)
        index = partition.replica.core.last_index
        for _ in range(3):
            await partition.offsets.commit(CommitOffset("g", "", 0, 7, "", finished), node.loop.time() + 10)
        assert partition.replica.core.last_index == index + 1
        assert partition.offsets.of("g").finished == finished


async def test_ranges_are_validated_before_anything_is_proposed(node: Harness, partition: PartitionLog) -> None:
    index = partition.replica.core.last_index
    with pytest.raises(RequestError, match="the last one is incomplete") as raised:
        await partition.offsets.commit(CommitOffset("g", "", 0, 7, "", b"\x01"), node.loop.time() + 10)
    assert raised.value.code == pb.INVALID_ARGUMENT
    assert partition.replica.core.last_index == index


async def test_the_bytes_of_one_entry_of_commits_are_bounded(
    node: Harness, partition: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committed_offsets, "GATHERING", replace(GATHERING, entry_bytes_max=100))
    partition.offsets = PartitionOffsets(node.loop, partition.replica, lambda: 1000.0)
    node.hold_commits = True
    first = commit(node, partition, 1)
    await turn()
    index = partition.replica.core.last_index
    deadline = node.loop.time() + 10
    commands = [CommitOffset(f"g{number}", "", 0, 7, "n" * 10, encode_ranges(7, [(9, 12)])) for number in range(6)]
    waiting = [asyncio.create_task(partition.offsets.commit(command, deadline)) for command in commands]
    await turn()
    node.release_commits()
    await asyncio.gather(first, *waiting)
    assert partition.replica.core.last_index == index + 3, "two commits of 42 bytes in each"
    assert [partition.offsets.of(f"g{number}").offset for number in range(6)] == [7] * 6


async def test_a_repeatedly_committed_offset_counts_as_used(node: Harness, partition: PartitionLog) -> None:
    await commit(node, partition, 7)
    index = partition.replica.core.last_index
    node.clock_ms += int(committed_offsets.TOUCH_SECONDS_MAX * 1000) + 1
    await commit(node, partition, 7)
    assert partition.replica.core.last_index == index + 1
    assert partition.offsets.of("g").touched_time_ms == node.clock_ms
    await commit(node, partition, 7)
    assert partition.replica.core.last_index == index + 1


async def test_a_commit_after_one_that_is_under_way_is_written(node: Harness, partition: PartitionLog) -> None:
    """The state before the commit is not known yet: it may contain the offset 1 now, but not after the commit of 2."""
    await commit(node, partition, 1)
    node.hold_commits = True
    first = commit(node, partition, 2)
    await turn()
    second = commit(node, partition, 1)
    await turn()
    node.release_commits()
    await asyncio.gather(first, second)
    assert partition.offsets.of("g").offset == 1


async def test_a_fenced_owner_is_refused_even_for_an_unchanged_offset(node: Harness, partition: PartitionLog) -> None:
    await partition.offsets.open(OpenPartition("g", "old", 5), node.loop.time() + 10)
    await partition.offsets.commit(CommitOffset("g", "old", 5, 7), node.loop.time() + 10)
    await partition.offsets.open(OpenPartition("g", "new", 6), node.loop.time() + 10)
    with pytest.raises(RequestError) as raised:
        await partition.offsets.commit(CommitOffset("g", "old", 5, 7), node.loop.time() + 10)
    assert raised.value.code == pb.FENCED


async def test_an_unchanged_offset_is_not_confirmed_by_a_leader_that_was_succeeded(
    node: Harness, partition: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    await commit(node, partition, 7)
    replica = partition.replica
    read_index = replica.read_index

    async def deposed() -> LogIndex:
        index = await read_index()
        node.lose_leadership(replica.group_id)
        return index

    monkeypatch.setattr(replica, "read_index", deposed)
    with pytest.raises(RequestError) as raised:
        await commit(node, partition, 7)
    assert raised.value.detail.outcome == pb.NOT_APPLIED
    assert raised.value.detail.retriable
