"""Lease messages for one caller from all partitions of a topic that this broker leads, within the caller's credit."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from raftmq.broker.partitions.queue.leases import Filter, QueueLeases
from raftmq.broker.services.queue.credit import Credit, Reserved
from raftmq.broker.services.queue.deliveries import Deliveries, Delivery, ServedPartition
from raftmq.fsm.queue.results import Leased


class _Pending:
    """A lease whose messages are being read."""

    __slots__ = ("delivery", "is_done", "reserved")

    def __init__(self, reserved: Reserved) -> None:
        self.reserved = reserved
        self.is_done = False
        self.delivery: Delivery | None = None


class QueueConsumer:
    """A caller that receives messages. Implements `Consumer` of the partitions' leases.

    It waits at every replica of its partitions here: only leaders lease. Deliveries keep the order of their leases.
    """

    def __init__(
        self,
        deliveries: Deliveries,
        wanted: Filter,
        lease_ms: int,
        credit: Credit,
        on_delivery: Callable[[Delivery], None],
        on_free: Callable[[], None] = lambda: None,
        *,
        auto_accept: bool = False,
    ) -> None:
        """Take the conditions of the caller.

        Args:
            deliveries: Makes the deliveries.
            wanted: The messages that it wants.
            lease_ms: The length of its leases. 0: the topic's.
            credit: Its credit. The consumer reserves and uses it.
            on_delivery: Called with each delivery.
            on_free: Called when reserved credit became free, after `on_delivery`.
            auto_accept: Whether messages are accepted before they are delivered.
        """
        self.filter = wanted
        self.lease_ms = lease_ms
        self.is_gone = False
        self._deliveries = deliveries
        self._credit = credit
        self._on_delivery = on_delivery
        self._on_free = on_free
        self._auto_accept = auto_accept
        self._partitions: dict[QueueLeases, ServedPartition] = {}
        self._pending: deque[_Pending] = deque()
        self.is_paused = False
        """Whether nothing is leased although there is credit."""

    # ------------------------------------------------------------------------------------------------ partitions

    @property
    def partitions(self) -> Iterable[ServedPartition]:
        """Return the partitions at which it waits."""
        return self._partitions.values()

    def attach(self, partitions: Iterable[ServedPartition]) -> None:
        """Wait at exactly these partitions."""
        wanted = {partition.queue.leases: partition for partition in partitions}
        for leases in [leases for leases in self._partitions if leases not in wanted]:
            del self._partitions[leases]
            leases.remove(self)
        for leases, partition in wanted.items():
            if leases not in self._partitions:
                self._partitions[leases] = partition
                leases.add(self)

    def wake(self) -> None:
        """Look for messages after the credit has grown."""
        for leases in self._partitions:
            leases.wake()

    def close(self) -> None:
        """Take nothing more. Messages that are being leased or read are given back."""
        self.is_gone = True
        self.attach(())

    # ------------------------------------------------------------------------------------------------ as the leases see it

    def reserve(self, messages_max: int) -> tuple[int, int]:
        """See `Consumer`."""
        return (0, 0) if self.is_gone or self.is_paused else self._credit.reserve(messages_max)

    def on_refused(self, reserved: tuple[int, int]) -> None:
        """See `Consumer`."""
        self._credit.settle(Reserved(*reserved), 0, 0)

    def on_leased(self, leases: QueueLeases, reserved: tuple[int, int], leased: Leased | None) -> None:
        """See `Consumer`."""
        pending = _Pending(Reserved(*reserved))
        self._pending.append(pending)
        partition = self._partitions.get(leases)
        if leased is None or not leased.counts:
            self._on_read(pending, None)
        elif partition is None:  # it waits there no more
            leases.give_back(leased)
            self._on_read(pending, None)
        else:
            self._deliveries.deliver(
                partition, leased, lambda found: self._on_read(pending, found), auto_accept=self._auto_accept
            )

    def _on_read(self, pending: _Pending, delivery: Delivery | None) -> None:
        pending.is_done, pending.delivery = True, delivery
        waiting = self._pending
        while waiting and waiting[0].is_done:
            self._deliver(waiting.popleft())
        self._on_free()
        if not self.is_gone:
            self.wake()

    def _deliver(self, pending: _Pending) -> None:
        delivery = pending.delivery
        if delivery is None:
            self._credit.settle(pending.reserved, 0, 0)
            return
        self._credit.settle(pending.reserved, delivery.messages, len(delivery.block))
        if self.is_gone:
            delivery.give_back()
        else:
            self._on_delivery(delivery)
