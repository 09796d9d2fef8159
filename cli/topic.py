"""``raftmq topic``: create, list, describe, change and delete topics, and delete their oldest records."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer
from raftmq.cli.ask import ask
from raftmq.cli.exit_codes import reported, reported_question
from raftmq.cli.options import (
    COUNT_MAX,
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT,
    OFFSET_MAX,
    BootstrapOption,
    TimeoutOption,
    TopicArgument,
    YesOption,
    confirm,
    key_values,
)
from raftmq.cli.output import Output, OutputOption, print_json, print_table
from raftmq.errors import TopicAlreadyExistsError
from raftmq.types import TopicPartition

if TYPE_CHECKING:
    from raftmq.client.admin import Admin, TopicDescription

app = typer.Typer(help="Create, list, describe, change and delete topics.", no_args_is_help=True)

NewNameArgument = Annotated[
    str, typer.Argument(metavar="TOPIC", help="Its name: letters, digits, '.', '_' and '-'.", show_default=False)
]
ConfigOption = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", metavar="KEY=VALUE", help="A topic setting; may be given several times."),
]


def print_change(output: Output, name: str, what: str) -> None:
    """Say that a change was made."""
    if output is Output.JSON:
        print_json({"topic": name, "result": what})
    else:
        print(f"topic {name} {what}")


@app.command("create")
@reported
def create(
    name: NewNameArgument,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", min=1, max=COUNT_MAX, help="How many partitions. Default: 1."),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor",
            "-r",
            min=1,
            max=COUNT_MAX,
            help="Copies of each record. Default: 3, or one for each --host label if those are fewer.",
        ),
    ] = None,
    config: ConfigOption = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Do nothing when the topic exists.")] = False,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Create a topic, and wait until each of its partitions has a leader."""
    settings = key_values(config, "--config")
    try:
        topic = ask(
            bootstrap_servers, timeout, lambda admin: admin.create_topic(name, partitions, replication_factor, settings)
        )
    except TopicAlreadyExistsError:
        if not if_not_exists:
            raise
        print_change(output, name, "exists already")
        return
    if output is Output.JSON:
        counts = {"partitions": len(topic.partitions), "replication_factor": topic.replication_factor}
        print_json({"topic": name, "result": "created", **counts})
    else:
        print(
            f"topic {name} created: partitions {len(topic.partitions)}, replication factor {topic.replication_factor}"
        )


@app.command("list")
@reported_question
def list_topics(
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """List the topics."""
    topics = ask(bootstrap_servers, timeout, lambda admin: admin.list_topics())
    if output is Output.JSON:
        rows = [(t.name, len(t.partitions), t.replication_factor, t.config) for t in topics]
        print_json([{"name": n, "partitions": p, "replication_factor": r, "config": dict(c)} for n, p, r, c in rows])
        return
    print_table(
        ("topic", "partitions", "replication", "settings"),
        [(t.name, len(t.partitions), t.replication_factor, show_config(t.config)) for t in topics],
    )


@app.command("describe")
@reported_question
def describe(
    name: TopicArgument,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show a topic's partitions, their leaders, and its settings, defaults included."""
    topic = ask(bootstrap_servers, timeout, lambda admin: admin.describe_topic(name))
    if output is Output.JSON:
        print_json(dataclasses.asdict(topic))
    else:
        print_topic(topic)


def print_topic(topic: TopicDescription) -> None:
    """A topic for people: a head, its partitions, its settings."""
    print(f"topic {topic.name}: {len(topic.partitions)} partitions, replication factor {topic.replication_factor}\n")
    print_table(
        ("partition", "leader", "epoch", "replicas"),
        [
            (p.partition, p.leader_node_id or "none", p.leader_epoch or "", ", ".join(map(str, p.replica_nodes)))
            for p in topic.partitions
        ],
    )
    if topic.effective_config:
        print()
        print_table(
            ("setting", "value", ""),
            [
                (key, value, "set" if key in topic.config else "default")
                for key, value in sorted(topic.effective_config.items())
            ],
        )


def show_config(config: dict[str, str]) -> str:
    """Settings as one cell."""
    return " ".join(f"{key}={value}" for key, value in sorted(config.items()))


@app.command("alter")
@reported
def alter(
    name: TopicArgument,
    config: ConfigOption = None,
    unset: Annotated[
        list[str] | None, typer.Option("--unset", metavar="KEY", help="Return a setting to its default.")
    ] = None,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Change a topic's settings."""
    settings = key_values(config, "--config")
    if not settings and not unset:
        raise typer.BadParameter("give --config KEY=VALUE or --unset KEY")
    ask(bootstrap_servers, timeout, lambda admin: admin.alter_topic_config(name, settings, unset or ()))
    print_change(output, name, "altered")


@app.command("add-partitions")
@reported
def add_partitions(
    name: TopicArgument,
    total: Annotated[
        int, typer.Argument(min=1, max=COUNT_MAX, help="How many partitions it has afterwards.", show_default=False)
    ],
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Raise the number of partitions. Keys of new records may then belong to other partitions than before."""
    ask(bootstrap_servers, timeout, lambda admin: admin.add_partitions(name, total))
    print_change(output, name, f"has {total} partitions")


@app.command("delete")
@reported
def delete(
    name: TopicArgument,
    yes: YesOption = False,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Delete a topic and all of its records."""
    confirm(f"Delete topic {name} and all of its records?", is_agreed=yes)
    ask(bootstrap_servers, timeout, lambda admin: admin.delete_topic(name))
    print_change(output, name, "deleted")


@app.command("delete-records")
@reported
def delete_records(
    name: TopicArgument,
    before: Annotated[
        int | None,
        typer.Option("--before", min=0, max=OFFSET_MAX, metavar="OFFSET", help="Delete the records below this offset."),
    ] = None,
    delete_all: Annotated[bool, typer.Option("--all", help="Delete every record there is now.")] = False,
    partition: Annotated[
        list[int] | None,
        typer.Option(
            "--partition", "-p", min=0, max=COUNT_MAX, help="Only in this partition; may be given several times."
        ),
    ] = None,
    yes: YesOption = False,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Delete a topic's oldest records, on every replica. The offsets of the others stay as they are."""
    if (before is None) != delete_all:
        raise typer.BadParameter("give --before OFFSET or --all")
    what = "all records" if delete_all else f"the records below offset {before}"
    where = f"partition {', '.join(map(str, partition))}" if partition else "every partition"
    confirm(f"Delete {what} in {where} of topic {name}?", is_agreed=yes)

    async def trim(admin: Admin) -> dict[TopicPartition, int]:
        numbers = partition or [p.partition for p in (await admin.describe_topic(name)).partitions]
        return await admin.delete_records({TopicPartition(name, n): -1 if before is None else before for n in numbers})

    starts = sorted(ask(bootstrap_servers, timeout, trim).items())
    if output is Output.JSON:
        print_json([{"topic": name, "partition": tp.partition, "log_start_offset": start} for tp, start in starts])
    else:
        print_table(("partition", "first offset"), [(tp.partition, start) for tp, start in starts])
