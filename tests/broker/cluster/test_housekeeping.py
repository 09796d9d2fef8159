"""Housekeeping deletes a partition's log only as far as it may."""

from types import SimpleNamespace

import pytest
from raftmq.broker.base.limits import Timing
from raftmq.broker.cluster.housekeeping import Housekeeping
from raftmq.types import LogIndex

from tests.support.broker.harness import StrictSupervisor

BELOW_THE_START = 90
"""The last index whose records are all below the partition's start."""


class Partition:
    """A partition as housekeeping sees it: no record is too old, and everything up to an index may be deleted."""

    def __init__(self) -> None:
        self.replica = SimpleNamespace(group_id=1, key=None, is_closed=False)

    async def maintain(self) -> None:
        return

    async def truncation_index(self) -> int:
        return BELOW_THE_START


@pytest.mark.parametrize(("spared", "deleted"), [(None, BELOW_THE_START), (40, 40), (95, BELOW_THE_START)])
async def test_the_log_is_not_deleted_past_a_learner_that_catches_up(spared: LogIndex | None, deleted: int) -> None:
    """A learner that is cut off needs another snapshot, repeatedly. The simulation cannot detect that, because each snapshot is progress."""
    truncated: list[int] = []

    async def truncate(_: object, index: int) -> None:
        truncated.append(index)

    engine = SimpleNamespace(commits=SimpleNamespace(flush_state=lambda _: None, truncate=truncate))
    housekeeping = Housekeeping(engine, None, None, None, None, {}, lambda _: spared, Timing(), StrictSupervisor())

    await housekeeping._maintain(Partition())

    assert truncated == [deleted]
