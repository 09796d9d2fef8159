"""``raftmq topic``: create, list, describe, change and delete topics, and delete their oldest records."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from raftmq.cli.admin_calls import run_admin, run_question
from raftmq.cli.examples import examples
from raftmq.cli.exit_codes import reported, reported_question
from raftmq.cli.numbers import WholeNumber
from raftmq.cli.options import (
    COUNT_MAX,
    DEFAULT_TIMEOUT,
    OFFSET_MAX,
    TOPIC_PARTITIONS_MAX,
    BootstrapOption,
    TimeoutOption,
    TopicArgument,
    YesOption,
    confirm,
)
from raftmq.cli.output import Json, Output, OutputOption, counted, print_json, print_table
from raftmq.cli.placement.moves_text import brokers
from raftmq.cli.placement.options import DryRunOption, WaitOption
from raftmq.cli.placement.replication import change_replication
from raftmq.cli.queue.calls import show_counts
from raftmq.cli.topic_contents import LOG_KIND, QUEUE_KIND, check_is_log, contents_of, trimmed_rows
from raftmq.cli.topic_settings import parse_settings
from raftmq.cluster_addresses import DEFAULT_BOOTSTRAP
from raftmq.errors import TopicAlreadyExistsError

if TYPE_CHECKING:
    from raftmq.client.admin.admin import Admin
    from raftmq.client.admin.descriptions import PartitionDescription, TopicDescription
    from raftmq.types import TopicPartition

app = typer.Typer(
    help="Create, list, describe, change and delete topics.",
    no_args_is_help=True,
    epilog=examples("raftmq topic create orders --partitions 6", "raftmq topic list", "raftmq topic describe orders"),
)

NewNameArgument = Annotated[
    str,
    typer.Argument(metavar="TOPIC", help="Name of the topic: letters, digits, '.', '_' and '-'.", show_default=False),
]
ConfigOption = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        "-c",
        metavar="KEY=VALUE",
        help="Topic setting, such as retention.ms=7d. Repeat it for several settings.",
    ),
]


def print_change(output: Output, name: str, what: str) -> None:
    """Print that a change was made."""
    if output is Output.JSON:
        print_json({"topic": name, "result": what})
    else:
        print(f"topic {name} {what}")


@app.command(
    "create",
    short_help="Create a topic.",
    epilog=examples(
        "raftmq topic create orders --partitions 6 --replication-factor 3",
        "raftmq topic create audit --config retention.ms=30d",
        "raftmq topic create orders --if-not-exists",
        "raftmq topic create jobs --kind queue -c attempts.max=10",
    ),
)
@reported
def create(
    name: NewNameArgument,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            "-p",
            parser=WholeNumber(1, TOPIC_PARTITIONS_MAX),
            metavar="N",
            help="Number of partitions, at most 10000. Default: 1.",
        ),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor",
            "-r",
            parser=WholeNumber(1, COUNT_MAX),
            metavar="N",
            help="Number of copies of each record. Default: 3, or the number of different --host labels if that is smaller.",
        ),
    ] = None,
    kind: Annotated[
        str,
        typer.Option(
            "--kind",
            metavar="KIND",
            help="Kind of topic: a log keeps records for any number of readers, a queue holds messages until they are done.",
            show_default=True,
        ),
    ] = LOG_KIND,
    config: ConfigOption = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Do nothing when the topic exists.")] = False,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Create a topic, and wait until each of its partitions has a leader."""
    settings = parse_settings(config)

    async def create_in(admin: Admin) -> TopicDescription | None:
        make = partial(admin.create_topic, name, partitions, replication_factor, settings, kind=kind)
        try:
            return await make()
        except TopicAlreadyExistsError:
            if not if_not_exists:
                raise
            await make(if_not_exists=True)  # it checks the kind
            return None

    topic = run_admin(bootstrap_servers, timeout, create_in)
    if topic is None:
        print_change(output, name, "exists already")
    elif output is Output.JSON:
        counts = {"partitions": len(topic.partitions), "replication_factor": topic.replication_factor}
        print_json({"topic": name, "result": "created", "kind": topic.kind, **counts})
    else:
        shown_kind = "" if topic.kind == LOG_KIND else f"kind {topic.kind}, "
        counts_text = f"partitions {len(topic.partitions)}, replication factor {topic.replication_factor}"
        print(f"topic {name} created: {shown_kind}{counts_text}")


@app.command("list", epilog=examples("raftmq topic list", "raftmq topic list -o json | jq '.[].name'"))
@reported_question
def list_topics(
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """List the topics."""
    topics = run_admin(bootstrap_servers, timeout, lambda admin: admin.list_topics())
    _warn_if_unconfirmed(topics)
    if output is Output.JSON:
        rows: list[Json] = [
            {
                "name": t.name,
                "kind": t.kind,
                "partitions": len(t.partitions),
                "replication_factor": t.replication_factor,
                "config": dict(t.config),
                "is_unconfirmed": t.is_unconfirmed,
            }
            for t in topics
        ]
        print_json(rows)
        return
    print_table(
        ("topic", "kind", "partitions", "replication", "settings"),
        [(t.name, t.kind, len(t.partitions), t.replication_factor, show_config(t.config)) for t in topics],
    )


@app.command(
    "describe",
    short_help="Show a topic's partitions and settings.",
    epilog=examples("raftmq topic describe orders", "raftmq topic describe orders -o json | jq '.effective_config'"),
)
@reported_question
def describe(
    name: TopicArgument,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show a topic's partitions as their leaders report them, and its settings, including defaults.

    "In sync" lists the brokers whose replicas vote and keep up. The size is that of the file of the leader's replica,
    in bytes. A partition whose leader does not answer shows '?' (null in JSON). Of a queue, "next" is the sequence that
    the next message gets; raftmq queue stats counts its messages.
    """
    topic = run_admin(bootstrap_servers, timeout, lambda admin: admin.describe_topic(name, ask_leaders=True))
    _warn_if_unconfirmed([topic])
    if output is Output.JSON:
        print_json(dataclasses.asdict(topic))
    else:
        print_topic(topic)


def _warn_if_unconfirmed(topics: Sequence[TopicDescription]) -> None:
    """Print a warning if newer metadata may exist."""
    if any(topic.is_unconfirmed for topic in topics):
        print(
            "warning: the answering broker could not confirm its metadata with a majority; the last changes may be missing",
            file=sys.stderr,
        )


def print_topic(topic: TopicDescription) -> None:
    """Print a topic for people: a header, its partitions and its settings."""
    print(
        f"topic {topic.name}: {counted(len(topic.partitions), 'partition')}, replication factor {topic.replication_factor}, "
        f"kind {topic.kind}\n"
    )
    print_partitions(topic.partitions, is_queue=topic.kind == QUEUE_KIND)
    if topic.effective_config:
        print()
        print_table(
            ("setting", "value", ""),
            [
                (key, value, "set" if key in topic.config else "default")
                for key, value in sorted(topic.effective_config.items())
            ],
        )


def print_partitions(partitions: Sequence[PartitionDescription], *, is_queue: bool) -> None:
    """Print partitions as their leaders report them."""
    offsets = ("next",) if is_queue else ("start", "end")
    print_table(
        ("partition", "leader", "epoch", "replicas", "in sync", *offsets, "bytes"),
        [
            (
                p.partition,
                p.leader_broker_id or "none",
                p.leader_epoch or "",
                brokers(p.replica_brokers),
                *_state_cells(p, is_queue=is_queue),
            )
            for p in partitions
        ],
    )


def _state_cells(partition: PartitionDescription, *, is_queue: bool) -> tuple[object, ...]:
    state = partition.state
    if state is None:
        return ("?",) * (3 if is_queue else 4)
    offsets = (state.high_watermark,) if is_queue else (state.log_start_offset, state.high_watermark)
    return (brokers(state.in_sync_brokers), *offsets, state.size_bytes)


def show_config(config: dict[str, str]) -> str:
    """Format settings as one cell."""
    return " ".join(f"{key}={value}" for key, value in sorted(config.items()))


@app.command(
    "alter",
    short_help="Change a topic's settings or its replication factor.",
    epilog=examples(
        "raftmq topic alter orders --config retention.ms=12h",
        "raftmq topic alter orders --unset retention.ms",
        "raftmq topic alter orders --replication-factor 3 --dry-run",
    ),
)
@reported
def alter(
    name: TopicArgument,
    config: ConfigOption = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="KEY", help="Reset a setting to its default. Repeat it for several settings."),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor",
            "-r",
            parser=WholeNumber(1, COUNT_MAX),
            metavar="N",
            help="New number of copies of each record. Fewer copies need a confirmation.",
        ),
    ] = None,
    dry_run: DryRunOption = False,
    wait: WaitOption = True,
    yes: YesOption = False,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Change a topic's settings, or its replication factor.

    Another replication factor adds or removes replicas while the topic is written and read. The command ends when all
    replicas are in sync. The cluster does the work: interrupting the command does not stop it. --dry-run, --wait and
    --yes belong to the replication factor.
    """
    settings = parse_settings(config)
    if replication_factor is not None:
        if settings or unset:
            raise typer.BadParameter("give it without --config and --unset", param_hint="--replication-factor")
        change_replication(
            name,
            replication_factor,
            dry_run=dry_run,
            wait=wait,
            yes=yes,
            bootstrap_servers=bootstrap_servers,
            timeout=timeout,
            output=output,
        )
        return
    if not settings and not unset:
        raise typer.BadParameter("give --config KEY=VALUE, --unset KEY or --replication-factor N")
    if dry_run:
        raise typer.BadParameter("use it only with --replication-factor", param_hint="--dry-run")
    run_admin(bootstrap_servers, timeout, lambda admin: admin.alter_topic_config(name, settings, unset or ()))
    print_change(output, name, "altered")


@app.command("add-partitions", epilog=examples("raftmq topic add-partitions orders 12"))
@reported
def add_partitions(
    name: TopicArgument,
    total: Annotated[
        int,
        typer.Argument(
            parser=WholeNumber(1, TOPIC_PARTITIONS_MAX),
            metavar="TOTAL",
            help="New number of partitions, at most 10000.",
            show_default=False,
        ),
    ],
    rehash: Annotated[
        bool,
        typer.Option(
            "--rehash",
            help="Required for a queue topic: later messages with an id or a key may go to other partitions than earlier ones, so that "
            "neither deduplication nor order holds between them.",
        ),
    ] = False,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Raise the number of partitions. Keys of new records may then map to other partitions than before."""
    run_admin(bootstrap_servers, timeout, lambda admin: admin.add_partitions(name, total, rehash=rehash))
    print_change(output, name, f"has {total} partitions")


@app.command("delete", epilog=examples("raftmq topic delete orders", "raftmq topic delete orders --yes"))
@reported
def delete(
    name: TopicArgument,
    yes: YesOption = False,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Delete a topic and all of its records or messages. Shows their number, then asks for confirmation."""
    if not yes:
        topic = run_question(bootstrap_servers, timeout, lambda admin: admin.describe_topic(name, ask_leaders=True))
        if topic.kind == QUEUE_KIND:
            show_counts(name, bootstrap_servers, timeout)
        else:
            print(f"topic {name}: {contents_of(topic)}", file=sys.stderr)
        noun = "messages" if topic.kind == QUEUE_KIND else "records"
        confirm(f"Delete topic {name} and all of its {noun}?", is_agreed=False)
    run_admin(bootstrap_servers, timeout, lambda admin: admin.delete_topic(name))
    print_change(output, name, "deleted")


@app.command(
    "delete-records",
    epilog=examples(
        "raftmq topic delete-records orders --all", "raftmq topic delete-records orders --partition 0 --before 1000"
    ),
)
@reported
def delete_records(
    name: TopicArgument,
    before: Annotated[
        int | None,
        typer.Option(
            "--before",
            parser=WholeNumber(0, OFFSET_MAX),
            metavar="OFFSET",
            help="Delete the records below this offset.",
        ),
    ] = None,
    delete_all: Annotated[bool, typer.Option("--all", help="Delete all present records.")] = False,
    partition: Annotated[
        list[int] | None,
        typer.Option(
            "--partition",
            "-p",
            parser=WholeNumber(0, COUNT_MAX),
            metavar="N",
            help="Delete only in this partition. Repeat it for several partitions.",
        ),
    ] = None,
    yes: YesOption = False,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Delete a topic's oldest records on every replica. The offsets of the remaining records do not change.

    Shows which records of each partition will be deleted, then asks for confirmation.
    """
    if (before is None) != delete_all:
        raise typer.BadParameter("give --before OFFSET or --all")
    shown: dict[int, int] = {}
    if not yes or before is not None:
        topic = run_question(bootstrap_servers, timeout, lambda admin: admin.describe_topic(name, ask_leaders=True))
        check_is_log(topic)
        rows = trimmed_rows(topic, before, partition)
        if not yes:
            print_table(("partition", "first offset", "will be", "end"), rows, sys.stderr)
        shown = {number: after if isinstance(after, int) else -1 for number, _, after, _ in rows}
    what = "all records" if delete_all else f"the records below offset {before}"
    where = f"partition {', '.join(map(str, partition))}" if partition else "every partition"
    confirm(f"Delete {what} in {where} of topic {name}?", is_agreed=yes)

    async def trim(admin: Admin) -> dict[TopicPartition, int]:
        from raftmq.types import TopicPartition

        numbers = partition or [p.partition for p in (await admin.describe_topic(name)).partitions]
        wanted = shown or dict.fromkeys(numbers, -1 if before is None else before)
        return await admin.delete_records({TopicPartition(name, n): offset for n, offset in wanted.items()})

    starts = sorted(run_admin(bootstrap_servers, timeout, trim).items())
    if output is Output.JSON:
        print_json([{"topic": name, "partition": tp.partition, "log_start_offset": start} for tp, start in starts])
    else:
        print_table(("partition", "first offset"), [(tp.partition, start) for tp, start in starts])
