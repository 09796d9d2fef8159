"""Lease messages of one partition for the consumers that wait, as soon as something may be leased.

Consumers wait here, and not in the state machine. A `Lease` is proposed only when a consumer has credit and either the machine has something
leasable, or messages without a due time are being committed: then it travels in the same commit, and a message reaches its
handler after one of them. Consumers take turns.

A lease whose consumer is gone when it applies is given back, uncounted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from raftmq.broker.base.request_error import RequestError
from raftmq.broker.partitions.queue.commands import QueueCommands
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.queue.commands import Lease, Operation, Settle, SettleDetail
from raftmq.fsm.queue.limits import ITEMS_WORK_MAX
from raftmq.fsm.queue.partition import QueuePartition
from raftmq.fsm.queue.results import Leased

KEY_REST_SECONDS: Final = 0.05
"""The pause of a consumer that waits for one key and found it blocked. Whether a key's head is ready may need a read, so it is not known
here, and the consumer must not propose one lease after the other."""
GIVEN_BACK: Final = SettleDetail(delay_ms=0, is_counted=False)
"""Arguments of a release without work."""


class Filter(NamedTuple):
    """The messages that a consumer wants."""

    tenants: tuple[str, ...] = ()
    """Subtrees. Empty: all."""
    key: bytes = b""


class Consumer(Protocol):
    """A consumer that waits for messages of one or more partitions of this broker."""

    filter: Filter
    lease_ms: int
    is_gone: bool
    """Whether it takes nothing more."""

    def reserve(self, messages_max: int) -> tuple[int, int]:
        """Reserve credit for at most so many messages. Return the messages and their bytes: (0, 0) without credit."""
        ...

    def on_leased(self, leases: QueueLeases, reserved: tuple[int, int], leased: Leased | None) -> None:
        """Take leased messages in place of the reserved credit. None: the command failed, and nothing is leased for it.

        A consumer that cannot deliver them calls `give_back`.
        """
        ...


class QueueLeases:
    """The consumers that wait for messages of one partition."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        replica: Replica[QueuePartition],
        commands: QueueCommands,
        enqueued: Callable[[], int],
    ) -> None:
        """Take `enqueued`, which returns how many proposed messages can be leased as soon as they are applied."""
        self._replica = replica
        self._loop = loop
        self._commands = commands
        self._enqueued = enqueued
        self._waiting: deque[Consumer] = deque()
        self._resting: set[Consumer] = set()
        """Consumers of a blocked key, and for how long they do not try again: `KEY_REST_SECONDS`."""
        self._requested = 0
        """Messages named by leases that are not applied yet."""
        replica.proposers.append(self._propose)
        replica.progress_listeners.append(self.wake)

    @property
    def consumers(self) -> int:
        """Return the number of consumers that wait."""
        return len(self._waiting)

    def add(self, consumer: Consumer) -> None:
        """Let a consumer wait, behind all others."""
        self._waiting.append(consumer)
        self.wake()

    def remove(self, consumer: Consumer) -> None:
        """Let a consumer wait no more. A lease that is under way for it is still reported to it."""
        if consumer in self._waiting:
            self._waiting.remove(consumer)

    def wake(self) -> None:
        """Look in the engine's next pass whether something may be leased: credit, messages or limits have changed."""
        if self._waiting and self._may_propose():
            self._replica.wake_proposers()

    def _may_propose(self) -> bool:
        replica = self._replica
        if not replica.is_leader:
            return False
        return self._enqueued() > 0 or (not replica.applier.is_suspended and replica.state_machine.is_leasable())

    def _propose(self) -> None:
        """Propose a lease for each consumer with credit, as far as there may be messages for it."""
        if not self._waiting or not self._replica.is_leader:
            return
        enqueued, machine = self._enqueued(), self._replica.state_machine
        is_readable = not self._replica.applier.is_suspended
        ready = machine.ready_count if is_readable and machine.is_leasable() else 0
        available = min(ready + enqueued - self._requested, ITEMS_WORK_MAX)
        for _ in range(len(self._waiting)):
            if available <= 0:
                return
            consumer = self._waiting[0]
            self._waiting.rotate(-1)
            wanted = consumer.filter
            if consumer in self._resting:
                continue
            if wanted.tenants and not enqueued and not (is_readable and machine.is_leasable(wanted.tenants)):
                continue
            reserved = consumer.reserve(available)
            if reserved[0]:
                available -= reserved[0]
                self._lease(consumer, reserved)

    def _lease(self, consumer: Consumer, reserved: tuple[int, int]) -> None:
        wanted, (messages, size) = consumer.filter, reserved
        command = Lease(0, 0, messages, consumer.lease_ms, wanted.tenants, wanted.key, size)
        try:
            future = self._commands.submit(command)
        except RequestError:
            consumer.on_leased(self, reserved, None)
            return
        self._requested += messages
        future.add_done_callback(lambda done: self._on_applied(consumer, reserved, done))

    def _on_applied(self, consumer: Consumer, reserved: tuple[int, int], done: asyncio.Future[object]) -> None:
        self._requested -= reserved[0]
        leased = None
        if not done.cancelled() and done.exception() is None:
            result = done.result()
            leased = result if isinstance(result, Leased) else None
        if consumer.filter.key and not (leased and leased.counts):
            self._resting.add(consumer)
            self._loop.call_later(KEY_REST_SECONDS, self._end_rest, consumer)
        if leased is not None and leased.counts and consumer.is_gone:
            self.give_back(leased)
            leased = None
        consumer.on_leased(self, reserved, leased)
        self.wake()

    def _end_rest(self, consumer: Consumer) -> None:
        self._resting.discard(consumer)
        self.wake()

    def give_back(self, leased: Leased) -> None:
        """Release leased messages that nobody works on, uncounted. If that fails, their leases end by themselves."""
        runs = len(leased.counts)
        command = Settle(
            0, 0, (Operation.RELEASE,) * runs, leased.first_sequences, leased.counts, leased.lease_numbers, (1,) * runs,
            (GIVEN_BACK,),
        )  # fmt: skip
        try:
            self._commands.submit(command)
        except RequestError:
            return
