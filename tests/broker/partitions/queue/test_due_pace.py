"""The number of due messages that the leader of a queue partition lets each entry promote."""

from __future__ import annotations

from pathlib import Path

import pytest
from raftmq.broker.partitions.queue.due_pace import COUNT_MAX, COUNT_MIN, DuePace
from raftmq.fsm.queue.commands import Commands, Item, PurgeAll, Tick, decode_commands, encode_commands
from raftmq.fsm.queue.levels import DUE_LEVEL
from raftmq.fsm.queue.results import Done, Results
from raftmq.raft.entry import EntryKind

from tests.support.broker.queue_node import Queue, QueueNode, queue_node
from tests.support.storage.log_builder import LogBuilder


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
    tmp_path: Path, seconds: float, *, is_slow: bool
) -> None:
    async with queue_node(tmp_path) as node:
        queue = await node.queue()
        entries_take(queue, seconds)
        for number in (1, 2, 3):
            await promote(queue, 1_000, 1_000 * number)
        named = [commands.due_max for commands in commands_of(node, queue)]
        assert all(COUNT_MIN <= one <= COUNT_MAX for one in named)
        assert (min(named) < 100) is is_slow
        assert (max(named) > 250) is not is_slow


def learned(pace: DuePace, seconds: float, due_count: int, *items: Item) -> int:
    """Let many entries take so long, and return the number of the next one."""
    pace._replica.applier.entry_seconds = seconds
    entry = LogBuilder().command(encode_commands(Commands(items)))
    for _ in range(200):
        pace._on_applied(entry, Results((Done(),) * len(items), has_more_due=True, due_count=due_count))
    return pace.due_max()


async def test_the_number_has_bounds(tmp_path: Path) -> None:
    async with queue_node(tmp_path) as node:
        pace = (await node.queue()).partition.due_pace
        assert learned(pace, 0.001, 100, Tick()) == pytest.approx(200, abs=2)
        assert learned(pace, 0.0, 100, Tick()) == COUNT_MAX
        assert learned(pace, 5.0, 100, Tick()) == COUNT_MIN


async def test_only_entries_that_promote_many_and_do_nothing_else_say_how_long_that_takes(tmp_path: Path) -> None:
    """A purge leaves more to do and promotes nothing, and leases and settlements take time of their own."""
    async with queue_node(tmp_path) as node:
        pace = (await node.queue()).partition.due_pace
        before = pace.due_max()
        assert learned(pace, 5.0, 0, Tick()) == before
        assert learned(pace, 5.0, COUNT_MIN // 2 - 1, Tick()) == before
        assert learned(pace, 5.0, 500, Tick(), PurgeAll()) == before


async def test_below_the_feature_level_no_entry_names_a_number(tmp_path: Path) -> None:
    async with queue_node(tmp_path) as node:
        node.feature_level_max = DUE_LEVEL - 1
        queue = await node.queue()
        await promote(queue, 10)
        assert {commands.due_max for commands in commands_of(node, queue)} == {0}
