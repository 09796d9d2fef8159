"""``raftmq topic``: create, list, describe, alter, extend and delete topics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer
from raftmq.cli.exit_codes import ExitCode, reported
from raftmq.cli.output import DEFAULT_BOOTSTRAP, BootstrapOption, Output, OutputOption, print_json

if TYPE_CHECKING:
    from raftmq.client.admin import Admin

app = typer.Typer(help="Create, list, describe, change and delete topics.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.", show_default=False)]
ConfigOption = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", metavar="KEY=VALUE", help="A topic setting; may be given several times."),
]


def with_admin(bootstrap_servers: str, action: Callable[[Admin], Awaitable[None]]) -> None:
    """Run one action with an open Admin."""
    from raftmq.client.admin import Admin

    async def run() -> None:
        async with Admin(bootstrap_servers=bootstrap_servers) as admin:
            await action(admin)

    asyncio.run(run())


def parse_config(pairs: list[str] | None) -> dict[str, str]:
    """``KEY=VALUE`` options as a dictionary; a pair without ``=`` is a usage error."""
    config = {}
    for pair in pairs or ():
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise typer.BadParameter(f"{pair!r} is not KEY=VALUE", param_hint="--config")
        config[key] = value
    return config


@app.command("create")
@reported
def create(
    name: NameArgument,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", min=1, help="Into how many partitions it is split.")
    ] = 1,
    replication_factor: Annotated[
        int,
        typer.Option(
            "--replication-factor", "-r", min=0, help="Copies of each record; 0: three, or as many as there are hosts."
        ),
    ] = 0,
    config: ConfigOption = None,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    output: OutputOption = Output.TEXT,
) -> None:
    """Create a topic."""
    settings = parse_config(config)

    async def action(admin: Admin) -> None:
        await admin.create_topic(name, partitions=partitions, replication_factor=replication_factor, config=settings)

    with_admin(bootstrap_servers, action)
    report(output, name, "created")


@app.command("delete")
@reported
def delete(
    name: NameArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    output: OutputOption = Output.TEXT,
) -> None:
    """Delete a topic and all of its records."""
    if not yes and not typer.confirm(f"Delete topic {name} and all of its records?", err=True):
        raise SystemExit(ExitCode.INTERRUPTED)

    async def action(admin: Admin) -> None:
        await admin.delete_topic(name)

    with_admin(bootstrap_servers, action)
    report(output, name, "deleted")


def report(output: Output, name: str, what: str) -> None:
    """Say that a change was made."""
    if output is Output.JSON:
        print_json({"topic": name, "result": what})
    else:
        print(f"topic {name} {what}")
