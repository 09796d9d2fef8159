"""Follows the stamps of each producer name: a register that is replaced by compare-and-set, within an epoch that only rises.

Each stamp is written by one claim, which names the stamp that it replaces. So the stamps of an epoch form a chain, and every answer is a
place in it. A history is linearizable if no answer is before one that ended before it began, if no place has two stamps, and if every stamp
was claimed. This takes one pass, where the search of `linearizability.py` has exponentially many orders of claims without an answer to try.

A name must be new in its history and must not be removed during it. A claim replaces only a stamp that its process saw in that epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from sim.history.tables import NEVER, Claim, History

FENCED: Final = "ProducerFencedError"
"""The error that says that the name has a later epoch."""


class Place(NamedTuple):
    """A place in the order of all states of a name."""

    epoch: int
    number: int
    """Number of replacements in the epoch before it. -1: any."""


@dataclass(frozen=True, slots=True)
class Sight:
    """A name was at a place: at some time between two events."""

    place: Place
    stamp: str | None
    """None: it was in the epoch of `place` or a later one."""
    began: int
    """The last event that was certainly before: the claim that is answered began, or the stamp was claimed."""
    ended: int
    process: str

    def __str__(self) -> str:
        return f"epoch {self.place.epoch}" + (f" with {self.stamp!r}" if self.stamp is not None else " or a later one")


@dataclass(slots=True)
class Register:
    """The states of one name."""

    name: str
    claims: Sequence[Claim]
    """In the order in which they began."""
    writers: dict[tuple[int, str], Claim] = field(default_factory=dict)
    """Epoch and stamp → the claim that writes it. The empty stamp may have many: it is the first one."""
    sights: list[Sight] = field(default_factory=list)
    stood: dict[Place, dict[str, Sight]] = field(default_factory=dict)
    """Place → the claimed stamps that were certainly there, each with the first sight that proves it."""
    unclaimed: list[tuple[str, Sight]] = field(default_factory=list)
    """Stamps that were there although nobody had claimed them in that epoch, each with a sight that proves it."""
    numbers: dict[tuple[int, str], int] = field(default_factory=dict)
    """Epoch and stamp → the number of its place."""

    @staticmethod
    def of(name: str, claims: Sequence[Claim]) -> Register:
        """Create it from all claims of a name."""
        register = Register(name, claims)
        for claim in claims:
            written = (claim.epoch, claim.stamp)
            if written not in register.writers:
                register.writers[written] = claim
                previous = -1 if claim.replaces is None else register.numbers.get((claim.epoch, claim.replaces), -1)
                register.numbers[written] = previous + 1
        return register

    def place(self, epoch: int, stamp: str) -> Place:
        """Return the place of a stamp, which is the first of its epoch for a stamp that nobody claimed."""
        return Place(epoch, self.numbers.get((epoch, stamp), 0))

    def answers(self) -> Iterator[Sight]:
        """Yield what the answers of all claims say. An epoch that is too low says something as well."""
        for claim in self.claims:
            if claim.ended_at == NEVER:
                continue
            if claim.answer is not None:
                writer = self.writers.get(claim.answer)
                began = claim.invoked_at if writer is None else max(claim.invoked_at, writer.invoked_at)
                yield Sight(self.place(*claim.answer), claim.answer[1], began, int(claim.ended_at), claim.process)
            elif (
                claim.error == FENCED and claim.first is None and not claim.has_second
            ):  # otherwise it is either name's
                place = Place(claim.epoch + 1, -1)
                yield Sight(place, None, claim.invoked_at, int(claim.ended_at), claim.process)


def registers(history: History) -> list[Register]:
    """Return the register of each name in the history, with everything that the answers prove."""
    by_name = {name: Register.of(name, claims) for name, claims in sorted(history.claims.items())}
    answers = [(sight, register) for register in by_name.values() for sight in register.answers()]
    for sight, register in sorted(answers, key=lambda one: one[0].ended):
        _see(by_name, register, sight)
    return list(by_name.values())


def _see(by_name: dict[str, Register], register: Register, sight: Sight) -> None:
    """Note a sight, and whatever must have been before: the replaced stamps, and the first claims of second ones."""
    seen = [(register, sight)]
    while seen:
        register, sight = seen.pop()
        epoch, stamp = sight.place.epoch, sight.stamp
        if stamp is None or (epoch, stamp) in register.writers:
            register.sights.append(sight)
        while stamp is not None:
            writer = register.writers.get((epoch, stamp))
            if writer is None or writer.invoked_at > sight.ended:
                register.unclaimed.append((stamp, sight))
            if writer is None:
                break
            known = register.stood.setdefault(register.place(epoch, stamp), {})
            if stamp in known:
                break
            known[stamp] = sight
            if stamp and writer.first is not None:
                first, other = writer.first, by_name[writer.first.name]
                where = other.place(first.epoch, first.stamp)
                seen.append((other, Sight(where, first.stamp, first.invoked_at, sight.ended, sight.process)))
            stamp = writer.replaces
