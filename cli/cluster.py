"""``raftmq cluster``: what the cluster looks like."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING

import typer
from raftmq.cli.exit_codes import ExitCode, reported_question
from raftmq.cli.options import DEFAULT_BOOTSTRAP, DEFAULT_TIMEOUT, BootstrapOption, TimeoutOption
from raftmq.cli.output import Output, OutputOption, print_json, print_table

if TYPE_CHECKING:
    from raftmq.client.admin import ClusterDescription

app = typer.Typer(help="Look at the cluster.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Look at the cluster."""


@app.command("status")
@reported_question
def status(
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show the brokers and whether every partition has a leader. Exit code 3 when one has none, or nobody leads the cluster."""
    from raftmq.client.admin import Admin

    async def ask() -> ClusterDescription:
        async with Admin(bootstrap_servers=bootstrap_servers, request_timeout_ms=timeout * 1000) as admin:
            return await admin.describe_cluster()

    cluster = asyncio.run(ask())
    if output is Output.JSON:
        print_json(dataclasses.asdict(cluster))
    else:
        print_cluster(cluster)
    if cluster.partitions_without_leader or led_by_unconnected(cluster) or not cluster.metadata_leader_node_id:
        raise SystemExit(ExitCode.UNAVAILABLE)


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
