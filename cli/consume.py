"""``raftmq consume``: print records of a topic."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
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
"""How long one poll waits for records. A Ctrl-C is still noticed immediately."""
POLL_RECORDS = 10_000
STALLED_SECONDS = 2.0
"""Time after a signal in which the reader of the output may take the records that it still gets."""


class RecordOutput(StrEnum):
    """Choose the form in which a record is printed."""

    TEXT = "text"
    JSON = "json"
    RAW = "raw"


def text_line(record: Record, key_separator: str | None) -> bytes:
    """Format a record as a line: its value, after its key if a separator was given. A tombstone's value is empty."""
    value = record.value if record.value is not None else b""
    if key_separator is None:
        return value + b"\n"
    return (record.key or b"") + os.fsencode(key_separator) + value + b"\n"


def json_line(record: Record) -> bytes:
    """Format a record as one JSON object on one line."""
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
    """Return only a record's value."""
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
            help="Read only this partition. Repeat it for several partitions.",
        ),
    ] = None,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Start at the oldest record instead of the end.")
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
            help="Start at the first record with a timestamp at or after a time: 2026-01-31T12:00:00Z, 15m (ago), or milliseconds since 1970.",
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            metavar="GROUP",
            autocompletion=complete_group,
            help="Read as a member of this consumer group: share its partitions, start at its committed offsets, and commit printed records.",
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
            help="Stop after this many printed records.",
        ),
    ] = None,
    exit_at_end: Annotated[
        bool,
        typer.Option("--exit-at-end", "-e", help="Stop when all records that existed at the start have been printed."),
    ] = False,
    key_separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator",
            "-k",
            metavar="TEXT",
            help="Print each record's key too, with this text between key and value.",
        ),
    ] = None,
    record_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-f",
            metavar="TEMPLATE",
            help="Print each record with a template: %t topic, %p partition, %o offset, %k key, %s value, %h headers, "
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
            help="'text': one value per line. 'json': one complete object per line. 'raw': only the bytes of the values.",
        ),
    ] = RecordOutput.TEXT,
) -> None:
    """Print the records of a topic, one per line, until Ctrl-C.

    Ends with code 3 when the cluster does not answer for --timeout. Without --group nothing is committed, and each run
    starts where its options say. With --group, --from-beginning applies only where the group has no committed offset,
    and --partition reads the partitions without sharing them. SIGTERM ends the command as Ctrl-C does: with a group,
    the printed records are committed, and so are records before them that a filter left out.
    """
    import asyncio

    if sum((from_beginning, offset is not None, from_time is not None)) > 1:
        raise typer.BadParameter("give only one of --from-beginning, --offset and --from-time")
    if group is not None and (offset is not None or from_time is not None):
        raise typer.BadParameter(
            "a group starts at its committed offsets: use raftmq group reset-offsets to change them",
            param_hint="--offset/--from-time",
        )
    if key_separator is not None and output is not RecordOutput.TEXT:
        raise typer.BadParameter("use it only with --output text", param_hint="--key-separator")
    if record_format is not None and (key_separator is not None or output is not RecordOutput.TEXT):
        raise typer.BadParameter("do not combine it with --output or --key-separator", param_hint="--format")

    formats: dict[RecordOutput, Callable[[Record], bytes]] = {
        RecordOutput.TEXT: lambda record: text_line(record, key_separator),
        RecordOutput.JSON: json_line,
        RecordOutput.RAW: raw_bytes,
    }
    show = formats[output] if record_format is None else RecordFormat(record_format)
    matches = record_filter(key, header)

    async def run() -> bool:
        """Return whether a signal ended the loop."""
        from raftmq.client.base.stop_requests import on_signal
        from raftmq.client.consumer.consumer import Consumer
        from raftmq.types import TopicPartition

        task = asyncio.current_task()
        assert task is not None
        on_signal(signal.SIGTERM, task.cancel)  # asyncio does so at Ctrl-C

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
                task.uncancel()  # a normal end: printed records are committed, and the group is left in order
                return True
        return False

    try:
        is_interrupted = asyncio.run(run())
    except asyncio.CancelledError:  # SIGTERM before there was anything to print
        is_interrupted = True
    if is_interrupted:
        raise KeyboardInterrupt


async def seek_to_offset(consumer: Consumer, offset: int) -> None:
    """Start every assigned partition at one offset. Raises `OffsetOutOfRangeError` if a partition does not have it."""
    starts = await consumer.beginning_offsets(consumer.assignment())
    ends = await consumer.end_offsets(consumer.assignment())
    for tp in sorted(consumer.assignment()):
        if not starts[tp] <= offset <= ends[tp]:
            raise OffsetOutOfRangeError(
                f"{tp.topic}/{tp.partition} has no offset {offset}: the first is {starts[tp]}, the next record gets {ends[tp]}"
            )
        await consumer.seek(tp, offset)


async def seek_to_time(consumer: Consumer, time_ms: int) -> None:
    """Start every assigned partition at its first record at or after a time, or at its end if it has none."""
    ends = await consumer.end_offsets(
        consumer.assignment()
    )  # before the lookup: records that arrive after it must be printed
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
    """Print until the maximum or the ends are reached. Raises the cluster's errors, and `CommandError` if it does not
    answer.
    """
    import asyncio

    loop = asyncio.get_running_loop()
    left, heard_at = count_max, loop.time()
    while (left is None or left > 0) and (ends is None or not await has_reached(consumer, ends, is_member=is_member)):
        polled = await consumer.getmany(timeout_ms=POLL_MS, max_records=min(left or POLL_RECORDS, POLL_RECORDS))
        for found in polled.values():
            records = found if matches is None else list(filter(matches, found))
            await write_out(b"".join(map(show, records)))
            left = left - len(records) if left is not None else None
        if polled:
            heard_at = loop.time()
        elif is_reader_gone(sys.stdout.fileno()):
            raise BrokenPipeError
        elif loop.time() - heard_at > silence_seconds:
            await check_that_cluster_answers(consumer, silence_seconds, names)
            heard_at = loop.time()


async def write_out(data: bytes) -> None:
    """Write to standard output in a daemon thread: a reader that has stalled, such as a pager, keeps neither a signal nor the session waiting.

    Raises:
        CommandError: A signal came, and the reader does not take the rest. The records are then not committed.
    """
    import asyncio

    if not data:
        return
    loop = asyncio.get_running_loop()
    written: asyncio.Future[OSError | None] = loop.create_future()

    def finish(error: OSError | None) -> None:
        if not written.done():
            written.set_result(error)

    def write() -> None:
        problem: OSError | None = None
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(sys.stdout.fileno(), rest) :]
        except OSError as error:
            problem = error
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(finish, problem)

    threading.Thread(target=write, name="raftmq-output", daemon=True).start()
    try:
        await asyncio.wait([written])
    except asyncio.CancelledError:
        await asyncio.wait([written], timeout=STALLED_SECONDS)
        if not written.done():
            raise CommandError("the reader of the output has stopped reading", ExitCode.INTERRUPTED) from None
        if written.result() is None:
            raise
    error = written.result()
    if error is not None:
        raise error


async def check_that_cluster_answers(consumer: Consumer, silence_seconds: float, names: list[TopicPartition]) -> None:
    """Raise if the cluster does not answer. No records may mean that there are none, or that the cluster cannot be
    reached.
    """
    try:
        await consumer.end_offsets(names)
    except RaftMQError as error:
        if not error.retriable:
            raise
        raise CommandError(
            f"the cluster has not answered for {silence_seconds:g} s: {sentence_of(error, is_question=True)}",
            ExitCode.UNAVAILABLE,
        ) from error


async def has_reached(consumer: Consumer, ends: dict[TopicPartition, int], *, is_member: bool) -> bool:
    """Return whether all records before the ends were consumed: by this consumer, or committed by other members of its
    group.
    """
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
    """Return every partition of the topic, also those that other members read."""
    from raftmq.types import TopicPartition

    return [TopicPartition(topic, number) for number in range(await consumer.partition_count(topic))]


def is_reader_gone(descriptor: int) -> bool:
    """Return whether the other end of a pipe is closed. Without records to write, nothing else would show it. Windows cannot tell."""
    if not hasattr(select, "poll"):
        return False
    poller = select.poll()
    poller.register(descriptor, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poller.poll(0))
