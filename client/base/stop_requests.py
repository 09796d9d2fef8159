"""`StopRequests`: what asks a program's long-running client to stop, passed on to the client's event loop.

Requests come from any thread, from signal handlers, and before the loop runs. Shared by `Worker` and `Transformer`.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class StopRequests:
    """Counts requests; the first asks for an orderly end, the second for an immediate one."""

    def __init__(self, pass_on: Callable[[bool], None]) -> None:
        """`pass_on` is called on the event loop with each request: whether the end must be immediate."""
        self.stopped = asyncio.Event()
        """Set on the event loop by the first request."""
        self._pass_on = pass_on
        self._lock = threading.RLock()
        """Guards the two below it. Reentrant, for a signal handler that interrupts `add`."""
        self._count = 0
        self._event_loop: asyncio.AbstractEventLoop | None = None

    @property
    def count(self) -> int:
        """How many requests came so far."""
        return self._count

    def add(self) -> None:
        """Ask for the end; does not wait. May be called from any thread."""
        with self._lock:
            self._count += 1
            event_loop = self._event_loop
            if event_loop is None:  # then nobody waits for the event yet, or any more
                self.stopped.set()
                return
        with contextlib.suppress(RuntimeError):  # the loop was closed: there is nothing to stop
            event_loop.call_soon_threadsafe(self._tell, self._count > 1)

    @contextmanager
    def bound(self) -> Iterator[None]:
        """Pass requests on to the running event loop inside the block."""
        with self._lock:
            self._event_loop = asyncio.get_running_loop()
        try:
            yield
        finally:
            self._event_loop = None

    def _tell(self, is_immediate: bool) -> None:
        self.stopped.set()
        self._pass_on(is_immediate)


@contextmanager
def signals_taken(stop: Callable[[], None]) -> Iterator[None]:
    """In the main thread, what ends a program calls `stop` instead; handlers are given back at the end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
