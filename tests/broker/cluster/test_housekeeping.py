"""Housekeeping deletes a partition's log only as far as it may."""

import asyncio
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
        self.retention = self.offsets = self

    async def enforce(self) -> None: ...

    async def expire(self, *_: object) -> int:
        return 0

    async def truncation_index(self) -> int:
        return BELOW_THE_START


@pytest.mark.parametrize(("spared", "deleted"), [(None, BELOW_THE_START), (40, 40), (95, BELOW_THE_START)])
async def test_the_log_is_not_deleted_past_a_learner_that_catches_up(spared: LogIndex | None, deleted: int) -> None:
    """A learner that is cut off needs another snapshot, repeatedly. The simulation cannot detect that, because each snapshot is progress."""
    truncated: list[int] = []

    async def truncate(_: object, index: int) -> None:
        truncated.append(index)

    engine = SimpleNamespace(
        loop=asyncio.get_running_loop(),
        now_ms=lambda: 0,
        clocks=SimpleNamespace(is_trusted=False),
        commits=SimpleNamespace(flush_state=lambda _: None, truncate=truncate),
    )
    replicas = SimpleNamespace()
    metadata = SimpleNamespace(require=lambda: SimpleNamespace(state_machine=None))
    partition = Partition()
    housekeeping = Housekeeping(
        engine, None, None, replicas, metadata, {}, lambda _: spared, Timing(), StrictSupervisor()
    )

    await housekeeping._maintain(partition)

    assert truncated == [deleted]


@pytest.mark.parametrize(("is_trusted", "asked"), [(True, 1), (False, 0)])
async def test_offsets_are_forgotten_only_by_a_clock_that_is_trusted(is_trusted: bool, asked: int) -> None:
    expiries: list[int] = []

    async def expire(is_alive: object, before_ms: int, deadline: float) -> int:
        expiries.append(before_ms)
        return 0

    engine = SimpleNamespace(
        loop=asyncio.get_running_loop(), now_ms=lambda: 10**12, clocks=SimpleNamespace(is_trusted=is_trusted)
    )
    metadata = SimpleNamespace(require=lambda: SimpleNamespace(state_machine=None))
    housekeeping = Housekeeping(engine, None, None, None, metadata, {}, lambda _: None, Timing(), StrictSupervisor())

    await housekeeping._expire_offsets(SimpleNamespace(offsets=SimpleNamespace(expire=expire), replica=None))

    assert expiries == [10**12 - 7 * 86_400_000] * asked
