"""Lease messages for one caller from all partitions of a topic that this broker leads, within the caller's credit."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from raftmq.broker.partitions.queue.leases import Filter, QueueLeases
from raftmq.broker.services.queue.credit import UNSETTLED_MAX, Credit, Reserved
from raftmq.broker.services.queue.deliveries import Deliveries, Delivery, ServedPartition
from raftmq.fsm.queue.results import Leased


class _Place:
    """A partition at which a consumer waits, and the messages of it that the consumer has."""

    __slots__ = ("partition", "reserved", "unsettled")

    def __init__(self, partition: ServedPartition) -> None:
        self.partition = partition
        self.reserved = 0
        """Messages of leases that are being proposed, at most."""
        self.unsettled = 0
        """Leased messages whose settlement was not answered. Those that were settled in another way, or whose lease ended, still count."""

    def room(self) -> int:
        """Return how many more messages the consumer may have."""
        leased = self.partition.queue.leases.leased_count  # no more can be unsettled
        return UNSETTLED_MAX - self.reserved - min(self.unsettled, leased)


class _Pending:
    """A lease whose messages are being read."""

    __slots__ = ("delivery", "is_done", "leased_messages", "place", "reserved")

    def __init__(self, reserved: Reserved, place: _Place | None, leased_messages: int) -> None:
        self.reserved = reserved
        self.place = place
        self.leased_messages = leased_messages
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
        self._places: dict[QueueLeases, _Place] = {}
        self._by_number: dict[int, _Place] = {}
        self._pending: deque[_Pending] = deque()
        self.is_paused = False
        """Whether nothing is leased although there is credit."""

    # ------------------------------------------------------------------------------------------------ partitions

    @property
    def partitions(self) -> Iterable[ServedPartition]:
        """Return the partitions at which it waits."""
        return [place.partition for place in self._places.values()]

    def attach(self, partitions: Iterable[ServedPartition]) -> None:
        """Wait at exactly these partitions."""
        wanted = {partition.queue.leases: partition for partition in partitions}
        for leases in [leases for leases in self._places if leases not in wanted]:
            del self._places[leases]
            leases.remove(self)
        for leases, partition in wanted.items():
            if leases not in self._places:
                self._places[leases] = _Place(partition)
                leases.add(self)
        self._by_number = {place.partition.number: place for place in self._places.values()}

    def on_settled(self, number: int, messages: int) -> None:
        """Count messages of a partition as settled by the caller."""
        place = self._by_number.get(number)
        if place is not None:
            place.unsettled = max(0, place.unsettled - messages)

    def wake(self) -> None:
        """Look for messages after the credit has grown."""
        for leases in self._places:
            leases.wake()

    def close(self) -> None:
        """Take nothing more. Messages that are being leased or read are given back."""
        self.is_gone = True
        self.attach(())

    # ------------------------------------------------------------------------------------------------ as the leases see it

    def reserve(self, leases: QueueLeases, messages_max: int) -> tuple[int, int]:
        """See `Consumer`."""
        place = self._places.get(leases)
        if place is None or self.is_gone or self.is_paused or (room := place.room()) <= 0:
            return (0, 0)
        reserved = self._credit.reserve(min(messages_max, room))
        place.reserved += reserved.messages
        return reserved

    def on_refused(self, leases: QueueLeases, reserved: tuple[int, int]) -> None:
        """See `Consumer`."""
        self._credit.settle(Reserved(*reserved), 0, 0)
        place = self._places.get(leases)
        if place is not None:
            place.reserved -= reserved[0]

    def on_leased(self, leases: QueueLeases, reserved: tuple[int, int], leased: Leased | None) -> None:
        """See `Consumer`."""
        place = self._places.get(leases)
        messages = sum(leased.counts) if leased is not None and not self._auto_accept else 0
        if place is not None:
            place.reserved -= reserved[0]
            place.unsettled += messages
        pending = _Pending(Reserved(*reserved), place, messages)
        self._pending.append(pending)
        if leased is None or not leased.counts:
            self._on_read(pending, None)
        elif place is None:  # it waits there no more
            leases.give_back(leased)
            self._on_read(pending, None)
        else:
            self._deliveries.deliver(
                place.partition, leased, lambda found: self._on_read(pending, found), auto_accept=self._auto_accept
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
        messages, size = (0, 0) if delivery is None else (delivery.messages, len(delivery.block))
        self._credit.settle(pending.reserved, messages, size)
        if pending.place is not None and pending.leased_messages:
            pending.place.unsettled -= (
                pending.leased_messages - messages
            )  # those that could not be delivered are given back
        if delivery is None:
            return
        if self.is_gone:
            delivery.give_back()
        else:
            self._on_delivery(delivery)
