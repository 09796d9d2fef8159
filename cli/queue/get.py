"""``raftmq queue get`` and ``settle``: lease messages, and settle them by their tokens."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from raftmq.cli.consume import RecordOutput
from raftmq.cli.durations import DAY_SECONDS, Duration, DurationRange, format_duration
from raftmq.cli.exit_codes import ExitCode, exit_code_of, print_error, reported, sentence_of
from raftmq.cli.numbers import WholeNumber
from raftmq.cli.options import DEFAULT_TIMEOUT, BootstrapOption, TimeoutOption, TopicArgument
from raftmq.cli.output import Output, OutputOption, counted, print_json
from raftmq.cli.queue.calls import run_queue
from raftmq.cli.queue.options import DelayOption, LeaseOption, PriorityOption, TenantsOption, milliseconds
from raftmq.cluster_addresses import DEFAULT_BOOTSTRAP
from raftmq.errors import RaftMQError

if TYPE_CHECKING:
    from raftmq.client.queue.lease_token import SettlementName
    from raftmq.client.queue.message import Message
    from raftmq.client.queue.queue import Queue
    from raftmq.client.queue.views import QueueStats

GET_MESSAGES_MAX = 1_000
"""Maximum number of messages of one `get`. They are in memory and leased together."""
TOKENS_MAX = 1_000


@reported
def get(
    topic: TopicArgument,
    max_messages: Annotated[
        int,
        typer.Option(
            "--max-messages",
            "-n",
            parser=WholeNumber(1, GET_MESSAGES_MAX),
            metavar="N",
            help="Maximum number of messages, at most 1000.",
        ),
    ] = 1,
    accept: Annotated[
        bool, typer.Option("--ack", help="Settle the printed messages as done. Without it they remain leased.")
    ] = False,
    wait: Annotated[
        float,
        typer.Option(
            "--wait", parser=DurationRange(0, DAY_SECONDS), metavar="DURATION", help="Time to wait for a message."
        ),
    ] = Duration(0),
    lease: LeaseOption = None,
    tenant: TenantsOption = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            metavar="KEY",
            help="Only the next message of this key, of one --tenant or of none. The topic must be ordered by key.",
        ),
    ] = None,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: Annotated[
        RecordOutput,
        typer.Option(
            "--output",
            "-o",
            help="'text': token, tab and value per line; with --ack only the value. 'json': one object per line. "
            "'raw': only the bytes of the values, with --ack.",
        ),
    ] = RecordOutput.TEXT,
) -> None:
    """Lease messages, print them, and end.

    Without --ack a message remains leased after the command, and counts as an attempt: settle it with its token (raftmq
    queue settle), or it is delivered again when the lease ends. With --ack a message is done when it has been printed;
    if the command is interrupted before, it is delivered again. To look without leasing, use raftmq queue peek. An empty
    queue is no error: nothing is printed on standard output.
    """
    import asyncio

    if output is RecordOutput.RAW and not accept:
        raise typer.BadParameter("it prints no tokens: use it with --ack", param_hint="--output raw")

    async def lease_and_print(queue: Queue[bytes]) -> int:
        messages = await queue.get_many(
            max_messages=max_messages,
            wait_ms=wait * 1000,
            lease_ms=milliseconds(lease),
            tenants=tenant or (),
            key=key,
        )
        if not messages:
            # A leader that does not answer is an error, unlike an empty queue.
            print(f"no message is ready{others(await queue.stats(tenants_max=0))}", file=sys.stderr)
            return 0
        for message in messages:
            sys.stdout.buffer.write(line_of(message, output, is_accepted=accept))
        sys.stdout.buffer.flush()  # before they are settled: if the output fails, they are delivered again
        if accept:
            await asyncio.gather(*(message.ack() for message in messages))
        return len(messages)

    count = run_queue(topic, bootstrap_servers, timeout, lease_and_print)
    if count and not accept and output is RecordOutput.TEXT:
        length = "the topic's lease.ms" if lease is None else format_duration(lease)
        print(
            f"{counted(count, 'message')} leased for {length}; settle with: raftmq queue settle {topic} TOKEN",
            file=sys.stderr,
        )


def line_of(message: Message[bytes], output: RecordOutput, *, is_accepted: bool) -> bytes:
    """Format a leased message."""
    import json

    from raftmq.cli.queue.message_document import leased_json

    if output is RecordOutput.RAW:
        return message.value
    if output is RecordOutput.JSON:
        return json.dumps(leased_json(message, is_accepted=is_accepted), ensure_ascii=False).encode() + b"\n"
    return (b"" if is_accepted else os.fsencode(message.token) + b"\t") + message.value + b"\n"


def others(stats: QueueStats) -> str:
    """Describe the messages that cannot be leased now."""
    states = {"delayed": stats.delayed, "leased": stats.leased, "blocked": stats.blocked, "dead": stats.dead}
    found = [f"{count} {state}" for state, count in states.items() if count]
    if stats.paused:
        found.append("paused: " + ", ".join(tenant or "the topic" for tenant in sorted(stats.paused)))
    return f" ({', '.join(found)})" if found else ""


@reported
def settle(
    topic: TopicArgument,
    token: Annotated[
        list[str],
        typer.Argument(metavar="TOKEN...", help="Tokens of messages, as get prints them.", show_default=False),
    ],
    release: Annotated[bool, typer.Option("--release", help="Give the messages back, to be delivered again.")] = False,
    reject: Annotated[bool, typer.Option("--reject", help="Give the messages up: they are dead.")] = False,
    renew: Annotated[bool, typer.Option("--renew", help="Extend the leases instead of settling the messages.")] = False,
    delay: DelayOption = None,
    back_off: Annotated[
        bool, typer.Option("--back-off", help="With --release: deliver again after the topic's back-off.")
    ] = False,
    priority: PriorityOption = None,
    error: Annotated[
        str | None,
        typer.Option("--error", metavar="TEXT", help="With --release or --reject: the reason, which browse shows."),
    ] = None,
    lease: LeaseOption = None,
    progress: Annotated[
        str | None, typer.Option("--progress", metavar="TEXT", help="With --renew: a text that browse shows.")
    ] = None,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Settle leased messages by their tokens: as done, unless --release, --reject or --renew is given.

    Every token is tried, and each failure is reported. If a lease has ended, nothing was changed and the message is
    delivered again. If a message is gone, its earlier settlement was probably successful. The exit code is 5 if an
    outcome is unknown, otherwise that of the first failure.
    """
    import asyncio

    chosen = [name for name, is_given in (("release", release), ("reject", reject), ("renew", renew)) if is_given]
    if len(chosen) > 1:
        raise typer.BadParameter("give only one of --release, --reject and --renew")
    settlement = chosen[0] if chosen else "ack"
    check_settle_options(settlement, delay, priority, error, lease, progress, is_back_off=back_off)
    if len(token) > TOKENS_MAX:
        raise typer.BadParameter(f"at most {TOKENS_MAX} tokens are allowed", param_hint="TOKEN")
    from raftmq.client.queue.lease_token import parse_token

    for one in token:
        parse_token(one)  # before anything is settled

    async def settle_one(queue: Queue[bytes], one: str) -> bool | RaftMQError:
        try:
            return await queue.settle(
                one,
                _NAMES[settlement],
                delay_ms=None if back_off else milliseconds(delay) or 0,
                priority=priority,
                error=error,
                lease_ms=milliseconds(lease),
                progress=progress,
            )
        except RaftMQError as failure:
            return failure

    async def settle_all(queue: Queue[bytes]) -> list[bool | RaftMQError]:
        return await asyncio.gather(*(settle_one(queue, one) for one in token))

    results = run_queue(topic, bootstrap_servers, timeout, settle_all)
    failures = [(one, result) for one, result in zip(token, results, strict=True) if isinstance(result, RaftMQError)]
    rows = [(one, result) for one, result in zip(token, results, strict=True) if not isinstance(result, RaftMQError)]
    if output is Output.JSON and rows:
        print_json([{"token": one, "result": result_of(settlement, is_alive=alive)} for one, alive in rows])
    elif output is Output.TEXT:
        for one, alive in rows:
            print(f"message {one} {result_of(settlement, is_alive=alive)}")
    for one, failure in failures:
        print_error(f"token {one}: {sentence_of(failure)}")
    if failures:
        codes = [exit_code_of(failure) for _, failure in failures]
        raise SystemExit(ExitCode.UNKNOWN_OUTCOME if ExitCode.UNKNOWN_OUTCOME in codes else codes[0])


_NAMES: dict[str, SettlementName] = {"ack": "ack", "release": "release", "reject": "reject", "renew": "renew"}


def result_of(settlement: str, *, is_alive: bool) -> str:
    """Describe the effect of a settlement."""
    if settlement == "release" and not is_alive:
        return "dead"
    return {"ack": "done", "release": "released", "reject": "dead", "renew": "renewed"}[settlement]


def check_settle_options(
    settlement: str,
    delay: float | None,
    priority: int | None,
    error: str | None,
    lease: float | None,
    progress: str | None,
    *,
    is_back_off: bool,
) -> None:
    """Raise `typer.BadParameter` for an option of another settlement."""
    given = {
        "--delay": (delay is not None, ("release",)),
        "--back-off": (is_back_off, ("release",)),
        "--priority": (priority is not None, ("release",)),
        "--error": (error is not None, ("release", "reject")),
        "--lease": (lease is not None, ("renew",)),
        "--progress": (progress is not None, ("renew",)),
    }
    for option, (is_given, owners) in given.items():
        if is_given and settlement not in owners:
            names = " or ".join(f"--{owner}" for owner in owners)
            raise typer.BadParameter(f"use it only with {names}", param_hint=option)
    if is_back_off and delay is not None:
        raise typer.BadParameter("do not combine it with --delay", param_hint="--back-off")
