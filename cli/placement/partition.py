"""``raftmq partition``: the brokers that hold and lead partitions, and how to change them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer
from raftmq.cli.admin_calls import run_admin, run_question
from raftmq.cli.completion import complete_topic
from raftmq.cli.examples import examples
from raftmq.cli.exit_codes import reported, reported_question
from raftmq.cli.numbers import WholeNumber
from raftmq.cli.options import COUNT_MAX, DEFAULT_TIMEOUT, BootstrapOption, TimeoutOption, TopicArgument
from raftmq.cli.output import Json, Output, OutputOption, print_json, print_table
from raftmq.cli.placement import recovery
from raftmq.cli.placement.moves_text import PLAN_COLUMNS, brokers, copied, moves_json, plan_rows
from raftmq.cli.placement.options import (
    BrokerIds,
    DryRunOption,
    PartitionArgument,
    WaitOption,
    parse_broker_ids,
)
from raftmq.cli.placement.placed import described_topics, moved_look
from raftmq.cli.placement.waiting import HINT, wait_until_over
from raftmq.cli.topic import print_partitions
from raftmq.cli.topic_contents import QUEUE_KIND
from raftmq.cluster_addresses import DEFAULT_BOOTSTRAP

if TYPE_CHECKING:
    from raftmq.client.admin.admin import Admin
    from raftmq.client.admin.descriptions import PartitionDescription, TopicDescription
    from raftmq.client.admin.move_descriptions import PartitionMove

app = typer.Typer(
    help="Show and move partitions and their leaderships.",
    no_args_is_help=True,
    epilog=examples(
        "raftmq partition list orders",
        "raftmq partition move orders 3 --to 2,3,4",
        "raftmq partition transfer-leader orders 3 --to 2",
    ),
)


@app.callback()
def group() -> None:
    """Show and move partitions and their leaderships."""


@app.command(
    "list",
    short_help="List partitions with their leaders and replicas.",
    epilog=examples("raftmq partition list", "raftmq partition list orders -o json | jq '.[].leader_broker_id'"),
)
@reported_question
def list_partitions(
    topic: Annotated[
        str | None,
        typer.Argument(
            metavar="[TOPIC]",
            help="List only the partitions of this topic.",
            show_default=False,
            autocompletion=complete_topic,
        ),
    ] = None,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """List the partitions of a topic, or of all topics, with their leaders and the brokers that hold them.

    The first broker of the replicas is the preferred leader.
    """
    found = run_admin(bootstrap_servers, timeout, lambda admin: _topics(admin, topic))
    rows = [(described.name, partition) for described in found for partition in described.partitions]
    if output is Output.JSON:
        print_json([_json(name, partition) for name, partition in rows])
        return
    print_table(
        ("topic", "partition", "leader", "epoch", "replicas"),
        [
            (
                name,
                p.partition,
                p.leader_broker_id or "none",
                p.leader_epoch or "",
                brokers(p.replica_brokers) + (" (pinned)" if p.is_pinned else ""),
            )
            for name, p in rows
        ],
    )


@app.command(
    "describe",
    short_help="Show one partition, and its move if it is moving.",
    epilog=examples("raftmq partition describe orders 3", "raftmq partition describe orders 3 -o json | jq '.state'"),
)
@reported_question
def describe(
    topic: TopicArgument,
    partition: PartitionArgument,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show one partition as its leader reports it, and its move if it is moving.

    The columns are those of raftmq topic describe.
    """

    async def ask(admin: Admin) -> tuple[TopicDescription, PartitionDescription, PartitionMove | None]:
        described = await admin.describe_topic(topic, ask_leaders=True)
        moves = (await admin.describe_moves()).moves
        move = next((move for move in moves if (move.topic, move.partition) == (topic, partition)), None)
        return described, _partition_of(described, partition), move

    described, found, move = run_admin(bootstrap_servers, timeout, ask)
    if output is Output.JSON:
        print_json({**_json(topic, found), "move": None if move is None else moves_json([move])[0]})
        return
    print_partitions([found], is_queue=described.kind == QUEUE_KIND)
    if found.is_pinned:
        print("\npinned: an operator moved it, and automatic balancing leaves it there")
    if move is not None:
        share = copied([move])
        said = f"moving to {brokers(move.to_broker_ids)} ({move.reason.replace('_', ' ')})"
        print(f"\n{said}{f', {share} copied' if share else ''}")


@app.command(
    "move",
    short_help="Move a partition to other brokers.",
    epilog=examples(
        "raftmq partition move orders 3 --to 2,3,4 --dry-run",
        "raftmq partition move orders 3 --to 2,3,4",
        "raftmq partition move orders 3 --to 2,3,4 --no-wait",
        "raftmq partition move orders 3 --unpin",
    ),
)
@reported
def move(
    topic: TopicArgument,
    partition: PartitionArgument,
    to: Annotated[
        BrokerIds | None,
        typer.Option(
            "--to",
            parser=parse_broker_ids,
            metavar="ID,ID,ID",
            help="All brokers that will hold the partition. The first is its preferred leader.",
            show_default=False,
        ),
    ] = None,
    unpin: Annotated[
        bool, typer.Option("--unpin", help="Move nothing, and let automatic balancing move the partition again.")
    ] = False,
    dry_run: DryRunOption = False,
    wait: WaitOption = True,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Move a partition to the given brokers, while it is written and read.

    The command ends when all of them are in sync and the others have no replica any more. The cluster does the work:
    interrupting the command does not stop it.

    The partition is pinned there: automatic balancing leaves it. The pin ends with --unpin, with raftmq cluster
    rebalance, when one of its brokers is drained or removed, when the replication factor changes, and when the move is
    given up.
    """
    if unpin is (to is not None):
        raise typer.BadParameter("give either --to, to move the partition, or --unpin")
    if to is None:
        if dry_run:
            raise typer.BadParameter("--unpin moves nothing, so that there is nothing to show with --dry-run")
        was_pinned = run_admin(bootstrap_servers, timeout, lambda admin: admin.unpin_partition(topic, partition))
        _print_unpinned(topic, partition, output, was_pinned=was_pinned)
        return
    if dry_run:
        planned = run_question(
            bootstrap_servers, timeout, lambda admin: admin.move_partition(topic, partition, to, dry_run=True)
        )
        _print_move(planned, output, "planned")
        return

    async def change(admin: Admin) -> PartitionMove:
        begun = await admin.move_partition(topic, partition, to)
        if wait:
            await wait_until_over(f"moving {topic}/{partition}", moved_look(admin, topic, partition, to))
        return begun

    _print_move(run_admin(bootstrap_servers, timeout, change), output, "moved" if wait else "moving")


@app.command(
    "transfer-leader",
    short_help="Transfer the leadership of a partition.",
    epilog=examples("raftmq partition transfer-leader orders 3", "raftmq partition transfer-leader orders 3 --to 2"),
)
@reported
def transfer_leader(
    topic: TopicArgument,
    partition: PartitionArgument,
    to: Annotated[
        int | None,
        typer.Option(
            "--to",
            parser=WholeNumber(1, COUNT_MAX),
            metavar="BROKER_ID",
            help="Broker that becomes the leader. Default: the preferred leader, which is the first of the replicas.",
        ),
    ] = None,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Transfer the leadership of a partition to one of its replicas, and wait until the new leader answers."""
    done = run_admin(bootstrap_servers, timeout, lambda admin: admin.transfer_leader(topic, partition, to))
    if output is Output.JSON:
        print_json(dataclasses.asdict(done))
    else:
        print(f"partition {topic}/{partition}: leader {done.leader_broker_id}, epoch {done.leader_epoch}")


app.command(
    "recover",
    short_help="Revive a partition without a majority from one replica.",
    epilog=examples(
        "raftmq partition recover orders 3 --unsafe --keep 2 --dry-run",
        "raftmq partition recover orders 3 --unsafe --keep 2",
    ),
)(recovery.recover)


def _print_unpinned(topic: str, partition: int, output: Output, *, was_pinned: bool) -> None:
    if output is Output.JSON:
        print_json({"result": "unpinned", "topic": topic, "partition": partition, "was_pinned": was_pinned})
    elif was_pinned:
        print(f"partition {topic}/{partition} unpinned: automatic balancing may move it")
    else:
        print(f"partition {topic}/{partition} is not pinned: nothing changed")


def _print_move(move: PartitionMove, output: Output, result: str) -> None:
    if output is Output.JSON:
        print_json({"result": result, **dataclasses.asdict(move)})
    elif result == "planned":
        print_table(PLAN_COLUMNS, plan_rows([move]))
    else:
        hint = f": {HINT}" if result == "moving" else ""
        print(f"partition {move.topic}/{move.partition} {result} to {brokers(move.to_broker_ids)}{hint}")


def _json(topic: str, partition: PartitionDescription) -> dict[str, Json]:
    return {"topic": topic, **dataclasses.asdict(partition)}


def _partition_of(topic: TopicDescription, number: int) -> PartitionDescription:
    """Return a partition. Raises the error that the cluster would raise."""
    from raftmq.errors import UnknownPartitionError

    if number >= len(topic.partitions):
        raise UnknownPartitionError(f"topic {topic.name} has partitions 0 to {len(topic.partitions) - 1}, not {number}")
    return topic.partitions[number]


async def _topics(admin: Admin, topic: str | None) -> list[TopicDescription]:
    """Return one topic, or all that still exist, with their leaders."""
    if topic is not None:
        return [await admin.describe_topic(topic)]
    return await described_topics(admin, [one.name for one in await admin.list_topics()])
