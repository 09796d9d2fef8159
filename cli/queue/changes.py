"""``raftmq queue move``, ``cancel``, ``redrive`` and ``purge``: change waiting and dead messages."""

from __future__ import annotations

import sys
from collections.abc import Awaitable
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer
from raftmq.cli.exit_codes import reported
from raftmq.cli.options import (
    DEFAULT_TIMEOUT,
    BootstrapOption,
    TimeoutOption,
    TopicArgument,
    YesOption,
    confirm,
)
from raftmq.cli.output import Output, OutputOption, counted, print_json
from raftmq.cli.queue.calls import described, reference_of, run_queue, show_counts
from raftmq.cli.queue.options import (
    DelayOption,
    EnqueuedBeforeOption,
    IdArgument,
    NotBeforeOption,
    PartitionOption,
    PriorityOption,
    RateOption,
    SequenceOption,
    State,
    TenantsOption,
    VersionOption,
    milliseconds,
)
from raftmq.cli.times import parse_past
from raftmq.cluster_addresses import DEFAULT_BOOTSTRAP
from raftmq.errors import Outcome, RaftMQError

if TYPE_CHECKING:
    from raftmq.client.queue.queue import Queue
    from raftmq.client.queue.views import MessageStateName


@reported
def move(
    topic: TopicArgument,
    name: IdArgument = None,
    sequence: SequenceOption = None,
    partition: PartitionOption = 0,
    delay: DelayOption = None,
    not_before: NotBeforeOption = None,
    priority: PriorityOption = None,
    version: VersionOption = None,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Change the due time or the priority of a waiting message. --delay 0s makes it due now."""
    message = reference_of(topic, name, sequence, partition)
    changed = run_queue(
        topic,
        bootstrap_servers,
        timeout,
        lambda queue: queue.move(
            message, delay_ms=milliseconds(delay), not_before=not_before, priority=priority, version=version
        ),
    )
    if output is Output.JSON:
        print_json({"topic": topic, "result": "moved", "version": changed})
    else:
        print(f"{described(name, sequence, partition)} moved")


@reported
def cancel(
    topic: TopicArgument,
    name: IdArgument = None,
    sequence: SequenceOption = None,
    partition: PartitionOption = 0,
    version: VersionOption = None,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Delete a waiting or dead message. A message that a consumer works on is refused."""
    message = reference_of(topic, name, sequence, partition)
    run_queue(topic, bootstrap_servers, timeout, lambda queue: queue.cancel(message, version=version))
    if output is Output.JSON:
        print_json({"topic": topic, "result": "cancelled"})
    else:
        print(f"{described(name, sequence, partition)} cancelled")


@reported
def redrive(
    topic: TopicArgument,
    name: IdArgument = None,
    sequence: SequenceOption = None,
    partition: PartitionOption = 0,
    version: VersionOption = None,
    tenant: TenantsOption = None,
    died_before: Annotated[
        datetime | None,
        typer.Option(
            "--died-before",
            parser=parse_past,
            metavar="TIME",
            help="Only messages that died before a time: 2026-01-31T12:00:00Z, 15m (ago), or milliseconds since 1970.",
        ),
    ] = None,
    rate: RateOption = 0,
    yes: YesOption = False,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Make dead messages ready again, with their attempts counted from 0: one message, or all that the filters choose.

    For more than one message, shows the number of dead messages, then asks for confirmation. The command ends when all
    are ready. The cluster does the work: interrupting the command does not stop it, but raftmq queue jobs --cancel does.
    """
    is_one = name is not None or sequence is not None
    if is_one and (tenant or died_before is not None or rate):
        raise typer.BadParameter("do not combine one message with --tenant, --died-before or --rate")
    if not is_one and (version is not None or partition):
        raise typer.BadParameter("use --version and --partition only with one message")
    message = reference_of(topic, name, sequence, partition) if is_one else None
    if message is None:
        show_counts(topic, bootstrap_servers, timeout, ["dead"], is_filtered=bool(tenant or died_before))
        confirm(
            f"Make {'the chosen' if tenant or died_before else 'all'} dead messages of {topic} ready?", is_agreed=yes
        )

    async def revive(queue: Queue[bytes]) -> int:
        if message is not None:
            return await queue.redrive(message, version=version)
        return await _finish(
            topic, queue.redrive(tenants=tenant or (), died_before=died_before, messages_per_second=rate)
        )

    count = run_queue(topic, bootstrap_servers, timeout, revive)
    if output is Output.JSON:
        print_json({"topic": topic, "redriven": count})
    else:
        print(f"{counted(count, 'message')} of {topic} redriven")


@reported
def purge(
    topic: TopicArgument,
    state: Annotated[
        list[State] | None,
        typer.Option(
            "--state",
            "-s",
            metavar="STATE",
            help="Only messages in this state: ready, delayed, leased, dead or blocked. Repeat it for several states.",
        ),
    ] = None,
    tenant: TenantsOption = None,
    enqueued_before: EnqueuedBeforeOption = None,
    rate: RateOption = 0,
    yes: YesOption = False,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Delete messages permanently. Without a filter every message is deleted, leased ones included, and all known ids.

    Shows the number of messages, then asks for confirmation. The command ends when all are deleted. The cluster does the
    work: interrupting the command does not stop it, but raftmq queue jobs --cancel does.
    """
    states = list(state or ())
    is_filtered = bool(tenant or enqueued_before)
    everything = not states and not is_filtered
    if everything and rate:
        raise typer.BadParameter(
            "without a filter everything is deleted in one step: use it with --state, --tenant or --enqueued-before",
            param_hint="--rate",
        )
    show_counts(topic, bootstrap_servers, timeout, states or list(State), is_filtered=is_filtered)
    confirm(f"Delete {'all' if everything else 'the chosen'} messages of {topic}?", is_agreed=yes)

    async def delete(queue: Queue[bytes]) -> int:
        names: list[MessageStateName] = [one.value for one in states]
        return await _finish(
            topic, queue.purge(*names, tenants=tenant or (), enqueued_before=enqueued_before, messages_per_second=rate)
        )

    count = run_queue(topic, bootstrap_servers, timeout, delete)
    if output is Output.JSON:
        print_json({"topic": topic, "purged": count})
    else:
        print(f"{counted(count, 'message')} of {topic} purged")


async def _finish(topic: str, job: Awaitable[int]) -> int:
    """Wait for the end of a job. If the command is interrupted, or the cluster does not answer, say that the job is not."""
    import asyncio

    try:
        return await job
    except asyncio.CancelledError:
        print(f"the cluster continues the work; to stop it: raftmq queue jobs {topic}", file=sys.stderr)
        raise
    except RaftMQError as error:
        if error.outcome is Outcome.UNKNOWN:
            print(f"the cluster may continue the work; to stop it: raftmq queue jobs {topic}", file=sys.stderr)
        raise
