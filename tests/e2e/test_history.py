"""The check of a history finds each kind of damage; otherwise the tests with real brokers would prove nothing."""

import pytest

from tests.e2e.history import KEYS, problems_of

READ = {0: [(0, 0), (1, KEYS)], 1: [(0, 1), (1, 1 + KEYS)]}
ACKNOWLEDGED = {0: (0, 0), KEYS: (0, 1), 1: (1, 0), 1 + KEYS: (1, 1)}
SENT = 2 + KEYS


def test_a_faithful_history_has_no_problems() -> None:
    assert problems_of(ACKNOWLEDGED, SENT, READ) == []


def test_a_record_without_an_answer_may_be_there_or_not() -> None:
    some = {number: position for number, position in ACKNOWLEDGED.items() if number != KEYS}
    assert problems_of(some, SENT, READ) == []


@pytest.mark.parametrize(
    ("read", "problem"),
    [
        ({0: READ[0], 1: READ[1][:1]}, f"record {1 + KEYS} was acknowledged at (1, 1) and is nowhere"),
        ({0: READ[0], 1: [*READ[1], (2, 1 + KEYS)]}, f"record {1 + KEYS} is at (1, 1) and at (1, 2)"),
        ({0: [(0, KEYS), (1, 0)], 1: READ[1]}, f"record 0 at (0, 1) comes after {KEYS} of its key"),
        ({0: [(0, 0), (2, KEYS)], 1: READ[1]}, "partition 0: offset 2 where 1 was expected"),
        ({0: READ[0], 1: [*READ[1], (2, 99)]}, "record 99 at (1, 2) was never sent"),
    ],
)
def test_damage_is_found(read: dict[int, list[tuple[int, int]]], problem: str) -> None:
    assert problem in problems_of(ACKNOWLEDGED, SENT, read)
