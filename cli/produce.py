"""``raftmq produce``: write records from lines of standard input or of a file."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer
from raftmq.cli.exit_codes import CommandError, ExitCode, reported
from raftmq.cli.input_lines import InputFormat, read_lines
from raftmq.cli.numbers import WholeNumber
from raftmq.cli.options import (
    COUNT_MAX,
    DEFAULT_TIMEOUT,
    BootstrapOption,
    TimeoutOption,
    TopicArgument,
)
from raftmq.cli.output import Output, OutputOption, print_json
from raftmq.cluster_addresses import DEFAULT_BOOTSTRAP
from raftmq.errors import Outcome, RaftMQError, RecordTooLargeError

if TYPE_CHECKING:
    from raftmq.cli.input_records import InputRecord, LineParser
    from raftmq.client.producer.producer import Producer

T = TypeVar("T")

BUFFER_BYTES = 16 * 1024 * 1024
"""Maximum bytes of records that are read and not yet acknowledged. Each record has the whole --timeout from being read,
so 1 MB/s is fast enough for the default."""
FAREWELL_SECONDS = 1.0
"""Time after Ctrl-C in which records that were read already may still be acknowledged: a person who typed one expects
it to be there."""


class Compression(StrEnum):
    """Choose the codec of record batches."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"
    SNAPPY = "snappy"
    GZIP = "gzip"


CODECS: dict[Compression, Literal["lz4", "zstd", "snappy", "gzip"] | None] = {
    Compression.NONE: None,
    Compression.LZ4: "lz4",
    Compression.ZSTD: "zstd",
    Compression.SNAPPY: "snappy",
    Compression.GZIP: "gzip",
}


class Deliveries:
    """Hold the records handed to the producer, in order, until their outcomes are known."""

    def __init__(self) -> None:
        self._pending: deque[tuple[Callable[[], bool], Awaitable[object], int]] = deque()
        self.taken_count = 0
        """Number of records that the producer has accepted."""
        self.written_count = 0
        """Number of records known to be on disk on a majority."""

    def add(self, is_done: Callable[[], bool], outcome: Awaitable[object], count: int) -> None:
        """Add `count` records."""
        self.taken_count += count
        self._pending.append((is_done, outcome, count))

    async def collect(self) -> None:
        """Collect every known outcome. The first failure is raised immediately, not at the end of an endless input."""
        while self._pending and self._pending[0][0]():
            _, outcome, count = self._pending.popleft()
            await outcome
            self.written_count += count

    async def worst(self, error: RaftMQError) -> RaftMQError:
        """Return the error to report after closing the producer. An error with an unknown outcome takes precedence over
        `error`.
        """
        pending, self._pending = self._pending, deque()
        for is_done, outcome, count in pending:
            if is_done():
                try:
                    await outcome
                    self.written_count += count
                except RaftMQError as other:
                    if error.outcome is not Outcome.UNKNOWN and other.outcome is Outcome.UNKNOWN:
                        error = other
        return error


@reported
def produce(
    topic: TopicArgument,
    value: Annotated[
        str | None,
        typer.Option("--value", metavar="VALUE", help="Write one record with this value instead of reading input."),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", metavar="KEY", help="Key of every record.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", exists=True, dir_okay=False, help="Read lines from a file instead of standard input."
        ),
    ] = None,
    input_format: Annotated[
        InputFormat,
        typer.Option(
            "--format",
            help="'lines': each line is a value. 'json': each line is a JSON document and becomes the value.  "
            "'records': each line describes a record with key, headers and timestamp, as consume --output json writes it.",
        ),
    ] = InputFormat.LINES,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-k", metavar="TEXT", help="Text between key and value in each line."),
    ] = None,
    key_field: Annotated[
        str | None,
        typer.Option(
            "--key-field", metavar="NAME[.NAME...]", help="With --format json: the field that contains the key."
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header", "-H", metavar="NAME=VALUE", help="Header added to every record. Repeat it for several headers."
        ),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(
            "--partition", "-p", parser=WholeNumber(0, COUNT_MAX), metavar="N", help="Write to this partition only."
        ),
    ] = None,
    compression: Annotated[
        Compression, typer.Option("--compression", help="Compression codec of the record batches.")
    ] = Compression.NONE,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Write one record for each line of the input, or one record with --value.

    The command ends when every record is on disk on a majority of the replicas. The topic must exist. If a record is
    not acknowledged within --timeout (at most 1h), the command ends and reports the number of written records. If a
    line is not a valid record, it ends and reports the line's number.
    """
    import asyncio

    from raftmq.cli.input_records import line_parser, parse_headers

    check_options(value, key, file, input_format, key_separator, key_field)
    try:
        headers = parse_headers(header)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--header") from None
    parse = line_parser(
        input_format,
        key=os.fsencode(key) if key is not None else None,
        key_separator=os.fsencode(key_separator) if key_separator is not None else None,
        key_field=key_field,
        headers=headers,
    )

    async def run(read: Callable[[], AsyncIterator[tuple[list[bytes], int]]], size: int | None) -> int:
        from raftmq.client.base.settings import DELIVERY_TIMEOUT_MS_MAX
        from raftmq.client.producer.producer import Producer

        producer = Producer(
            bootstrap_servers=bootstrap_servers,
            compression_type=CODECS[compression],
            buffer_memory=BUFFER_BYTES,
            max_block_ms=timeout * 1000,
            delivery_timeout_ms=min(timeout * 1000, DELIVERY_TIMEOUT_MS_MAX),
        )
        await producer.start()
        deliveries = Deliveries()
        with progress_bar(f"producing to {topic}", size) as advance:
            try:
                await write_lines(producer, topic, partition, read(), parse, deliveries, advance)
            except RaftMQError as error:
                worst = await close_after(producer, deliveries, error)
                raise with_count(worst, "records known to be written", deliveries.written_count) from worst.__cause__
            finally:
                await print_summary(producer)
        return deliveries.written_count

    if value is not None:
        count = asyncio.run(run(lambda: one_line(os.fsencode(value)), None))
    elif file is not None:
        with file.open("rb") as opened:
            count = asyncio.run(run(lambda: read_lines(opened.fileno()), file.stat().st_size))
    else:
        if sys.stdin.isatty():
            print("one record per line; Ctrl-D ends", file=sys.stderr)
        count = asyncio.run(run(lambda: read_lines(sys.stdin.fileno()), None))
    if output is Output.JSON:
        print_json({"topic": topic, "records": count})
    else:
        print(f"{count} record{'' if count == 1 else 's'} written to {topic}")


def check_options(
    value: str | None,
    key: str | None,
    file: Path | None,
    input_format: InputFormat,
    key_separator: str | None,
    key_field: str | None,
) -> None:
    """Raise `typer.BadParameter` for options that contradict each other."""
    if value is not None:
        others = {
            "--file": file is not None,
            "--format": input_format is not InputFormat.LINES,
            "--key-separator": key_separator is not None,
        }
        for option, is_given in others.items():
            if is_given:
                raise typer.BadParameter("do not combine it with --value", param_hint=option)
    if key_field is not None and input_format is not InputFormat.JSON:
        raise typer.BadParameter("use it only with --format json", param_hint="--key-field")
    if key_separator is not None and input_format is not InputFormat.LINES:
        raise typer.BadParameter("use it only with --format lines", param_hint="--key-separator")
    if key_separator == "":
        raise typer.BadParameter("give at least one character", param_hint="--key-separator")
    if key is not None and (key_separator is not None or key_field is not None or input_format is InputFormat.RECORDS):
        raise typer.BadParameter("each line already has its own key", param_hint="--key")


async def one_line(line: bytes) -> AsyncIterator[tuple[list[bytes], int]]:
    """Yield an input of one line."""
    yield [line], len(line)


async def write_lines(
    producer: Producer,
    topic: str,
    partition: int | None,
    lines_read: AsyncIterator[tuple[list[bytes], int]],
    parse: LineParser,
    deliveries: Deliveries,
    advance: Callable[[int, int], None],
) -> None:
    """Write all lines of the input, and return when every record is acknowledged. `advance` gets numbers of bytes and
    records.
    """
    number = 1
    await producer.send_many(topic, ())  # fails if the topic does not exist, before a person types a line
    try:
        async for lines, taken_bytes in lines_read:
            records, numbers, problem = parse_lines(lines, parse, number)
            taken_before = deliveries.taken_count
            try:
                await send(producer, topic, partition, records, deliveries)
            except RecordTooLargeError as error:
                problem = f"line {numbers[deliveries.taken_count - taken_before]}: {error}"
            if problem is not None:
                raise CommandError(f"{problem}; the lines before it are written", ExitCode.BAD_DATA)  # noqa: TRY301 (read_lines raises the same)
            number += len(lines)
            await deliveries.collect()
            advance(taken_bytes, deliveries.written_count)
    except CommandError:
        await producer.flush()  # the message says that the lines before it are written
        raise
    await producer.flush()
    await deliveries.collect()


def parse_lines(
    lines: Sequence[bytes], parse: Callable[[bytes], T | None], first_number: int
) -> tuple[list[T], list[int], str | None]:
    """Return the records before the first invalid line, their line numbers, and the problem of the invalid line."""
    from raftmq.cli.input_records import BadLineError

    records: list[T] = []
    numbers: list[int] = []
    for number, line in enumerate(lines, first_number):
        try:
            record = parse(line)
        except BadLineError as error:
            return records, numbers, f"line {number}: {error}"
        if record is not None:
            records.append(record)
            numbers.append(number)
    return records, numbers, None


async def send(
    producer: Producer, topic: str, partition: int | None, records: list[InputRecord], deliveries: Deliveries
) -> None:
    """Send records in order: in one call if none has headers or a timestamp.

    Raises:
        RecordTooLargeError: A record is larger than the topic accepts. Exactly the records before it were sent.
    """
    from raftmq.client.producer.batch import BulkDelivery

    if all(not record.headers and record.timestamp_ms is None for record in records):
        if records:
            pairs = [(record.key, record.value) for record in records]
            many = BulkDelivery()
            try:
                await producer.send_many(topic, pairs, partition=partition, into=many)
            finally:
                deliveries.add(many.done, many, many.count)
        return
    for key, value, headers, timestamp_ms in records:
        one = await producer.send(topic, value, key, partition, timestamp_ms, headers)
        deliveries.add(one.done, one, 1)


async def close_after(producer: Producer, deliveries: Deliveries, error: RaftMQError) -> RaftMQError:
    """Close the producer, collect every outcome (which takes at most --timeout), and return the error to report."""
    with suppress(RaftMQError):  # its batches report the same below
        await producer.close()
    return await deliveries.worst(error)


async def print_summary(producer: Producer) -> None:
    """Close the producer, and give records in flight a moment."""
    import asyncio

    try:
        async with asyncio.timeout(FAREWELL_SECONDS):
            await producer.close()
    except (TimeoutError, RaftMQError):
        return


def with_count(error: RaftMQError, what: str, count: int) -> RaftMQError:
    """Append a number to the error's message and return the error. Unless it is 0, a repetition would write twice: the outcome is unknown."""
    if count:
        error.args = (f"{error.args[0]} ({what}: {count})", *error.args[1:])
        error.outcome = Outcome.UNKNOWN
    return error


@contextmanager
def progress_bar(what: str, size: int | None) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar for a file of `size` bytes, or a count if the size is unknown. Show nothing without a
    terminal.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TransferSpeedColumn

    is_shown = sys.stderr.isatty() and not (size is None and sys.stdin.isatty())
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[records]:,} records"),
    )
    with Progress(
        *columns,
        TransferSpeedColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        disable=not is_shown,
        transient=True,
    ) as bar:
        task = bar.add_task(what, total=size, records=0)
        yield lambda taken_bytes, records: bar.update(task, advance=taken_bytes, records=records)
