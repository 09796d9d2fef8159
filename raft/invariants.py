"""Check the rules of one replica after every call: cheap comparisons of integers, on in production.

Must not change anything. A violation raises `InvariantError`, which stops that replica. Nothing may be sent after it.
Source: Ongaro's thesis, figure 3.2, and its consequences for one log.
"""

from __future__ import annotations

from raftmq.errors import invariant, violated
from raftmq.raft.progress import Progress, ProgressState
from raftmq.raft.ready import Role
from raftmq.raft.state import CoreState


def check_core(core: CoreState) -> None:
    """Check term, vote, commit index, the log's pointers and the role. The core calls this after every input."""
    log = core.log
    if core.term != core._seen_term:
        invariant(core.term > core._seen_term, "term_monotone", term=core.term, seen_term=core._seen_term)
        core._seen_term, core._seen_vote = core.term, core.vote
    elif core.vote != core._seen_vote:
        invariant(core._seen_vote == 0, "one_vote_per_term", term=core.term, vote=core.vote, seen=core._seen_vote)
        core._seen_vote = core.vote
    if not log.position.index <= log.applied <= log.applying <= log.commit <= log.last_index:
        violated(
            "log_pointers",
            position_index=log.position.index,
            applied_index=log.applied,
            applying_index=log.applying,
            commit_index=log.commit,
            last_index=log.last_index,
        )
    if not log.offset <= log.offset_in_progress <= log.last_index + 1:
        violated(
            "unstable_pointers",
            offset=log.offset,
            offset_in_progress=log.offset_in_progress,
            last_index=log.last_index,
        )
    if log.last_term > core.term:
        violated("last_term", last_term=log.last_term, term=core.term)
    if log.commit != core._seen_commit:
        invariant(log.commit > core._seen_commit, "commit_monotone", commit_index=log.commit, seen=core._seen_commit)
        core._seen_commit = log.commit
        if core.role is Role.LEADER:
            invariant(log.term_at(log.commit) == core.term, "leader_commits_own_term", commit_index=log.commit)
    if core.role is Role.LEADER:
        if core.leader_id != core.replica_id:
            violated("leader_knows_itself", leader_id=core.leader_id)
        if core.replica_id not in core.membership.voters and core.replica_id not in core.membership.outgoing:
            violated("leader_votes", membership=core.membership)


def check_progress(progress: Progress, last_index: int) -> None:
    """Check one member after its acknowledgement or a request to it. `last_index` is the end of the leader's log."""
    if not progress.match_index < progress.next_index:
        violated("match_below_next", match=progress.match_index, next=progress.next_index)
    if progress.match_index > last_index:
        violated("match_within_log", match=progress.match_index, last_index=last_index)
    if progress.state is ProgressState.SNAPSHOT:
        invariant(
            progress.next_index == progress.pending_snapshot + 1 and not progress.inflights,
            "snapshot_state",
            next=progress.next_index,
            pending_snapshot=progress.pending_snapshot,
        )
    elif progress.next_index > last_index + 1 or progress.inflights.bytes < 0:
        violated("next_within_log", next=progress.next_index, last_index=last_index)
