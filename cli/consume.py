"""``raftmq consume``: print records of a topic."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from raftmq.cli.completion import complete_group
from raftmq.cli.exit_codes import CommandError, ExitCode, reported_question, sentence_of
from raftmq.cli.numbers import WholeNumber
from raftmq.cli.options import (
    COUNT_MAX,
    DEFAULT_TIMEOUT,
    OFFSET_MAX,
    BootstrapOption,
    TimeoutOption,
    TopicArgument,
)
from raftmq.cli.output import text_or_base64
from raftmq.cli.record_filter import HeaderFilterOption, KeyFilterOption, record_filter
from raftmq.cli.record_format import RecordFormat
from raftmq.cli.times import parse_time_ms
from raftmq.cluster_addresses import DEFAULT_BOOTSTRAP
from raftmq.errors import OffsetOutOfRangeError, RaftMQError

if TYPE_CHECKING:
    from raftmq.client.consumer.consumer import Consumer
    from raftmq.types import Record, TopicPartition

POLL_MS = 500
"""How long one poll waits for records: a Ctrl-C is noticed at once all the same."""
POLL_RECORDS = 10_000


class RecordOutput(StrEnum):
    """How a record is printed."""

    TEXT = "text"
    JSON = "json"
    RAW = "raw"


def text_line(record: Record, key_separator: str | None) -> bytes:
    """A record as a line: its value, after its key if a separator was asked for; a tombstone's value is empty."""
    value = record.value if record.value is not None else b""
    if key_separator is None:
        return value + b"\n"
    return (record.key or b"") + os.fsencode(key_separator) + value + b"\n"


def json_line(record: Record) -> bytes:
    """A record as one JSON object on one line."""
    import json

    described = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": text_or_base64(record.key),
        "value": text_or_base64(record.value),
        "headers": [[name, text_or_base64(value)] for name, value in record.headers],
    }
    return json.dumps(described, ensure_ascii=False).encode() + b"\n"


def raw_bytes(record: Record) -> bytes:
    """A record's value and nothing else."""
    return record.value or b""


@reported_question
def consume(
    topic: TopicArgument,
    partition: Annotated[
        list[int] | None,
        typer.Option(
            "--partition",
            "-p",
            parser=WholeNumber(0, COUNT_MAX),
            metavar="N",
            help="Only this partition. Repeat it for several.",
        ),
    ] = None,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Start at the oldest record, not at the end.")
    ] = False,
    offset: Annotated[
        int | None,
        typer.Option("--offset", parser=WholeNumber(0, OFFSET_MAX), metavar="OFFSET", help="Start at this offset."),
    ] = None,
    from_time: Annotated[
        int | None,
        typer.Option(
            "--from-time",
            parser=parse_time_ms,
            metavar="TIME",
            help="Start at the first record appended at or after a time: 2026-01-31T12:00:00Z, 15m (ago), or milliseconds since 1970.",
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            metavar="GROUP",
            autocompletion=complete_group,
            help="Read as a member of this consumer group: share the partitions, begin where it is, commit what was printed.",
        ),
    ] = None,
    key: KeyFilterOption = None,
    header: HeaderFilterOption = None,
    max_records: Annotated[
        int | None,
        typer.Option(
            "--max-records",
            "-n",
            parser=WholeNumber(1, OFFSET_MAX),
            metavar="N",
            help="End after this many printed records.",
        ),
    ] = None,
    exit_at_end: Annotated[
        bool,
        typer.Option("--exit-at-end", "-e", help="End when everything that was there at the start has been printed."),
    ] = False,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-k", metavar="TEXT", help="Print keys too, and this between key and value."),
    ] = None,
    record_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-f",
            metavar="TEMPLATE",
            help="Print each record by a template: %t topic, %p partition, %o offset, %k key, %s value, %h headers, "
            "%T timestamp (ms), %K and %S bytes of key and value (-1: none), %% a percent sign; \\n \\t \\r \\0.",
        ),
    ] = None,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: Annotated[
        RecordOutput,
        typer.Option(
            "--output",
            "-o",
            help="'text': one value a line. 'json': one object a line, with everything. 'raw': the bytes of the values alone.",
        ),
    ] = RecordOutput.TEXT,
) -> None:
    """Print the records of a topic, one a line, until Ctrl-C.

    Ends with code 3 when the cluster stays silent for --timeout. Without --group nothing is committed: each run starts where it is
    told to. With it, --from-beginning counts only where the group has committed nothing; with --partition, nobody shares. SIGTERM ends
    it as Ctrl-C does: with a group, what was printed is committed, and so are the records before it that a filter left out.
    """
    import asyncio

    if sum((from_beginning, offset is not None, from_time is not None)) > 1:
        raise typer.BadParameter("give one of --from-beginning, --offset and --from-time")
    if group is not None and (offset is not None or from_time is not None):
        raise typer.BadParameter(
            "a group begins where it is: raftmq group reset-offsets moves it", param_hint="--offset/--from-time"
        )
    if key_separator is not None and output is not RecordOutput.TEXT:
        raise typer.BadParameter("only --output text has separators", param_hint="--key-separator")
    if record_format is not None and (key_separator is not None or output is not RecordOutput.TEXT):
        raise typer.BadParameter("it replaces --output and --key-separator: leave them out", param_hint="--format")

    formats: dict[RecordOutput, Callable[[Record], bytes]] = {
        RecordOutput.TEXT: lambda record: text_line(record, key_separator),
        RecordOutput.JSON: json_line,
        RecordOutput.RAW: raw_bytes,
    }
    show = formats[output] if record_format is None else RecordFormat(record_format)
    matches = record_filter(key, header)

    async def run() -> bool:
        """Whether a signal ended it."""
        from raftmq.client.consumer.consumer import Consumer
        from raftmq.types import TopicPartition

        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # asyncio does so at Ctrl-C

        has_start = offset is not None or from_time is not None
        consumer = Consumer(
            *(() if partition else (topic,)),  # a topic's name alone means all of its partitions
            bootstrap_servers=bootstrap_servers,
            group_id=group,
            auto_offset_reset="none" if has_start else "earliest" if from_beginning else "latest",
            request_timeout_ms=timeout * 1000,
        )
        async with consumer:
            if partition:
                consumer.assign([TopicPartition(topic, number) for number in partition])
            if offset is not None:
                await seek_to_offset(consumer, offset)
            if from_time is not None:
                await seek_to_time(consumer, from_time)
            names = (
                [TopicPartition(topic, number) for number in partition] if partition else await all_of(consumer, topic)
            )
            ends = await consumer.end_offsets(names) if exit_at_end else None
            try:
                await print_records(
                    consumer, show, matches, max_records, ends, timeout, names, is_member=bool(group and not partition)
                )
            except asyncio.CancelledError:
                task.uncancel()  # the way to end it: what was printed is committed, and the group is left in order
                return True
        return False

    try:
        is_interrupted = asyncio.run(run())
    except asyncio.CancelledError:  # SIGTERM before there was anything to print
        is_interrupted = True
    if is_interrupted:
        raise KeyboardInterrupt


async def seek_to_offset(consumer: Consumer, offset: int) -> None:
    """Start every assigned partition at one offset. Raises `OffsetOutOfRangeError` where it does not exist."""
    starts = await consumer.beginning_offsets(consumer.assignment())
    ends = await consumer.end_offsets(consumer.assignment())
    for tp in sorted(consumer.assignment()):
        if not starts[tp] <= offset <= ends[tp]:
            raise OffsetOutOfRangeError(
                f"{tp.topic}/{tp.partition} has no offset {offset}: the first is {starts[tp]}, the next record gets {ends[tp]}"
            )
        await consumer.seek(tp, offset)


async def seek_to_time(consumer: Consumer, time_ms: int) -> None:
    """Start every assigned partition at the first record of a time; at its end where nothing is as new."""
    ends = await consumer.end_offsets(consumer.assignment())  # before the question: what comes after it must be printed
    found = await consumer.offsets_for_times(dict.fromkeys(consumer.assignment(), time_ms))
    for tp, at in found.items():
        await consumer.seek(tp, at.offset if at is not None else ends[tp])


async def print_records(
    consumer: Consumer,
    show: Callable[[Record], bytes],
    matches: Callable[[Record], bool] | None,
    count_max: int | None,
    ends: dict[TopicPartition, int] | None,
    silence_seconds: float,
    names: list[TopicPartition],
    *,
    is_member: bool,
) -> None:
    """Print until there were enough, or the ends are reached. Raises what the cluster answers, and that it does not."""
    import asyncio

    loop = asyncio.get_running_loop()
    left, heard_at = count_max, loop.time()
    while (left is None or left > 0) and (ends is None or not await has_reached(consumer, ends, is_member=is_member)):
        polled = await consumer.getmany(timeout_ms=POLL_MS, max_records=min(left or POLL_RECORDS, POLL_RECORDS))
        for found in polled.values():
            records = found if matches is None else list(filter(matches, found))
            sys.stdout.buffer.writelines(map(show, records))
            left = left - len(records) if left is not None else None
        sys.stdout.buffer.flush()
        if polled:
            heard_at = loop.time()
        elif is_reader_gone(sys.stdout.fileno()):
            raise BrokenPipeError
        elif loop.time() - heard_at > silence_seconds:
            await ask_for_life(consumer, silence_seconds, names)
            heard_at = loop.time()


async def ask_for_life(consumer: Consumer, silence_seconds: float, names: list[TopicPartition]) -> None:
    """No records may mean that there are none, or that there is no cluster any more. Raises in the second case."""
    try:
        await consumer.end_offsets(names)
    except RaftMQError as error:
        if not error.retriable:
            raise
        raise CommandError(
            f"the cluster is silent for {silence_seconds:g} s: {sentence_of(error, is_question=True)}",
            ExitCode.UNAVAILABLE,
        ) from error


async def has_reached(consumer: Consumer, ends: dict[TopicPartition, int], *, is_member: bool) -> bool:
    """Whether everything before the ends has been handed out; by whichever member of a group: then it is committed."""
    mine = consumer.assignment()
    for tp in ends.keys() & mine:
        if await consumer.position(tp) < ends[tp]:
            return False
    others = [tp for tp in ends if tp not in mine]
    if not others or not is_member:
        return not others
    committed = await consumer.committed(*others)
    return all((committed[tp] or 0) >= ends[tp] for tp in others)


async def all_of(consumer: Consumer, topic: str) -> list[TopicPartition]:
    """Every partition of the topic, whoever reads it."""
    from raftmq.types import TopicPartition

    return [TopicPartition(topic, number) for number in range(await consumer.partition_count(topic))]


def is_reader_gone(descriptor: int) -> bool:
    """Whether a pipe's other end is closed: without records to write, nothing else would tell."""
    poller = select.poll()
    poller.register(descriptor, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poller.poll(0))
