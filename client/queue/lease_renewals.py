"""Renews the leases that the program holds, from a thread that the program cannot block.

Two threads use `LeaseRenewals`. One makes the calls (`next_call`, `on_answer`, `on_error`, `take_news`; one call at a time), the event loop
uses the rest. Each method holds the lock briefly and never waits. Must not do I/O.

A lease is renewed when a third of it has passed: of the length that the broker granted, which may be less than was requested. It is no longer renewed when its settlement is answered, when a broker says that it has
ended, or when nobody refers to it any more: a program that forgot a message can never settle it.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from weakref import ReferenceType, ref

from google.protobuf.message import Message
from raftmq.client.base import settings
from raftmq.client.base.error_details import error_from_detail, name_of
from raftmq.client.base.logs import log
from raftmq.client.membership.member_calls import GroupCall
from raftmq.client.queue.lease import Lease
from raftmq.client.queue.settlement_runs import Settlement, build_ack, codes_of, granted_of
from raftmq.client.queue.topic import QueuePartition
from raftmq.errors import NotLeaderError, RaftMQError
from raftmq.methods import ACK
from raftmq.proto import queue_pb2 as pb

RENEWED_AT: Final = 1 / 3
"""The part of a lease that passes before it is renewed."""
RETRIED_AT: Final = 1 / 12
"""The part of a lease that passes before a failed renewal is repeated."""
PATIENCE_SECONDS_MIN: Final = settings.LEASE_MS_MIN / 1000 * RENEWED_AT
"""The shortest time limit of a call, also for a lease of which little is left."""

_Held = tuple[float, ReferenceType[Lease]]
"""The time of the next renewal, and the lease."""
Token = tuple[int, int, int]
"""The group of the partition, the sequence and the lease number."""


def token_of(lease: Lease) -> Token:
    """Return the key of a lease within one client."""
    return (lease.partition.group_id, lease.sequence, lease.lease_number)


class LeaseRenewals:
    """Schedules the renewals of one `Queue`. Times are the event loop's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[Token, _Held] = {}
        self._addresses: dict[int, str] = {}
        """The leader of each partition, by its group."""
        self._calls: dict[str, list[Lease]] = {}
        """The leases in the call to each broker that is in flight."""
        self._lost: deque[Lease] = deque()
        self.renewed_total = 0

    # ---------------------------------------------------------------------------------------------------- the event loop

    def hold(self, leases: Sequence[Lease], now: float) -> None:
        """Renew leases from now on."""
        with self._lock:
            for lease in leases:
                self._held[token_of(lease)] = (now + lease.lease_seconds * RENEWED_AT, ref(lease))

    def drop(self, leases: Sequence[Lease]) -> None:
        """Renew leases no longer. Ignores those that are not held."""
        with self._lock:
            for lease in leases:
                self._held.pop(token_of(lease), None)

    def held_groups(self) -> set[int]:
        """Return the groups of the partitions with held leases. After a recovery these may be groups that their topic has no more."""
        with self._lock:
            return {group_id for group_id, _, _ in self._held}

    def record_leaders(self, addresses: Mapping[int, str]) -> None:
        """Store the leaders' addresses, by the partitions' groups."""
        with self._lock:
            self._addresses.update(addresses)

    def take_lost(self) -> Iterable[Lease]:
        """Return the leases that were lost since the last call."""
        with self._lock:
            lost, self._lost = self._lost, deque()
        return lost

    # ------------------------------------------------------------------------------------------------ the calling thread

    def next_call(self, now: float) -> GroupCall | float:
        """Return the next call, or the time of the next look."""
        with self._lock:
            due = self._take_due(now)
            if not due:
                return now + settings.LEASE_TICK_SECONDS
            address = self._addresses[due[0].partition.group_id]
            self._calls[address] = due
            seconds = self._patience_seconds()
            request = pb.AckRequest(
                timeout_ms=int(seconds * 1000),
                partitions=[build_ack(partition, found) for partition, found in _by_partition(due).items()],
            )
        return GroupCall(address, ACK, request, seconds, now)

    def on_answer(self, call: GroupCall, answer: Message, now: float) -> None:
        """Handle the answer of a call."""
        assert isinstance(answer, pb.AckResponse), "the type that ACK declares"
        assert isinstance(call.request, pb.AckRequest), "made by `next_call`"
        with self._lock:
            leases = self._calls.pop(call.address, [])
            acks = {(ack.topic_id, ack.partition): ack for ack in call.request.partitions}
            results = {(result.topic_id, result.partition): result for result in answer.partitions}
            for partition, settlements in _by_partition(leases).items():
                result = results.get((partition.topic_id, partition.partition))
                if result is None or result.HasField("error"):
                    self._on_refused(partition, settlements, result, now)
                else:
                    granted = granted_of(acks[partition.topic_id, partition.partition], result)
                    self._on_codes(settlements, codes_of(result, len(settlements)), granted, now)

    def on_error(self, call: GroupCall, error: RaftMQError, now: float) -> None:
        """Handle a failed call: its leases are renewed again soon."""
        with self._lock:
            leases = self._calls.pop(call.address, [])
            log.debug(
                "lease_renewal_failed address=%s error_code=%s leases=%d", call.address, name_of(error), len(leases)
            )
            self._retry(leases, now)

    def on_crash(self, error: BaseException) -> None:
        """Do nothing: the thread has logged the defect, and leases that are not renewed end by themselves."""

    def take_news(self) -> bool:
        """Return whether the event loop must look at `take_lost`."""
        return bool(self._lost)

    # ------------------------------------------------------------------------------------------------------- bookkeeping

    def _patience_seconds(self) -> float:
        """Return how long to wait for a broker: the leases of others wait for the end of the call, the shortest of them, too."""
        held = (reference() for _, reference in self._held.values())
        shortest = min((lease.lease_seconds for lease in held if lease is not None), default=0.0)
        return max(PATIENCE_SECONDS_MIN, min(settings.LEASE_RENEWAL_SECONDS, shortest * RENEWED_AT))

    def _take_due(self, now: float) -> list[Lease]:
        """Return leases that are due at one broker. Each is scheduled again as if its renewal succeeded.

        Those beyond the maximum of a request, or of one entry of their partition, are in the next call. So are those of another group of
        the same partition, as it is after a recovery: an answer does not name groups.
        """
        found: list[Lease] = []
        groups: dict[tuple[int, int], int] = {}
        in_group: Counter[int] = Counter()
        broker = ""
        for token, (due, reference) in list(self._held.items()):
            if (
                due > now
                or len(found) == settings.LEASE_RENEWALS_MAX
                or in_group[token[0]] == settings.ACK_MESSAGES_MAX
            ):
                continue
            lease = reference()
            if lease is None:
                del self._held[token]
                continue
            address = self._addresses.get(token[0], "")
            place = lease.partition.topic_id, lease.partition.partition
            if address and address == (broker or address) and groups.setdefault(place, token[0]) == token[0]:
                broker = address
                in_group[token[0]] += 1
                found.append(lease)
                self._add(lease, now + lease.lease_seconds * RENEWED_AT)
        return found

    def _on_refused(
        self,
        partition: QueuePartition,
        settlements: list[Settlement],
        result: pb.PartitionAckResult | None,
        now: float,
    ) -> None:
        if result is not None:
            error = error_from_detail(result.error)
            if isinstance(error, NotLeaderError) and error.leader_address:
                self._addresses[partition.group_id] = error.leader_address  # the event loop may be blocked
        self._retry([settlement.lease for settlement in settlements], now)

    def _on_codes(self, settlements: list[Settlement], codes: list[int], granted: list[int], now: float) -> None:
        for settlement, code, granted_ms in zip(settlements, codes, granted, strict=True):
            lease = settlement.lease
            if code == pb.OK:
                self.renewed_total += 1
                lease.on_granted(granted_ms)
                held = self._held.get(token_of(lease))
                if held is not None:  # sooner than planned if the broker granted less than it did before
                    self._add(lease, min(held[0], now + lease.lease_seconds * RENEWED_AT))
            elif self._held.pop(token_of(lease), None) is not None and not lease.is_settled:
                lease.is_lost = True  # a settled lease ended by its settlement, whose answer is on its way
                self._lost.append(lease)

    def _retry(self, leases: Iterable[Lease], now: float) -> None:
        for lease in leases:
            if token_of(lease) in self._held:
                self._add(lease, now + lease.lease_seconds * RETRIED_AT)

    def _add(self, lease: Lease, due: float) -> None:
        self._held[token_of(lease)] = (due, ref(lease))


def _by_partition(leases: Iterable[Lease]) -> dict[QueuePartition, list[Settlement]]:
    grouped: dict[QueuePartition, list[Settlement]] = {}
    for lease in sorted(leases, key=lambda lease: lease.sequence):
        detail = pb.AckDetail(lease_ms=lease.renewal_ms)
        grouped.setdefault(lease.partition, []).append(Settlement(lease, pb.RENEW, detail))
    return grouped
