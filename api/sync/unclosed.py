"""Close the clients that a program forgot: in the background when it drops one, and all of them when it ends."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import itertools
import warnings
from collections.abc import Callable, Coroutine, Iterable
from typing import NamedTuple

from raftmq.client.base.fork_guard import current_generation
from raftmq.client.base.loop_thread import LoopThread
from raftmq.sync.waiting import within

EXIT_FLUSH_SECONDS = 10.0
"""Maximum time for which the end of a program waits for the records of all unclosed producers."""
EXIT_GRACE_SECONDS = 1.0
"""Additional time for connections to close, and for consumers to leave their groups."""


class _Unclosed(NamedTuple):
    """A client that the program opened and did not close, even if the program has dropped it."""

    loop: LoopThread
    kind: str
    close: Callable[[], Coroutine[object, object, None]]

    @property
    def has_records(self) -> bool:
        """Return whether it may have accepted records that must still be written."""
        return self.kind == "Producer"


_unclosed: dict[int, _Unclosed] = {}
"""Unclosed clients by their number. The entries must not refer to the wrappers, which the program may drop."""
_keys = itertools.count()


def record_open(loop: LoopThread, kind: str, close: Callable[[], Coroutine[object, object, None]]) -> int:
    """Record a client that was opened. Return its number."""
    key = next(_keys)
    _unclosed[key] = _Unclosed(loop, kind, close)
    return key


def record_closed(key: int) -> None:
    """Forget a client that its program closed."""
    _unclosed.pop(key, None)


def close_forgotten(key: int) -> None:
    """Close a dropped client in the background. May be called from any thread, including the loop's own."""
    forgotten = _unclosed.get(key)
    if forgotten is None or forgotten.loop.generation != current_generation():
        return

    async def close() -> None:
        try:
            await forgotten.close()
        finally:
            _unclosed.pop(key, None)

    asyncio.run_coroutine_threadsafe(close(), forgotten.loop.loop)
    _warn_unclosed([forgotten])


def close_at_exit() -> None:
    """Close all clients that the program forgot, so that it does not lose records silently. Raises the first failure for Python to show."""
    forgotten = [one for one in _unclosed.values() if one.loop.generation == current_generation()]
    _unclosed.clear()
    if not forgotten:
        return
    closing = {
        one.loop.start(within(EXIT_FLUSH_SECONDS if one.has_records else EXIT_GRACE_SECONDS, one.close)): one
        for one in forgotten
    }
    seconds = EXIT_FLUSH_SECONDS if any(one.has_records for one in forgotten) else 0.0
    concurrent.futures.wait(closing, seconds + EXIT_GRACE_SECONDS)
    for future, one in closing.items():
        if one.has_records:
            future.result(0)
    _warn_unclosed(forgotten)


def _warn_unclosed(forgotten: Iterable[_Unclosed]) -> None:
    for kind in sorted({one.kind for one in forgotten}):
        text = f"a raftmq.sync.{kind} was not closed: use with, or close()"
        warnings.warn(text, ResourceWarning, stacklevel=2)


atexit.register(close_at_exit)
