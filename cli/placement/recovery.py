"""``raftmq cluster recover`` and ``raftmq partition recover``: partitions that have lost their majority."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer
from raftmq.cli.admin_calls import run_admin, run_question
from raftmq.cli.exit_codes import CommandError, ExitCode, reported, reported_question
from raftmq.cli.numbers import WholeNumber
from raftmq.cli.options import (
    COUNT_MAX,
    DEFAULT_TIMEOUT,
    BootstrapOption,
    TimeoutOption,
    TopicArgument,
    YesOption,
    confirm,
)
from raftmq.cli.output import Json, Output, OutputOption, counted, print_json, print_table
from raftmq.cli.placement.moves_text import brokers
from raftmq.cli.placement.options import PartitionArgument
from raftmq.cli.times import format_time
from raftmq.cluster_addresses import DEFAULT_BOOTSTRAP

if TYPE_CHECKING:
    from raftmq.client.admin.recovery import LostPartition, LostPartitions, PartitionRecovery, ReplicaKnowledge

COLUMNS: Final = (
    "partition", "broker", "condition", "newest", "term", "index", "committed", "start", "end", "watermark", "last seen",
)  # fmt: skip


@reported_question
def lost(
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """List the partitions without a majority of running replicas, with the known positions of each replica.

    Such a partition is served again as soon as enough of its brokers are back: start them if that is possible. Only if
    they are gone for good, raftmq partition recover revives it from one replica: the newest of those that are served,
    by the term and then the index of its last entry. Exit code 3 means that there is such a partition. Earlier
    recoveries are listed, too.
    """
    found = run_admin(bootstrap_servers, timeout, lambda admin: admin.list_lost_partitions())
    if output is Output.JSON:
        print_json({**dataclasses.asdict(found), "partitions": [_partition_json(one) for one in found.partitions]})
    else:
        _print_lost(found)
    if found.count:
        raise SystemExit(ExitCode.UNAVAILABLE)


@reported
def recover(
    topic: TopicArgument,
    partition: PartitionArgument,
    keep: Annotated[
        int,
        typer.Option(
            "--keep",
            parser=WholeNumber(1, COUNT_MAX),
            metavar="BROKER_ID",
            help="Broker whose replica is kept. The other replicas are abandoned.",
            show_default=False,
        ),
    ],
    unsafe: Annotated[
        bool, typer.Option("--unsafe", help="Accept that acknowledged records may be lost. Required.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be kept and lost, and change nothing.")
    ] = False,
    yes: YesOption = False,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Revive a partition that has lost its majority from one replica. Acknowledged records may be lost.

    The partition gets a new group that continues the data of this replica, and then new replicas on other brokers. The
    old group is never served again: when their brokers return, its other replicas are moved to trash/ and deleted ten
    minutes later. Before the command, stop brokers that still run but cannot be reached from the others. Of several
    replicas that are served, keep the newest: the one with the highest term of its last entry, and among equal ones the
    highest index (raftmq cluster recover). The command warns if there is a newer one, names the possible loss, then asks
    for confirmation.
    """
    if not unsafe:
        raise CommandError(
            "this may lose acknowledged records: see raftmq cluster recover, and pass --unsafe to accept the loss",
            ExitCode.USAGE,
        )
    planned = run_question(
        bootstrap_servers,
        timeout,
        lambda admin: admin.recover_partition(topic, partition, keep, unsafe=True, dry_run=True),
    )
    for line in warning_lines(planned):
        print(line, file=sys.stderr)
    if dry_run:
        _print_recovery(planned, output, "planned")
        return
    if not yes:
        for line in loss_lines(planned):
            print(line, file=sys.stderr)
    confirm(f"Abandon the other replicas of {topic}/{partition} permanently?", is_agreed=yes)
    done = run_admin(
        bootstrap_servers, timeout, lambda admin: admin.recover_partition(topic, partition, keep, unsafe=True)
    )
    _print_recovery(done, output, "recovered")


def loss_lines(recovery: PartitionRecovery) -> list[str]:
    """Return sentences about the possible loss of a recovery."""
    others = brokers(recovery.other_broker_ids) or "none"
    end = recovery.log_end_offset
    lines = [
        f"{recovery.topic}/{recovery.partition}: the replica on broker {recovery.kept_broker_id} is kept and ends at offset {end}",
        f"the replicas on these brokers are abandoned: {others}",
        f"records from offset {end} on that only they have are lost, even acknowledged ones",
        "later offset commits, producer states, leases and settlements are lost with them",
    ]
    if recovery.known_loss > 0:
        lines.append(
            f"at least {counted(recovery.known_loss, 'record')} up to offset {recovery.known_end_offset} "
            f"{'is' if recovery.known_loss == 1 else 'are'} known to be on another replica"
        )
    return lines


def warning_lines(recovery: PartitionRecovery) -> list[str]:
    """Return warnings if another replica should be kept, or if nobody can tell."""
    name, kept_id, newer = f"{recovery.topic}/{recovery.partition}", recovery.kept_broker_id, recovery.newer
    said = []
    if newer is not None and recovery.is_newest_certain:
        kept = next(one for one in recovery.replicas if (one.broker_id, one.condition) == (kept_id, "served"))
        place = f"term {newer.last_leader_epoch}, index {newer.last_index} on broker {newer.broker_id}"
        said += [
            f"broker {newer.broker_id} has a newer replica of {name} than broker {kept_id}: keep that one (--keep {newer.broker_id})",
            f"the last entry is {place}, and term {kept.last_leader_epoch}, index {kept.last_index} on broker {kept_id}",
            f"broker {kept_id} may lack acknowledged records from offset {kept.high_watermark} on, or have others at their offsets",
        ]
    elif newer is not None:
        said.append(
            f"broker {newer.broker_id} perhaps has a newer replica of {name} than broker {kept_id}: its committed index, or its end, is higher"
        )
    if not recovery.is_newest_certain:
        said.append(
            f"the newest replica of {name} is unknown: a broker of an older version does not report its last term"
        )
    opened = [one.broker_id for one in recovery.replicas if one.condition == "starting"]
    if opened:
        said.append(
            f"replicas of {name} that may be newer are being opened on brokers {brokers(opened)}: look again in a moment"
        )
    return [f"WARNING: {sentence}" for sentence in said]


def _partition_json(partition: LostPartition) -> dict[str, Json]:
    newest = partition.newest
    return {
        **dataclasses.asdict(partition),
        "newest_broker_id": newest.broker_id if newest is not None else None,
        "is_newest_certain": partition.is_newest_certain,
    }


def _print_recovery(recovery: PartitionRecovery, output: Output, result: str) -> None:
    if output is Output.JSON:
        newer = recovery.newer
        print_json(
            {
                "result": result,
                **dataclasses.asdict(recovery),
                "known_loss": recovery.known_loss,
                "newer_broker_id": newer.broker_id if newer is not None else None,
                "is_newest_certain": recovery.is_newest_certain,
            }
        )
        return
    print(f"partition {recovery.topic}/{recovery.partition} {result}")
    for line in loss_lines(recovery):
        print(line)


def _print_lost(found: LostPartitions) -> None:
    if found.partitions:
        print_table(COLUMNS, [_row(partition, one) for partition in found.partitions for one in partition.replicas])
        reasons = [
            f"{partition.topic}/{partition.partition} on broker {one.broker_id}: {one.reason}"
            for partition in found.partitions
            for one in partition.replicas
            if one.reason and one.condition not in ("unreachable", "lost")
        ]
        print()
        for reason in reasons:
            print(reason)
        if not all(partition.is_newest_certain for partition in found.partitions):
            print(
                "perhaps: a broker of an older version does not report the term of its last entry, so the replica with the highest committed "
                "index, then the highest end, is named"
            )
        more = found.count - len(found.partitions)
        print(f"{counted(found.count, 'partition')} without a majority{f', {more} of them not shown' if more else ''}")
    else:
        print("every partition has a majority of its replicas, or a leader")
    for one in found.recoveries:
        at = format_time(one.recovered_at_ms)
        known = f", {counted(one.known_loss, 'record')} known to be lost" if one.known_loss else ""
        print(
            f"{one.topic}/{one.partition} was recovered from broker {one.kept_broker_id} at {at}: records from offset "
            f"{one.log_end_offset} on may be missing{known}"
        )


def _row(partition: LostPartition, replica: ReplicaKnowledge) -> tuple[object, ...]:
    name = f"{partition.topic}/{partition.partition}"
    if replica.condition not in ("served", "rebuilding"):
        unseen = f"{replica.unreachable_seconds:.0f} s ago" if replica.unreachable_seconds else "-"
        return (name, replica.broker_id, replica.condition, "-", *6 * ("?",), unseen)
    newest = "-" if replica != partition.newest else "yes" if partition.is_newest_certain else "perhaps"
    positions = (replica.last_index, replica.commit_index, replica.log_start_offset, replica.log_end_offset)
    return (
        name, replica.broker_id, replica.condition, newest, replica.last_leader_epoch or "?", *positions, replica.high_watermark, "now",
    )  # fmt: skip
