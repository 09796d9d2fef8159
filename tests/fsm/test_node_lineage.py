"""The marks of its boots distinguish a data directory from its copies."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from raftmq.fsm.node_lineage import LINEAGE_MARKS_MAX, MARK_BYTES, NO_BOOT, Boot, Lineage
from raftmq.storage import registry


def grown(boots: int, seed: int = 1, start: Lineage | None = None) -> Lineage:
    """Return the lineage of a directory after more boots."""
    source, lineage = random.Random(seed), start or Lineage(0, b"")
    for _ in range(boots):
        lineage = lineage.followed_by(source.randbytes(MARK_BYTES))
    return lineage


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 600), st.integers(0, 600))
def test_a_directory_descends_from_every_boot_it_was_in(boots: int, more: int):
    """A false alarm would give up an intact replica, so failed starts and boots that nobody saw must not matter."""
    earlier = grown(boots)
    later = grown(more, 2, earlier)
    assert later.contradiction(earlier.current) is None
    assert later.contradiction(NO_BOOT) is None
    assert later.defect() is None


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 300), st.integers(1, LINEAGE_MARKS_MAX), st.integers(1, LINEAGE_MARKS_MAX))
def test_a_copy_of_an_earlier_boot_is_detected_however_often_it_is_started(boots: int, seen: int, starts: int):
    copied = grown(boots)
    original, copy = grown(seen, 2, copied), grown(starts, 3, copied)
    assert copied.contradiction(original.current) is not None
    told = copy.contradiction(original.current)
    assert told is not None
    assert ("has been seen" in told) or ("another process" in told)


def test_a_contradiction_names_its_reason():
    copied = grown(4)
    first, second = grown(1, 2, copied), grown(1, 3, copied)
    assert second.contradiction(first.current) == "another process has been seen as boot 5 of it"
    assert copied.contradiction(first.current) == "it is in boot 4, and its boot 5 has been seen"


def test_a_lineage_with_a_wrong_number_of_marks_is_refused():
    """A lineage without marks would descend from everything."""
    for lineage in (Lineage(0, b""), Lineage(2, b"mark"), Lineage(9, b""), Lineage(1, b"marks")):
        assert lineage.defect() is not None
    assert Lineage(1000, bytes(MARK_BYTES * LINEAGE_MARKS_MAX)).defect() is None
    assert Lineage(1, b"mark").mark_of(0) is None
    assert Lineage(1, b"mark").current == Boot(1, b"mark")


def test_the_registry_stores_marks_in_the_format_of_lineages(tmp_path):
    assert (registry.MARK_BYTES, registry.BOOT_MARKS_MAX) == (MARK_BYTES, LINEAGE_MARKS_MAX)
    lineages = []
    for _ in range(3):
        held = registry.Registry(tmp_path / "node.mdb")
        lineages.append(Lineage(held.boot, held.boot_marks))
        held.close(is_clean=True)
    assert [one.boot for one in lineages] == [1, 2, 3]
    assert all(one.defect() is None for one in lineages)
    assert lineages[2].contradiction(lineages[0].current) is None
    assert lineages[0].contradiction(lineages[2].current) is not None
