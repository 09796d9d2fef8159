"""``raftmq produce``: records from lines, of standard input or of a file."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer
from raftmq.cli.exit_codes import reported
from raftmq.cli.output import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT,
    BootstrapOption,
    Output,
    OutputOption,
    TimeoutOption,
    print_json,
)
from raftmq.errors import RecordTooLargeError

READ_BYTES = 256 * 1024
"""Read at once: far more than one read of a pipe gives, and little beside the producer's buffer."""
READS_AHEAD = 4
"""Reads not yet turned into records: reading goes on while the producer waits for room."""
TAIL_BYTES_MAX = 2 * 1024 * 1024
"""A line longer than this is no record (the limit is 1 MiB); reading on for its end would only fill memory."""

Pair = tuple[bytes | None, bytes]


class Compression(StrEnum):
    """Codecs of record batches."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"
    SNAPPY = "snappy"


CODECS: dict[Compression, Literal["lz4", "zstd", "snappy"] | None] = {
    Compression.NONE: None,
    Compression.LZ4: "lz4",
    Compression.ZSTD: "zstd",
    Compression.SNAPPY: "snappy",
}


def split_record(line: bytes, key_separator: bytes | None) -> Pair:
    """Key and value of one line; without a separator, or without one in the line, there is no key."""
    if key_separator is not None:
        key, found, value = line.partition(key_separator)
        if found:
            return key, value
    return None, line


def split_lines(tail: bytes, data: bytes) -> tuple[list[bytes], bytes]:
    """The complete lines of `tail` and `data` together without their ends (LF or CRLF), and the unfinished rest."""
    *lines, rest = (tail + data).split(b"\n")
    return [line.removesuffix(b"\r") for line in lines], rest


async def read_lines(descriptor: int) -> AsyncIterator[tuple[list[bytes], int]]:
    """Lines as they come, in lists, with the bytes they took; what waits in a pipe is not held back for a full buffer.

    Reading happens in a daemon thread of its own: Ctrl-C must not wait for a read that waits for a person, as it would with the
    event loop's own threads, and a terminal must not be switched to non-blocking mode under the shell.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(READS_AHEAD)

    def read() -> None:
        data: bytes | OSError = b"-"
        while data and not isinstance(data, OSError):
            room.acquire()
            try:
                data = os.read(descriptor, READ_BYTES)
            except OSError as error:
                data = error
            try:
                loop.call_soon_threadsafe(chunks.put_nowait, data)
            except RuntimeError:  # the loop is closed: nobody wants it any more
                return

    threading.Thread(target=read, name="raftmq-input", daemon=True).start()
    tail = b""
    while data := await chunks.get():
        if isinstance(data, OSError):
            raise data
        room.release()
        lines, tail = split_lines(tail, data)
        if len(tail) > TAIL_BYTES_MAX:
            raise RecordTooLargeError(f"a line is longer than {TAIL_BYTES_MAX} bytes; a record may have 1 MiB")
        yield lines, len(data)
    if tail:
        yield [tail], 0


@reported
def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Where to.", show_default=False)],
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", exists=True, dir_okay=False, help="Read lines from a file instead of standard input."
        ),
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-k", help="What stands between key and value in a line; without it, no keys."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Write to this partition only.")
    ] = None,
    compression: Annotated[Compression, typer.Option("--compression", help="Codec of the batches.")] = Compression.NONE,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Write each line of the input as one record. Ends when every record is on disk on a majority of the replicas."""
    from rich.console import Console
    from rich.progress import Progress

    separator = key_separator.encode() if key_separator else None
    size = file.stat().st_size if file is not None else None

    async def run(descriptor: int) -> int:
        from raftmq.client.producer import Producer

        producer = Producer(
            bootstrap_servers=bootstrap_servers,
            compression_type=CODECS[compression],
            max_block_ms=timeout * 1000,
        )
        count = 0
        # The bar is for files: standard input may be a person typing.
        with Progress(
            console=Console(stderr=True), disable=size is None or not sys.stderr.isatty(), transient=True
        ) as bar:
            task = bar.add_task(f"producing to {topic}", total=size)
            async with producer:
                async for lines, taken in read_lines(descriptor):
                    await producer.send_many(
                        topic, [split_record(line, separator) for line in lines], partition=partition
                    )
                    count += len(lines)
                    bar.update(task, advance=taken)
                await producer.flush()
        return count

    if file is None:
        count = asyncio.run(run(sys.stdin.fileno()))
    else:
        with file.open("rb") as opened:
            count = asyncio.run(run(opened.fileno()))
    if output is Output.JSON:
        print_json({"topic": topic, "records": count})
    else:
        print(f"{count} records written to {topic}")
