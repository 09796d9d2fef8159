"""`StopRequests`: requests to stop a long-running client, passed on to the client's event loop.

Requests may come from any thread, from signal handlers, and before the loop runs. Shared by `Worker` and `Transformer`.
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
    """Counts requests. The first asks for an orderly end, the second for an immediate one."""

    def __init__(self, pass_on: Callable[[bool], None]) -> None:
        """Create it. `pass_on` is called on the event loop for each request, with whether the end must be immediate."""
        self.stopped = asyncio.Event()
        """Set on the event loop by the first request."""
        self._pass_on = pass_on
        self._lock = threading.RLock()
        """Guards the next two attributes. Reentrant, because a signal handler may interrupt `add`."""
        self._count = 0
        self._event_loop: asyncio.AbstractEventLoop | None = None

    @property
    def count(self) -> int:
        """Return the number of requests so far."""
        return self._count

    def add(self) -> None:
        """Request the end. Returns immediately and may be called from any thread."""
        with self._lock:
            self._count += 1
            event_loop = self._event_loop
            if event_loop is None:  # no task waits for the event yet, or any more
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
    """Call `stop` for each termination signal, in the main thread only. Previous handlers are restored at the end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    for number in STOP_SIGNALS:
        on_signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            with contextlib.suppress(NotImplementedError):
                loop.remove_signal_handler(number)
            signal.signal(number, handler)


def on_signal(number: signal.Signals, callback: Callable[[], object]) -> None:
    """Call `callback` on the running event loop for each such signal, also where event loops watch no signals (Windows)."""
    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(number, callback)
    except NotImplementedError:
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(callback))
