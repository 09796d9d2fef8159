"""``raftmq consume``: print records of a topic."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from raftmq.cli.exit_codes import reported
from raftmq.cli.output import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT,
    BootstrapOption,
    Output,
    OutputOption,
    TimeoutOption,
    text_or_base64,
)
from raftmq.types import Record, TopicPartition

if TYPE_CHECKING:
    from raftmq.client.consumer import Consumer

POLL_MS = 500
"""How long one poll waits for records: a Ctrl-C is noticed at once all the same."""
POLL_RECORDS = 2_000


def text_line(record: Record, key_separator: str | None) -> bytes:
    """A record as a line: its value, after its key if a separator was asked for; a tombstone's value is empty."""
    value = record.value if record.value is not None else b""
    if key_separator is None:
        return value + b"\n"
    return (record.key or b"") + key_separator.encode() + value + b"\n"


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


@reported
def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Which topic.", show_default=False)],
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, help="Only this partition; may be given several times."),
    ] = None,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Start at the oldest record, not at the end.")
    ] = False,
    offset: Annotated[int | None, typer.Option("--offset", min=0, help="Start at this offset.")] = None,
    max_records: Annotated[
        int | None, typer.Option("--max-records", "-n", min=1, help="End after so many records.")
    ] = None,
    exit_at_end: Annotated[
        bool,
        typer.Option("--exit-at-end", "-e", help="End when everything that was there at the start has been printed."),
    ] = False,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-k", help="Print keys too, this between key and value.")
    ] = None,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Print the records of a topic, one a line, until Ctrl-C."""
    if from_beginning and offset is not None:
        raise typer.BadParameter("give --from-beginning or --offset, not both")

    def show(record: Record) -> bytes:
        return json_line(record) if output is Output.JSON else text_line(record, key_separator)

    async def run() -> None:
        from raftmq.client.consumer import Consumer

        consumer = Consumer(
            *(() if partition else (topic,)),  # a topic's name alone means all of its partitions
            bootstrap_servers=bootstrap_servers,
            auto_offset_reset="none" if offset is not None else "earliest" if from_beginning else "latest",
            request_timeout_ms=timeout * 1000,
        )
        async with consumer:
            if partition:
                consumer.assign([TopicPartition(topic, number) for number in partition])
            if offset is not None:
                for tp in consumer.assignment():
                    await consumer.seek(tp, offset)
            ends = await consumer.end_offsets(consumer.assignment()) if exit_at_end else None
            left = max_records
            while (left is None or left > 0) and (ends is None or not await has_reached(consumer, ends)):
                polled = await consumer.getmany(timeout_ms=POLL_MS, max_records=min(left or POLL_RECORDS, POLL_RECORDS))
                for records in polled.values():
                    sys.stdout.buffer.writelines(map(show, records))
                    left = left - len(records) if left is not None else None
                sys.stdout.buffer.flush()

    asyncio.run(run())


async def has_reached(consumer: Consumer, ends: dict[TopicPartition, int]) -> bool:
    """Whether everything before the ends has been handed out."""
    for tp, end in ends.items():
        if await consumer.position(tp) < end:
            return False
    return True
