"""``raftmq queue stats`` and ``top``: the state of a queue topic, once or live."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from raftmq.cli.durations import Duration, DurationRange
from raftmq.cli.exit_codes import reported_question
from raftmq.cli.numbers import WholeNumber
from raftmq.cli.options import DEFAULT_TIMEOUT, BootstrapOption, TimeoutOption, TopicArgument
from raftmq.cli.output import Output, OutputOption, print_json
from raftmq.cli.queue.calls import run_queue
from raftmq.cluster_addresses import DEFAULT_BOOTSTRAP

if TYPE_CHECKING:
    from raftmq.cli.queue.stats_text import Sample
    from raftmq.client.queue.queue import Queue
    from raftmq.client.queue.views import QueueStats

TENANTS_SHOWN = 10
TENANTS_SHOWN_MAX = 1_000
INTERVAL_SECONDS = 2.0
INTERVAL_SECONDS_MIN = 0.2
INTERVAL_SECONDS_MAX = 3_600.0

TenantsShownOption = Annotated[
    int,
    typer.Option(
        "--tenants",
        parser=WholeNumber(0, TENANTS_SHOWN_MAX),
        metavar="N",
        help="Number of tenants to show, those with the most messages.",
    ),
]


@reported_question
def stats(
    topic: TopicArgument,
    tenants: TenantsShownOption = TENANTS_SHOWN,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show the messages of a queue topic by state and tenant, the age of the oldest, and totals.

    The time from ready to leased is estimated from counts by length, of leases since each broker serves its partitions.
    Totals count since each partition got its present leader. Blocked messages are ready, and wait for an unfinished
    message of their key.
    """
    from raftmq.cli.queue.stats_text import Sample, json_of, text_of

    async def ask(queue: Queue[bytes]) -> QueueStats:
        return await queue.stats(tenants_max=tenants)

    found = run_queue(topic, bootstrap_servers, timeout, ask)
    if output is Output.JSON:
        print_json(json_of(topic, found))
    else:
        print(text_of(topic, None, Sample(found, 0), with_rates=False))


@reported_question
def top(
    topic: TopicArgument,
    interval: Annotated[
        float,
        typer.Option(
            "--interval",
            "-i",
            parser=DurationRange(INTERVAL_SECONDS_MIN, INTERVAL_SECONDS_MAX),
            metavar="DURATION",
            help="Time between two updates. Rates are averages over it.",
        ),
    ] = Duration(INTERVAL_SECONDS),
    once: Annotated[bool, typer.Option("--once", help="Measure for one interval, print once, and end.")] = False,
    tenants: TenantsShownOption = TENANTS_SHOWN,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show the state and the rates of a queue topic, refreshed in place until Ctrl-C.

    If standard output is not a terminal, print one state after the other. With --output json, print one object per line.
    Ends with code 3 when the cluster does not answer for --timeout.
    """
    from raftmq.cli.queue.stats_text import Sample, json_of, rates, text_of

    async def follow(queue: Queue[bytes]) -> None:
        import asyncio

        loop = asyncio.get_running_loop()
        earlier: Sample | None = None
        with display() as show:
            while True:
                later = Sample(await queue.stats(tenants_max=tenants), loop.time())
                if earlier is not None or not once:
                    show(line(earlier, later))
                if earlier is not None and once:
                    return
                earlier = later
                await asyncio.sleep(interval)

    is_live = output is Output.TEXT and not once and sys.stdout.isatty()

    def line(earlier: Sample | None, later: Sample) -> str:
        if output is Output.TEXT:
            return text_of(topic, earlier, later, with_rates=True, is_compact=is_live)
        return json.dumps({**json_of(topic, later.stats), "per_second": rates(earlier, later)}, ensure_ascii=False)

    @contextmanager
    def display() -> Iterator[Callable[[str], None]]:
        if not is_live:
            separator = "" if once or output is Output.JSON else "\n"
            yield lambda text: print(text, end=f"\n{separator}", flush=True)
        else:
            with live_display() as show:
                yield show

    run_queue(topic, bootstrap_servers, timeout, follow)


@contextmanager
def live_display() -> Iterator[Callable[[str], None]]:
    """Show each text in place of the one before. The last one remains on the terminal."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(), auto_refresh=False) as live:
        # No markup, and no wrapping: a narrow terminal crops a line.
        yield lambda text: live.update(Text(text, no_wrap=True, overflow="crop"), refresh=True)
