"""Moves of replicas as tables, sentences and JSON. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from raftmq.cli.output import Json, counted, some_of
from raftmq.cli.sizes import format_byte_rate
from raftmq.cli.times import format_time

if TYPE_CHECKING:
    from raftmq.client.admin.move_descriptions import (
        BalancingSettings,
        BrokerDrain,
        GivenUpMove,
        MovesDescription,
        PartitionMove,
        StuckReplica,
    )
    from raftmq.types import TopicPartition

PLAN_COLUMNS: Final = ("partition", "from", "to", "reason", "bytes")
MOVE_COLUMNS: Final = ("partition", "from", "to", "reason", "bytes", "copied bytes", "copied")
STUCK_COLUMNS: Final = ("partition", "broker", "cannot come up because", "advice")
UNKNOWN: Final = "?"
_PERCENT: Final = 100


def plan_rows(moves: Iterable[PartitionMove]) -> list[tuple[object, ...]]:
    """Return the rows of planned moves under `PLAN_COLUMNS`."""
    return [(*_route(move), _size(move)) for move in moves]


def move_rows(moves: Iterable[PartitionMove]) -> list[tuple[object, ...]]:
    """Return the rows of moves under way under `MOVE_COLUMNS`."""
    return [(*_route(move), _size(move), move.copied_bytes or UNKNOWN, copied([move]) or UNKNOWN) for move in moves]


def _size(move: PartitionMove) -> object:
    return UNKNOWN if move.size_bytes is None else move.size_bytes


def _route(move: PartitionMove) -> tuple[str, ...]:
    return (
        f"{move.topic}/{move.partition}",
        brokers(move.from_broker_ids),
        brokers(move.to_broker_ids),
        move.reason.replace("_", " "),
    )


def brokers(broker_ids: Iterable[int]) -> str:
    """Format broker ids: ``1, 2, 3``."""
    return ", ".join(map(str, broker_ids))


def copied(moves: Iterable[PartitionMove]) -> str:
    """Describe how much of the moves is copied: ``45 %``. Empty if that is not known, or nothing was copied yet."""
    known = [move for move in moves if move.size_bytes]
    size, done = sum(move.size_bytes or 0 for move in known), sum(move.copied_bytes for move in known)
    return f"{min(_PERCENT, _PERCENT * done // size)} %" if done else ""


def activity_of(moves: MovesDescription) -> str:
    """Describe everything that moves now: ``2 partitions moving (45 % copied), 10 waiting``."""
    parts: list[str] = []
    if moves.moves:
        share = copied(moves.moves)
        parts.append(f"{counted(len(moves.moves), 'partition')} moving{f' ({share} copied)' if share else ''}")
    if moves.waiting_count:
        parts.append(f"{moves.waiting_count} waiting")
    if moves.rebuilding_count:
        parts.append(f"{counted(moves.rebuilding_count, 'partition')} rebuilding a lost replica first")
    return ", ".join(parts) or "no partition is moving"


def given_up_of(move: GivenUpMove) -> str:
    """Describe a move that was given up: ``given up: `` and the text of `given_up_reason`."""
    return f"given up: {given_up_reason(move)}"


def given_up_reason(move: GivenUpMove) -> str:
    """Describe a move that was given up: ``t/0 to 4: broker 4 is unreachable, … (not planned again before 2026-01-31T12:30:00Z)``."""
    until = format_time(move.retry_at_ms)
    route = f"{move.topic}/{move.partition} to {brokers(move.to_broker_ids)}"
    return f"{route}: {move.reason} (not planned again before {until})"


def stuck_rows(stuck: Iterable[StuckReplica]) -> list[tuple[object, ...]]:
    """Return the rows of replicas that cannot come up under `STUCK_COLUMNS`."""
    return [(f"{one.topic}/{one.partition}", one.broker_id or "-", one.reason, one.advice) for one in stuck]


def stuck_of(stuck: Iterable[StuckReplica], count: int) -> list[str]:
    """Describe replicas that cannot come up, those with the same reason in one sentence."""
    names: dict[tuple[str, str], list[str]] = {}
    for one in stuck:
        names.setdefault((one.reason, one.advice), []).append(f"{one.topic}/{one.partition}")
    sentences: list[str] = []
    for (reason, advice), partitions in names.items():
        replicas = counted(len(partitions), "new replica")
        sentences.append(f"{replicas} ({some_of(partitions)}) cannot come up: {reason}. Advice: {advice}")
    unnamed = count - sum(map(len, names.values()))
    return [*sentences, f"{counted(unnamed, 'further new replica')} cannot come up"] if unnamed > 0 else sentences


def without_place_of(count: int, partitions: Sequence[TopicPartition]) -> str:
    """Describe replicas that no broker can take, or return an empty text."""
    if not count:
        return ""
    names = [f"{topic}/{number}" for topic, number in partitions]
    have = "has" if count == 1 else "have"
    named = f": {some_of(names, count)}" if names else ""
    return (
        f"{counted(count, 'replica')} {have} no other broker that can take {'it' if count == 1 else 'them'} now{named}"
    )


def unled_of(count: int) -> str:
    """Describe partitions without a leader as the reason why moves wait."""
    return f"{counted(count, 'partition')} {'has' if count == 1 else 'have'} no leader and cannot move: see raftmq cluster status"


def held_by(replicas: int, leaders: int, *, is_metadata_voter: bool) -> str:
    """Describe the things that a broker still holds: ``3 replicas, 1 leadership and a vote on metadata``."""
    parts = [counted(replicas, "replica")] if replicas else []
    parts += [counted(leaders, "leadership")] if leaders else []
    parts += ["a vote on metadata"] if is_metadata_voter else []
    if not parts:
        return "nothing"
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else parts[0]


def more_than_shown(count: int, shown: int) -> str:
    """Describe the moves of a plan that its answer does not contain, or return an empty text."""
    return f"and {counted(count - shown, 'move')} more" if count > shown else ""


def settings_of(settings: BalancingSettings) -> str:
    """Describe the settings for moves."""
    auto = "on" if settings.auto_balance else "off"
    simultaneous = f"at most {counted(settings.moves_max, 'partition')} simultaneously"
    return f"auto-balance {auto}, {simultaneous}, rate of each broker {format_byte_rate(settings.bytes_per_second)}"


def moves_json(moves: Iterable[PartitionMove]) -> list[Json]:
    """Return moves for programs."""
    return [dataclasses.asdict(move) for move in moves]


def partitions_json(partitions: Iterable[TopicPartition]) -> list[Json]:
    """Return names of partitions for programs."""
    return [{"topic": topic, "partition": number} for topic, number in partitions]


def drain_json(drain: BrokerDrain, result: str) -> dict[str, Json]:
    """Return a broker that is being drained, for programs."""
    return {
        "broker_id": drain.broker_id,
        "result": result,
        "replicas": drain.replica_count,
        "leaders": drain.leader_count,
        "is_metadata_voter": drain.is_metadata_voter,
        "without_place_count": drain.without_place_count,
        "without_place": partitions_json(drain.without_place),
    }


def description_json(moves: MovesDescription) -> dict[str, Json]:
    """Return the moves of a cluster and their settings, for programs."""
    return {
        **dataclasses.asdict(moves.settings),
        "moves": moves_json(moves.moves),
        "waiting_count": moves.waiting_count,
        "rebuilding_count": moves.rebuilding_count,
        "without_place_count": moves.without_place_count,
        "without_place": partitions_json(moves.without_place),
        "given_up": [dataclasses.asdict(move) for move in moves.given_up],
        "stuck": [dataclasses.asdict(one) for one in moves.stuck],
        "stuck_count": moves.stuck_count,
    }
