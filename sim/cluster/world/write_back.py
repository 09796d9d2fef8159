"""The thread that changes state files, in virtual time: its functions run in order, each after the time of a commit."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any, TypeVar

from sim.cluster.world.loop import HANGS_SECONDS, VirtualLoop

if TYPE_CHECKING:
    from sim.cluster.world.disk import Disk

T = TypeVar("T")


class SimWriteBackThread(Executor):
    """The one thread of `ThreadPools.write_back`."""

    runs_in_order = True
    """See `VirtualLoop.run_in_executor`."""

    def __init__(self, loop: VirtualLoop, disk: Disk) -> None:
        self._loop = loop
        self._disk = disk
        self._queue: deque[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = deque()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:  # noqa: ANN401 -- as `Executor`
        """See `Executor`."""
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        self._queue.append((future, fn, args))
        if len(self._queue) == 1:
            self._begin()
        return future

    def _begin(self) -> None:
        self._loop.call_later(self._disk.write_seconds(self._loop.now), self._finish)

    def _finish(self) -> None:
        if self._disk.hangs:
            self._loop.call_later(HANGS_SECONDS, self._finish)
            return
        future, function, arguments = self._queue[0]
        try:
            result = function(*arguments)
        except Exception as error:  # noqa: BLE001 -- handed to the future's waiter
            future.set_exception(error)
        else:
            future.set_result(result)
        self._queue.popleft()
        if self._queue:
            self._begin()

    def crash(self) -> None:
        """Crash: the transaction under way becomes durable or not, and nobody is told."""
        if self._queue and self._disk.rng.random() < 0.5:
            _, function, arguments = self._queue[0]
            try:
                function(*arguments)
            except Exception:  # noqa: BLE001 -- nobody is left to be told
                pass
            else:
                self._disk.kept_write_backs += 1
        self._queue.clear()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See `Executor`."""
