"""``raftmq schedule``: put, list, pause, resume, run and delete the schedules of queue topics."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from raftmq.cli.admin_calls import run_admin
from raftmq.cli.completion import complete_schedule
from raftmq.cli.durations import DurationRange, format_duration
from raftmq.cli.examples import examples
from raftmq.cli.exit_codes import reported, reported_question
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
from raftmq.cli.output import Json, Output, OutputOption, print_json, print_table
from raftmq.cli.queue.options import (
    DELAY_SECONDS_MAX,
    ExpiresOption,
    HeaderOption,
    KeyOption,
    PriorityOption,
    TenantOption,
    milliseconds,
)
from raftmq.cli.queue.put import headers_of
from raftmq.cli.times import format_time, parse_moment
from raftmq.cluster_addresses import DEFAULT_BOOTSTRAP

if TYPE_CHECKING:
    from raftmq.client.admin.admin import Admin
    from raftmq.client.admin.schedules import ScheduleDescription

EVERY_SECONDS_MIN = 1.0
"""Minimum interval of a schedule, as for the SDK."""


class CatchUp(StrEnum):
    """Choose the treatment of missed firings."""

    SKIP = "skip"
    ONE = "one"
    ALL = "all"


app = typer.Typer(
    help="Put messages into queue topics regularly.",
    no_args_is_help=True,
    epilog=examples(
        "raftmq schedule put jobs sweep --value sweep --every 5m",
        "raftmq schedule list jobs",
        "raftmq schedule delete jobs sweep",
    ),
)
NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="The schedule's name, unique in its topic.",
        show_default=False,
        autocompletion=complete_schedule,
    ),
]


@app.callback()
def schedule() -> None:
    """Put messages into queue topics regularly."""


@app.command(
    "put",
    short_help="Create or replace a schedule.",
    epilog=examples(
        "raftmq schedule put jobs report --value report --cron '0 9 * * mon-fri'",
        "raftmq schedule put jobs sweep --value sweep --every 5m --catch-up one",
        "raftmq schedule put jobs launch --value go --at 2031-01-31T09:00:00Z",
    ),
)
@reported
def put(
    topic: TopicArgument,
    name: NameArgument,
    value: Annotated[
        str | None, typer.Option("--value", metavar="VALUE", help="Value of the message that each firing puts.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", exists=True, dir_okay=False, help="Read the value from a file, all of it."),
    ] = None,
    cron: Annotated[
        str | None,
        typer.Option("--cron", metavar="FIELDS", help="Five fields: minute, hour, day, month, day of the week."),
    ] = None,
    every: Annotated[
        float | None,
        typer.Option(
            "--every",
            parser=DurationRange(EVERY_SECONDS_MIN, DELAY_SECONDS_MAX),
            metavar="DURATION",
            help="Interval of firings, at least 1s.",
        ),
    ] = None,
    at: Annotated[
        datetime | None,
        typer.Option(
            "--at",
            parser=parse_moment,
            metavar="TIME",
            help="Time of a single firing: 2026-01-31T12:00:00Z, or milliseconds since 1970.",
        ),
    ] = None,
    timezone: Annotated[
        str, typer.Option("--timezone", metavar="ZONE", help="Time zone of --cron, such as Europe/Berlin.")
    ] = "UTC",
    catch_up: Annotated[
        CatchUp,
        typer.Option(
            "--catch-up",
            help="Firings that were missed while no broker could make them: none, one for all, or each (at most 1000).",
        ),
    ] = CatchUp.SKIP,
    key: KeyOption = None,
    tenant: TenantOption = None,
    priority: PriorityOption = None,
    expires: ExpiresOption = None,
    header: HeaderOption = None,
    paused: Annotated[bool, typer.Option("--paused", help="Do not fire before resume.")] = False,
    version: Annotated[
        int | None,
        typer.Option(
            "--version",
            parser=WholeNumber(0, COUNT_MAX),
            metavar="N",
            help="Replace only this version, as list shows it. 0: only create.",
        ),
    ] = None,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Create a schedule, or replace the one of this name. Each firing puts one message.

    Give one of --cron, --every and --at.
    """
    if (value is None) == (file is None):
        raise typer.BadParameter("give --value VALUE or --file FILE")
    if sum(rule is not None for rule in (cron, every, at)) != 1:
        raise typer.BadParameter("give one of --cron, --every and --at")
    if cron is None and timezone != "UTC":
        raise typer.BadParameter("use it only with --cron", param_hint="--timezone")
    body = file.read_bytes() if file is not None else os.fsencode(value or "")
    headers = headers_of(header)

    async def make(admin: Admin) -> ScheduleDescription:
        return await admin.put_schedule(
            topic,
            name,
            body,
            cron=cron,
            every=None if every is None else timedelta(seconds=every),
            at=at,
            timezone=timezone,
            catch_up=catch_up.value,
            key=None if key is None else os.fsencode(key),
            tenant=tenant,
            priority=priority or 0,
            expires_ms=milliseconds(expires),
            headers=headers,
            paused=paused or None,
            version=version,
        )

    made = run_admin(bootstrap_servers, timeout, make)
    if output is Output.JSON:
        print_json(schedule_json(topic, made))
        return
    print(f"schedule {name} of topic {topic} put, version {made.version}; next firing: {next_firing(made)}")


@app.command(
    "list",
    short_help="List the schedules of a topic.",
    epilog=examples("raftmq schedule list jobs", "raftmq schedule list jobs -o json | jq '.[].name'"),
)
@reported_question
def list_schedules(
    topic: TopicArgument,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """List the schedules of a queue topic, by name, with their next and last firings."""
    found = run_admin(bootstrap_servers, timeout, lambda admin: admin.list_schedules(topic))
    if output is Output.JSON:
        print_json([schedule_json(topic, one) for one in found])
        return
    print_table(
        ("schedule", "rule", "next firing", "last firing", "skipped", "catch-up", "version"),
        [
            (
                one.name,
                rule_of(one),
                next_firing(one),
                "" if one.last_fired_ms is None else format_time(one.last_fired_ms),
                one.skipped,
                one.catch_up,
                one.version,
            )
            for one in found
        ],
    )


@app.command("pause", epilog=examples("raftmq schedule pause jobs sweep"))
@reported
def pause(
    topic: TopicArgument,
    name: NameArgument,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Stop the firings of a schedule until it is resumed."""
    change(topic, name, bootstrap_servers, timeout, output, lambda admin: admin.pause_schedule(topic, name), "paused")


@app.command("resume", epilog=examples("raftmq schedule resume jobs sweep"))
@reported
def resume(
    topic: TopicArgument,
    name: NameArgument,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Let a paused schedule fire again."""
    change(topic, name, bootstrap_servers, timeout, output, lambda admin: admin.resume_schedule(topic, name), "resumed")


@app.command("run", epilog=examples("raftmq schedule run jobs sweep"))
@reported
def run(
    topic: TopicArgument,
    name: NameArgument,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Fire a schedule now, additionally to its rule."""
    change(topic, name, bootstrap_servers, timeout, output, lambda admin: admin.run_schedule(topic, name), "fired")


@app.command("delete", epilog=examples("raftmq schedule delete jobs sweep", "raftmq schedule delete jobs sweep --yes"))
@reported
def delete(
    topic: TopicArgument,
    name: NameArgument,
    yes: YesOption = False,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Delete a schedule. Messages that it has put remain. Asks for confirmation."""
    confirm(f"Delete schedule {name} of topic {topic}?", is_agreed=yes)
    change(topic, name, bootstrap_servers, timeout, output, lambda admin: admin.delete_schedule(topic, name), "deleted")


def change(
    topic: str,
    name: str,
    bootstrap_servers: str,
    timeout: float,
    output: Output,
    action: Callable[[Admin], Awaitable[None]],
    result: str,
) -> None:
    """Change a schedule, and print that it was."""
    run_admin(bootstrap_servers, timeout, action)
    if output is Output.JSON:
        print_json({"topic": topic, "schedule": name, "result": result})
    else:
        print(f"schedule {name} of topic {topic} {result}")


def rule_of(one: ScheduleDescription) -> str:
    """Describe the times at which a schedule fires."""
    if one.cron:
        return f"{one.cron} {one.timezone}"
    return f"every {format_duration(one.every_ms / 1000)}" if one.every_ms else f"at {format_time(one.at_ms)}"


def next_firing(one: ScheduleDescription) -> str:
    """Describe the next firing."""
    if one.is_paused:
        return "paused"
    return "none" if one.next_due_ms is None else format_time(one.next_due_ms)


def schedule_json(topic: str, one: ScheduleDescription) -> dict[str, Json]:
    """Convert a schedule for programs."""
    return {"topic": topic, **dataclasses.asdict(one)}
