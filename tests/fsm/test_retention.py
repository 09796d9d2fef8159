"""Retention: whole entries, oldest first, by age or by size."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftmq.fsm.retention import trim_target
from raftmq.fsm.topic_config import TopicConfig
from raftmq.raft.entry import EntryHeader, EntryKind
from raftmq.types import LogIndex, Offset, Term

FOREVER = TopicConfig(retention_ms=-1, retention_bytes=-1)


def headers(*rows: tuple[int, int, int]) -> list[EntryHeader]:
    """From (record count, append time, bytes)."""
    found: list[EntryHeader] = []
    offset = 0
    for index, (count, time_ms, size) in enumerate(rows, 6):
        kind = EntryKind.DATA if count else EntryKind.COMMAND
        found.append(EntryHeader(LogIndex(index), Term(6), kind, Offset(offset), count, time_ms, size))
        offset += count
    return found


LOG = headers((10, 100, 50), (0, 150, 7), (5, 200, 50), (5, 300, 50))


def test_forever_reads_nothing() -> None:
    class Untouched:
        def __iter__(self) -> Iterator[EntryHeader]:
            pytest.fail("the log was read")

    assert trim_target(FOREVER, 10**15, 0, 10**15, Untouched()) is None


def test_old_entries_go_even_the_last_one() -> None:
    config = TopicConfig(retention_ms=100, retention_bytes=-1)
    assert trim_target(config, 200, 0, 150, LOG) is None, "exactly as old as allowed"
    assert trim_target(config, 201, 0, 150, LOG) == 10
    assert trim_target(config, 301, 0, 150, LOG) == 15
    assert trim_target(config, 10_000, 0, 150, LOG) == 20, "an idle topic empties"


def test_surplus_entries_go_while_the_limit_stays_filled() -> None:
    for limit, target in ((150, None), (101, None), (100, 10), (99, 10), (50, 15), (49, 15), (0, 20)):
        assert trim_target(TopicConfig(retention_ms=-1, retention_bytes=limit), 400, 0, 150, LOG) == target


def test_what_is_trimmed_already_does_not_count() -> None:
    config = TopicConfig(retention_ms=100, retention_bytes=-1)
    assert trim_target(config, 250, 10, 100, LOG) is None
    assert trim_target(config, 250, 4, 150, LOG) == 10, "DeleteRecords may have ended inside an entry"


def test_a_decision_looks_at_a_bounded_number_of_entries() -> None:
    config = TopicConfig(retention_ms=1, retention_bytes=-1)
    assert trim_target(config, 10_000, 0, 150, LOG, headers_max=2) == 10
    assert trim_target(config, 10_000, 10, 100, LOG[2:], headers_max=1) == 15


@given(
    rows=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50), st.integers(1, 9)), max_size=12),
    limits=st.tuples(st.integers(-1, 60), st.integers(-1, 60)),
    now_ms=st.integers(0, 120),
)
def test_what_is_kept_is_young_and_needed(
    rows: list[tuple[int, int, int]], limits: tuple[int, int], now_ms: int
) -> None:
    rows = sorted(rows, key=lambda row: row[1])
    log = [header for header in headers(*rows) if header.record_count]
    config = TopicConfig(retention_ms=limits[0], retention_bytes=limits[1])
    target = trim_target(config, now_ms, 0, sum(header.payload_bytes for header in log), headers(*rows)) or 0
    kept = [header for header in log if header.base_offset >= target]
    gone = [header for header in log if header.base_offset < target]
    assert not gone or target == gone[-1].next_offset
    kept_bytes = sum(header.payload_bytes for header in kept)
    if config.retention_ms >= 0:
        assert all(header.append_time_ms >= now_ms - config.retention_ms for header in kept)
    if kept and config.retention_bytes >= 0:
        assert kept_bytes - kept[0].payload_bytes < config.retention_bytes
    for position, header in enumerate(gone):
        rest = sum(one.payload_bytes for one in gone[position + 1 :]) + kept_bytes
        is_old = 0 <= config.retention_ms < now_ms - header.append_time_ms
        assert is_old or 0 <= config.retention_bytes <= rest
