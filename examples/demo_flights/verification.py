"""Compare the records read back with the source. Pure, so that each kind of damage that it must find has a test.

Every record must exist exactly once, byte for byte, with its key. All records of a key must be in one partition and in the order of
the source. The offsets of each partition must be dense from 0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

SHOWN_BYTES = 400
"""Bytes of a record shown with a problem, enough for a whole flight."""

Source = Sequence[tuple[bytes | None, bytes]]
"""(key, value) in the order of production."""
ReadBack = Sequence[tuple[int, bytes | None, bytes | None]]
"""(offset, key, value) of one partition in the order of reading."""


@dataclass(slots=True)
class Verification:
    """Report the number of correct records, and one sentence for each problem."""

    verified: int = 0
    """Number of records that are correct in place and contents."""
    problems: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Return whether there are no problems."""
        return not self.problems


def show(value: bytes | None) -> str:
    """Return a record's value for use in a sentence."""
    return "no value" if value is None else value[:SHOWN_BYTES].decode(errors="backslashreplace")


def verify(source: Source, partitions: Mapping[int, ReadBack]) -> Verification:
    """Check every partition's records against the source.

    Equal values in the source are distinguished by their number only. Each copy read back counts as the first one not yet seen.
    """
    outcome = Verification()
    places: dict[bytes, list[int]] = {}
    for position in range(len(source) - 1, -1, -1):  # backwards, so that pop() takes the first
        places.setdefault(source[position][1], []).append(position)
    latest: dict[bytes, tuple[int, int]] = {}  # key → its partition, last source position seen
    for partition in sorted(partitions):
        next_offset = 0
        for offset, key, value in partitions[partition]:
            where = f"partition {partition} offset {offset}"
            if offset != next_offset:
                outcome.problems.append(f"offsets not dense: {where} where {next_offset} was expected")
            next_offset = offset + 1
            free = places.get(value) if value is not None else None
            if free is None:
                outcome.problems.append(f"unknown record: {where} holds what was never produced: {show(value)}")
            elif not free:
                outcome.problems.append(f"duplicated record: {where} holds again {show(value)}")
            else:
                position = free.pop()
                problem = check_key(source[position][0], key, position, partition, latest)
                if problem:
                    outcome.problems.append(f"{problem}: {where}, source row {position}: {show(value)}")
                else:
                    outcome.verified += 1
    for position in sorted(position for free in places.values() for position in free):
        outcome.problems.append(f"lost record: source row {position} is in no partition: {show(source[position][1])}")
    return outcome


def check_key(
    expected: bytes | None, key: bytes | None, position: int, partition: int, latest: dict[bytes, tuple[int, int]]
) -> str | None:
    """Return the problem with a record's key, partition or order among the records of its key, or None."""
    if key != expected:
        return f"key changed from {expected!r} to {key!r}"
    if key is None:
        return None
    home, last_position = latest.get(key, (partition, -1))
    if home != partition:
        return f"key {key!r} is in partitions {home} and {partition}"
    if position < last_position:
        return f"order broken for key {key!r}: comes after source row {last_position}"
    latest[key] = (partition, position)
    return None
