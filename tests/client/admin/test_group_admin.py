"""A reset of a group's offsets that is refused in a part of the partitions says what became of the others."""

from __future__ import annotations

from typing import Any, cast

import pytest
from raftmq.client.admin.group_admin import _reset
from raftmq.client.base import settings
from raftmq.client.base.background import Deadline
from raftmq.errors import NoLeaderError, Outcome
from raftmq.proto import queue_pb2 as pb
from raftmq.types import TopicPartition

DONE = pb.PartitionResetResult()
REFUSED = pb.PartitionResetResult(error=pb.ErrorDetail(code=pb.NO_LEADER, message="no leader"))
IN_DOUBT = pb.PartitionResetResult(error=pb.ErrorDetail(code=pb.NO_LEADER, outcome=pb.UNKNOWN_OUTCOME))


class Broker:
    """Answers resets with these results in order."""

    def __init__(self, results: list[pb.PartitionResetResult]) -> None:
        self.left = results.copy()

    async def call_any(self, method: object, request: Any, seconds: float) -> pb.ResetOffsetsResponse:
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
