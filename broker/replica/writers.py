"""Define the commit executor as the broker sees it: threads in production, inline in the simulator."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol, TypeVar

from raftmq.storage.log_store import ReplicaKey, Update

T = TypeVar("T")


class Writers(Protocol):
    """Executes writes. Every replica is pinned to one writer, which makes all changes of its file in order."""

    def submit(self, key: ReplicaKey, update: Update, token: object) -> None:
        """Queue an update of a replica. Its completion is reported with the token."""
        ...

    def run(self, key: ReplicaKey, function: Callable[[], T]) -> Future[T]:
        """Run another function on the replica's writer, in order with its updates."""
        ...

    def lane(self, key: ReplicaKey) -> int:
        """Return the number of the replica's writer. Work for two replicas of one writer is sequential."""
        ...

    def forget_refused(self, key: ReplicaKey) -> None:
        """Forget this replica's updates that found no space, because its file is opened again. Called on its writer."""
        ...

    def forget(self, key: ReplicaKey) -> None:
        """Forget a replica for which nothing will be submitted again."""
        ...
