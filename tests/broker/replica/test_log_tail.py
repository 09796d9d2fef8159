"""How much of the log is kept for members that are absent, and for those that may lead later."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from raftmq.broker.replica import log_marks, log_tail
from raftmq.broker.replica.log_marks import LogMarks
from raftmq.raft.entry import Entry, EntryKind
from raftmq.raft.ready import Role
from raftmq.types import LogIndex, Offset, Term

MIB = 1 << 20


class Log:
    """A replica whose log is applied and durable."""

    def __init__(self, opened_index: int = 0) -> None:
        self.marks = LogMarks()
        self.last_index = opened_index
        self.start = 0
        self.matches: dict[int, int] = {}
        self.role = Role.FOLLOWER

    def append(self, count: int, size: int, at_ms: int = 0) -> None:
        payload = bytes(size - log_marks.ENTRY_BYTES)
        for _ in range(count):
            self.last_index += 1
            entry = Entry(LogIndex(self.last_index), Term(1), EntryKind.DATA, Offset(0), 1, at_ms, payload)
            self.marks.append((entry,))

    def index(self) -> int | None:
        core = SimpleNamespace(role=self.role, last_index=self.last_index, match_indexes=lambda: self.matches)
        start = SimpleNamespace(index=self.start)
        replica = SimpleNamespace(
            core=core, log=SimpleNamespace(marks=self.marks), durable_state_index=self.last_index, log_start=start
        )
        return log_tail.index_before_tail(cast("Any", replica))


def test_every_replica_keeps_the_bytes_of_a_tail_however_few_its_entries_are() -> None:
    """It kept 1,000 entries: a restart of seconds then cost a snapshot, when a follower had become the leader."""
    log = Log()
    log.append(5_000, 10_000)
    assert log.index() is None, "50 MB"
    log.append(80, MIB)
    kept = (log.last_index - cast("int", log.index())) * MIB
    assert 64 * MIB <= kept <= 66 * MIB


def test_little_is_deleted_only_when_it_is_worth_a_write() -> None:
    log = Log()
    log.append(66, MIB)
    assert log.index() is None
    log.append(8, MIB)
    assert log.index() == 10


def test_entries_of_before_the_start_are_kept_by_their_number() -> None:
    log = Log(opened_index=5_000)
    assert log.index() == 4_000
    log.append(10, 100)
    assert log.index() == 4_000


def test_a_leader_keeps_the_log_for_an_absent_member_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to 50,000 entries of up to 3.5 MiB were kept."""
    monkeypatch.setattr(log_tail, "LAGGING_BYTES_MAX", 100 * MIB)
    log = Log()
    log.role, log.matches = Role.LEADER, {1: 10**9, 2: 3}
    log.append(90, MIB)
    assert log.index() is None, "the member needs everything"
    log.append(60, MIB)
    index = log.index()
    assert index is not None
    assert 100 * MIB <= (log.last_index - index) * MIB <= 102 * MIB
    log.role = Role.FOLLOWER
    index = log.index()
    assert index is not None
    assert (log.last_index - index) * MIB <= 66 * MIB, "a follower keeps it for nobody"


def test_a_leader_keeps_the_log_for_an_absent_member_for_a_time() -> None:
    log = Log()
    log.role, log.matches = Role.LEADER, {1: 10**9, 2: 3}
    log.append(100, MIB)
    log.append(10, MIB, at_ms=log_tail.LAGGING_MS_MAX - 1)
    assert log.index() is None
    log.append(70, MIB, at_ms=log_tail.LAGGING_MS_MAX)
    assert log.index() == 100, "what came later is not old enough, whatever its size"


def test_a_member_that_is_up_to_date_holds_nothing_back() -> None:
    log = Log()
    log.role, log.matches = Role.LEADER, {1: 10**9, 2: 10**9}
    log.append(150, MIB)
    index = log.index()
    assert index is not None
    assert (log.last_index - index) * MIB <= 66 * MIB
