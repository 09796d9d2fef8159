"""Writers, which call `append_batch`: threads with a queue each or, in the simulator, a queue that is pumped.

Every replica is pinned to one thread. So its updates are applied in the order of their submission, and LMDB's rule of one
writer per file holds. A thread takes its whole queue, writes the updates of each replica in one transaction, and reports
all completions with one call. An error that concerns one replica alone is reported with the write, like a lack of room. Any other one is
reported once and ends the thread: the process must exit.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TypeVar

from raftmq.errors import InvariantError
from raftmq.storage.errors import CommitFailedError, ReplicaStorageError, StorageFullError
from raftmq.storage.log_store import LogStore, ReplicaKey, Update

T = TypeVar("T")

TRANSACTION_BYTES_MAX = 8 * 1024 * 1024
"""Maximum payload and state bytes of one transaction. It bounds the commit latency and is far below LMDB's limit of dirty pages."""
REPORT_AFTER_SECONDS = 0.005
"""A drain of many replicas reports its completions after this time already, not only at its end."""


@dataclass(frozen=True, slots=True)
class Completion:
    """The result of an update."""

    key: ReplicaKey
    update: Update
    token: object
    error: ReplicaStorageError | InvariantError | None
    """None if the update is durable. Otherwise nothing of it was applied. After `StorageFullError` no later update of this replica will be
    applied before this one has been submitted again with the same token. After any other error the replica must be closed."""
    seconds: float = 0.0
    """Duration of the update's transaction, including the fsync."""


@dataclass(slots=True)
class _Write:
    key: ReplicaKey
    update: Update
    token: object


@dataclass(slots=True)
class _Call:
    key: ReplicaKey
    function: Callable[[], object]
    future: Future[object]


class _Work:
    """The part that threads and the inline writer share: it runs items in order and collects completions."""

    def __init__(
        self, store: LogStore, on_done: Callable[[list[Completion]], None], clock: Callable[[], float]
    ) -> None:
        self._store = store
        self._on_done = on_done
        self._clock = clock
        self._refused: dict[ReplicaKey, deque[object]] = {}
        """Tokens of updates for which there was no room, oldest first. Only the oldest may be tried again."""

    def run(self, items: Iterable[_Write | _Call]) -> None:
        """Run all items. Raises the first error that must end the process."""
        done: list[Completion] = []
        waiting: dict[ReplicaKey, list[_Write]] = {}
        started = self._clock()
        try:
            for item in items:
                if isinstance(item, _Write):
                    waiting.setdefault(item.key, []).append(item)
                    continue
                # everything submitted for the replica before a call is done and reported before the call
                self._write(item.key, waiting.pop(item.key, []), done)
                self._report(done)
                self._call(item)
            for key, writes in waiting.items():
                if self._clock() - started > REPORT_AFTER_SECONDS:
                    self._report(done)
                    started = self._clock()
                self._write(key, writes, done)
        finally:
            self._report(done)

    def _report(self, done: list[Completion]) -> None:
        if done:
            self._on_done(done.copy())
            done.clear()

    def _write(self, key: ReplicaKey, writes: list[_Write], done: list[Completion]) -> None:
        """Write the replica's updates, several in one transaction while they are small."""
        batch: list[_Write] = []
        size = 0
        for write in writes:
            if key in self._refused:
                self._retry(write, done)
                continue
            write_bytes = _bytes_of(write.update)
            if batch and size + write_bytes > TRANSACTION_BYTES_MAX:
                self._commit(key, batch, done)
                batch, size = [], 0
                if key in self._refused:
                    self._retry(write, done)
                    continue
            batch.append(write)
            size += write_bytes
        if batch:
            self._commit(key, batch, done)

    def _commit(self, key: ReplicaKey, batch: list[_Write], done: list[Completion]) -> None:
        began_at = self._clock()
        try:
            self._store.append_batch([(key, write.update) for write in batch])
        except StorageFullError as error:
            self._refused.setdefault(key, deque()).extend(write.token for write in batch)
            done.extend(Completion(key, write.update, write.token, error) for write in batch)
        except CommitFailedError:
            raise
        except (ReplicaStorageError, InvariantError) as error:
            done.extend(Completion(key, write.update, write.token, error) for write in batch)
        else:
            seconds = self._clock() - began_at
            done.extend(Completion(key, write.update, write.token, None, seconds) for write in batch)

    def _retry(self, write: _Write, done: list[Completion]) -> None:
        """Try the update if it is the oldest refused one of its replica. All others keep their place and are refused again."""
        refused = self._refused[write.key]
        if refused[0] is not write.token:
            if all(token is not write.token for token in refused):
                refused.append(write.token)
            error = StorageFullError(write.key, "an earlier write of this replica was refused for lack of room")
            done.append(Completion(write.key, write.update, write.token, error))
            return
        try:
            self._store.append_batch([(write.key, write.update)])
        except CommitFailedError:
            raise
        except (ReplicaStorageError, InvariantError) as error:
            done.append(Completion(write.key, write.update, write.token, error))
            return
        done.append(Completion(write.key, write.update, write.token, None))
        refused.popleft()
        if not refused:
            del self._refused[write.key]

    def _call(self, call: _Call) -> None:
        if not call.future.set_running_or_notify_cancel():
            return
        try:
            result = call.function()
        except CommitFailedError as error:
            call.future.set_exception(error)
            raise
        except BaseException as error:  # noqa: BLE001 -- handed to the future's waiter
            call.future.set_exception(error)
        else:
            call.future.set_result(result)

    def forget_refused(self, key: ReplicaKey) -> None:
        """Forget the replica's refused updates: they will not be submitted again."""
        self._refused.pop(key, None)


def _bytes_of(update: Update) -> int:
    size = sum(len(entry.payload) for entry in update.entries)
    return size + sum(len(row) + len(value or b"") for row, value in update.state_rows)


class WriterThreads:
    """The writers of production: `thread_count` dedicated threads, which reach 30 % more commits than an executor."""

    def __init__(
        self,
        store: LogStore,
        thread_count: int = 4,
        *,
        on_done: Callable[[list[Completion]], None],
        on_error: Callable[[BaseException], None],
    ) -> None:
        """Start the threads.

        Args:
            store: The store that the threads write to.
            thread_count: Number of threads. 4 to 8 keep a disk busy, and more only contend for the GIL.
            on_done: Called on a writer thread with the completions of a drain, in order per replica. It must be quick:
                typically one `loop.call_soon_threadsafe`.
            on_error: Called once, on a writer thread, with the error that must end the process. That thread has
                stopped, and updates in its queue are never reported.
        """
        self._on_error = on_error
        self._has_failed = threading.Event()
        self._assigned: dict[ReplicaKey, _WriterThread] = {}
        self._assigning = threading.Lock()
        self._threads = [
            _WriterThread(_Work(store, on_done, time.monotonic), self._fail, number) for number in range(thread_count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, key: ReplicaKey, update: Update, token: object) -> None:
        """Queue an update. Its `Completion` carries the token. Raises `RuntimeError` after `close`."""
        self._thread_of(key).put(_Write(key, update, token))

    def run(self, key: ReplicaKey, function: Callable[[], T]) -> Future[T]:
        """Run `function` on the replica's thread, after everything that was submitted for the replica before.

        Its exception goes to the future, and to `on_error` as well if a commit failed. Raises `RuntimeError` after `close`.
        """
        future: Future[T] = Future()
        self._thread_of(key).put(_Call(key, function, future))  # type: ignore[arg-type]  # a future of T takes T only
        return future

    def lane(self, key: ReplicaKey) -> int:
        """Return the number of the thread to which the replica is pinned."""
        return self._thread_of(key).number

    def forget_refused(self, key: ReplicaKey) -> None:
        """Forget the replica's refused updates before its file is opened again. Call it on the replica's thread, with none of its updates queued."""
        self._thread_of(key).work.forget_refused(key)

    def forget(self, key: ReplicaKey) -> None:
        """Forget a removed replica, after its last update was reported."""
        with self._assigning:
            thread = self._assigned.pop(key, None)
        if thread is not None:
            thread.work.forget_refused(key)

    def close(self) -> None:
        """Accept no more updates, finish the queued ones and end the threads. Blocks, so do not call it on a writer thread."""
        for thread in self._threads:
            thread.finish()
        for thread in self._threads:
            thread.join()

    def _thread_of(self, key: ReplicaKey) -> _WriterThread:
        thread = self._assigned.get(key)
        if thread is None:
            with self._assigning:
                # round robin: the replicas of a topic are created together, so its load is spread evenly
                thread = self._assigned.setdefault(key, self._threads[len(self._assigned) % len(self._threads)])
        return thread

    def _fail(self, error: BaseException) -> None:
        with self._assigning:
            is_first = not self._has_failed.is_set()
            self._has_failed.set()
        if is_first:
            self._on_error(error)


class _WriterThread(threading.Thread):
    def __init__(self, work: _Work, fail: Callable[[BaseException], None], number: int) -> None:
        super().__init__(name=f"raftmq-writer-{number}", daemon=True)
        self.work = work
        self.number = number
        self._fail = fail
        self._queue: SimpleQueue[_Write | _Call | None] = SimpleQueue()
        """None is the last item. A condition variable costs the loop's thread four times as much for each item."""
        self._finishing = threading.Lock()
        self._is_finishing = False

    def put(self, item: _Write | _Call) -> None:
        with self._finishing:
            if self._is_finishing:
                raise RuntimeError("the writer is closed")
            self._queue.put(item)

    def finish(self) -> None:
        with self._finishing:
            self._is_finishing = True
            self._queue.put(None)

    def run(self) -> None:
        try:
            while (items := self._take()) is not None:
                self.work.run(items)
        except BaseException as error:  # noqa: BLE001 -- the thread's root: the process is told to end
            self._fail(error)

    def _take(self) -> list[_Write | _Call] | None:
        """Wait for the next item and take everything that waits. None after the last item."""
        item = self._queue.get()
        items: list[_Write | _Call] = []
        while item is not None:
            items.append(item)
            try:
                item = self._queue.get_nowait()
            except Empty:
                return items
        if items:
            self._queue.put(None)  # for the next call
        return items or None


class InlineWriter:
    """The same interface without threads: updates and calls wait for `pump`, so that a simulator decides when writes end."""

    def __init__(
        self,
        store: LogStore,
        *,
        on_done: Callable[[list[Completion]], None],
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._work = _Work(store, on_done, clock=lambda: 0.0)
        self._on_error = on_error
        self._queue: deque[_Write | _Call] = deque()
        self._has_failed = False

    @property
    def waiting_count(self) -> int:
        """Number of updates and calls that wait for `pump`."""
        return len(self._queue)

    def submit(self, key: ReplicaKey, update: Update, token: object) -> None:
        """See `WriterThreads.submit`."""
        self._queue.append(_Write(key, update, token))

    def run(self, key: ReplicaKey, function: Callable[[], T]) -> Future[T]:
        """See `WriterThreads.run`. A `pump` completes the future."""
        future: Future[T] = Future()
        self._queue.append(_Call(key, function, future))  # type: ignore[arg-type]  # a future of T takes T only
        return future

    def pump(self, count: int | None = None) -> None:
        """Run all queued items or the first `count`. Items that the completions add wait for the next pump."""
        items: deque[_Write | _Call] = deque()
        while self._queue and (count is None or len(items) < count):
            items.append(self._queue.popleft())
        if self._has_failed:
            return
        try:
            self._work.run(items)
        except Exception as error:  # noqa: BLE001 -- as the root of a writer thread
            self._has_failed = True
            self._on_error(error)

    def drop(self) -> None:
        """Drop all queued items, as a crash of the process does."""
        self._queue.clear()

    def lane(self, key: ReplicaKey) -> int:
        """See `WriterThreads.lane`. There is only one."""
        del key
        return 0

    def forget_refused(self, key: ReplicaKey) -> None:
        """See `WriterThreads.forget_refused`."""
        self._work.forget_refused(key)

    def forget(self, key: ReplicaKey) -> None:
        """See `WriterThreads.forget`."""
        self._work.forget_refused(key)

    def close(self) -> None:
        """Run all queued items."""
        self.pump()
