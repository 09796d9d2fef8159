"""``raftmq cluster``: what the cluster looks like."""

from __future__ import annotations

import asyncio

import typer
from raftmq.cli.exit_codes import reported
from raftmq.cli.output import DEFAULT_BOOTSTRAP, BootstrapOption, Output, OutputOption

app = typer.Typer(help="Look at the cluster.", no_args_is_help=True)


@app.command("status")
@reported
def status(bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP, output: OutputOption = Output.TEXT) -> None:
    """Show the brokers, who leads the metadata group, and whether every partition has a leader."""
    from raftmq.client.admin import Admin

    async def ask() -> None:
        async with Admin(bootstrap_servers=bootstrap_servers) as admin:
            show(await admin.describe_cluster())

    asyncio.run(ask())
