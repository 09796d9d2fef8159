"""Commands of one turn of the loop share an entry, few entries are in flight, and every caller gets the result of its own command."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.partitions.log import PartitionLog
from raftmq.broker.replica.gathered_commands import GatheredCommands, GatheringLimits
from raftmq.fsm.log_commands import CommitOffset, CommitOffsets, Results, encode_command
from raftmq.proto import queue_pb2 as pb

from tests.support.broker.harness import Harness, batch, running

LIMITS = GatheringLimits(
    waiting_max=50, entry_commands_max=10, entry_bytes_max=1000, entries_in_flight_max=2, entry_work_max=100
)


@pytest.fixture
async def node() -> AsyncIterator[Harness]:
    async with running() as harness:
        yield harness


@pytest.fixture
async def partition(node: Harness) -> PartitionLog:
    topic = await node.topic()
    await node.append(topic, batch(100))
    return node.partition(topic)


def encode(commands: Sequence[CommitOffset]) -> bytes:
    return encode_command(CommitOffsets(tuple(commands)))


def split(result: object, count: int) -> Sequence[object]:
    assert isinstance(result, Results)
    assert len(result.results) == count
    return result.results


def gathered(node: Harness, partition: PartitionLog) -> GatheredCommands[str, CommitOffset]:
    return GatheredCommands(node.loop, partition.replica, encode, split, LIMITS)


def submit(
    commands: GatheredCommands[str, CommitOffset], name: str, offset: int, size: int = 1, work: int = 1
) -> asyncio.Future[object]:
    return commands.submit(name, CommitOffset(name, "", 0, offset), size, work)


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_commands_of_one_turn_share_an_entry(node: Harness, partition: PartitionLog) -> None:
    index, commands = partition.replica.core.last_index, gathered(node, partition)
    await asyncio.gather(*(submit(commands, f"g{number}", number) for number in range(10)))
    assert partition.replica.core.last_index == index + 1
    assert [partition.offsets.of(f"g{number}").offset for number in range(10)] == list(range(10))


@pytest.mark.parametrize(("size", "work", "entries"), [(1, 1, 3), (600, 1, 25), (1, 60, 25), (1, 50, 13)])
async def test_an_entry_carries_a_bounded_number_of_commands_and_bytes_and_work(
    node: Harness, partition: PartitionLog, size: int, work: int, entries: int
) -> None:
    index, commands = partition.replica.core.last_index, gathered(node, partition)
    await asyncio.gather(*(submit(commands, f"g{number}", number, size, work) for number in range(25)))
    assert partition.replica.core.last_index == index + entries


async def test_a_bounded_number_of_entries_is_in_flight(node: Harness, partition: PartitionLog) -> None:
    index, commands = partition.replica.core.last_index, gathered(node, partition)
    node.hold_commits = True
    waiting = [submit(commands, f"g{number}", number) for number in range(45)]
    await turns()
    assert partition.replica.core.last_index == index + 2
    late = submit(commands, "late", 7)
    await turns()
    assert partition.replica.core.last_index == index + 2
    node.release_commits()
    await asyncio.gather(late, *waiting)
    assert partition.replica.core.last_index == index + 5


async def test_a_replaced_command_is_never_proposed_and_its_caller_gets_the_newer_result(
    node: Harness, partition: PartitionLog
) -> None:
    commands = gathered(node, partition)
    first, second = submit(commands, "g", 99), submit(commands, "g", 3)
    assert await first is await second
    assert partition.offsets.of("g").offset == 3


async def test_a_full_queue_throttles_and_queues_nothing(node: Harness, partition: PartitionLog) -> None:
    commands = gathered(node, partition)
    waiting = [submit(commands, f"g{number}", number) for number in range(50)]
    with pytest.raises(RequestError) as raised:
        submit(commands, "one more", 1)
    assert raised.value.code == pb.THROTTLED
    await asyncio.gather(*waiting)
    assert not partition.offsets.is_known("one more")


async def test_a_lost_leadership_answers_those_in_flight_and_those_that_wait(
    node: Harness, partition: PartitionLog
) -> None:
    commands = gathered(node, partition)
    node.hold_commits = True
    proposed = submit(commands, "proposed", 1)
    await turns()
    queued = [submit(commands, f"g{number}", number) for number in range(30)]
    node.lose_leadership(partition.replica.group_id)
    results = await asyncio.gather(proposed, *queued, return_exceptions=True)
    errors = [result for result in results if isinstance(result, RequestError)]
    assert len(errors) == 31
    assert errors[0].detail.outcome == pb.UNKNOWN_OUTCOME
    assert errors[-1].detail.outcome == pb.NOT_APPLIED


async def test_a_cancelled_caller_takes_no_result_from_the_others(node: Harness, partition: PartitionLog) -> None:
    commands = gathered(node, partition)
    gone, stays = submit(commands, "g", 1), submit(commands, "h", 2)
    gone.cancel()
    await stays
    assert [partition.offsets.of(group).offset for group in ("g", "h")] == [1, 2]


async def test_a_closed_replica_answers_all_commands(node: Harness, partition: PartitionLog) -> None:
    commands = gathered(node, partition)
    node.hold_commits = True
    proposed = submit(commands, "proposed", 1)
    await turns()
    queued = [submit(commands, f"g{number}", number) for number in range(30)]
    partition.replica.close()
    late = submit(commands, "late", 1)
    async with asyncio.timeout(10):
        results = await asyncio.gather(proposed, *queued, late, return_exceptions=True)
    assert all(isinstance(result, RequestError) for result in results)
