"""Acknowledge the packets of Spark in a Python worker immediately, so that Spark sends the rest. Must not load large modules.

Spark sends a task's command, and then its first rows in a second packet. Its sockets hold a small packet back while an earlier one is not
acknowledged (Nagle's algorithm), and Linux acknowledges after 40 ms if the worker has nothing to send. So every task would wait 40 ms.
Spark's Unix domain sockets (``spark.python.unix.domain.socket.enabled``, from 4.1 on) have no such pause.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Final

QUICK_ACK: Final = getattr(socket, "TCP_QUICKACK", None)
"""Only Linux has it. It sends an acknowledgement that is due, and must be set again for the next one."""
_FIRST_SOCKETS: Final = range(3, 8)
"""Spark's daemon accepts a worker's connection before the worker opens anything, so it has one of the first descriptors."""
_found: dict[int, socket.socket | None] = {}
"""The worker's connection to Spark, by process id, because a fork inherits this."""


def acknowledge() -> None:
    """Acknowledge the command of a task. Call it before the task waits for rows. Elsewhere than in a worker it does no harm."""
    if QUICK_ACK is None:
        return
    if os.getpid() not in _found:
        _found[os.getpid()] = _connection()
    connection = _found[os.getpid()]
    if connection is not None:
        with suppress(OSError):  # closed: the task will notice
            connection.setsockopt(socket.IPPROTO_TCP, QUICK_ACK, 1)


class WorkerReader:
    """Acknowledge a task's command as soon as its reader arrives in a worker."""

    def __setstate__(self, state: dict[str, object]) -> None:
        """Restore the reader, and acknowledge the command, because Spark sends the partition in a second packet."""
        self.__dict__.update(state)
        acknowledge()


def _connection() -> socket.socket | None:
    """Return a copy of the first connection over TCP, or None if there is none."""
    for descriptor in _FIRST_SOCKETS:
        try:
            duplicate = os.dup(descriptor)
        except OSError:
            continue  # closed
        try:
            copy = socket.socket(fileno=duplicate)
        except OSError:  # no socket
            os.close(duplicate)  # an open end of a pipe would keep its reader waiting
            continue
        with suppress(OSError):
            if copy.family in (socket.AF_INET, socket.AF_INET6) and copy.getpeername():
                return copy
        copy.close()
    return None
