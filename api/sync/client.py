"""Share what the synchronous clients have in common: the loop, the process they belong to, opening and closing."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Coroutine
from typing import TypeVar

from raftmq.client.base.fork_guard import check_not_forked, current_generation
from raftmq.client.base.loop_thread import LoopThread
from raftmq.sync import unclosed
from raftmq.sync.waiting import on_loop

T = TypeVar("T")


class SyncClient:
    """The common part of the three clients: the loop, the process they belong to, opening and closing."""

    _name = "client"

    def __init__(self) -> None:
        self._generation = current_generation()
        self._loop = LoopThread.get()

    def _record_open(self, close: Callable[[], Coroutine[object, object, None]]) -> None:
        """Register `close` for the case that the program drops the client, or ends, without closing it."""
        self._key = unclosed.record_open(self._loop, self._name.capitalize(), close)
        weakref.finalize(self, unclosed.close_forgotten, self._key).atexit = False  # `close_at_exit` handles the exit

    def _record_closed(self) -> None:
        unclosed.record_closed(self._key)

    def _check(self) -> None:
        check_not_forked(self._generation, self._name)

    def _make(self, make: Callable[[], T]) -> T:
        """Create the asynchronous client on its loop. It checks the caller's arguments."""
        return on_loop(self._loop, make)

    def _run(self, coroutine_of: Callable[[], Coroutine[object, object, T]]) -> T:
        """Run the coroutine of `coroutine_of`. It is created here, after the check, so that none is left unawaited."""
        self._check()
        return self._loop.run(coroutine_of())

    def _call(self, function: Callable[[], T]) -> T:
        """Run a plain method on the loop's thread, which owns all of a client's state."""
        self._check()
        return on_loop(self._loop, function)
