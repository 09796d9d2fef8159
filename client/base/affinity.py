"""`ClientAffinity`: the process and the event loop that a client belongs to, compared on each use of the client.

A client's tasks, futures and connections live on the loop that it was started on. On any other loop they never finish: without the
comparison, a call would wait indefinitely.
"""

from __future__ import annotations

import asyncio
import warnings
from threading import get_ident
from typing import Final

from raftmq.client.base.fork_guard import check_not_forked, current_generation, process
from raftmq.errors import WrongEventLoopError


class ClientAffinity:
    """The process and the event loop of one client. It refuses calls from elsewhere."""

    __slots__ = ("_generation", "_name", "loop")

    def __init__(self, name: str) -> None:
        """Create it for a kind of client, which error texts name."""
        self._name: Final = name
        self._generation = current_generation()
        self.loop: asyncio.AbstractEventLoop | None = None
        """The loop on which the client was started, or None if it is not started yet or closed."""

    def bind(self) -> None:
        """Bind the client to the running event loop."""
        self.loop = asyncio.get_running_loop()

    def release(self) -> None:
        """Release the loop of a closed client, which then reports on every loop that it is closed."""
        self.loop = None

    def check(self) -> None:
        """Raise unless the client may be used here.

        Raises:
            ForkedClientError: this process was forked from the one in which the client was created.
            WrongEventLoopError: the client was started on an event loop that is not running in this thread.
        """
        if process.generation != self._generation:
            check_not_forked(self._generation, self._name)
        try:
            # asyncio's own loops store their thread under this name, which is not public. The result is that of `check_running` in a tenth of the
            # time: Python 3.11 makes a system call to find the running loop.
            if self.loop._thread_id == get_ident():  # type: ignore[union-attr]
                return
        except AttributeError:
            pass  # not started, or a loop of another implementation
        if self.loop is not None:
            check_running(self.loop, self._name)

    def warn_unclosed(self, client: object, harm: str) -> None:
        """Warn that a client was not closed. For `__del__`. No warning in a forked child, whose parent has the client.

        Args:
            client: The open client that is no longer referenced.
            harm: The consequence.
        """
        if process.generation == self._generation:
            text = f"unclosed {client!r}: {harm}; use async with, or close()"
            warnings.warn(text, ResourceWarning, source=client, stacklevel=3)


def check_running(loop: asyncio.AbstractEventLoop, name: str) -> None:
    """Raise `WrongEventLoopError` unless `loop` is running in this thread."""
    running = asyncio._get_running_loop()
    if running is loop:
        return
    if loop.is_closed():
        where = "an event loop that is closed now"
    elif loop.is_running():
        where = "an event loop that is running in another thread"
    else:
        where = "an event loop that is not running now"
    here = (
        "this call comes from another event loop" if running is not None else "no event loop is running in this thread"
    )
    raise WrongEventLoopError(f"this {name} was started on {where}, and {here}")
