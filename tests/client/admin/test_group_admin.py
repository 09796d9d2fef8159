"""A reset of a group's offsets that is refused in a part of the partitions says what became of the others."""

from __future__ import annotations

from typing import Any, cast

import pytest
from raftmq.client.admin.group_admin import _reset
from raftmq.client.base import settings
from raftmq.client.base.background import Deadline
from raftmq.errors import GroupNotEmptyError, NoLeaderError, Outcome, RaftMQError
from raftmq.proto import queue_pb2 as pb
from raftmq.types import TopicPartition

DONE = pb.PartitionResetResult()
REFUSED = pb.PartitionResetResult(error=pb.ErrorDetail(code=pb.NO_LEADER, message="no leader"))
IN_DOUBT = pb.PartitionResetResult(error=pb.ErrorDetail(code=pb.NO_LEADER, outcome=pb.UNKNOWN_OUTCOME))


class Broker:
    """Answers resets with these results in order, or with a failure of the whole request."""

    def __init__(self, results: list[pb.PartitionResetResult], failure: RaftMQError | None = None) -> None:
        self.left = results.copy()
        self.failure = failure

    async def call_any(self, method: object, request: Any, seconds: float) -> pb.ResetOffsetsResponse:
        if self.failure is not None:
            raise self.failure
        return pb.ResetOffsetsResponse(partitions=[self.left.pop(0) for _ in request.partitions])


@pytest.mark.parametrize(
    ("results", "per_request", "outcome"),
    [
        ([REFUSED, REFUSED], 2, Outcome.NOT_APPLIED),
        ([DONE, REFUSED], 2, Outcome.UNKNOWN),
        ([REFUSED, DONE], 2, Outcome.UNKNOWN),
        ([REFUSED, IN_DOUBT], 2, Outcome.UNKNOWN),
        ([DONE, REFUSED], 1, Outcome.UNKNOWN),
        ([REFUSED, DONE], 1, Outcome.NOT_APPLIED),
    ],
)
async def test_the_outcome_of_a_reset_is_unknown_if_any_partition_may_be_reset(
    results: list[pb.PartitionResetResult], per_request: int, outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was that of the refused partition, so that a shift was repeated, and moved the others twice."""
    monkeypatch.setattr(settings, "REQUEST_PARTITIONS_MAX", per_request)
    offsets = {TopicPartition("t", number): 5 for number in range(len(results))}
    with pytest.raises(NoLeaderError) as raised:
        await _reset(cast("Any", Broker(results)), "g", offsets, {"t": 1}, Deadline(5), fence_members=False)
    assert raised.value.outcome is outcome


@pytest.mark.parametrize(
    ("failure", "fence_members", "outcome"),
    [
        (NoLeaderError("no leader"), True, Outcome.UNKNOWN),
        (NoLeaderError("no leader"), False, Outcome.NOT_APPLIED),
        (GroupNotEmptyError("it has members"), True, Outcome.NOT_APPLIED),
    ],
)
async def test_the_outcome_of_a_reset_is_unknown_if_its_members_could_not_be_fenced(
    failure: RaftMQError, fence_members: bool, outcome: Outcome
) -> None:
    """The members are fenced after the offsets are written, and the metadata leader may be lost between the two."""
    failure.outcome = Outcome.NOT_APPLIED
    broker = cast("Any", Broker([], failure))
    with pytest.raises(type(failure)) as raised:
        await _reset(broker, "g", {TopicPartition("t", 0): 5}, {"t": 1}, Deadline(5), fence_members=fence_members)
    assert raised.value.outcome is outcome
