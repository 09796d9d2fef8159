"""``raftmq dlq``: list dead-letter topics, show their letters, send them back once, purge them."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from raftmq.cli.admin_calls import as_question
from raftmq.cli.completion import complete_topic
from raftmq.cli.examples import examples
from raftmq.cli.exit_codes import CommandError, ExitCode, reported, reported_question
from raftmq.cli.letter_filter import (
    ErrorOption,
    FromTopicOption,
    GroupOption,
    LetterFilter,
    OffsetOption,
    PartitionOption,
    SinceOption,
)
from raftmq.cli.numbers import WholeNumber
from raftmq.cli.options import (
    DEFAULT_TIMEOUT,
    OFFSET_MAX,
    BootstrapOption,
    TimeoutOption,
    YesOption,
    confirm,
)
from raftmq.cli.output import Json, Output, OutputOption, counted, print_json, print_table, text_or_base64
from raftmq.cli.rates import DEFAULT_RATE, RateOption
from raftmq.cli.record_filter import HeaderFilterOption, KeyFilterOption
from raftmq.cli.redrive_plan import RedrivePlan, not_sent
from raftmq.cli.times import format_time
from raftmq.cluster_addresses import DEFAULT_BOOTSTRAP

if TYPE_CHECKING:
    from raftmq.client.dead_letters.letter import DeadLetter
    from raftmq.client.dead_letters.topic import DeadLetterTopic, LetterCount, RedriveReport

app = typer.Typer(
    help="Show dead letters, send them back, or drop them.",
    epilog=examples("raftmq dlq list", "raftmq dlq show orders.dead", "raftmq dlq redrive orders.dead --rate 100/s"),
)

DeadLetterArgument = Annotated[
    str, typer.Argument(metavar="TOPIC", help="Name of the dead-letter topic.", autocompletion=complete_topic)
]
MaxOption = Annotated[
    int | None,
    typer.Option(
        "--max-records", "-n", parser=WholeNumber(1, OFFSET_MAX), metavar="N", help="Maximum number of records."
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show the effect without changing anything.")]
Answer = TypeVar("Answer")

KEY_WIDTH = 24
ERROR_WIDTH = 72
"""Maximum characters of a key and of an error's text in a table; JSON has all of them."""


@app.callback(no_args_is_help=True)
def dlq() -> None:
    """Show dead letters, send them back, or drop them."""


@app.command("list", epilog=examples("raftmq dlq list", "raftmq dlq list -o json | jq '.[].topic'"))
@reported_question
def list_topics(
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """List dead-letter topics and their waiting record counts.

    A topic counts as a dead-letter topic if a worker wrote the newest record of a partition. Records that were sent
    back or purged do not wait.
    """
    import asyncio

    from raftmq.client.dead_letters.topics import find_dead_letter_topics

    found, unread = asyncio.run(find_dead_letter_topics(bootstrap_servers, timeout))
    for tp in unread:
        print(f"{tp.topic}/{tp.partition} has no leader that answers: its records are not counted", file=sys.stderr)
    if output is Output.JSON:
        print_json([
            {"topic": t.topic, "waiting": t.waiting, "newest": letter_json(t.newest)} for t in found
        ])  # fmt: skip
        return
    print_table(
        ("topic", "waiting", "newest", "from", "error"),
        [(t.topic, t.waiting, format_time(t.newest.time_ms), t.newest.source.topic, t.newest.error) for t in found],
    )


@app.command(
    "show",
    short_help="Show waiting records and why they failed.",
    epilog=examples(
        "raftmq dlq show orders.dead",
        "raftmq dlq show orders.dead --error '*Timeout*' --since 1h",
        "raftmq dlq show orders.dead --partition 0 --offset 12 -o json",
    ),
)
@reported_question
def show(
    topic: DeadLetterArgument,
    partition: PartitionOption = None,
    offset: OffsetOption = None,
    error: ErrorOption = None,
    from_topic: FromTopicOption = None,
    group: GroupOption = None,
    key: KeyFilterOption = None,
    header: HeaderFilterOption = None,
    since: SinceOption = None,
    max_records: MaxOption = None,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show the records that wait in a dead-letter topic, and why each is there.

    With --output json, print one object per line with key, value, headers and all data that the worker recorded about
    the failure.
    """
    chosen = LetterFilter.of(partition, offset, error, from_topic, group, key, header, since)

    async def read(letters: DeadLetterTopic) -> list[DeadLetter]:
        rows: list[DeadLetter] = []
        count = 0
        async with aclosing(waiting_of(letters, chosen.partitions_of(await letters.count()))) as waiting:
            async for letter in waiting:
                if not chosen(letter):
                    continue
                count += 1
                if output is Output.JSON:
                    print(json.dumps(letter_json(letter), ensure_ascii=False))
                else:
                    rows.append(letter)
                if count == max_records:
                    break
        return rows

    rows = with_letters(topic, bootstrap_servers, timeout, read)
    if output is Output.TEXT:
        print_table(
            ("partition", "offset", "given up", "from", "group", "attempts", "key", "error"),
            [letter_row(letter) for letter in rows],
        )


@app.command(
    "redrive",
    short_help="Send records back to their original partitions, once.",
    epilog=examples(
        "raftmq dlq redrive orders.dead",
        "raftmq dlq redrive orders.dead --error '*Timeout*' --rate 10/s",
        "raftmq dlq redrive orders.dead --partition 0 --offset 12 --yes",
    ),
)
@reported
def redrive(
    topic: DeadLetterArgument,
    partition: PartitionOption = None,
    offset: OffsetOption = None,
    error: ErrorOption = None,
    from_topic: FromTopicOption = None,
    group: GroupOption = None,
    key: KeyFilterOption = None,
    header: HeaderFilterOption = None,
    since: SinceOption = None,
    max_records: MaxOption = None,
    rate: RateOption = DEFAULT_RATE,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Send records back to the partitions that they came from, each once.

    A record goes back with its key, value, timestamp and own headers. Then it no longer waits, and it is deleted from
    the dead-letter topic when no record before it waits. If the command is interrupted or killed, run it again: it
    continues, and nothing is sent twice. The cluster remembers the sent records for 14 days after the last access to
    the topic. Records are sent in order, partition by partition.
    """
    chosen = LetterFilter.of(partition, offset, error, from_topic, group, key, header, since)
    limit = OFFSET_MAX if max_records is None else max_records

    async def preview(letters: DeadLetterTopic) -> RedrivePlan:
        plan = RedrivePlan(chosen.partitions_of(await letters.count()))
        async with aclosing(waiting_of(letters, plan.counts)) as waiting:
            async for letter in waiting:
                if not chosen(letter):
                    continue
                if letter.source not in plan.exists:
                    plan.exists[letter.source] = not await letters.missing_targets([letter.source])
                plan.add(letter)
                if plan.going.total() == limit:
                    break
        return plan

    async def send(letters: DeadLetterTopic) -> RedriveReport:
        from raftmq.client.dead_letters.topic import RedriveReport

        report = RedriveReport()
        with telling_a_part(report, f"of {topic} sent back"):
            await letters.redrive(
                plan.counts,
                lambda letter: chosen(letter) and plan.may_send(letter),
                report,
                per_second=rate,
                count_max=limit,
            )
        return report

    with as_question():
        plan = with_letters(topic, bootstrap_servers, timeout, preview)
    for line in plan.lines(rate):
        print(line, file=sys.stderr)
    settled = 0
    if plan.going and not dry_run:
        confirm(f"Send {counted(plan.going.total(), 'record')} back?", is_agreed=yes)
        report = with_letters(topic, bootstrap_servers, timeout, send)
        warn(report)
        settled = report.settled
    if output is Output.JSON:
        print_json({"topic": topic, "chosen": plan.going.total(), "redriven": settled})
    else:
        print(f"{counted(settled, 'record')} of {topic} sent back")


@app.command(
    "purge",
    epilog=examples(
        "raftmq dlq purge orders.dead",
        "raftmq dlq purge orders.dead --error 'json.*' --yes",
    ),
)
@reported
def purge(
    topic: DeadLetterArgument,
    partition: PartitionOption = None,
    offset: OffsetOption = None,
    error: ErrorOption = None,
    from_topic: FromTopicOption = None,
    group: GroupOption = None,
    key: KeyFilterOption = None,
    header: HeaderFilterOption = None,
    since: SinceOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Drop records of a dead-letter topic. They will not be sent back.

    Without a filter every record is deleted, up to the newest at the start. The topic is then refused unless a worker
    wrote the newest record of a partition. With a filter, the chosen records no longer wait, and each is deleted when
    no record before it waits. A filter does not choose records that an interrupted redrive may have sent.
    """
    chosen = LetterFilter.of(partition, offset, error, from_topic, group, key, header, since)

    async def preview(letters: DeadLetterTopic) -> tuple[list[LetterCount], int]:
        counts = chosen.partitions_of(await letters.count())
        if chosen.is_everything:
            await check_is_dead_letter_topic(letters)
            return counts, sum(count.waiting for count in counts)
        return counts, sum([1 async for letter in waiting_of(letters, counts) if chosen(letter)])

    async def drop(letters: DeadLetterTopic) -> RedriveReport:
        from raftmq.client.dead_letters.topic import RedriveReport

        report = RedriveReport()
        with telling_a_part(report, f"of {topic} purged"):
            await letters.purge(counts, None if chosen.is_everything else chosen, report)
        return report

    with as_question():
        counts, total = with_letters(topic, bootstrap_servers, timeout, preview)
    print(f"{counted(total, 'record')} of {topic} will be dropped permanently", file=sys.stderr)
    settled = 0
    if total and not dry_run:
        confirm(f"Drop {counted(total, 'record')}?", is_agreed=yes)
        settled = with_letters(topic, bootstrap_servers, timeout, drop).settled
    if output is Output.JSON:
        print_json({"topic": topic, "chosen": total, "purged": settled})
    else:
        print(f"{counted(settled, 'record')} of {topic} purged")


@contextmanager
def telling_a_part(report: RedriveReport, result: str) -> Iterator[None]:
    """Print the number of records so far if the command ends before its work does."""
    try:
        yield
    except BaseException:
        print(f"{counted(report.settled, 'record')} {result}; run the command again to continue", file=sys.stderr)
        raise


async def waiting_of(letters: DeadLetterTopic, counts: Sequence[LetterCount]) -> AsyncGenerator[DeadLetter, None]:
    """Yield the waiting letters. Raises `CommandError` at the end if there are none because this is no dead-letter topic.

    The check comes last: letters are also found below the records of another program.
    """
    is_empty = True
    async with aclosing(letters.waiting(counts)) as waiting:
        async for letter in waiting:
            is_empty = False
            yield letter
    if is_empty:
        await check_is_dead_letter_topic(letters)


async def check_is_dead_letter_topic(letters: DeadLetterTopic) -> None:
    """Refuse a topic of a program's own records, whose name was given by mistake. Raises `CommandError`."""
    if not await letters.is_dead_letter_topic():
        raise CommandError(
            f"{letters.topic} is not a dead-letter topic: no worker wrote the newest record of any partition; list dead-letter topics with "
            "raftmq dlq list. The records of any topic are read with raftmq consume and deleted with raftmq topic delete-records",
            ExitCode.REJECTED,
        )


def with_letters(
    topic: str, bootstrap_servers: str, timeout: float, action: Callable[[DeadLetterTopic], Awaitable[Answer]]
) -> Answer:
    """Run one action on an open dead-letter topic."""
    import asyncio

    from raftmq.client.dead_letters.topic import DeadLetterTopic

    async def run() -> Answer:
        async with DeadLetterTopic(topic, bootstrap_servers=bootstrap_servers, timeout_seconds=timeout) as letters:
            return await action(letters)

    return asyncio.run(run())


def warn(report: RedriveReport) -> None:
    """Print which records were not sent, and why."""
    for target, count in sorted(report.without_target.items()):
        print(not_sent(target, count), file=sys.stderr)
    for name, count in sorted(report.too_large.items()):
        print(
            f"{counted(count, 'record')} not sent: {name} no longer accepts batches of this size; raise its max.batch.bytes "
            "and run the command again",
            file=sys.stderr,
        )
    if report.in_doubt:
        print(
            f"{counted(report.in_doubt, 'record')} of an interrupted redrive may have been sent and will be chosen again. Other records that "
            "were sent with them are deleted",
            file=sys.stderr,
        )


def letter_row(letter: DeadLetter) -> tuple[object, ...]:
    """Format a letter as a table row."""
    record = letter.record
    key = "" if record.key is None else record.key.decode(errors="replace")
    return (
        record.partition,
        record.offset,
        format_time(letter.time_ms),
        f"{letter.source.topic}/{letter.source.partition} {letter.source_offset}",
        letter.group,
        letter.attempts,
        shortened(key, KEY_WIDTH),
        shortened(f"{letter.error}: {letter.message}", ERROR_WIDTH),
    )


def shortened(text: str, width: int) -> str:
    """Shorten text to one line of at most `width` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 1]}…"


def letter_json(letter: DeadLetter) -> dict[str, Json]:
    """Convert a letter to one JSON document: the original record, its present position, and the failure."""
    record = letter.record
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "group": letter.group,
        "from_topic": letter.source.topic,
        "from_partition": letter.source.partition,
        "from_offset": letter.source_offset,
        "attempts": letter.attempts,
        "error": letter.error,
        "message": letter.message,
        "given_up_ms": letter.time_ms,
        "timestamp": record.timestamp,
        "key": text_or_base64(record.key),
        "value": text_or_base64(record.value),
        "headers": [[name, text_or_base64(value)] for name, value in letter.own_headers],
    }
