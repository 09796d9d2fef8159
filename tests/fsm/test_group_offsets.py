"""Fencing: only the member and owner epoch that opened a partition last can commit there (promise 6)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftmq.fsm import codes
from raftmq.fsm.group_offsets import GroupOffset
from raftmq.fsm.log_commands import (
    CommitOffset,
    CommitOffsets,
    Committed,
    ForgetOffsets,
    Forgotten,
    LogPartitionCommand,
    LogResult,
    Opened,
    OpenPartition,
    ResetOffset,
    Results,
)
from raftmq.fsm.log_partition import LogPartition
from raftmq.fsm.metadata_commands import Rejected
from raftmq.offset_ranges import RANGES_BYTES_MAX, RANGES_MAX, encode_ranges

from tests.support.fsm.histories import LogBuilder


class Partition:
    """A partition with ten records to commit."""

    def __init__(self) -> None:
        self.log = LogBuilder()
        self.state = LogPartition()
        self.state.apply(self.log.batch(0, 0, 0, 10))

    def run(self, command: LogPartitionCommand) -> LogResult | None:
        return self.state.apply(self.log.log(command))

    def code(self, command: LogPartitionCommand) -> int | None:
        result = self.run(command)
        return result.code if isinstance(result, Rejected) else None


@pytest.fixture
def partition() -> Partition:
    return Partition()


def test_a_new_owner_starts_at_the_committed_offset(partition: Partition) -> None:
    assert partition.run(OpenPartition("g", "m1", 5)) == Opened(-1, "")
    assert partition.run(CommitOffset("g", "m1", 5, 4, "note")) == Committed(4)
    assert partition.run(OpenPartition("g", "m2", 6)) == Opened(4, "note")


def test_a_zombie_cannot_commit(partition: Partition) -> None:
    partition.run(OpenPartition("g", "m1", 5))
    partition.run(OpenPartition("g", "m2", 6))
    assert partition.code(CommitOffset("g", "m1", 5, 4)) == codes.FENCED
    assert partition.code(CommitOffset("g", "m1", 6, 4)) == codes.FENCED
    assert partition.code(CommitOffset("g", "m2", 5, 4)) == codes.FENCED
    assert partition.code(CommitOffset("g", "m2", 7, 4)) == codes.FENCED
    assert partition.run(CommitOffset("g", "m2", 6, 4)) == Committed(4)


def test_a_fence_never_goes_back(partition: Partition) -> None:
    partition.run(OpenPartition("g", "m2", 6))
    assert partition.code(OpenPartition("g", "m1", 5)) == codes.FENCED
    assert partition.code(OpenPartition("g", "m1", 6)) == codes.FENCED
    assert partition.run(OpenPartition("g", "m2", 6)) == Opened(-1, ""), "the owner's own retry"


def test_a_commit_before_opening_is_fenced(partition: Partition) -> None:
    assert partition.code(CommitOffset("g", "m1", 5, 4)) == codes.FENCED
    assert partition.state.group_offset("g") is None


def test_a_reset_fences_the_owner_and_is_repeatable(partition: Partition) -> None:
    partition.run(OpenPartition("g", "m1", 5))
    assert partition.code(ResetOffset("g", 5, 2)) == codes.FENCED
    assert partition.run(ResetOffset("g", 9, 2)) == partition.run(ResetOffset("g", 9, 2)) == Committed(2)
    assert partition.code(CommitOffset("g", "m1", 5, 4)) == codes.FENCED
    assert partition.code(CommitOffset("g", "", 9, 4)) is None, "nobody else can hold this fence"
    assert partition.code(OpenPartition("g", "m1", 9)) == codes.FENCED
    assert partition.run(OpenPartition("g", "m1", 10)) == Opened(4, "")


def test_commits_without_a_protocol_need_no_opening(partition: Partition) -> None:
    assert partition.run(CommitOffset("plain", "", 0, 7)) == Committed(7)
    assert partition.run(CommitOffset("plain", "", 0, 3)) == Committed(3), "seeking back is allowed"
    partition.run(OpenPartition("plain", "m1", 1))
    assert partition.code(CommitOffset("plain", "", 0, 7)) == codes.FENCED


@pytest.mark.parametrize("offset", [-1, 11, 2**63 - 1])
def test_an_offset_outside_the_log_is_refused(partition: Partition, offset: int) -> None:
    assert partition.code(CommitOffset("g", "", 0, offset)) == codes.OFFSET_OUT_OF_RANGE
    assert partition.code(ResetOffset("g", 1, offset)) == codes.OFFSET_OUT_OF_RANGE
    assert partition.run(CommitOffset("g", "", 0, 10)) == Committed(10)


@pytest.mark.parametrize(
    "command",
    [
        OpenPartition("g", "", 1),
        OpenPartition("g", "m", 0),
        OpenPartition("g", "m", -1),
        OpenPartition("g", "m", 2**64 - 1),
        OpenPartition("", "m", 1),
        OpenPartition("x" * 250, "m", 1),
        OpenPartition("ö" * 125, "m", 1),
        OpenPartition("g", "m" * 250, 1),
        CommitOffset("", "", 0, 1),
        CommitOffset("g", "", 0, 1, "x" * 4097),
        ResetOffset("g", 0, 1),
        ResetOffset("", 1, 1),
    ],
)
def test_malformed_commands_are_refused(partition: Partition, command: LogPartitionCommand) -> None:
    assert partition.code(command) == codes.INVALID_ARGUMENT
    assert partition.state.group_offsets() == ()


def test_coalesced_commits_are_validated_one_by_one(partition: Partition) -> None:
    partition.run(OpenPartition("g", "m1", 5))
    commits = (CommitOffset("g", "m1", 5, 3), CommitOffset("g", "m0", 4, 9), CommitOffset("g", "m1", 5, 6))
    result = partition.run(CommitOffsets(commits))
    assert isinstance(result, Results)
    assert (result.results[0], result.results[2]) == (Committed(3), Committed(6))
    assert isinstance(result.results[1], Rejected)
    assert partition.run(OpenPartition("g", "m2", 6)) == Opened(6, "")


def test_records_finished_after_the_offset_survive_changes_of_owner_and_restarts(partition: Partition) -> None:
    finished = encode_ranges(4, [(5, 7), (9, 10)])
    partition.run(OpenPartition("g", "m1", 5))
    partition.run(CommitOffset("g", "m1", 5, 4, "", finished))
    assert partition.run(OpenPartition("g", "m2", 6)) == Opened(4, "", finished)
    restored = LogPartition()
    restored.restore(partition.state.rows(), partition.state.applied_index)
    assert restored.group_offset("g") == partition.state.group_offset("g")
    assert tuple(restored.rows()) == tuple(partition.state.rows())
    assert partition.run(OpenPartition("g", "m3", 7)) == Opened(4, "", finished), (
        "an owner that said nothing changed nothing"
    )


def test_a_commit_without_finished_records_and_a_reset_clear_them(partition: Partition) -> None:
    finished = encode_ranges(4, [(5, 7)])
    partition.run(OpenPartition("g", "m1", 5))
    partition.run(CommitOffset("g", "m1", 5, 4, "", finished))
    partition.run(CommitOffset("g", "m1", 5, 4))
    assert partition.run(OpenPartition("g", "m1", 5)) == Opened(4, "")
    partition.run(CommitOffset("g", "m1", 5, 4, "", finished))
    partition.run(ResetOffset("g", 6, 4))
    assert partition.run(OpenPartition("g", "m2", 7)) == Opened(4, "")


@pytest.mark.parametrize(
    ("finished", "code"),
    [
        (b"\x01", codes.INVALID_ARGUMENT),
        (b"\x00\x01", codes.INVALID_ARGUMENT),
        (b"\x01" * (RANGES_BYTES_MAX + 2), codes.INVALID_ARGUMENT),
        (b"\x01\x01" * (RANGES_MAX + 1), codes.INVALID_ARGUMENT),
        (encode_ranges(4, [(5, 11)]), codes.OFFSET_OUT_OF_RANGE),
    ],
)
def test_impossible_finished_records_are_refused(partition: Partition, finished: bytes, code: int) -> None:
    assert partition.code(CommitOffset("g", "", 0, 4, "", finished)) == code
    assert partition.state.group_offsets() == ()


def test_forgetting_skips_groups_that_were_used_since(partition: Partition) -> None:
    partition.run(CommitOffset("idle", "", 0, 1))
    partition.log.time_ms += 1000
    touched_ms = partition.log.time_ms
    partition.run(CommitOffset("busy", "", 0, 1))
    assert partition.run(ForgetOffsets(("idle", "busy", "idle", "none"), touched_ms)) == Forgotten(1)
    assert partition.state.group_offsets() == (("busy", GroupOffset("", 0, 1, "", touched_ms)),)


def test_a_zombie_of_a_forgotten_group_is_still_fenced(partition: Partition) -> None:
    """Epochs are never reused, so a commit of an owner from before the deletion cannot match a fence after it."""
    partition.run(OpenPartition("g", "m1", 5))
    partition.log.time_ms += 1
    partition.run(ForgetOffsets(("g",), partition.log.time_ms))
    assert partition.code(CommitOffset("g", "m1", 5, 4)) == codes.FENCED


@given(
    commands=st.lists(
        st.tuples(st.booleans(), st.sampled_from(["m1", "m2", "m3"]), st.integers(1, 6), st.integers(0, 10)),
        max_size=40,
    )
)
def test_only_the_highest_epoch_that_opened_can_commit(commands: list[tuple[bool, str, int, int]]) -> None:
    partition = Partition()
    fence: tuple[int, str] = (0, "")
    committed = -1
    for is_open, member, epoch, offset in commands:
        if is_open:
            result = partition.run(OpenPartition("g", member, epoch))
            if epoch > fence[0] or (epoch, member) == fence:
                fence = (epoch, member)
                assert result == Opened(committed, "")
            else:
                assert isinstance(result, Rejected)
        else:
            result = partition.run(CommitOffset("g", member, epoch, offset))
            assert isinstance(result, Committed) == ((epoch, member) == fence)
            committed = offset if isinstance(result, Committed) else committed
