"""``raftmq queue put``: enqueue messages from lines or options."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from raftmq.cli.exit_codes import CommandError, ExitCode, reported
from raftmq.cli.input_lines import read_lines
from raftmq.cli.options import DEFAULT_TIMEOUT, BootstrapOption, TimeoutOption, TopicArgument
from raftmq.cli.output import Json, Output, OutputOption, counted, print_json
from raftmq.cli.produce import parse_lines, progress_bar, with_count
from raftmq.cli.queue.calls import run_queue
from raftmq.cli.queue.message_lines import MessageFormat, MessageParser, message_parser
from raftmq.cli.queue.options import (
    DelayOption,
    ExpiresOption,
    HeaderOption,
    KeyOption,
    NotBeforeOption,
    PriorityOption,
    TenantOption,
    milliseconds,
)
from raftmq.cluster_addresses import DEFAULT_BOOTSTRAP
from raftmq.errors import Outcome, RaftMQError, RecordTooLargeError

if TYPE_CHECKING:
    from raftmq.client.queue.new_message import NewMessage
    from raftmq.client.queue.put_batch import PutResult
    from raftmq.client.queue.queue import Queue

Lines = Callable[[], AsyncIterator[tuple[list[bytes], int]]]


@dataclass
class PutCounts:
    """Count the messages that are known to be put."""

    messages: int = 0
    deduplicated: int = 0
    """Those of them whose id was known, so that nothing was enqueued."""
    replaced: int = 0
    """Those that replaced a waiting message."""

    def add(self, results: list[PutResult]) -> None:
        """Add outcomes."""
        self.messages += len(results)
        self.deduplicated += sum(result.is_deduplicated for result in results)
        self.replaced += sum(result.replaced_sequence is not None for result in results)


@reported
def put(
    topic: TopicArgument,
    value: Annotated[
        str | None,
        typer.Option("--value", metavar="VALUE", help="Put one message with this value instead of reading input."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", exists=True, dir_okay=False, help="Read lines from a file instead of standard input."
        ),
    ] = None,
    message_format: Annotated[
        MessageFormat,
        typer.Option(
            "--format",
            help="'lines': each line is a value. 'json': each line is a JSON document and becomes the value. "
            "'messages': each line describes a message, as browse --values --output json writes it.",
        ),
    ] = MessageFormat.LINES,
    key: KeyOption = None,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-k", metavar="TEXT", help="Text between key and value in each line."),
    ] = None,
    key_field: Annotated[
        str | None,
        typer.Option("--key-field", metavar="NAME[.NAME...]", help="With --format json: the field with the key."),
    ] = None,
    tenant: TenantOption = None,
    tenant_field: Annotated[
        str | None,
        typer.Option("--tenant-field", metavar="NAME[.NAME...]", help="With --format json: the field with the tenant."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--id", metavar="ID", help="With --value: the message's id. A known id enqueues nothing (see --replace)."
        ),
    ] = None,
    id_field: Annotated[
        str | None,
        typer.Option("--id-field", metavar="NAME[.NAME...]", help="With --format json: the field with the id."),
    ] = None,
    replaces: Annotated[
        bool, typer.Option("--replace", help="Replace the waiting message with the same id, if there is one.")
    ] = False,
    priority: PriorityOption = None,
    delay: DelayOption = None,
    not_before: NotBeforeOption = None,
    expires: ExpiresOption = None,
    header: HeaderOption = None,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Put one message for each line of the input, or one message with --value.

    The command ends when every message is on disk on a majority of the replicas. If a message is not acknowledged within
    --timeout (at most 1h), the command ends and reports the number of messages that are known to be put. If a line is
    not a valid message, it ends and reports the line's number. Messages with ids can be put again safely.
    """
    from raftmq.client.queue.new_message import NewMessage

    check_options(value, file, message_format, key, key_separator, name, (key_field, tenant_field, id_field))
    common = NewMessage(
        b"" if value is None else os.fsencode(value),
        None if key is None else os.fsencode(key),
        tenant,
        priority or 0,
        milliseconds(delay) or 0,
        not_before,
        name,
        milliseconds(expires),
        headers_of(header),
        replaces,
    )
    check_common(
        common, is_with_id=name is not None or id_field is not None or message_format is MessageFormat.MESSAGES
    )
    if value is not None:
        print_single(topic, run_queue(topic, bootstrap_servers, timeout, lambda queue: put_one(queue, common)), output)
        return
    parse = message_parser(
        message_format,
        common,
        key_separator=key_separator,
        key_field=key_field,
        tenant_field=tenant_field,
        id_field=id_field,
    )
    counts = PutCounts()

    def run(read: Lines, size: int | None) -> None:
        async def put_all(queue: Queue[bytes]) -> None:
            with progress_bar(f"putting into {topic}", size) as advance:
                await put_lines(queue, read(), parse, counts, advance)

        try:
            run_queue(topic, bootstrap_servers, timeout, put_all)
        except RaftMQError as error:
            raise with_count(error, "messages known to be put", counts.messages) from error.__cause__

    if file is not None:
        with file.open("rb") as opened:
            run(lambda: read_lines(opened.fileno()), file.stat().st_size)
    else:
        if sys.stdin.isatty():
            print("one message per line; Ctrl-D ends", file=sys.stderr)
        run(lambda: read_lines(sys.stdin.fileno()), None)
    print_counts(topic, counts, output)


def check_options(
    value: str | None,
    file: Path | None,
    message_format: MessageFormat,
    key: str | None,
    key_separator: str | None,
    name: str | None,
    fields: tuple[str | None, str | None, str | None],
) -> None:
    """Raise `typer.BadParameter` for options that contradict each other."""
    others = {
        "--file": file is not None,
        "--format": message_format is not MessageFormat.LINES,
        "--key-separator": key_separator is not None,
    }
    for option, is_given in others.items():
        if value is not None and is_given:
            raise typer.BadParameter("do not combine it with --value", param_hint=option)
    if name is not None and value is None:
        raise typer.BadParameter("use it only with --value: an id names one message", param_hint="--id")
    if key_separator is not None and message_format is not MessageFormat.LINES:
        raise typer.BadParameter("use it only with --format lines", param_hint="--key-separator")
    if key_separator == "":
        raise typer.BadParameter("give at least one character", param_hint="--key-separator")
    for option, field in zip(("--key-field", "--tenant-field", "--id-field"), fields, strict=True):
        if field is not None and message_format is not MessageFormat.JSON:
            raise typer.BadParameter("use it only with --format json", param_hint=option)
    if key is not None and key_separator is not None:
        raise typer.BadParameter("each line already has its own key", param_hint="--key")


def check_common(common: NewMessage[bytes], *, is_with_id: bool) -> None:
    """Check the options of every message before any is read. Raises `InvalidArgumentError` or `typer.BadParameter`."""
    from msgspec.structs import replace
    from raftmq.client.queue.new_message import check_message
    from raftmq.message_checks import MESSAGE_BYTES_MAX

    if common.replace and not is_with_id:
        raise typer.BadParameter("it needs ids: give --id, --id-field or --format messages", param_hint="--replace")
    check_message(replace(common, replace=False), None, MESSAGE_BYTES_MAX)


async def put_one(queue: Queue[bytes], message: NewMessage[bytes]) -> PutResult:
    """Put one message."""
    (result,) = await queue.put_many([message])
    return result


async def put_lines(
    queue: Queue[bytes],
    lines_read: AsyncIterator[tuple[list[bytes], int]],
    parse: MessageParser,
    counts: PutCounts,
    advance: Callable[[int, int], None],
) -> None:
    """Put the messages of all lines. `advance` gets numbers of bytes and messages.

    Raises:
        CommandError: A line is not a message that the topic accepts. The messages before it are put.
        RaftMQError: The errors of `Queue.put_many`.
    """
    number = 1
    async for lines, taken_bytes in lines_read:
        messages, numbers, problem = parse_lines(lines, parse, number)
        given = _Given(messages)
        try:
            counts.add(await queue.put_many(given))
        except RecordTooLargeError as error:
            if given.is_exhausted:
                raise
            counts.messages += given.count - 1
            problem = f"line {numbers[given.count - 1]}: {error.args[0]}"
        except RaftMQError as error:
            if given.count > 1 and not given.is_exhausted:
                error.outcome = Outcome.UNKNOWN  # the messages before it may be put
            raise
        if problem is not None:
            raise CommandError(f"{problem}; the lines before it are put", ExitCode.BAD_DATA)
        number += len(lines)
        advance(taken_bytes, counts.messages)


class _Given:
    """Hand out messages, and tell how many were taken: a refused message is the last that was."""

    def __init__(self, messages: list[NewMessage[bytes]]) -> None:
        self._messages = messages
        self.count = 0
        self.is_exhausted = False

    def __iter__(self) -> Iterator[NewMessage[bytes]]:
        for message in self._messages:
            self.count += 1
            yield message
        self.is_exhausted = True


def print_single(topic: str, result: PutResult, output: Output) -> None:
    """Print the outcome of one message."""
    if output is Output.JSON:
        print_json(
            {
                "topic": topic,
                "partition": result.partition,
                "sequence": result.sequence,
                "is_deduplicated": result.is_deduplicated,
                "replaced_sequence": result.replaced_sequence,
            }
        )
    elif result.is_deduplicated:
        print(f"nothing put into {topic}: the id is known")
    else:
        replaced = "" if result.replaced_sequence is None else f", instead of {result.replaced_sequence}"
        where = "" if result.sequence is None else f"sequence {result.sequence} of "
        print(f"1 message put into {topic}: {where}partition {result.partition}{replaced}")


def print_counts(topic: str, counts: PutCounts, output: Output) -> None:
    """Print the outcome of an input."""
    if output is Output.JSON:
        numbers: dict[str, Json] = {
            "messages": counts.messages,
            "deduplicated": counts.deduplicated,
            "replaced": counts.replaced,
        }
        print_json({"topic": topic, **numbers})
        return
    known = f", {counts.deduplicated} with known ids not enqueued again" if counts.deduplicated else ""
    replaced = f", {counts.replaced} of them instead of waiting ones" if counts.replaced else ""
    print(f"{counted(counts.messages - counts.deduplicated, 'message')} put into {topic}{replaced}{known}")


def headers_of(header: list[str] | None) -> tuple[tuple[str, bytes], ...]:
    """Parse ``--header`` options. Raises `typer.BadParameter`."""
    from raftmq.cli.input_records import parse_headers

    try:
        return parse_headers(header)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--header") from None
