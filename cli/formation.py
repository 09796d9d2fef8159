"""``raftmq cluster init``: form a cluster of brokers that wait for one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from raftmq.cli.durations import DAY_SECONDS, Duration, DurationRange
from raftmq.cli.options import BootstrapOption
from raftmq.cli.output import Output, OutputOption, print_json
from raftmq.cluster_addresses import DEFAULT_BOOTSTRAP

if TYPE_CHECKING:
    from raftmq.client.admin.formation import FormedCluster


def init(
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    wait: Annotated[
        float,
        typer.Option(
            "--wait",
            parser=DurationRange(0.1, DAY_SECONDS),
            metavar="DURATION",
            help="Maximum time to wait until all brokers have started.",
        ),
    ] = Duration(60),
    output: OutputOption = Output.TEXT,
) -> None:
    """Form a cluster of brokers that were started with --join, all with the addresses of all, and wait for a cluster.

    Give the client addresses of all of them. The first one forms the cluster, and the others join it. Nothing is formed
    while one of them, or of the brokers named by its --join, does not answer. If one of them belongs to a cluster, the
    command prints that cluster's id and changes nothing, so it may be repeated at each start. When the time of --wait is
    over, it ends with the obstacle and exit code 3, or 5 if a cluster may have been formed.
    """
    formed = _form(bootstrap_servers, wait)
    if output is Output.JSON:
        print_json({"cluster_id": formed.cluster_id, "is_new": formed.is_new})
    else:
        print(f"cluster {formed.cluster_id} {'was formed' if formed.is_new else 'exists already'}")


def _form(bootstrap_servers: str, seconds: float) -> FormedCluster:
    import asyncio

    from raftmq.client.admin.formation import form_cluster

    return asyncio.run(form_cluster(bootstrap_servers, seconds))
