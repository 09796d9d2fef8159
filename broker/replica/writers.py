"""The commit executor as the broker sees it: threads in production, inline in the simulator."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol, TypeVar

from raftmq.storage.log_store import ReplicaKey, Update

T = TypeVar("T")


class Writers(Protocol):
    """Every replica is pinned to one writer, which does everything that changes its file, in order."""

    def submit(self, key: ReplicaKey, update: Update, token: object) -> None:
        """Queue an update of a replica; its completion is reported with the token."""
        ...

    def run(self, key: ReplicaKey, function: Callable[[], T]) -> Future[T]:
        """Run something else on the replica's writer, in order with its updates."""
        ...

    def lane(self, key: ReplicaKey) -> int:
        """Which writer does what is to be done for this replica: two of one lane wait for each other."""
        ...

    def forget_refused(self, key: ReplicaKey) -> None:
        """Give up this replica's updates that found no room: its file is opened again. To be called on its writer."""
        ...

    def forget(self, key: ReplicaKey) -> None:
        """Nothing of this replica will be submitted again."""
        ...
