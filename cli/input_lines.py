"""Lines of a file or of standard input, as they come.

Must not know what a line means (`input_records` does). Invariant: what is read ahead is bounded, however slowly it is taken.
"""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator
from enum import StrEnum

from raftmq.cli.exit_codes import CommandError, ExitCode

READ_BYTES = 256 * 1024
"""Read at once: far more than one read of a pipe gives, and little beside the producer's buffer."""
READS_AHEAD = 4
"""Reads not yet turned into records: reading goes on while the producer waits for room."""
TAIL_BYTES_MAX = 8 * 1024 * 1024
"""A line longer than this is no record, also not in base64: none has more than 3.5 MiB. Reading on for its end would only fill memory."""


class InputFormat(StrEnum):
    """What `produce` takes a line for."""

    LINES = "lines"
    JSON = "json"
    RECORDS = "records"


def split_lines(tail: bytes, data: bytes) -> tuple[list[bytes], bytes]:
    """The complete lines of `tail` and `data` together without their ends (LF or CRLF), and the unfinished rest."""
    *lines, rest = (tail + data).split(b"\n")
    return [line.removesuffix(b"\r") for line in lines], rest


async def read_lines(descriptor: int) -> AsyncIterator[tuple[list[bytes], int]]:
    """Lines as they come, in lists, with the bytes they took; what waits in a pipe is not held back for a full buffer.

    Reading happens in a daemon thread of its own: Ctrl-C must not wait for a read that waits for a person, as it would with the
    event loop's own threads, and a terminal must not be switched to non-blocking mode under the shell.
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
            except RuntimeError:  # the loop is closed: nobody wants it any more
                return

    threading.Thread(target=read, name="raftmq-input", daemon=True).start()
    tail = b""
    while data := await chunks.get():
        if isinstance(data, OSError):
            raise data
        room.release()
        lines, tail = split_lines(tail, data)
        if lines:
            yield lines, len(data)
        if len(tail) > TAIL_BYTES_MAX:
            raise CommandError(
                f"a line is longer than {TAIL_BYTES_MAX} bytes, and no topic takes such a record; the lines before it are written",
                ExitCode.BAD_DATA,
            )
    if tail:
        yield [tail], 0
