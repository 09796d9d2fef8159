"""``raftmq cluster``: what the cluster looks like, and which brokers belong to it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer
from raftmq.cli.ask import ask
from raftmq.cli.exit_codes import ExitCode, reported, reported_question
from raftmq.cli.options import (
    COUNT_MAX,
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT,
    BootstrapOption,
    TimeoutOption,
    YesOption,
    confirm,
)
from raftmq.cli.output import Output, OutputOption, print_json, print_table

if TYPE_CHECKING:
    from raftmq.client.admin import BrokerRemoval, ClusterDescription

app = typer.Typer(help="Look at the cluster, and remove brokers from it.", no_args_is_help=True)

_NAMED_MAX = 10
"""Partitions named for people; JSON has more."""


@app.callback()
def group() -> None:
    """Look at the cluster, and remove brokers from it."""


@app.command("status")
@reported_question
def status(
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show the brokers and whether every partition has a leader. Exit code 3 when one has none, or nobody leads the cluster."""
    cluster = ask(bootstrap_servers, timeout, lambda admin: admin.describe_cluster())
    if output is Output.JSON:
        print_json(dataclasses.asdict(cluster))
    else:
        print_cluster(cluster)
    if cluster.partitions_without_leader or led_by_unconnected(cluster) or not cluster.metadata_leader_node_id:
        raise SystemExit(ExitCode.UNAVAILABLE)


@app.command("remove")
@reported
def remove(
    node_id: Annotated[
        int, typer.Argument(metavar="NODE_ID", min=1, max=COUNT_MAX, help="The broker's number.", show_default=False)
    ],
    force: Annotated[
        bool, typer.Option("--force", help="It died: give up what it held, and make it again on the others.")
    ] = False,
    yes: YesOption = False,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Remove a broker for good: its data directory is refused for ever. One that died with replicas needs --force."""
    given_up = " and give up the data on it" if force else ""
    confirm(f"Remove broker {node_id} for ever{given_up}?", is_agreed=yes)
    removal = ask(bootstrap_servers, timeout, lambda admin: admin.remove_broker(node_id, force=force))
    if output is Output.JSON:
        print_json(
            {
                "node_id": removal.node_id,
                "replica_count": removal.replica_count,
                "without_majority_count": removal.without_majority_count,
                "without_majority": [
                    {"topic": topic, "partition": partition} for topic, partition in removal.without_majority
                ],
            }
        )
    else:
        print_removal(removal)


def print_removal(removal: BrokerRemoval) -> None:
    """What was removed, and what is to be expected now."""
    print(f"broker {removal.node_id} removed")
    rebuilt = removal.replica_count - removal.without_majority_count
    if rebuilt:
        print(
            f"{rebuilt} partitions get another replica where a broker can take it: see raftmq_under_replicated_partitions"
        )
    if removal.without_majority_count:
        names = ", ".join(f"{topic}/{partition}" for topic, partition in removal.without_majority[:_NAMED_MAX])
        more = removal.without_majority_count - min(len(removal.without_majority), _NAMED_MAX)
        print(
            f"{removal.without_majority_count} partitions have no majority of replicas within reach and stay unavailable until "
            f"their other brokers are back: {names}{f' and {more} more' if more else ''}"
        )


def print_cluster(cluster: ClusterDescription) -> None:
    """A cluster for people: its brokers, then its totals."""
    print(f"cluster {cluster.cluster_id}, as broker {cluster.answering_node_id} sees it\n")
    print_table(
        ("broker", "address", "host", "rack", "version", "state", "metadata", "leads", "replicas"),
        [
            (
                node.node_id,
                node.address,
                node.host,
                node.rack or "-",
                node.version,
                node.state if node.is_connected else f"{node.state}, not connected",
                "leader"
                if node.node_id == cluster.metadata_leader_node_id
                else "voter"
                if node.is_metadata_voter
                else "learner",
                node.leader_count,
                node.replica_count,
            )
            for node in cluster.nodes
        ],
    )
    without, unconnected = cluster.partitions_without_leader, led_by_unconnected(cluster)
    print(f"\n{cluster.topic_count} topics, {cluster.partition_count} partitions, {without or 'none'} without a leader")
    if unconnected:
        print(f"{unconnected} partitions were last led by a broker that is not connected")


def led_by_unconnected(cluster: ClusterDescription) -> int:
    """Partitions whose last known leader is out of reach: their other replicas have elected nobody (yet), or there are none."""
    return sum(node.leader_count for node in cluster.nodes if not node.is_connected)
