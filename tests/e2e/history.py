"""What clients were told, and the pure check of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from raftmq.errors import RaftMQError

KEYS = 16

Position = tuple[int, int]
"""Partition and offset."""


@dataclass
class History:
    """What the clients were told."""

    sent: int = 0
    acknowledged: dict[int, Position] = field(default_factory=dict)
    """Number of the record → where its acknowledgement says it is."""
    failed: dict[int, RaftMQError] = field(default_factory=dict)
    read: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """Partition → (offset, number of the record), in the order of reading."""

    @property
    def read_count(self) -> int:
        return sum(map(len, self.read.values()))


def key_of(number: int) -> bytes:
    return b"key-%d" % (number % KEYS)


def value_of(number: int) -> bytes:
    return b"%d " % number + b"." * 100


def problems_of(
    acknowledged: Mapping[int, Position], sent: int, read: Mapping[int, Sequence[tuple[int, int]]]
) -> list[str]:
    """Everything wrong with a history: lost, moved, duplicated, invented and reordered records, and gaps."""
    found: dict[int, Position] = {}
    problems = []
    last_of_key: dict[bytes, int] = {}
    for partition, records in sorted(read.items()):
        for expected, (offset, number) in enumerate(records):
            if offset != expected:
                problems.append(f"partition {partition}: offset {offset} where {expected} was expected")
            if number in found:
                problems.append(f"record {number} is at {found[number]} and at {(partition, offset)}")
            if not 0 <= number < sent:
                problems.append(f"record {number} at {(partition, offset)} was never sent")
            if number < last_of_key.get(key_of(number), -1):
                problems.append(
                    f"record {number} at {(partition, offset)} comes after {last_of_key[key_of(number)]} of its key"
                )
            last_of_key[key_of(number)] = number
            found[number] = (partition, offset)
    for number, position in sorted(acknowledged.items()):
        if number not in found:
            problems.append(f"record {number} was acknowledged at {position} and is nowhere")
        elif position[1] != -1 and found[number] != position:
            problems.append(f"record {number} was acknowledged at {position} and is at {found[number]}")
    return problems
