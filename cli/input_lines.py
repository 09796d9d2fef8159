"""Read lines of a file or of standard input as they arrive.

This module must not interpret a line (`input_records` does). Invariant: the amount read ahead is bounded, even if the
lines are consumed slowly.
"""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator
from enum import StrEnum

from raftmq.cli.exit_codes import CommandError, ExitCode, words_of

READ_BYTES = 256 * 1024
"""Bytes of one read: far more than one read of a pipe returns, and little compared with the producer's buffer."""
READS_AHEAD = 4
"""Reads that are not yet converted to records. Reading continues while the producer waits for room."""
TAIL_BYTES_MAX = 8 * 1024 * 1024
"""A longer line is not a record, not even in base64: no record has more than 3.5 MiB. Reading to its end would only
fill memory."""


class InputFormat(StrEnum):
    """Choose how `produce` interprets a line."""

    LINES = "lines"
    JSON = "json"
    RECORDS = "records"


def split_lines(tail: bytes, data: bytes) -> tuple[list[bytes], bytes]:
    """Return the complete lines of `tail` and `data` together without their ends (LF or CRLF), and the unfinished rest."""
    *lines, rest = (tail + data).split(b"\n")
    return [line.removesuffix(b"\r") for line in lines], rest


async def read_lines(descriptor: int) -> AsyncIterator[tuple[list[bytes], int]]:
    """Yield lists of lines as they arrive, with the number of bytes read. Lines in a pipe do not wait for a full
    buffer.

    A separate daemon thread reads. Ctrl-C must not wait for a read that waits for a person, as it would with the event
    loop's own threads, and a terminal must not be switched to non-blocking mode under the shell.
    """
    import asyncio

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
            except RuntimeError:  # the loop is closed: the data is no longer needed
                return

    threading.Thread(target=read, name="raftmq-input", daemon=True).start()
    tail = b""
    while data := await chunks.get():
        if isinstance(data, OSError):
            raise CommandError(
                f"the input cannot be read any further: {words_of(data)}; the lines before this point are written",
                ExitCode.DEFECT,
            )
        room.release()
        lines, tail = split_lines(tail, data)
        if lines:
            yield lines, len(data)
        if len(tail) > TAIL_BYTES_MAX:
            raise CommandError(
                f"a line is longer than {TAIL_BYTES_MAX} bytes, and no topic accepts such a record; the lines before it are written",
                ExitCode.BAD_DATA,
            )
    if tail:
        yield [tail], 0
