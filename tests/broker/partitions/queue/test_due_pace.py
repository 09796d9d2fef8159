"""The number of due messages that the leader of a queue partition lets each entry promote, and its rests between such entries."""

from __future__ import annotations

from pathlib import Path

import pytest
from raftmq.broker.partitions.queue import due_pace
from raftmq.broker.partitions.queue.due_pace import COUNT_MIN
from raftmq.fsm.queue.commands import Commands, decode_commands
from raftmq.fsm.queue.levels import DUE_LEVEL
from raftmq.fsm.queue.limits import HOUSEKEEPING_MAX
from raftmq.raft.entry import EntryKind

from tests.support.broker.queue_node import Queue, QueueNode, queue_node


def entries_take(queue: Queue, seconds: float) -> None:
    applier = queue.partition.replica.applier
    applier.listeners.insert(0, lambda _entry, _result: setattr(applier, "entry_seconds", seconds))


def commands_of(node: QueueNode, queue: Queue) -> list[Commands]:
    replica = queue.partition.replica
    entries = node.store.entries(replica.key, replica.log_start.index + 1, replica.core.last_index, 1 << 30)
    found = [decode_commands(entry.payload) for entry in entries if entry.kind is EntryKind.COMMAND]
    return [commands for commands in found if commands is not None]


async def promote(queue: Queue, count: int, ready: int = 0) -> None:
    await queue.put(count, delay=1_000)
    queue.node.pass_time(1_000)
    await queue.progress_until(lambda: queue.partition.statistics.counts().ready == (ready or count))


@pytest.mark.parametrize(("seconds", "is_slow"), [(0.0, False), (0.01, True)], ids=["fast", "slow"])
async def test_an_entry_promotes_as_many_messages_as_take_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, *, is_slow: bool
) -> None:
    monkeypatch.setattr(due_pace, "RATE_FIRST", due_pace.RATE_MAX)
    async with queue_node(tmp_path) as node:
        queue = await node.queue()
        entries_take(queue, seconds)
        for number in (1, 2, 3):
            await promote(queue, 1_000, 1_000 * number)
        named = [commands.due_max for commands in commands_of(node, queue)]
        assert all(COUNT_MIN <= one <= HOUSEKEEPING_MAX for one in named)
        assert (min(named) < 60) is is_slow
        assert (max(named) > 250) is not is_slow


@pytest.mark.parametrize("is_slow", [False, True], ids=["fast", "slow"])
async def test_the_rate_of_promotions_follows_the_time_of_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_slow: bool
) -> None:
    monkeypatch.setattr(due_pace, "SLOW_MS", -1 if is_slow else 60_000)
    monkeypatch.setattr(due_pace, "SLOW_TIMES", -1)
    async with queue_node(tmp_path) as node:
        queue = await node.queue()
        await promote(queue, 1_000)
        assert (queue.partition.due_pace.rate < due_pace.RATE_FIRST) is is_slow
        assert (queue.partition.due_pace.rate > due_pace.RATE_FIRST) is not is_slow
        assert due_pace.RATE_MIN <= queue.partition.due_pace.rate <= due_pace.RATE_MAX


async def test_entries_share_what_the_rate_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten consumers have hundreds of entries in a second, each of which carries the time."""
    for name in ("RATE_MIN", "RATE_FIRST", "RATE_MAX"):
        monkeypatch.setattr(due_pace, name, 0.001)
    async with queue_node(tmp_path) as node:
        queue = await node.queue()
        await queue.put(1_000, delay=1_000)
        node.pass_time(1_000)
        for _ in range(30):
            assert len(await queue.lease(1)) == 1
        named = [commands.due_max for commands in commands_of(node, queue)]
        assert named[-1] == COUNT_MIN
        counts = queue.partition.statistics.counts()
        assert counts.ready + 30 < 2 * HOUSEKEEPING_MAX


async def test_entries_promote_few_messages_while_a_write_back_is_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them would be refused appends: those of producers."""
    monkeypatch.setattr(due_pace, "UNWRITTEN_MAX", 3)
    async with queue_node(tmp_path) as node:
        queue = await node.queue()
        assert queue.partition.due_pace.due_max() > COUNT_MIN
        await queue.put(4)
        assert queue.partition.due_pace.due_max() == COUNT_MIN
        await queue.write_back()
        assert queue.partition.due_pace.due_max() > COUNT_MIN


async def test_only_the_ticks_of_the_leader_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer's entry carries the time as well, and does not wait."""
    async with queue_node(tmp_path) as node:
        queue = await node.queue()
        await queue.put(1, delay=1_000)
        queue.partition.due_pace.rest_ends_at = node.loop.time() + 3_600
        node.pass_time(1_000)
        with monkeypatch.context() as patch:
            patch.setattr(queue.partition.commands, "submit", lambda _item: pytest.fail("a tick was proposed"))
            queue.partition.upkeep.tick()
            queue.partition.upkeep._on_due()
        assert await queue.lease(1) == [(0, 1)]


async def test_below_the_feature_level_no_entry_names_a_number(tmp_path: Path) -> None:
    async with queue_node(tmp_path) as node:
        node.feature_level_max = DUE_LEVEL - 1
        queue = await node.queue()
        await promote(queue, 10)
        assert {commands.due_max for commands in commands_of(node, queue)} == {0}
