"""``raftmq queue pause``, ``resume`` and ``clock``: stop and continue delivery, and look after the queue clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer
from raftmq.cli.admin_calls import as_question
from raftmq.cli.durations import DurationRange, format_duration, signed
from raftmq.cli.exit_codes import reported
from raftmq.cli.options import (
    DEFAULT_TIMEOUT,
    BootstrapOption,
    TimeoutOption,
    TopicArgument,
    YesOption,
    confirm,
)
from raftmq.cli.output import Output, OutputOption, print_json, print_table
from raftmq.cli.queue.calls import run_queue
from raftmq.cli.queue.options import DELAY_SECONDS_MAX, milliseconds
from raftmq.cluster_addresses import DEFAULT_BOOTSTRAP

if TYPE_CHECKING:
    from raftmq.client.queue.queue import Queue

PAUSE_SECONDS_MIN: Final = 0.001
TenantOption = Annotated[
    str,
    typer.Option("--tenant", metavar="TENANT", help="This tenant and those below. Default: the whole topic."),
]


@reported
def pause(
    topic: TopicArgument,
    tenant: TenantOption = "",
    duration: Annotated[
        float | None,
        typer.Option(
            "--for",
            parser=DurationRange(PAUSE_SECONDS_MIN, DELAY_SECONDS_MAX),
            metavar="DURATION",
            help="Time after which delivery continues by itself. Default: until resume.",
        ),
    ] = None,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Stop delivering the messages of a topic or tenant. Leases that are held stay valid, and puts are accepted."""
    run_queue(
        topic,
        bootstrap_servers,
        timeout,
        lambda queue: queue.pause(tenant, duration_ms=milliseconds(duration)),
    )
    until = "" if duration is None else f" for {format_duration(duration)}"
    print_flow(topic, tenant, output, "paused", until)


@reported
def resume(
    topic: TopicArgument,
    tenant: TenantOption = "",
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Deliver the messages of a paused topic or tenant again."""
    run_queue(topic, bootstrap_servers, timeout, lambda queue: queue.resume(tenant))
    print_flow(topic, tenant, output, "resumed")


def print_flow(topic: str, tenant: str, output: Output, result: str, note: str = "") -> None:
    """Print that delivery was stopped or continued."""
    if output is Output.JSON:
        print_json({"topic": topic, "tenant": tenant, "result": result})
    else:
        print(f"{f'tenant {tenant} of topic {topic}' if tenant else f'topic {topic}'} {result}{note}")


@reported
def clock(
    topic: TopicArgument,
    step: Annotated[
        bool, typer.Option("--step", help="Step clocks that are behind forward to the brokers' time. Asks first.")
    ] = False,
    yes: YesOption = False,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show the difference of each partition's queue clock to its leader's clock, or step the clocks forward.

    Queue clocks never go back, and catch up slowly with the brokers' clocks. After a step, delayed messages become due,
    and leases and messages expire, as the new time says. A step cannot be undone.
    """

    async def ask(queue: Queue[bytes]) -> dict[int, float]:
        return await queue.clocks()

    async def advance(queue: Queue[bytes]) -> dict[int, float]:
        return await queue.step_clocks()

    with as_question():
        differences = run_queue(topic, bootstrap_servers, timeout, ask)
    if not step:
        print_clocks(topic, differences, output, "difference")
        return
    behind = max(0.0, *(-seconds for seconds in differences.values()))
    confirm(f"Step the clocks of {topic}, of which the last is {format_duration(behind)} behind?", is_agreed=yes)
    print_clocks(topic, run_queue(topic, bootstrap_servers, timeout, advance), output, "step")


def print_clocks(topic: str, seconds: dict[int, float], output: Output, column: str) -> None:
    """Print a number of seconds for each partition."""
    if output is Output.JSON:
        print_json([
            {"topic": topic, "partition": partition, f"{column}_seconds": found} for partition, found in seconds.items()
        ])  # fmt: skip
        return
    print_table(("partition", column), [(partition, signed(found)) for partition, found in seconds.items()])
