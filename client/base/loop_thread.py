"""The process's background event loop, for synchronous code: `raftmq.sync` and the Spark source and sink.

There is one per process, because several gRPC event loops in one process are fragile. Must not know the code that runs on it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import TypeVar

from raftmq.client.base.fork_guard import call_in_forked_child, check_not_forked, current_generation
from raftmq.client.base.logs import log
from raftmq.errors import ForkedClientError

T = TypeVar("T")


class LoopThread:
    """The process's background event loop. Created at first use, and again in a forked child."""

    _lock = threading.Lock()
    _current: LoopThread | None = None

    def __init__(self) -> None:
        self.generation = current_generation()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="raftmq-sync", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while True:
            try:
                self.loop.run_forever()
            except BaseException:  # noqa: BLE001 - asyncio lets SystemExit and KeyboardInterrupt of any callback end the loop
                # All clients of the process live here. Without the loop, every later call would wait indefinitely.
                log.exception("sync_loop_interrupted")
            else:
                return

    @classmethod
    def get(cls) -> LoopThread:
        """Return the loop of this process."""
        with cls._lock:
            if cls._current is None or cls._current.generation != current_generation():
                cls._current = LoopThread()
            return cls._current

    @classmethod
    def forget_after_fork(cls) -> None:
        """Forget the thread, which did not survive a fork. The lock is replaced because a lost thread may have held it."""
        cls._lock = threading.Lock()
        cls._current = None

    def start(self, coroutine: Coroutine[object, object, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine on the loop, without waiting. Cancelling the future cancels it.

        Raises:
            ForkedClientError: in a forked child, where the thread does not exist.
            RuntimeError: on the loop's own thread.
        """
        try:
            self._check_usable()
        except (ForkedClientError, RuntimeError):
            coroutine.close()  # it will not be awaited
            raise
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def _check_usable(self) -> None:
        check_not_forked(self.generation, "client")
        if threading.current_thread() is self._thread:
            raise RuntimeError("raftmq.sync must not be used on its own event loop: it would wait for itself")

    def run(self, coroutine: Coroutine[object, object, T], timeout_seconds: float | None = None) -> T:
        """Run a coroutine on the loop and wait. An interrupt or a timeout (`TimeoutError`) cancels it."""
        future = self.start(coroutine)
        try:
            return future.result(timeout_seconds)
        except BaseException:
            future.cancel()
            raise


call_in_forked_child(LoopThread.forget_after_fork)
