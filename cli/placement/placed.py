"""Look where the partitions of topics are, and wait until they have the wanted replicas, each of them voting and in sync."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from raftmq.cli.exit_codes import CommandError, ExitCode
from raftmq.cli.output import counted
from raftmq.cli.placement.moves_text import activity_of, brokers, given_up_of, stuck_of, without_place_of
from raftmq.cli.placement.waiting import Look, Progress

if TYPE_CHECKING:
    from raftmq.client.admin.admin import Admin
    from raftmq.client.admin.descriptions import PartitionDescription, TopicDescription
    from raftmq.client.admin.move_descriptions import MovesDescription, StuckReplica

_SENTENCES_MAX = 3
"""Reasons in the message of a command whose work is stuck."""
TOPICS_DESCRIBED_MAX = 16
"""Maximum number of topics that are described simultaneously."""


def moved_look(admin: Admin, topic: str, number: int, wanted: Collection[int]) -> Look:
    """Return the question whether a partition is on the wanted brokers."""

    async def look() -> Progress:
        described = await admin.describe_topic(topic, ask_leaders=True)
        moves = await admin.describe_moves()  # afterwards: it knows of a move that was given up before the description
        if number >= len(described.partitions):
            raise CommandError(f"partition {topic}/{number} was deleted in the meantime", ExitCode.UNKNOWN_OUTCOME)
        partition = described.partitions[number]
        in_sync = _in_sync(partition)
        is_moving = any((move.topic, move.partition) == (topic, number) for move in moves.moves)
        is_there = set(partition.replica_brokers) == set(wanted) == set(in_sync)
        given_up = next((one for one in moves.given_up if (one.topic, one.partition) == (topic, number)), None)
        is_replaced = set(partition.replica_brokers) != set(wanted) and given_up is None
        if is_replaced and not described.is_unconfirmed:  # the order has changed the replicas before it was answered
            raise CommandError(
                f"moving {topic}/{number}: the partition's brokers were changed again in the meantime, to "
                f"{brokers(partition.replica_brokers)}",
                ExitCode.UNKNOWN_OUTCOME,
            )
        return _progress(
            moves,
            done=len(set(in_sync) & set(wanted)),
            total=len(wanted),
            sentence=f"in sync on {brokers(in_sync) or 'no broker that answers'}",
            is_over=is_there and not is_moving,
            stuck=[one for one in moves.stuck if (one.topic, one.partition) == (topic, number)],
            is_stuck=not partition.leader_broker_id,
            given_up="" if given_up is None else given_up_of(given_up),
        )

    return look


def replicated_look(admin: Admin, topic: str, replication_factor: int) -> Look:
    """Return the question whether each partition of a topic has the wanted number of replicas."""

    async def look() -> Progress:
        moves = await admin.describe_moves()
        described = await admin.describe_topic(topic, ask_leaders=True)
        if described.replication_factor != replication_factor and not described.is_unconfirmed:
            raise CommandError(
                f"changing the replication factor of {topic} to {replication_factor}: it was changed again in the meantime, "
                f"to {described.replication_factor}",
                ExitCode.UNKNOWN_OUTCOME,
            )
        done = sum(
            len(partition.replica_brokers) == len(_in_sync(partition)) == replication_factor
            for partition in described.partitions
        )
        total = len(described.partitions)
        is_moving = any(move.topic == topic for move in moves.moves)
        stuck = [one for one in moves.stuck if one.topic == topic]
        return _progress(
            moves,
            done=done,
            total=total,
            sentence=f"{done} of {counted(total, 'partition')} with {counted(replication_factor, 'replica')} in sync",
            is_over=done == total and not is_moving,
            stuck=stuck,
            is_stuck=bool(stuck) and len({one.partition for one in stuck}) >= total - done,
        )

    return look


async def unled_moves(admin: Admin, moves: MovesDescription, leaderless_count: int) -> int:
    """Return how many of the moves under way cannot go on, because their partitions have no leader.

    Args:
        admin: An open Admin.
        moves: The moves.
        leaderless_count: Number of all partitions without a leader. While it is 0, no topic is described.
    """
    if not leaderless_count or not moves.moves:
        return 0
    topics = await described_topics(admin, sorted({move.topic for move in moves.moves}))
    led = {(topic.name, one.partition) for topic in topics for one in topic.partitions if one.leader_broker_id}
    return sum((move.topic, move.partition) not in led for move in moves.moves)


async def described_topics(admin: Admin, names: Iterable[str]) -> list[TopicDescription]:
    """Return those of the topics that still exist, with their leaders."""
    import asyncio

    from raftmq.errors import UnknownTopicError

    places = asyncio.Semaphore(TOPICS_DESCRIBED_MAX)

    async def describe(name: str) -> TopicDescription | None:
        async with places:
            try:
                return await admin.describe_topic(name)
            except UnknownTopicError:  # deleted in the meantime
                return None

    found = await asyncio.gather(*(describe(name) for name in names))
    return [described for described in found if described is not None]


def _in_sync(partition: PartitionDescription) -> tuple[int, ...]:
    return partition.state.in_sync_brokers if partition.state is not None else ()


def _progress(
    moves: MovesDescription,
    *,
    done: int,
    total: int,
    sentence: str,
    is_over: bool,
    given_up: str = "",
    stuck: Sequence[StuckReplica],
    is_stuck: bool = False,
) -> Progress:
    obstacle = without_place_of(moves.without_place_count, moves.without_place)
    waits = ", ".join(stuck_of(stuck, len(stuck))[:_SENTENCES_MAX])
    return Progress(
        done=done,
        total=total,
        sentence=sentence if is_over else ", ".join(filter(None, (sentence, activity_of(moves), waits))),
        is_over=is_over,
        is_idle=is_stuck or (moves.is_idle and not moves.rebuilding_count),
        obstacle=waits
        or obstacle
        or given_up
        or "the cluster plans no further move: look for a broker that is down in raftmq cluster status",
    )
