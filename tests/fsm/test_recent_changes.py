"""The record of changed keys: a reader learns of every change since its last look."""

import random

import pytest
from raftmq.fsm import recent_changes
from raftmq.fsm.recent_changes import RecentChanges


def test_a_key_is_returned_once_however_often_it_changed() -> None:
    changes = RecentChanges[int]()
    for key in (3, 1, 3, 2, 3):
        changes.record(key)
    assert changes.after(0) == [1, 2, 3]
    assert changes.after(2) == [2, 3]
    assert changes.after(changes.version) == []


def test_a_reader_that_never_looked_must_look_at_everything() -> None:
    assert RecentChanges[int]().after(-1) is None


def test_a_record_that_replaces_another_one_counts_on() -> None:
    before, changes = RecentChanges[int](), RecentChanges[int]()
    for key in range(5):
        before.record(key)
    changes.record(7)
    changes.record_all(before.version)
    assert changes.after(before.version) is None
    seen = changes.version
    changes.record(8)
    assert changes.after(seen) == [8]


@pytest.mark.parametrize("seed", range(20))
def test_a_bounded_record_equals_a_list_of_all_changes_or_says_that_it_does_not_reach_back(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent_changes, "RECENT_CHANGES_MAX", 5)
    rng, changes, every = random.Random(seed), RecentChanges[int](), list[tuple[int, int]]()
    for _ in range(100):
        changes.record(rng.randrange(8))
        every.append((changes.version, next(reversed(changes._versions))))
        version = rng.randrange(changes.version + 1)
        expected = sorted({key for changed, key in every if changed > version})
        found = changes.after(version)
        assert found == expected or (found is None and len(expected) > 5)
