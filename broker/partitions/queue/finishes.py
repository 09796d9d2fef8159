"""Tell callers that a message may be finished, without a read for each entry that is applied.

A message that is finished after it had a row stays known as gone until its deletion is durable, and one in memory disappears from there. So
one look into memory after each round of entries suffices: it may call too often, and never misses the end.
"""

from __future__ import annotations

import asyncio
from typing import Final

from raftmq.broker.base.request_error import RequestError
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.queue.partition import QueuePartition
from raftmq.proto import queue_pb2 as pb

WATCHES_MAX: Final = 1_000
"""Waiting calls of one partition. Each is looked at after every round of entries, for about 100 ns."""


class Watch:
    """A call that waits for the end of a message."""

    __slots__ = ("changed", "is_in_memory", "sequence")

    def __init__(self, sequence: int, changed: asyncio.Future[None]) -> None:
        self.sequence = sequence
        self.changed = changed
        """Done when the message may be finished, or leadership may have changed."""
        self.is_in_memory = False
        """Whether the message was in memory when it was looked at last."""


class FinishWatches:
    """The calls that wait for the ends of one partition's messages."""

    def __init__(self, replica: Replica[QueuePartition]) -> None:
        self._replica = replica
        self._watches: dict[Watch, None] = {}
        replica.progress_listeners.append(self._look)
        replica.role_listeners.append(lambda _change: self._wake_all())
        replica.restored_listeners.append(self._wake_all)

    def add(self, sequence: int) -> Watch:
        """Return a watch of a message, which must be found unfinished after this call. `remove` must follow.

        Raises:
            RequestError: THROTTLED if too many calls wait.
        """
        if len(self._watches) >= WATCHES_MAX:
            raise RequestError(
                pb.THROTTLED, f"{WATCHES_MAX} calls wait for messages of this partition already", retry_after_ms=500
            )
        watch = Watch(sequence, asyncio.get_running_loop().create_future())
        watch.is_in_memory = sequence in self._replica.state_machine.state.store.messages
        self._watches[watch] = None
        return watch

    def remove(self, watch: Watch) -> None:
        """End a watch."""
        self._watches.pop(watch, None)

    def _look(self) -> None:
        if not self._watches:
            return
        store = self._replica.state_machine.state.store
        for watch in self._watches:
            if watch.sequence in store.messages:
                watch.is_in_memory = True
            elif watch.is_in_memory or store.is_known(watch.sequence):
                _wake(watch)

    def _wake_all(self) -> None:
        for watch in self._watches:
            _wake(watch)


def _wake(watch: Watch) -> None:
    if not watch.changed.done():
        watch.changed.set_result(None)
