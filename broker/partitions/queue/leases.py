"""Lease messages of one partition for the consumers that wait, as soon as something may be leased.

Consumers wait here, and not in the state machine. A `Lease` is proposed only when a consumer has credit and either the machine has something
leasable, or messages without a due time are being committed: then it travels in the same commit, and a message reaches its
handler after one of them. A message whose due time has come is leased by the entry that promotes it, for the same reason. Consumers take
turns.

A lease whose consumer is gone when it applies is given back, uncounted. One that is applied only after the leadership was lost still reaches its
consumer: it is as valid as any other, and nobody else knows whose it is.

With a single active consumer, only one of those that wait leases. Another one follows when it has ended and no message of the partition is
leased any more. This leader alone chooses it: a new leader begins without one, and waits for the end of the leases that it finds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Final, NamedTuple, Protocol

from raftmq.broker.base.request_error import RequestError
from raftmq.broker.partitions.queue.commands import QueueCommands
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.queue.commands import Lease, Operation, Settle, SettleDetail, decode_commands
from raftmq.fsm.queue.limits import ITEMS_WORK_MAX
from raftmq.fsm.queue.partition import QueuePartition
from raftmq.fsm.queue.results import Leased, Results
from raftmq.raft.entry import Entry
from raftmq.raft.ready import Role, RoleChange
from raftmq.types import Term

REST_SECONDS: Final = 0.05
"""The pause of all consumers after a lease that failed or could not be proposed, and the pause of a consumer that waits for one key and found
it blocked, unless memory knows that the key's head is ready. Nobody must propose one lease after the other in vain."""
GIVEN_BACK: Final = SettleDetail(is_counted=False)
"""Arguments of a release without work. It has no delay, so the message keeps its due time and its place."""


class Filter(NamedTuple):
    """The messages that a consumer wants."""

    tenants: tuple[str, ...] = ()
    """Subtrees. Empty: all."""
    key: bytes = b""


ALL: Final = Filter()
"""The filter of a consumer that wants every message."""


class Consumer(Protocol):
    """A consumer that waits for messages of one or more partitions of this broker."""

    filter: Filter
    lease_ms: int
    """0: the topic's."""
    is_gone: bool
    """Whether it takes nothing more."""

    def reserve(self, leases: QueueLeases, messages_max: int) -> tuple[int, int]:
        """Reserve credit for at most so many messages of a partition. Return the messages and their bytes: (0, 0) without credit."""
        ...

    def on_leased(self, leases: QueueLeases, reserved: tuple[int, int], leased: Leased | None) -> None:
        """Take leased messages in place of the reserved credit. None: the command failed, and nothing is leased for it.

        A consumer that cannot deliver them calls `give_back`.
        """
        ...

    def on_refused(self, leases: QueueLeases, reserved: tuple[int, int]) -> None:
        """Take the reserved credit back: no command was proposed. Another is tried later."""
        ...


class QueueLeases:
    """The consumers that wait for messages of one partition."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        replica: Replica[QueuePartition],
        commands: QueueCommands,
        enqueued: Callable[[tuple[str, ...]], int],
        is_single_active: Callable[[], bool],
        coming: Callable[[Filter, int], int],
    ) -> None:
        """Take functions that tell about the partition.

        Args:
            loop: The node's event loop.
            replica: The partition's replica.
            commands: Proposes the leases.
            enqueued: Returns how many proposed messages of some subtrees of tenants (empty: of all) can be leased as soon as they are
                applied.
            is_single_active: Returns whether only one consumer at a time may lease.
            coming: Returns how many delayed messages the next entry makes leasable for a filter by its time alone, at most as many as its
                second argument says. It is called only while the machine may be read.
        """
        self._replica = replica
        self._loop = loop
        self._commands = commands
        self._enqueued = enqueued
        self._is_single_active = is_single_active
        self._coming = coming
        self._active: Consumer | None = None
        """The only consumer that may lease, if there is to be one. None: it is chosen when no message is leased."""
        self._waiting: deque[Consumer] = deque()
        self._resting: set[Consumer] = set()
        """Consumers that found their key blocked, for `REST_SECONDS`."""
        self._retry: asyncio.TimerHandle | None = None
        """Runs for `REST_SECONDS` after a lease failed: nothing is proposed."""
        self._requested = 0
        """Messages named by leases that are not applied yet."""
        self._numbers = count(1)
        self._under_way: dict[int, tuple[Term, Consumer]] = {}
        """The proposed leases by their request: the term of each, and its consumer."""
        self._lost: dict[int, tuple[Term, Consumer]] = {}
        """Those of them that may be applied although the leadership was lost."""
        self._lost_through = 0
        """The index up to which they are in the log."""
        replica.proposers.insert(0, self._propose)  # before the gathered commands are proposed: a lease is one of them
        replica.progress_listeners.append(self.wake)
        replica.role_listeners.append(self._on_role)
        replica.applier.listeners.append(self._on_entry)

    @property
    def consumers(self) -> int:
        """Return the number of consumers that wait."""
        return len(self._waiting)

    @property
    def leased_count(self) -> int:
        """Return the number of leased messages of all consumers."""
        return self._replica.state_machine.leased_count

    def add(self, consumer: Consumer) -> None:
        """Let a consumer wait, behind all others."""
        self._waiting.append(consumer)
        self.wake()

    def remove(self, consumer: Consumer) -> None:
        """Let a consumer wait no more. A lease that is under way for it is still reported to it."""
        if consumer in self._waiting:
            self._waiting.remove(consumer)
        if consumer is self._active:
            self._active = None
            self.wake()

    def may_lease(self, wanted: Filter) -> bool:
        """Return whether a consumer with this filter, which does not wait here yet, may get messages without waiting for others.

        True also while that cannot be known: during a read, or for a key.
        """
        replica = self._replica
        if not replica.is_leader or (self._is_single_active() and not self._is_vacant()):
            return False
        if self._enqueued(wanted.tenants) > 0 or replica.applier.is_suspended:
            return True
        return replica.state_machine.is_leasable(wanted.tenants) or self._coming(wanted, 1) > 0

    def wake(self) -> None:
        """Look in the engine's next pass whether something may be leased: credit, messages or limits have changed."""
        if self._waiting and self._may_propose():
            self._replica.wake_proposers()

    def _may_propose(self) -> bool:
        replica = self._replica
        if not replica.is_leader:
            return False
        if self._enqueued(()) > 0:
            return True
        return not replica.applier.is_suspended and (replica.state_machine.is_leasable() or self._coming(ALL, 1) > 0)

    def _propose(self) -> None:
        """Propose a lease for each consumer with credit, as far as there may be messages for it."""
        if not self._waiting or not self._replica.is_leader or self._retry is not None:
            return
        enqueued, machine = self._enqueued(()), self._replica.state_machine
        is_readable = not self._replica.applier.is_suspended
        ready = machine.leasable_count() if is_readable else 0
        coming = self._coming(ALL, ITEMS_WORK_MAX) if is_readable and ready < ITEMS_WORK_MAX else 0
        available = min(ready + enqueued + coming - self._requested, ITEMS_WORK_MAX)
        is_single = self._is_single_active()
        if not is_single:
            self._active = None
        for consumer in self._candidates() if is_single else self._turns():
            if available <= 0:
                return
            wanted = consumer.filter
            findable = self._findable(consumer, ready, is_readable=is_readable) if wanted.tenants else available
            reserved = consumer.reserve(self, min(available, findable)) if findable else (0, 0)
            if reserved[0]:
                available -= reserved[0]
                self._active = consumer if is_single else None
                if not self._lease(consumer, reserved) or is_single:
                    return  # the others would be refused, too

    def _findable(self, consumer: Consumer, ready: int, *, is_readable: bool) -> int:
        """Return how many messages a consumer with a filter may find: at most `ready` of those that are ready, and those that come."""
        machine, wanted = self._replica.state_machine, consumer.filter
        enqueued = self._enqueued(wanted.tenants)
        coming = self._coming(wanted, ITEMS_WORK_MAX) if is_readable else 0
        is_head_ready = machine.is_key_leasable(wanted.tenants[0], wanted.key) if wanted.key and is_readable else None
        if consumer in self._resting and not is_head_ready:
            return 0
        if is_head_ready is False and not enqueued and not coming:
            return 0
        leasable = min(ready, machine.leasable_count(wanted.tenants)) if is_readable else 0
        return leasable + enqueued + coming

    def _turns(self) -> Iterator[Consumer]:
        """Iterate over all consumers, beginning with the one after the last that this returned."""
        for _ in range(len(self._waiting)):
            consumer = self._waiting[0]
            self._waiting.rotate(-1)
            yield consumer

    def _candidates(self) -> Sequence[Consumer]:
        """Return the active consumer, or those from which the next one is chosen: the first with credit."""
        if self._active is not None:
            return (self._active,)
        return tuple(self._waiting) if self._is_vacant() else ()

    def _is_vacant(self) -> bool:
        """Return whether there is no active consumer, and an earlier one, perhaps under another leader, has no lease any more."""
        replica = self._replica
        is_known = not replica.applier.is_suspended
        return self._active is None and not self._requested and is_known and not replica.state_machine.leased_count

    def _on_role(self, change: RoleChange) -> None:
        self._active = None
        if change.role is not Role.LEADER and self._under_way:
            self._lost |= self._under_way
            self._under_way.clear()
            self._lost_through = self._replica.core.last_index

    def _on_entry(self, entry: Entry, result: object) -> None:
        """Look in an applied entry for leases that were lost."""
        if not self._lost:
            return
        if isinstance(result, Results) and (commands := decode_commands(entry.payload)) is not None:
            for item, found in zip(commands.items, result.items, strict=True):
                if not isinstance(item, Lease) or not isinstance(found, Leased):
                    continue
                term, consumer = self._lost.get(item.request, (None, None))
                if consumer is not None and term == entry.term:  # all entries of that term are those of this leader
                    del self._lost[item.request]
                    self._loop.call_soon(self._hand_over, consumer, found)
        if entry.index >= self._lost_through:
            self._lost.clear()

    def _hand_over(self, consumer: Consumer, leased: Leased) -> None:
        """Give messages to the consumer of a lost lease, if it still has the credit."""
        messages = sum(leased.counts)
        reserved = consumer.reserve(self, messages) if messages else (0, 0)
        if reserved[0] == messages > 0:
            consumer.on_leased(self, reserved, leased)
        elif reserved[0]:
            consumer.on_refused(self, reserved)

    def _lease(self, consumer: Consumer, reserved: tuple[int, int]) -> bool:
        """Propose a lease. Return False if it was refused: others are tried a little later."""
        wanted, (messages, size) = consumer.filter, reserved
        lease_ms = consumer.lease_ms or self._commands.lease_ms()
        number = next(self._numbers)  # without a session it says nothing to the machine
        command = Lease(0, number, messages, lease_ms, wanted.tenants, wanted.key, size)
        try:
            future = self._commands.submit(command)
        except RequestError:
            consumer.on_refused(self, reserved)
            self._rest()
            return False
        self._requested += messages
        self._under_way[number] = (self._replica.core.term, consumer)
        future.add_done_callback(lambda done: self._on_applied(consumer, reserved, number, done))
        return True

    def _on_applied(
        self, consumer: Consumer, reserved: tuple[int, int], number: int, done: asyncio.Future[object]
    ) -> None:
        self._requested -= reserved[0]
        self._under_way.pop(number, None)
        leased = None
        if done.cancelled() or done.exception() is not None:
            self._rest()
        else:
            self._lost.pop(number, None)
            result = done.result()
            leased = result if isinstance(result, Leased) else None
        if consumer.filter.key and not (leased and leased.counts):
            self._resting.add(consumer)
            self._loop.call_later(REST_SECONDS, self._end_rest, consumer)
        if leased is not None and leased.counts and consumer.is_gone:
            self.give_back(leased)
            leased = None
        consumer.on_leased(self, reserved, leased)
        self.wake()

    def _rest(self) -> None:
        if self._retry is None:
            self._retry = self._loop.call_later(REST_SECONDS, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
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
