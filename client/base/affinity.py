"""`ClientAffinity`: the process and the event loop that a client belongs to, compared whenever the client is used.

A client's tasks, futures and connections live on the loop that it was started on. On any other loop they never finish: without the
comparison a call would wait without end.
"""

from __future__ import annotations

import asyncio
import warnings
from threading import get_ident
from typing import Final

from raftmq.client.base.fork_guard import check_not_forked, current_generation, process
from raftmq.errors import WrongEventLoopError


class ClientAffinity:
    """Remember where a client lives, and refuse calls from elsewhere."""

    __slots__ = ("_generation", "_name", "loop")

    def __init__(self, name: str) -> None:
        """`name` is the kind of client in errors."""
        self._name: Final = name
        self._generation = current_generation()
        self.loop: asyncio.AbstractEventLoop | None = None
        """Where the client was started. None: not started yet, or closed."""

    def bind(self) -> None:
        """Note the running event loop: the client starts on it."""
        self.loop = asyncio.get_running_loop()

    def release(self) -> None:
        """The client is closed: from now on it says so on every loop."""
        self.loop = None

    def check(self) -> None:
        """Raise unless the client may be used here.

        Raises:
            ForkedClientError: this process was forked from the one that the client was made in.
            WrongEventLoopError: the client was started on an event loop that does not run in this thread now.
        """
        if process.generation != self._generation:
            check_not_forked(self._generation, self._name)
        try:
            # asyncio's own loops note the thread that they run in under this name, which is not public. The answer is the same as
            # `check_running` finds, for a tenth of the time: Python 3.11 makes a system call to find the running loop.
            if self.loop._thread_id == get_ident():  # type: ignore[union-attr]
                return
        except AttributeError:
            pass  # not started, or a loop of another make
        if self.loop is not None:
            check_running(self.loop, self._name)

    def warn_unclosed(self, client: object, harm: str) -> None:
        """Tell a program that it forgot to close a client. For `__del__`; silent in a forked child, whose parent has the client.

        Args:
            client: The open client that nobody refers to any more.
            harm: What comes of it.
        """
        if process.generation == self._generation:
            text = f"unclosed {client!r}: {harm}; use async with, or close()"
            warnings.warn(text, ResourceWarning, source=client, stacklevel=3)


def check_running(loop: asyncio.AbstractEventLoop, name: str) -> None:
    """Raise `WrongEventLoopError` unless `loop` is the one that runs in this thread."""
    running = asyncio._get_running_loop()
    if running is loop:
        return
    if loop.is_closed():
        where = "an event loop that is closed now"
    elif loop.is_running():
        where = "an event loop that runs in another thread"
    else:
        where = "an event loop that does not run now"
    here = "this call comes from another event loop" if running is not None else "no event loop runs in this thread"
    raise WrongEventLoopError(f"this {name} was started on {where}, and {here}")
