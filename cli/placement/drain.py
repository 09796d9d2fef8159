"""``raftmq cluster drain`` and ``undrain``: empty a broker before its removal, or use it again."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from raftmq.cli.admin_calls import run_admin, run_question
from raftmq.cli.exit_codes import CommandError, ExitCode, reported
from raftmq.cli.options import DEFAULT_TIMEOUT, BootstrapOption, TimeoutOption
from raftmq.cli.output import Output, OutputOption, print_json, print_table
from raftmq.cli.placement.moves_text import (
    PLAN_COLUMNS,
    activity_of,
    drain_json,
    held_by,
    moves_json,
    plan_rows,
    stuck_of,
    unled_of,
    without_place_of,
)
from raftmq.cli.placement.options import BrokerIdArgument, DryRunOption, WaitOption
from raftmq.cli.placement.placed import unled_moves
from raftmq.cli.placement.waiting import HINT, Look, Progress, wait_until_over
from raftmq.cluster_addresses import DEFAULT_BOOTSTRAP

if TYPE_CHECKING:
    from raftmq.client.admin.admin import Admin
    from raftmq.client.admin.descriptions import BrokerDescription
    from raftmq.client.admin.move_descriptions import BrokerDrain, MovesDescription

ACTIVE: Final = "active"
"""The state of a broker that gets replicas."""
_VOTE_STAYS: Final = (
    "no other broker can take the vote now. Start a broker that is down, or remove it, and the draining continues "
    "(raftmq cluster status shows the brokers)"
)
"""The reason why a broker that holds nothing else keeps its vote on metadata."""


@reported
def drain(
    broker_id: BrokerIdArgument,
    dry_run: DryRunOption = False,
    wait: WaitOption = True,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Empty a broker: its leaderships, replicas and vote on metadata move to the other brokers.

    The broker stays in the cluster and gets no further replicas. The command ends when the broker holds nothing, and
    then it can be removed. It ends with exit code 6 when replicas stay because no other broker can take them, or
    because their partitions have no leader. The cluster does the work: interrupting the command does not stop it.
    raftmq cluster undrain ends the draining.
    """
    if dry_run:
        planned = run_question(bootstrap_servers, timeout, lambda admin: admin.drain_broker(broker_id, dry_run=True))
        print_plan(planned, output)
        return

    async def empty(admin: Admin) -> BrokerDrain:
        begun = await admin.drain_broker(broker_id)
        if not wait:
            return begun
        await wait_until_over(f"draining broker {broker_id}", _look(admin, begun))
        return replace(
            begun, replica_count=0, leader_count=0, is_metadata_voter=False, without_place_count=0, without_place=()
        )

    drained = run_admin(bootstrap_servers, timeout, empty)
    if output is Output.JSON:
        print_json(drain_json(drained, "empty" if wait else "draining"))
    elif wait:
        print(f"broker {broker_id} is empty: raftmq cluster remove {broker_id} removes it from the cluster")
    else:
        held = held_by(drained.replica_count, drained.leader_count, is_metadata_voter=drained.is_metadata_voter)
        print(f"broker {broker_id} is being drained and holds {held}: {HINT}")


@reported
def undrain(
    broker_id: BrokerIdArgument,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """End the draining of a broker: it gets replicas again.

    Moves under way are finished. Replicas that have left the broker return only when the cluster is balanced. If the
    broker is not being drained, the command changes nothing and says so.
    """
    ended = run_admin(bootstrap_servers, timeout, lambda admin: admin.undrain_broker(broker_id))
    if output is Output.JSON:
        print_json({**drain_json(ended, ACTIVE), "was_draining": not ended.was_active})
    elif ended.was_active:
        print(f"broker {broker_id} was not being drained: nothing changed")
    else:
        print(f"broker {broker_id} gets replicas again: raftmq cluster rebalance gives it an equal share now")


def print_plan(planned: BrokerDrain, output: Output) -> None:
    """Print the moves that a drain would make."""
    if output is Output.JSON:
        print_json({**drain_json(planned, "planned"), "moves": moves_json(planned.moves)})
        return
    if planned.moves:
        print_table(PLAN_COLUMNS, plan_rows(planned.moves))
        print()
    held = held_by(planned.replica_count, planned.leader_count, is_metadata_voter=planned.is_metadata_voter)
    print(f"broker {planned.broker_id} holds {held}")
    if obstacle := without_place_of(planned.without_place_count, planned.without_place):
        print(f"warning: {obstacle}", file=sys.stderr)


def _look(admin: Admin, begun: BrokerDrain) -> Look:
    """Return the question whether a broker is empty. The cluster accepts its removal under the same conditions."""

    async def look() -> Progress:
        moves = await admin.describe_moves()
        cluster = await admin.describe_cluster()
        if cluster.metadata_revision < begun.metadata_revision:  # the answering broker has not learnt of the drain yet
            return _progress(begun, begun, moves, "")
        broker = next((one for one in cluster.brokers if one.broker_id == begun.broker_id), None)
        if broker is None:
            raise CommandError(f"broker {begun.broker_id} was removed in the meantime", ExitCode.UNKNOWN_OUTCOME)
        if broker.state == ACTIVE:
            raise CommandError(
                f"the draining of broker {begun.broker_id} was ended in the meantime: it gets replicas again",
                ExitCode.UNKNOWN_OUTCOME,
            )
        now = replace(
            begun,
            replica_count=broker.replica_count,
            leader_count=broker.leader_count,
            is_metadata_voter=broker.is_metadata_voter,
        )
        leaderless_count = cluster.partitions_without_leader
        unled_count = await unled_moves(admin, moves, leaderless_count)
        return _progress(begun, now, moves, _obstacle_to_moves(broker, leaderless_count, moves, unled_count))

    return look


def _obstacle_to_moves(
    broker: BrokerDescription, leaderless_count: int, moves: MovesDescription, unled_count: int
) -> str:
    """Describe the reason why moves wait although none goes on. Empty if they wait for their turn, or for a replica that is rebuilt first.

    A partition without a leader cannot move, nor can a move under way that has lost its leader (`unled_count`). A partition that has lost
    all replicas counts as one that is rebuilt, for good. So does one that lost its majority when a disk was given up, and no move of it is
    planned.
    """
    stuck = {(one.topic, one.partition) for one in moves.stuck}
    stuck -= {(move.topic, move.partition) for move in moves.moves}
    waiting_count = moves.waiting_count + unled_count
    is_idle = not (waiting_count or moves.rebuilding_count)
    if len(moves.moves) > unled_count or is_idle or moves.rebuilding_count > len(stuck):
        return ""
    if not broker.is_connected:
        return (
            f"broker {broker.broker_id} is not connected, and partitions that need it for a leader cannot move. Start it, and the draining "
            f"continues, or remove it if it is gone for good: raftmq cluster remove {broker.broker_id} --force"
        )
    if not waiting_count:
        return "; ".join(stuck_of(moves.stuck, moves.stuck_count))
    if waiting_count > leaderless_count:
        return ""
    reasons = without_place_of(moves.without_place_count, moves.without_place), unled_of(leaderless_count)
    return ", and ".join(filter(None, reasons))


def _progress(begun: BrokerDrain, now: BrokerDrain, moves: MovesDescription, obstacle: str) -> Progress:
    is_leaving = any(begun.broker_id in move.from_broker_ids for move in moves.moves)
    is_empty = not (now.replica_count or now.leader_count or now.is_metadata_voter or is_leaving)
    held = held_by(now.replica_count, now.leader_count, is_metadata_voter=now.is_metadata_voter)
    sentence = f"holds {held}" if is_empty else f"holds {held}, {activity_of(moves)}"
    progress = Progress(
        done=max(0, begun.replica_count - now.replica_count),
        total=begun.replica_count,
        sentence=sentence,
        is_over=is_empty,
        is_idle=bool(obstacle) or (moves.is_idle and not moves.rebuilding_count),
    )
    if obstacle:
        return replace(progress, obstacle=obstacle)
    if obstacle := without_place_of(moves.without_place_count, moves.without_place):
        return replace(progress, obstacle=f"{obstacle}. Add a broker, and the draining continues")
    return replace(progress, obstacle=_VOTE_STAYS) if now.is_metadata_voter and not now.replica_count else progress
