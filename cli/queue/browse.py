"""``raftmq queue browse`` and ``peek``: show messages without leasing them."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer
from raftmq.cli.dlq import ERROR_WIDTH, KEY_WIDTH, shortened
from raftmq.cli.durations import format_duration
from raftmq.cli.exit_codes import reported_question
from raftmq.cli.numbers import WholeNumber
from raftmq.cli.options import DEFAULT_TIMEOUT, OFFSET_MAX, BootstrapOption, TimeoutOption, TopicArgument
from raftmq.cli.output import Output, OutputOption, print_table
from raftmq.cli.queue.calls import run_queue
from raftmq.cli.queue.options import EnqueuedBeforeOption, State
from raftmq.cli.times import format_time
from raftmq.cluster_addresses import DEFAULT_BOOTSTRAP

if TYPE_CHECKING:
    from raftmq.client.queue.queue import Queue
    from raftmq.client.queue.views import BrowsedMessage

TEXT_ROWS_MAX = 1_000
"""Maximum rows of a table, which is in memory before it is printed. JSON has no limit."""
PEEK_MESSAGES = 10
COLUMNS = ("partition", "sequence", "id", "tenant", "key", "priority", "state", "time", "attempts")

TenantFilterOption = Annotated[
    str, typer.Option("--tenant", metavar="TENANT", help="Only messages of this tenant and of those below.")
]


@reported_question
def browse(
    topic: TopicArgument,
    state: Annotated[
        State | None,
        typer.Option(
            "--state",
            "-s",
            metavar="STATE",
            help="Only messages in this state: ready, delayed, leased, dead or blocked.",
        ),
    ] = None,
    tenant: TenantFilterOption = "",
    name: Annotated[str | None, typer.Option("--id", metavar="ID", help="Only the message with this id.")] = None,
    enqueued_before: EnqueuedBeforeOption = None,
    max_messages: Annotated[
        int | None,
        typer.Option(
            "--max-messages",
            "-n",
            parser=WholeNumber(1, OFFSET_MAX),
            metavar="N",
            help="Maximum number of messages. Default: 1000 in a table, no limit in JSON.",
        ),
    ] = None,
    with_values: Annotated[bool, typer.Option("--values", help="Show the values, too.")] = False,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show the messages of a queue topic, partition by partition, without leasing them.

    With --output json, print one object per line with all fields. With --values, raftmq queue put --format messages can
    read these lines. Messages that change while they are listed may be missing or listed twice.
    """
    show(
        topic,
        bootstrap_servers,
        timeout,
        output,
        state=state,
        tenant=tenant,
        name=name,
        enqueued_before=enqueued_before,
        limit=max_messages,
        with_values=with_values,
    )


@reported_question
def peek(
    topic: TopicArgument,
    tenant: TenantFilterOption = "",
    max_messages: Annotated[
        int,
        typer.Option(
            "--max-messages", "-n", parser=WholeNumber(1, OFFSET_MAX), metavar="N", help="Maximum number of messages."
        ),
    ] = PEEK_MESSAGES,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show messages that are ready, with their values, without leasing them.

    The order is that of browse, partition by partition. It says nothing about the order among tenants in which
    consumers get messages.
    """
    show(
        topic,
        bootstrap_servers,
        timeout,
        output,
        state=State.READY,
        tenant=tenant,
        limit=max_messages,
        with_values=True,
    )


def show(
    topic: str,
    bootstrap_servers: str,
    timeout: float,
    output: Output,
    *,
    state: State | None,
    tenant: str = "",
    name: str | None = None,
    enqueued_before: datetime | None = None,
    limit: int | None,
    with_values: bool,
) -> None:
    """Print messages as a table, or as JSON lines as they arrive."""
    is_cut = limit is None and output is Output.TEXT
    if is_cut:
        limit = TEXT_ROWS_MAX + 1

    async def read(queue: Queue[bytes]) -> list[tuple[object, ...]]:
        from raftmq.cli.queue.message_document import browsed_json

        rows: list[tuple[object, ...]] = []
        found = queue.browse(
            None if state is None else state.value,
            tenant=tenant,
            id=name,
            enqueued_before=enqueued_before,
            limit=limit,
            with_values=with_values,
        )
        async for message in found:
            if output is Output.JSON:
                print(json.dumps(browsed_json(topic, message, with_value=with_values), ensure_ascii=False))
            else:
                rows.append(row_of(message, with_value=with_values))
        return rows

    rows = run_queue(topic, bootstrap_servers, timeout, read)
    if output is Output.TEXT:
        shown = rows[:TEXT_ROWS_MAX] if is_cut else rows
        print_table((*COLUMNS, "value" if with_values else "note"), shown)
        if len(shown) < len(rows):
            print(f"there are more than {TEXT_ROWS_MAX} messages: use a filter, -n or --output json", file=sys.stderr)


def row_of(message: BrowsedMessage, *, with_value: bool) -> tuple[object, ...]:
    """Format a message as a table row."""
    if with_value:
        last = "(damaged)" if message.value is None else message.value.decode(errors="replace")
    else:
        last = message.progress if message.state == "leased" and message.progress else message.error
    return (
        message.partition,
        message.sequence,
        shortened(message.id or "", KEY_WIDTH),
        message.tenant,
        shortened("" if message.key is None else message.key.decode(errors="replace"), KEY_WIDTH),
        message.priority,
        message.dead_reason or message.state,
        time_of(message),
        message.attempts,
        shortened(last, ERROR_WIDTH),
    )


def time_of(message: BrowsedMessage) -> str:
    """Describe the time that matters in the message's state."""
    if message.state == "dead":
        return format_time(message.dead_since_ms)
    if message.state == "leased":
        return f"{format_duration(message.lease_left_ms / 1000)} left"
    if message.due_in_ms > 0:
        return f"in {format_duration(message.due_in_ms / 1000)}"
    return f"since {format_duration(-message.due_in_ms / 1000)}"
