"""A leader's progress record of a member: states, window, stale answers."""

import pytest
from raftmq.errors import InvariantError
from raftmq.raft.inflights import Inflights
from raftmq.raft.invariants import check_progress
from raftmq.raft.progress import Progress, ProgressState
from raftmq.raft.settings import RaftSettings
from raftmq.raft.ticks import Ticks

from tests.support.raft.harness import now

SETTINGS = RaftSettings(inflight_appends_max=3, inflight_bytes_max=100)


def replicating(match: int = 5) -> Progress:
    progress = Progress(match + 1, SETTINGS, Ticks())
    progress.on_matched(match)
    progress.become_replicate()
    return progress


def test_the_window_is_full_by_count_or_by_bytes() -> None:
    window = Inflights(2, 100)
    window.add(5, 10)
    assert not now(window.is_full)
    window.add(6, 10)
    assert now(window.is_full)
    window.free_to(5)
    assert (len(window), window.bytes, window.is_full) == (1, 10, False)
    window.add(9, 500)
    assert now(window.is_full)
    window.free_to(9)
    assert (len(window), window.bytes) == (0, 0)


def test_one_acknowledgement_frees_everything_before_it() -> None:
    window = Inflights(8, 100)
    for index in (3, 5, 9):
        window.add(index, 1)
    window.free_to(8)
    assert (len(window), window.last_index) == (1, 9)
    window.free_to(2)
    assert len(window) == 1


def test_the_window_refuses_an_index_that_does_not_grow() -> None:
    window = Inflights(8, 100)
    window.add(3, 1)
    with pytest.raises(InvariantError, match="inflights_increase"):
        window.add(3, 1)


def test_a_probe_waits_for_an_answer_after_entries_left() -> None:
    progress = Progress(6, SETTINGS, Ticks())
    progress.on_sent(0, 0, 5)
    assert not now(progress.is_paused)
    progress.on_sent(2, 10, 5)
    assert now(progress.is_paused)
    assert progress.next_index == 6


def test_replicating_sends_entries_until_the_window_is_full() -> None:
    progress = replicating()
    for _ in range(3):
        assert not now(progress.is_paused)
        progress.on_sent(2, 10, 5)
    assert (progress.next_index, progress.is_paused) == (12, True)
    assert progress.on_matched(7)
    assert len(progress.inflights) == 2
    assert not now(progress.is_paused)


def test_an_old_acknowledgement_changes_nothing() -> None:
    progress = replicating(8)
    assert not progress.on_matched(7)
    assert progress.match_index == 8


def test_a_reject_while_replicating_falls_back_to_a_probe_after_the_match() -> None:
    progress = replicating(5)
    progress.on_sent(3, 9, 5)
    assert progress.on_rejected(8, 6)
    assert (progress.state, progress.next_index, len(progress.inflights)) == (ProgressState.PROBE, 6, 0)


def test_a_stale_reject_is_ignored_in_every_state() -> None:
    assert not replicating(5).on_rejected(5, 3)
    probing = Progress(9, SETTINGS, Ticks())
    assert not probing.on_rejected(6, 3)
    assert probing.next_index == 9
    probing.become_snapshot(20)
    assert not probing.on_rejected(20, 3)
    assert probing.next_index == 21


def test_a_hint_never_takes_the_probe_below_the_match() -> None:
    progress = Progress(10, SETTINGS, Ticks())
    progress.on_matched(6)
    progress.next_index = 10
    assert progress.on_rejected(9, 2)
    assert progress.next_index == 7


def test_after_a_snapshot_the_probe_starts_after_it() -> None:
    progress = replicating(5)
    progress.on_sent(1, 1, 5)
    progress.become_snapshot(30)
    assert (progress.next_index, len(progress.inflights), progress.is_paused) == (31, 0, True)
    progress.become_probe()
    assert (progress.next_index, progress.pending_snapshot, progress.is_paused) == (31, 0, False)


def test_a_commit_is_announced_once_and_again_after_a_loss() -> None:
    progress = replicating(5)
    progress.on_sent(2, 1, 5)
    assert progress.can_bump_commit(7)
    progress.on_sent(0, 0, 7)
    assert not progress.can_bump_commit(7)
    progress.become_probe()
    progress.become_replicate()
    progress.on_sent(2, 1, 5)
    assert progress.can_bump_commit(7)


def test_progress_invariants_are_checked() -> None:
    progress = replicating(5)
    check_progress(progress, 5)
    progress.next_index = 5
    with pytest.raises(InvariantError, match="match_below_next"):
        check_progress(progress, 5)
    progress.next_index = 9
    with pytest.raises(InvariantError, match="next_within_log"):
        check_progress(progress, 5)
    with pytest.raises(InvariantError, match="match_within_log"):
        check_progress(progress, 4)
    progress.become_snapshot(7)
    progress.next_index = 9
    with pytest.raises(InvariantError, match="snapshot_state"):
        check_progress(progress, 9)
