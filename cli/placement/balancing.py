"""``raftmq cluster rebalance``, ``moves`` and ``balancing``: equal shares of replicas and leaderships for all brokers."""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from raftmq.cli.admin_calls import as_question, run_admin, run_question
from raftmq.cli.exit_codes import CommandError, ExitCode, reported, reported_question
from raftmq.cli.numbers import WholeNumber
from raftmq.cli.options import DEFAULT_TIMEOUT, BootstrapOption, TimeoutOption
from raftmq.cli.output import Output, OutputOption, counted, print_json, print_table, some_of
from raftmq.cli.placement.drain import ACTIVE
from raftmq.cli.placement.moves_text import (
    MOVE_COLUMNS,
    PLAN_COLUMNS,
    STUCK_COLUMNS,
    activity_of,
    description_json,
    given_up_of,
    given_up_reason,
    more_than_shown,
    move_rows,
    moves_json,
    partitions_json,
    plan_rows,
    settings_of,
    stuck_rows,
    unled_of,
    without_place_of,
)
from raftmq.cli.placement.options import DryRunOption, WaitOption
from raftmq.cli.placement.placed import described_topics, unled_moves
from raftmq.cli.placement.waiting import HINT, Look, Progress, wait_until_over
from raftmq.cli.sizes import parse_byte_rate
from raftmq.cluster_addresses import DEFAULT_BOOTSTRAP

if TYPE_CHECKING:
    from raftmq.client.admin.admin import Admin
    from raftmq.client.admin.descriptions import PartitionDescription
    from raftmq.client.admin.move_descriptions import BalancingSettings, GivenUpMove, PartitionMove, RebalancePlan

GIVEN_UP_SHOWN_MAX = 20
"""Moves that were given up and are printed for people; JSON has more."""
STUCK_SHOWN_MAX = 20
"""Replicas that cannot come up and are printed for people; JSON has more."""
MOVES_MAX = 1000
"""The most partitions that may move simultaneously, as the brokers limit it."""
IDLE_LOOKS = 2
"""Consecutive looks without a move after which a rebalance is over. A single one may precede the first move."""


@reported
def rebalance(
    dry_run: DryRunOption = False,
    leaders_only: Annotated[
        bool, typer.Option("--leaders-only", help="Move leaderships between existing replicas, and copy no data.")
    ] = False,
    wait: WaitOption = True,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Give all brokers equal shares of replicas and leaderships, with few moves.

    It works once, also while automatic balancing is off, and ends all pins of partitions that were moved by hand,
    except with --leaders-only. The command ends when no partition moves any more and the preferred leaders lead, with exit
    code 6 if moves were given up. The cluster does the work: interrupting the command does not stop it.
    """

    async def balance(admin: Admin) -> tuple[RebalancePlan, int]:
        is_awaited = wait and not dry_run
        with as_question():
            away = await _leaders_away(admin)
            given_up_before = await _given_up(admin) if is_awaited else frozenset()
        plan = await admin.rebalance(dry_run=dry_run, leaders_only=leaders_only)
        count = _count_of(plan) + away
        if is_awaited and count:
            await wait_until_over("rebalancing", _look(admin, count))
            _demand_none_given_up(await _given_up(admin) - given_up_before)
            _demand_none_left(await _left_without_leader(admin, plan))
        return plan, away

    plan, away = (run_question if dry_run else run_admin)(bootstrap_servers, timeout, balance)
    _print_plan(plan, away, output, "planned" if dry_run else "moved" if wait else "moving")


@reported_question
def moves(
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show the partitions that move now, the number of those that wait, moves that were given up, and the settings for moves.

    A new replica that cannot come up, for example because its broker is down, is shown with the reason and advice.
    """
    found = run_admin(bootstrap_servers, timeout, lambda admin: admin.describe_moves())
    if output is Output.JSON:
        print_json(description_json(found))
        return
    if found.moves:
        print_table(MOVE_COLUMNS, move_rows(found.moves))
        print()
    print(activity_of(found))
    for move in found.given_up[:GIVEN_UP_SHOWN_MAX]:
        print(given_up_of(move))
    print(settings_of(found.settings))
    if obstacle := without_place_of(found.without_place_count, found.without_place):
        print(f"warning: {obstacle}")
    if found.stuck_count:
        print(f"warning: {counted(found.stuck_count, 'new replica')} cannot come up:")
        print()
        print_table(STUCK_COLUMNS, stuck_rows(found.stuck[:STUCK_SHOWN_MAX]))


@reported
def balancing(
    auto: Annotated[
        bool,
        typer.Option(
            "--auto", help="Let the cluster move replicas and leaderships by itself when brokers have unequal shares."
        ),
    ] = False,
    no_auto: Annotated[
        bool, typer.Option("--no-auto", help="Pause this. Moves that are under way are finished.")
    ] = False,
    moves_max: Annotated[
        int | None,
        typer.Option(
            "--moves",
            parser=WholeNumber(1, MOVES_MAX, advice="to pause automatic balancing, give --no-auto"),
            metavar="N",
            help=f"Maximum number of partitions that move simultaneously, from 1 to {MOVES_MAX}.",
        ),
    ] = None,
    rate: Annotated[
        int | None,
        typer.Option(
            "--rate",
            parser=parse_byte_rate,
            metavar="RATE",
            help="Maximum rate at which each broker sends the data of moves, such as 50MiB/s (at least 64KiB/s), or "
            "unlimited. Repair is never slowed.",
        ),
    ] = None,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Change how replicas are moved, or show the settings if no option is given.

    Drains, moves of partitions and changes of the replication factor are made while automatic balancing is paused, too.
    """
    if auto and no_auto:
        raise typer.BadParameter("give either --auto or --no-auto")
    auto_balance = auto if auto or no_auto else None
    if auto_balance is None and moves_max is None and rate is None:
        settings = run_question(bootstrap_servers, timeout, _current)
    else:
        settings = run_admin(
            bootstrap_servers, timeout, lambda admin: admin.set_balancing(auto_balance, moves_max, rate)
        )
    if output is Output.JSON:
        print_json(dataclasses.asdict(settings))
    else:
        print(settings_of(settings))


async def _current(admin: Admin) -> BalancingSettings:
    return (await admin.describe_moves()).settings


def _count_of(plan: RebalancePlan) -> int:
    return plan.replica_move_count + plan.leader_move_count


async def _leaders_away(admin: Admin) -> int:
    """Return how many leaderships brokers that are up lack, compared with the partitions that prefer them, such as after a restart."""
    topics, cluster = await admin.list_topics(), await admin.describe_cluster()
    preferred = Counter(one.replica_brokers[0] for topic in topics for one in topic.partitions if one.replica_brokers)
    lacking = (
        preferred[one.broker_id] - one.leader_count
        for one in cluster.brokers
        if one.is_connected and one.state == ACTIVE
    )
    return max(0, sum(max(0, count) for count in lacking) - cluster.partitions_without_leader)


async def _given_up(admin: Admin) -> frozenset[GivenUpMove]:
    return frozenset((await admin.describe_moves()).given_up)


def _demand_none_given_up(moves: frozenset[GivenUpMove]) -> None:
    """Raise `CommandError` if moves were given up while the command waited."""
    if moves:
        first = min(moves, key=lambda move: (move.at_ms, move.topic, move.partition))
        raise CommandError(
            f"rebalancing: {counted(len(moves), 'move')} given up, such as {given_up_reason(first)}: {HINT}",
            ExitCode.BAD_DATA,
        )


async def _left_without_leader(admin: Admin, plan: RebalancePlan) -> list[str]:
    """Return the planned partitions that are as they were and have no leader. A rebalance ends without them."""
    topics = {topic.name: topic.partitions for topic in await admin.list_topics()}
    names = sorted({move.topic for move in plan.moves if _is_unmoved(move, topics.get(move.topic, ()))})
    led = {topic.name: topic.partitions for topic in await described_topics(admin, names)}
    return [
        f"{move.topic}/{move.partition}"
        for move in plan.moves
        if _is_unmoved(move, led.get(move.topic, ())) and not led[move.topic][move.partition].leader_broker_id
    ]


def _is_unmoved(move: PartitionMove, partitions: Sequence[PartitionDescription]) -> bool:
    return move.partition < len(partitions) and partitions[move.partition].replica_brokers == move.from_broker_ids


def _demand_none_left(names: list[str]) -> None:
    """Raise `CommandError` if planned partitions were left because they have no leader."""
    if names:
        verb = "has no leader and was" if len(names) == 1 else "have no leader and were"
        raise CommandError(
            f"rebalancing: {counted(len(names), 'partition')} {verb} not moved: {some_of(names)}. Repeat the command when "
            f"{'it has' if len(names) == 1 else 'they have'} one (raftmq cluster status)",
            ExitCode.BAD_DATA,
        )


def _print_plan(plan: RebalancePlan, away: int, output: Output, result: str) -> None:
    count = _count_of(plan)
    if output is Output.JSON:
        print_json(
            {
                "result": result,
                "replica_move_count": plan.replica_move_count,
                "leader_move_count": plan.leader_move_count,
                "leader_return_count": away,
                "moves": moves_json(plan.moves),
                "without_place_count": plan.without_place_count,
                "without_place": partitions_json(plan.without_place),
                "pin_count": plan.pin_count,
            }
        )
        return
    if result == "planned" and plan.moves:
        print_table(PLAN_COLUMNS, plan_rows(plan.moves))
        print(more_than_shown(count, len(plan.moves)))
    if count:
        replicas, leaders = counted(plan.replica_move_count, "partition"), counted(plan.leader_move_count, "leadership")
        hint = f": {HINT}" if result == "moving" else ""
        print(f"replicas of {replicas} and {leaders} {result}{hint}")
    elif away:
        verb = {"planned": "would return", "moved": "returned", "moving": "return"}[result]
        print(f"{counted(away, 'leadership')} {verb} to the preferred leaders")
    else:
        print("nothing to move: the brokers have equal shares, as far as hosts and racks permit")
    if plan.pin_count:
        print(_pins_of(plan.pin_count, is_planned=result == "planned"))
    if obstacle := without_place_of(plan.without_place_count, plan.without_place):
        print(f"warning: {obstacle}", file=sys.stderr)


def _pins_of(count: int, *, is_planned: bool) -> str:
    """Describe the end of pins."""
    partitions = counted(count, "partition")
    if not is_planned:
        return f"{partitions} no longer pinned: automatic balancing may move {'it' if count == 1 else 'them'}"
    return f"{partitions} will no longer be pinned: --leaders-only keeps pins, and raftmq partition list marks pinned partitions"


def _look(admin: Admin, count: int) -> Look:
    idle_looks, last_away = 0, 0

    async def look() -> Progress:
        nonlocal idle_looks, last_away
        moves = await admin.describe_moves()
        away, before = await _leaders_away(admin) if moves.is_idle else 0, last_away
        idle_looks, last_away = idle_looks + 1 if moves.is_idle and not away else 0, away
        leaderless = 0 if moves.is_idle else (await admin.describe_cluster()).partitions_without_leader
        unled = await unled_moves(admin, moves, leaderless)
        is_unled = len(moves.moves) == unled and 0 < moves.waiting_count + unled <= leaderless
        left = len(moves.moves) + moves.waiting_count + away
        return Progress(
            done=max(0, count - left),
            total=max(count, left),
            sentence=f"{counted(away, 'leadership')} not with the preferred leader yet" if away else activity_of(moves),
            is_over=idle_looks >= IDLE_LOOKS,
            is_idle=is_unled or away >= before > 0,
            obstacle=unled_of(leaderless)
            if is_unled
            else "a broker that should lead is not ready, lags, or started a moment ago: repeat the command later",
        )

    return look
