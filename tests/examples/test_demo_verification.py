"""The demo's verification finds each kind of damage, and reports nothing about a faithful copy."""

import pytest

from examples.demo_flights.verification import Verification, verify

A, B = b"N1", b"N2"
SOURCE: list[tuple[bytes | None, bytes]] = [
    (A, b"a0"), (B, b"b0"), (A, b"a1"), (None, b"x0"), (B, b"b1"), (A, b"a2"), (None, b"x1"),
]  # fmt: skip
GOOD: dict[int, list[tuple[int, bytes | None, bytes | None]]] = {
    0: [(0, A, b"a0"), (1, A, b"a1"), (2, None, b"x1"), (3, A, b"a2")],
    1: [(0, B, b"b0"), (1, None, b"x0"), (2, B, b"b1")],
}


def damaged(partition: int, records: list[tuple[int, bytes | None, bytes | None]]) -> Verification:
    return verify(SOURCE, GOOD | {partition: records})


def test_a_faithful_copy_is_clean_and_counted() -> None:
    outcome = verify(SOURCE, GOOD)
    assert outcome.is_clean
    assert outcome.verified == len(SOURCE)


def test_keyless_records_may_come_in_any_order() -> None:
    outcome = damaged(1, [(0, B, b"b0"), (1, B, b"b1"), (2, None, b"x0")])
    assert outcome.is_clean


def test_a_lost_record_is_named() -> None:
    outcome = damaged(1, [(0, B, b"b0"), (1, B, b"b1")])
    assert outcome.problems == ["lost record: source row 3 is in no partition: x0"]
    assert outcome.verified == len(SOURCE) - 1


def test_a_missing_partition_loses_all_of_its_records() -> None:
    outcome = verify(SOURCE, {0: GOOD[0]})
    assert [problem[:27] for problem in outcome.problems] == [f"lost record: source row {n} i" for n in (1, 3, 4)]


def test_a_duplicated_record_is_named() -> None:
    outcome = damaged(1, [*GOOD[1], (3, B, b"b1")])
    assert outcome.problems == ["duplicated record: partition 1 offset 3 holds again b1"]


def test_a_duplicate_in_another_partition_is_found() -> None:
    outcome = damaged(1, [*GOOD[1], (3, A, b"a0")])
    assert outcome.problems == ["duplicated record: partition 1 offset 3 holds again a0"]


def test_two_swapped_records_of_a_key_are_found() -> None:
    outcome = damaged(0, [(0, A, b"a1"), (1, A, b"a0"), (2, None, b"x1"), (3, A, b"a2")])
    assert outcome.problems == [
        "order broken for key b'N1': comes after source row 2: partition 0 offset 1, source row 0: a0"
    ]


@pytest.mark.parametrize(("first", "second"), [(1, 2), (0, 2), (5, 4)])
def test_offsets_that_do_not_start_at_zero_skip_or_repeat_are_found(first: int, second: int) -> None:
    outcome = damaged(1, [(first, B, b"b0"), (second, None, b"x0"), (second + 1, B, b"b1")])
    assert outcome.problems
    assert all(problem.startswith("offsets not dense: partition 1 offset") for problem in outcome.problems)


def test_a_changed_byte_is_an_unknown_record_and_a_lost_one() -> None:
    outcome = damaged(1, [(0, B, b"b0"), (1, None, b"x0"), (2, B, b"b!")])
    assert [problem.split(":")[0] for problem in outcome.problems] == ["unknown record", "lost record"]


def test_a_tombstone_is_an_unknown_record() -> None:
    outcome = damaged(1, [*GOOD[1], (3, B, None)])
    assert outcome.problems == ["unknown record: partition 1 offset 3 holds what was never produced: no value"]


def test_a_changed_key_is_found() -> None:
    outcome = damaged(1, [(0, B, b"b0"), (1, b"", b"x0"), (2, B, b"b1")])
    assert outcome.problems == ["key changed from None to b'': partition 1 offset 1, source row 3: x0"]


def test_a_key_in_two_partitions_is_found() -> None:
    outcome = verify(SOURCE, {0: GOOD[0][:3], 1: [*GOOD[1], (3, A, b"a2")]})
    assert outcome.problems == ["key b'N1' is in partitions 0 and 1: partition 1 offset 3, source row 5: a2"]


def test_equal_records_are_counted_and_not_taken_for_duplicates() -> None:
    source = [(A, b"same"), (A, b"same")]
    assert verify(source, {0: [(0, A, b"same"), (1, A, b"same")]}).is_clean
    assert verify(source, {0: [(0, A, b"same")]}).problems == ["lost record: source row 1 is in no partition: same"]
    assert not verify(source, {0: [(n, A, b"same") for n in range(3)]}).is_clean
