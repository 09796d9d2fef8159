"""The operations of a history, by the messages that they are about."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from sim.history.queues.operations import (
    Alteration,
    Answer,
    ChangedMessage,
    Drained,
    LeasedMessage,
    LeaseTaken,
    Operation,
    Put,
    SentMessage,
    SettledMessage,
    Settlement,
    Sweep,
    Swept,
    Verb,
)

Place = tuple[int, int]
"""(partition, sequence)."""


class Sent(NamedTuple):
    """A message with the batch that it was sent in."""

    put: Put
    position: int

    @property
    def message(self) -> SentMessage:
        """Return the message as it was sent."""
        return self.put.messages[self.position]

    @property
    def sequence(self) -> int:
        """Return the sequence that its acknowledgement named, or -1."""
        return self.put.first_sequence + self.position if self.put.first_sequence >= 0 else -1

    @property
    def is_repeat(self) -> bool:
        """Return whether it was not enqueued, since its id was known, or may not have been."""
        return self.position in self.put.repeated or bool(self.message.id and not self.put.are_exceptions_known)


class Lease(NamedTuple):
    """A lease of one message that a consumer knows of."""

    taken: LeaseTaken
    message: LeasedMessage


class Settled(NamedTuple):
    """A settlement of one message."""

    settlement: Settlement
    message: SettledMessage

    @property
    def is_done(self) -> bool:
        """Return whether it certainly took effect."""
        return self.message.answer in (Answer.DONE, Answer.DIED)

    @property
    def may_have_happened(self) -> bool:
        """Return whether it took effect or may have."""
        return self.is_done or (self.message.answer is None and self.settlement.may_have_happened)


class Changed(NamedTuple):
    """A change of one message."""

    alteration: Alteration
    message: ChangedMessage

    @property
    def is_done(self) -> bool:
        """Return whether it certainly took effect."""
        return self.message.answer is Answer.DONE

    @property
    def may_have_happened(self) -> bool:
        """Return whether it took effect or may have."""
        return self.is_done or (self.message.answer is None and self.alteration.may_have_happened)


ENDING_VERBS = frozenset({Verb.ACCEPT, Verb.RELEASE, Verb.REJECT})
"""The settlements that end a lease."""


class Book:
    """A history, sorted."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self.sent: dict[bytes, Sent] = {}
        """Messages by their values."""
        self.by_place: dict[Place, Sent] = {}
        """Messages at the sequences that acknowledgements named."""
        self.leases: dict[Place, list[Lease]] = defaultdict(list)
        """Leases of each message by their numbers."""
        self.settled: dict[Place, list[Settled]] = defaultdict(list)
        self.changed: dict[Place, list[Changed]] = defaultdict(list)
        self.swept: dict[int, list[Swept]] = defaultdict(list)
        self.drained: dict[int, Drained] = {}
        self._replacing: dict[tuple[int, str], list[Sent]] = defaultdict(list)
        for operation in operations:
            self._add(operation)
        for leases in self.leases.values():
            leases.sort(key=lambda lease: (lease.message.lease_number, lease.taken.began))

    def _add(self, operation: Operation) -> None:
        partition = operation.partition
        match operation:
            case Put():
                self._add_put(operation)
            case LeaseTaken():
                for leased in operation.messages:
                    self.leases[partition, leased.sequence].append(Lease(operation, leased))
            case Settlement():
                for settled in operation.messages:
                    self.settled[partition, settled.sequence].append(Settled(operation, settled))
            case Alteration():
                for changed in operation.messages:
                    self.changed[partition, changed.sequence].append(Changed(operation, changed))
            case Swept():
                self.swept[partition].append(operation)
            case Drained():
                self.drained[partition] = operation
            case _:
                raise ValueError(f"a history has no operation {operation!r}")

    def _add_put(self, put: Put) -> None:
        for position, message in enumerate(put.messages):
            sent = Sent(put, position)
            self.sent[message.value] = sent
            if sent.sequence >= 0:
                self.by_place[put.partition, sent.sequence] = sent
            if message.replaces and put.may_have_happened:
                self._replacing[put.partition, message.id].append(sent)

    # ------------------------------------------------------------------------------------------------ questions

    def all_leases(self) -> Iterator[tuple[Place, Lease]]:
        """Iterate over all leases."""
        for place, leases in self.leases.items():
            for lease in leases:
                yield place, lease

    def changes(self, place: Place, verb: Verb) -> list[Changed]:
        """Return the changes of a message that took effect or may have."""
        return [one for one in self.changed.get(place, ()) if one.message.verb is verb and one.may_have_happened]

    def settlements(self, place: Place, lease_number: int, *verbs: Verb) -> list[Settled]:
        """Return the settlements with a token that took effect or may have."""
        return [
            one
            for one in self.settled.get(place, ())
            if one.message.lease_number == lease_number and one.message.verb in verbs and one.may_have_happened
        ]

    def sweeps(self, place: Place, *kinds: Sweep) -> list[Swept]:
        """Return the sweeps that took a message or may have."""
        sent = self.by_place.get(place)
        return [
            one
            for one in self.swept.get(place[0], ())
            if one.sweep in kinds and one.may_have_happened and (sent is None or _takes(one, sent))
        ]

    def replacements(self, sent: Sent) -> list[Put]:
        """Return the batches that may have replaced a message by another one with its id."""
        if not sent.message.id:
            return []
        others = self._replacing.get((sent.put.partition, sent.message.id), ())
        return [other.put for other in others if other != sent]

    def is_redriven(self, place: Place, lease: Lease) -> bool:
        """Return whether a message may have been redriven before this lease. It died before that, so it was leased, or it has expired."""
        sent = self.sent.get(lease.message.value)
        if lease.message.lease_number == 1 and sent is not None and not sent.message.may_expire:
            return False
        redrives: list[Operation] = [one.alteration for one in self.changes(place, Verb.REDRIVE)]
        redrives += self.sweeps(place, Sweep.REDRIVE)
        return any(one.began < lease.taken.ended for one in redrives)

    def is_after(self, place: Place, lease: Lease, moment: float) -> bool:
        """Return whether a lease certainly began after a change that was answered at a moment, since a leased message is not changed.

        Either it was requested later, or it was still valid later: it was settled.
        """
        return lease.taken.began > moment or any(
            one.is_done and one.message.lease_number == lease.message.lease_number and one.settlement.began > moment
            for one in self.settled.get(place, ())
        )

    def endings(self, place: Place) -> list[Operation]:
        """Return the operations that finished a message, or may have. Expiry and the end of the last attempt are none."""
        found: list[Operation] = [
            one.settlement
            for one in self.settled.get(place, ())
            if one.may_have_happened and one.message.verb is Verb.ACCEPT
        ]
        found += [one.alteration for one in self.changes(place, Verb.CANCEL)]
        found += self.sweeps(place, Sweep.PURGE, Sweep.PURGE_ALL)
        sent = self.by_place.get(place)
        if sent is not None:
            found += self.replacements(sent)
        return found


def _takes(swept: Swept, sent: Sent) -> bool:
    """Return whether a sweep may take a message, as far as its time and its filter say."""
    tenant = sent.message.tenant
    is_inside = not swept.tenant or tenant == swept.tenant or tenant.startswith(swept.tenant + ".")
    return is_inside and sent.put.began < swept.ended
