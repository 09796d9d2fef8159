"""The common knowledge of the queue clients of a run: the partitions, the messages that were acknowledged, and the history."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from math import inf

from sim.cluster.cluster import Cluster
from sim.cluster.options import Options
from sim.cluster.queues.options import QueueOptions
from sim.history.queues.operations import Operation

KNOWN_MAX = 200
"""Acknowledged messages that meddlers choose from."""


class Ledger:
    """The common knowledge of one run's queue clients."""

    def __init__(self, cluster: Cluster, options: Options, queue_options: QueueOptions, rng: random.Random) -> None:
        self.cluster = cluster
        self.loop = cluster.loop
        self.options = options
        self.queue_options = queue_options
        self.rng = rng
        self.operations: list[Operation] = []
        self.groups: list[int] = []
        """The Raft groups of all queue partitions. A history names partitions by them."""
        self.ordered: dict[int, None] = {}
        """Those that keep the order of keys. No message dies there by itself."""
        self.backoffs_ms: dict[int, int] = {}
        """The least delay after a failed attempt, by group."""
        self.known: list[tuple[int, int]] = []
        """(group, sequence) of the newest acknowledged messages."""
        self.seen_ms: dict[int, int] = {}
        """The newest queue time that a client has seen, by group."""
        self.overdue_seconds: defaultdict[int, float] = defaultdict(float)
        """The time that the end of the run has waited for overdue schedules, by group."""
        self.counts: Counter[str] = Counter()
        self.is_stopping: Callable[[], bool] = lambda: False
        self._values = 0
        self._producers = 1 << 40

    @property
    def now(self) -> float:
        """The time of the simulation."""
        return self.loop.now

    def new_value(self) -> bytes:
        """Return a body that no other message has."""
        self._values += 1
        return b"q%d " % self._values + b"x" * self.rng.randrange(self.queue_options.body_bytes_max)

    def new_producer_id(self) -> int:
        """Return an id that no other producer has."""
        self._producers += 1
        return self._producers

    def record(self, operation: Operation) -> None:
        """Add a finished operation to the history."""
        self.operations.append(operation)
        name = f"{type(operation).__name__} {operation.outcome.value}"
        self.counts[f"queue {name}"] += 1
        self.cluster.trace(f"{operation.process} g{operation.partition} {name} since {operation.began:.4f}")

    def see(self, group_id: int, queue_ms: int) -> None:
        """Remember a queue time."""
        self.seen_ms[group_id] = max(self.seen_ms.get(group_id, 0), queue_ms)

    def ended(self, *, is_answered: bool) -> float:
        """Return the end of an operation that stops now."""
        return self.now if is_answered else inf

    def know(self, group_id: int, sequence: int) -> None:
        """Remember an acknowledged message."""
        self.known.append((group_id, sequence))
        if len(self.known) > KNOWN_MAX:
            del self.known[: KNOWN_MAX // 2]
