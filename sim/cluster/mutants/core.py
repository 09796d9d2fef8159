"""Bugs of consensus: the core, as brokers run it."""

# ruff: noqa: ANN401, D103 -- a mutant has the parameters of the product's method, and its text is in the decorator

from __future__ import annotations

from typing import Any

from sim.cluster.mutants.registry import mutant, replace_method
from sim.core.mutants.elections import CountsLateAnswers
from sim.core.mutants.membership import RemovedLeaderStays

NOTHING_LOST = {"flip": 0, "wipe": 0, "remove_node": 0, "replace_replica": 0}
"""Options without data loss, for groups that tolerate the loss of only one copy."""


def _run_core(core: Any) -> None:
    """Let brokers run a mutant of the core alone."""
    from raftmq.broker.replica import engine

    replace_method(engine, "RaftCore", lambda original: core)


@mutant("core", "a leader commits an entry of an earlier term by counting (thesis, figure 3.7)")
def commits_earlier_terms() -> None:
    from raftmq.raft.replication import Replication

    Replication._may_commit = lambda self, index: index > self.log.commit  # type: ignore[method-assign]


@mutant("core", "a leader validates sequences before its own first entry is committed")
def leads_before_its_first_commit() -> None:
    from raftmq.raft.core import RaftCore
    from raftmq.raft.ready import Role

    RaftCore.is_confirmed_leader = property(lambda self: self.role is Role.LEADER)  # type: ignore[assignment]


@mutant("core", "a replica votes twice in the same term")
def votes_twice() -> None:
    from raftmq.raft import election
    from raftmq.storage import pending_write

    pending_write.check_hard_state = lambda durable, new: None
    replace_method(election.Election, "_may_vote_for", lambda original: lambda self, *arguments: True)


@mutant(
    "core",
    "answers to earlier (pre-)vote requests are counted",
    stall_disk=6,
    slow_disk=6,
    isolate=8,
    clog=6,
    fault_every=0.4,
)
def counts_late_answers() -> None:
    _run_core(CountsLateAnswers)


@mutant("core", "a removed leader keeps leading the members that it knew (thesis 4.2.2)", move_replicas=8)
def removed_leader_stays() -> None:
    _run_core(RemovedLeaderStays)


@mutant("core", "a leader that hears no quorum keeps leading (thesis 6.2)", isolate=8, one_way=0, fault_every=1.0)
def check_quorum_missing() -> None:
    from raftmq.raft.replication import Replication

    def forget(self: Any, leadership: Any) -> None:
        leadership.transferee = 0

    Replication._check_quorum = forget  # type: ignore[method-assign]


@mutant(
    "core",
    "a transfer's candidate gets votes with any log, and the candidate with the shortest log is chosen",
    stop=8,
    freeze=4,
)
def transfer_to_one_behind() -> None:
    from raftmq.broker.cluster import leadership_drain
    from raftmq.raft.election import Election

    on_vote_request = Election._on_vote_request

    def obliging(self: Any, message: Any) -> None:
        if message.is_transfer and not message.is_pre_vote and self._may_vote_for(message):
            self._heard_at = self.ticks.now
            self.vote = message.source
            self._respond_vote(message, message.term, is_granted=True)
        else:
            on_vote_request(self, message)

    def offer(engine: Any, replica: Any, may_take: Any, loads: Any = None) -> Any:
        matches = {
            voter: match
            for voter, match in replica.core.match_indexes().items()
            if voter in replica.core.membership.voters and voter != replica.replica_id
        }
        if matches:
            target = min(matches, key=lambda voter: matches[voter])
            replica.core._send_timeout_now(target)
            engine.mark_dirty(replica)
            return replica.node_of_replica(target)
        return None

    Election._on_vote_request = obliging  # type: ignore[method-assign]
    leadership_drain.offer = offer


@mutant(
    "core",
    "half of an even number of voters counts as a majority",
    replication_factor=2,
    kill=4,
    isolate=6,
    fault_every=0.4,
    **NOTHING_LOST,
)
def half_is_a_majority() -> None:
    from raftmq.raft import quorum

    quorum.majority_size = lambda voter_count: (voter_count + 1) // 2


@mutant("core", "an input does not end the rest of its replica")
def inputs_end_no_rest() -> None:
    from raftmq.raft.core import RaftCore

    def count(self: Any) -> None:
        self.ticks.changes += 1

    RaftCore.wake = count  # type: ignore[method-assign]
