"""Housekeeping of one partition: up to where its log is deleted."""

import asyncio
from types import SimpleNamespace

import pytest
from raftmq.broker.housekeeping import Housekeeping
from raftmq.broker.limits import Timing
from raftmq.types import LogIndex

BELOW_THE_START = 90
"""The last index whose records are all below the partition's start."""


class Partition:
    """As far as housekeeping looks at one: nothing is too old, everything up to an index may go."""

    def __init__(self) -> None:
        self.group = SimpleNamespace(group_id=1, key=None, is_closed=False)
        self.retention = self.offsets = self

    async def enforce(self) -> None: ...

    async def expire(self, *_: object) -> int:
        return 0

    async def truncation_index(self) -> int:
        return BELOW_THE_START


@pytest.mark.parametrize(("spared", "deleted"), [(None, BELOW_THE_START), (40, 40), (95, BELOW_THE_START)])
async def test_the_log_is_not_deleted_past_a_learner_that_catches_up(spared: LogIndex | None, deleted: int) -> None:
    """One that is cut off needs another snapshot, again and again: the simulation cannot see it, as each is a way to go on."""
    truncated: list[int] = []
    engine = SimpleNamespace(
        loop=asyncio.get_running_loop(),
        now_ms=lambda: 0,
        commits=SimpleNamespace(flush_state=lambda _: None, truncate=lambda _, index: truncated.append(index)),
    )

    async def on_writer(*_: object) -> None: ...

    replicas = SimpleNamespace(on_writer=on_writer)
    metadata = SimpleNamespace(require=lambda: SimpleNamespace(machine=None))
    partition = Partition()
    housekeeping = Housekeeping(engine, None, None, replicas, metadata, {}, lambda _: spared, Timing())

    await housekeeping._tend(partition)

    assert truncated == [deleted]
