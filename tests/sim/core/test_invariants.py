"""Each cluster-wide invariant of the core's simulation can fail: a mutant breaks it, or a state that is broken by hand here."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from raftmq.raft.core import RaftCore
from raftmq.raft.entry import GENESIS, Entry, EntryKind
from raftmq.raft.hard_state import HardState
from raftmq.raft.membership import Membership
from raftmq.raft.messages import AppendResponse, TimeoutNow, VoteRequest, VoteResponse
from raftmq.raft.ready import AppendToken, AppendWork, Ready, Role

from sim.core import invariants
from sim.core.checker import Checker
from sim.core.disk import SimDisk
from sim.core.invariants.committed_log import CommittedLog
from sim.core.invariants.durability import check_ack_durable, check_applied_durable
from sim.core.invariants.election_safety import ElectionSafety, check_leader_votes
from sim.core.invariants.leader_completeness import check_leader_completeness
from sim.core.invariants.leader_greatest_index import LeaderGreatestIndex
from sim.core.invariants.log_matching import LogMatching
from sim.core.invariants.monotone import check_monotone
from sim.core.invariants.more_up_to_date_correct import ComparedLog, check_more_up_to_date_correct
from sim.core.invariants.quorum_heard import QuorumHeard
from sim.core.invariants.violation import InvariantViolation
from sim.core.invariants.votes import Votes, check_request_durable
from sim.core.mutants.elections import CountsLateAnswers
from tests.support.raft.harness import MemoryLog, answer, make_core, membership, now, take, voters

TESTING_PAGE = Path(__file__).parents[3] / "docs/internals/testing.md"
VOTERS = Membership(cast("Any", (1, 2, 3)))


def entry(index: int, term: int, offset: int = 0) -> Entry:
    """Return an entry with one record at `offset`. Index and term are relative to the initial ones."""
    at = GENESIS.index + index
    return Entry(
        cast("Any", at), cast("Any", GENESIS.term + term), EntryKind.DATA, cast("Any", offset), 1, 0, b"%d" % term
    )


def disk_with(*entries: Entry) -> SimDisk:
    disk = SimDisk(VOTERS)
    disk.log.write(entries)
    return disk


def work(*entries: Entry, snapshot: object = None) -> AppendWork:
    return AppendWork(None, entries, cast("Any", snapshot), (), cast("AppendToken", None), must_sync=True)


def ready(append: AppendWork | None, *apply: Entry) -> Ready:
    return Ready(None, (), append, apply, (), ())


def a_replica(checker: Checker, replica_id: int, disk: SimDisk) -> Any:
    return SimpleNamespace(replica_id=replica_id, disk=disk, observation=checker.observe(replica_id, disk))


def lead(checker: Checker, replica: Any, term: int, first: Entry) -> None:
    """Make the replica leader of `term` and let it write its first entry. Its log will end three entries later."""
    replica.observation.term = replica.observation.leader_term = at = int(GENESIS.term) + term
    checker.leader_greatest_index.on_leader(replica.replica_id, at, at, first.index + 3)
    checker.on_write(replica, work(first), is_leader=True)


def a_leader() -> tuple[Checker, Any]:
    """Return a checker with a replica that leads term 2 and has written its first entry."""
    disk = disk_with()
    checker = Checker({1: disk})
    replica = a_replica(checker, 1, disk)
    lead(checker, replica, 2, entry(1, 2))
    return checker, replica


def election_safety() -> None:
    elections = ElectionSafety()
    elections.on_leader(1, 4)
    elections.on_leader(1, 4)
    elections.on_leader(2, 5)
    demand_broken(lambda: elections.on_leader(2, 4))


def leader_votes() -> None:
    check_leader_votes(1, 2, VOTERS)
    check_leader_votes(4, 2, dataclasses.replace(VOTERS, outgoing=cast("Any", (4, 2, 3))))
    demand_broken(lambda: check_leader_votes(4, 2, dataclasses.replace(VOTERS, learners=cast("Any", (4,)))))


def vote_once() -> None:
    votes = Votes()
    kept = HardState(cast("Any", 7), cast("Any", 2), cast("Any", 0))

    def grant(candidate: int) -> None:
        response: Any = SimpleNamespace(source=1, target=candidate, term=7, is_pre_vote=False, is_granted=True)
        votes.on_response(cast("VoteResponse", response), kept)

    grant(2)
    grant(2)
    demand_broken(lambda: grant(3))


def request_durable() -> None:
    index, term = GENESIS.index + 1, GENESIS.term + 1
    request = cast(
        "VoteRequest", SimpleNamespace(source=2, term=7, last_index=index, last_term=term, is_pre_vote=False)
    )
    pre_vote = cast("VoteRequest", SimpleNamespace(is_pre_vote=True))

    def ask(of: VoteRequest, durable_term: int, vote: int, disk: SimDisk) -> None:
        state = HardState(cast("Any", durable_term), cast("Any", vote), GENESIS.index)
        check_request_durable(of, state, disk.log.term(index))

    ask(request, 7, 2, disk_with(entry(1, 1)))
    ask(request, 7, 2, disk_with(entry(1, 1), entry(2, 1, 1)))
    ask(pre_vote, 6, 0, disk_with())
    demand_broken(lambda: ask(request, 6, 2, disk_with(entry(1, 1))))
    demand_broken(lambda: ask(request, 7, 0, disk_with(entry(1, 1))))
    demand_broken(lambda: ask(request, 7, 2, disk_with()))
    demand_broken(lambda: ask(request, 7, 2, disk_with(entry(1, 2))))


def answer_of_round() -> None:
    disk = MemoryLog(GENESIS, VOTERS)
    checker = Checker({1: SimDisk(VOTERS)})
    replica = a_replica(checker, 1, SimDisk(VOTERS))

    def step_late(core: RaftCore, *, is_repeated: bool) -> None:
        for _ in range(2):
            core.campaign()
            for request in take(core, disk):
                checker.on_message(replica, request)
        message = answer(core, 2, 6, pre=True)
        checker.on_step(
            replica, core, message if is_repeated else dataclasses.replace(message, round=message.round - 1)
        )

    step_late(make_core(1, disk), is_repeated=False)
    step_late(make_core(1, disk, core_class=CountsLateAnswers), is_repeated=True)
    demand_broken(lambda: step_late(make_core(1, disk, core_class=CountsLateAnswers), is_repeated=False))


def quorum_heard() -> None:
    settings = SimpleNamespace(election_ticks=4)
    core: Any = SimpleNamespace(role=Role.LEADER, term=7, replica_id=1, membership=VOTERS, settings=settings)
    heard = QuorumHeard()
    for _ in range(30):
        heard.on_tick(core)
        heard.on_message(2)
    for _ in range(8):
        heard.on_tick(core)
    core.membership = dataclasses.replace(VOTERS, voters=cast("Any", (1, 3, 4)))
    for _ in range(9):
        heard.on_tick(core)
    demand_broken(lambda: heard.on_tick(core))
    core.role = Role.FOLLOWER
    heard.on_tick(core)


def log_matching() -> None:
    matching, log = LogMatching(), disk_with(entry(1, 1)).log
    matching.on_written(1, log, (entry(2, 1, 1),))
    matching.on_written(2, log, (entry(2, 1, 1),))
    demand_broken(lambda: matching.on_written(3, log, (dataclasses.replace(entry(2, 1, 1), payload=b"other"),)))
    demand_broken(lambda: LogMatching().on_written(1, log, (entry(3, 1, 2),)))
    demand_broken(lambda: LogMatching().on_written(1, disk_with(entry(1, 2)).log, (entry(2, 1, 1),)))


def dense_offsets() -> None:
    demand_broken(lambda: LogMatching().on_written(1, disk_with(entry(1, 1)).log, (entry(2, 1, 2),)))


def commit_own_term() -> None:
    disks = {voter: disk_with(entry(1, 1)) for voter in (1, 2, 3)}
    first = int(GENESIS.index) + 1

    def commit(term: int) -> None:
        CommittedLog(first).on_leader_commit(1, GENESIS.term + term, first - 1, first, VOTERS, disks)

    commit(1)
    demand_broken(lambda: commit(2))


def leader_completeness() -> None:
    disks = {voter: disk_with(entry(1, 1)) for voter in (1, 2, 3)}
    first, committed_in = int(GENESIS.index) + 1, int(GENESIS.term) + 1
    committed = CommittedLog(first)
    committed.on_leader_commit(1, committed_in, first - 1, first, VOTERS, disks)
    check_leader_completeness(2, committed_in + 1, disk_with(entry(1, 1)).log, committed, first)
    check_leader_completeness(2, committed_in, disk_with().log, committed, first)
    demand_broken(lambda: check_leader_completeness(2, committed_in + 1, disk_with().log, committed, first))


def leader_greatest_index() -> None:
    lengths = LeaderGreatestIndex()
    lengths.on_leader(1, GENESIS.term + 2, GENESIS.term + 2, GENESIS.index + 2)
    lengths.on_written(2, (entry(1, 2), entry(2, 2)))
    lengths.on_leader(1, GENESIS.term + 2, GENESIS.term + 2, GENESIS.index + 2)
    demand_broken(lambda: lengths.on_leader(1, GENESIS.term + 2, GENESIS.term + 2, GENESIS.index + 1))
    demand_broken(lambda: lengths.on_leader(1, GENESIS.term + 2, GENESIS.term + 1, GENESIS.index + 2))
    lengths = LeaderGreatestIndex()
    lengths.on_leader(1, GENESIS.term + 2, GENESIS.term + 2, GENESIS.index + 2)
    demand_broken(lambda: lengths.on_written(2, (entry(3, 2),)))
    lengths.on_leader(3, GENESIS.term + 3, GENESIS.term + 3, GENESIS.index + 4)
    lengths.on_written(2, (entry(1, 2), entry(2, 2), entry(3, 3), entry(4, 3)))
    demand_broken(lambda: lengths.on_written(2, (entry(2, 2), entry(3, 2), entry(4, 3))))
    demand_broken(lambda: lengths.on_written(2, (entry(4, 3), entry(5, 3))))
    demand_broken(lambda: lengths.on_written(2, (entry(1, 1),)))
    checker, _ = a_leader()
    follower = a_replica(checker, 2, disk_with())
    checker.on_write(follower, work(entry(1, 2), entry(2, 2, 1), entry(3, 2, 2), entry(4, 2, 3)), is_leader=False)
    demand_broken(lambda: checker.on_write(follower, work(entry(5, 2, 4)), is_leader=False))


def more_up_to_date_correct() -> None:
    first = int(GENESIS.index) + 1
    holder = (entry(1, 1), entry(2, 1, 1))

    def compare(other: tuple[Entry, ...], *, committed_by: int = 1, known_index: int = first) -> None:
        """Compare a replica that knows entry 1 of term 1 to be committed with another log. It was committed with entry 2 of a term."""
        committed = CommittedLog(first)
        disks = {voter: disk_with(entry(1, 1), entry(2, committed_by, 1)) for voter in (1, 2, 3)}
        committed.on_leader_commit(1, GENESIS.term + committed_by, first - 1, first + 1, VOTERS, disks)
        logs = [ComparedLog(1, disk_with(*holder).log, known_index), ComparedLog(2, disk_with(*other).log, 0)]
        check_more_up_to_date_correct(logs, committed)

    compare(holder)
    compare(())
    compare((entry(1, 0),))
    compare((entry(1, 2),), known_index=first - 1)
    demand_broken(lambda: compare((entry(1, 0), entry(2, 1))))
    demand_broken(lambda: compare((entry(1, 0), entry(2, 1), entry(3, 1))))
    demand_broken(lambda: compare((entry(1, 2),)))
    # Figure 3.7: entry 2 of term 4 committed it, so a log that ends in term 3 need not hold it.
    compare((entry(1, 3),), committed_by=4)
    demand_broken(lambda: compare((entry(1, 4),), committed_by=4))

    # The run compares all logs when a leader has written its first entry, and at its end. Replica 4 is down.
    disks = {voter: disk_with(entry(1, 1)) for voter in (1, 2, 3)} | {4: disk_with(entry(1, 2))}
    checker = Checker(disks)
    checker.acknowledged.on_appended((entry(1, 1),))
    checker.committed.on_leader_commit(1, GENESIS.term + 1, first - 1, first, VOTERS, disks)
    checker.at_end()
    lead(checker, a_replica(checker, 1, disks[1]), 3, entry(2, 3, 1))
    disks[2].hard_state = HardState(GENESIS.term, cast("Any", 0), cast("Any", first))
    demand_broken(checker.at_end)
    demand_broken(lambda: lead(checker, a_replica(checker, 3, disks[3]), 4, entry(2, 4, 1)))


def committed_is_durable() -> None:
    check_applied_durable(1, disk_with(entry(1, 1)), (entry(1, 1),))
    demand_broken(lambda: check_applied_durable(1, disk_with(entry(1, 1)), (entry(1, 2),)))
    demand_broken(lambda: check_applied_durable(1, disk_with(), (entry(1, 1),)))


def ack_durable() -> None:
    disk = disk_with(entry(1, 1))
    disk.hard_state = HardState(cast("Any", 3), cast("Any", 0), cast("Any", 0))

    def acknowledge(term: int, index: int) -> None:
        response: Any = SimpleNamespace(source=1, term=term, is_rejected=False, index=int(GENESIS.index) + index)
        check_ack_durable(disk, cast("AppendResponse", response))

    acknowledge(3, 1)
    demand_broken(lambda: acknowledge(3, 2))
    demand_broken(lambda: acknowledge(4, 1))


def monotone() -> None:
    check_monotone(1, "term", 4, 4)
    demand_broken(lambda: check_monotone(1, "term", 4, 3))


def leader_append_only() -> None:
    checker, replica = a_leader()
    checker.on_write(replica, work(entry(2, 2, 1)), is_leader=True)
    demand_broken(lambda: checker.on_write(replica, work(entry(2, 2, 1)), is_leader=True))
    snapshot = SimpleNamespace(meta=SimpleNamespace(position=GENESIS))
    demand_broken(lambda: checker.on_write(replica, work(snapshot=snapshot), is_leader=True))


def snapshot_alone() -> None:
    checker, replica = a_leader()
    checker.on_ready(replica, ready(work(entry(2, 2)), entry(1, 2)))
    checker.on_ready(replica, ready(work(snapshot=object())))
    demand_broken(lambda: checker.on_ready(replica, ready(work(snapshot=object()), entry(1, 2))))


BROKEN_BY_HAND: dict[str, Callable[[], None]] = {
    "ElectionSafety": election_safety,
    "LeaderGreatestIndex": leader_greatest_index,
    "LeaderVotes": leader_votes,
    "VoteOnce": vote_once,
    "RequestDurable": request_durable,
    "AnswerOfRound": answer_of_round,
    "QuorumHeard": quorum_heard,
    "MoreUpToDateCorrect": more_up_to_date_correct,
    "LogMatching": log_matching,
    "DenseOffsets": dense_offsets,
    "CommitOwnTerm": commit_own_term,
    "LeaderCompleteness": leader_completeness,
    "CommittedIsDurable": committed_is_durable,
    "AckDurable": ack_durable,
    "Monotone": monotone,
    "LeaderAppendOnly": leader_append_only,
    "SnapshotAlone": snapshot_alone,
}
"""Name of the invariant -> a function that breaks it. Each also shows a correct state."""

_found: list[str] = []


def demand_broken(check: Callable[[], object]) -> None:
    """Demand that the check refuses, and keep the name of the invariant."""
    with pytest.raises(InvariantViolation) as raised:
        check()
    _found.append(raised.value.name)


@pytest.mark.parametrize("name", BROKEN_BY_HAND)
def test_an_invariant_can_fail(name: str) -> None:
    _found.clear()

    BROKEN_BY_HAND[name]()

    assert set(_found) == {name}


def test_a_snapshot_that_was_not_submitted_says_nothing_about_the_log_that_it_will_replace() -> None:
    """Replica 1 received a snapshot up to entry 3 while its disk was busy. Its log still has another entry 3, of a deposed leader."""
    first = int(GENESIS.index) + 1
    held = (entry(1, 1), entry(2, 2, 1), entry(3, 2, 2))
    replaced = (entry(1, 1), entry(2, 1, 1), entry(3, 1, 2), entry(4, 1, 3))
    disks = {1: disk_with(*replaced), 2: disk_with(*held), 3: disk_with(*held), 4: disk_with(*held[:2])}
    checker = Checker(disks)
    checker.acknowledged.on_appended(held)
    checker.committed.on_leader_commit(2, GENESIS.term + 1, first - 1, first, VOTERS, disks)
    checker.committed.on_leader_commit(2, GENESIS.term + 2, first, first + 2, VOTERS, disks)
    replica = a_replica(checker, 1, disks[1])
    index = first + 2
    core: Any = SimpleNamespace(term=GENESIS.term + 2, role=Role.FOLLOWER, applied_index=index, commit_index=index)

    checker.after_event(replica, core)

    checker.at_end()
    # An entry that was handed out for applying counts: a longer log of its term must hold it.
    checker.on_apply(a_replica(checker, 3, disks[3]), held)
    disks[4].log.write((entry(3, 2, 2), entry(4, 2, 3)))
    checker.at_end()
    disks[4].log.write((entry(3, 3, 2),))
    with pytest.raises(InvariantViolation, match="MoreUpToDateCorrect"):
        checker.at_end()


class CommitsWhenElected(RaftCore):
    """Takes its whole log for committed when it becomes leader."""

    __slots__ = ()

    def _become_leader(self) -> None:
        self.log.commit_to(self.log.last_index)
        super()._become_leader()


def win_by_two_votes(core_class: type[RaftCore], told: int, *, is_committed: bool = True) -> None:
    """Let replica 2 win by the votes of 3 and 1 in a joint configuration, of which the last names `told` as committed.

    Entry 1 is on the disks of 1 and 2: a quorum of the configuration before, in which it may be committed, and none of the joint one.
    """
    index, term = int(GENESIS.index) + 1, GENESIS.term + 2
    outgoing, joint = membership(1, 2), dataclasses.replace(membership(2, 3), outgoing=voters(1, 2))
    held = entry(1, 1)
    disks = {1: disk_with(held), 2: disk_with(held), 3: disk_with()}
    for disk in disks.values():
        disk.hard_state = HardState(cast("Any", term), cast("Any", 2), GENESIS.index)
    checker = Checker(disks)
    if is_committed:
        checker.committed.on_leader_commit(1, GENESIS.term + 1, index - 1, index, outgoing, disks)
    log = MemoryLog(GENESIS, joint)
    log.rows[index] = held
    log.hard_state = HardState(held.term, cast("Any", 1), GENESIS.index)
    core = make_core(2, log, core_class=core_class)
    replica = a_replica(checker, 2, disks[2])

    core.step(TimeoutNow(cast("Any", 1), core.replica_id, held.term))
    for request in take(core, log):
        checker.on_message(replica, request)
    checker.on_step(replica, core, answer(core, 3, term))
    checker.after_event(replica, core)
    assert core.role is Role.CANDIDATE
    at = cast("Any", told)
    checker.on_step(replica, core, dataclasses.replace(answer(core, 1, term), commit_index=at, commit_term=held.term))
    assert now(core.role) is Role.LEADER
    assert core.commit_index == index
    checker.after_event(replica, core)


def test_a_leader_did_not_count_the_commit_index_of_the_vote_that_elected_it() -> None:
    index = int(GENESIS.index) + 1

    win_by_two_votes(RaftCore, index)

    with pytest.raises(InvariantViolation, match="LogInv"):
        win_by_two_votes(RaftCore, index, is_committed=False)
    for is_committed in (True, False):
        with pytest.raises(InvariantViolation, match="QuorumLog"):
            win_by_two_votes(CommitsWhenElected, index - 1, is_committed=is_committed)


def test_every_invariant_fails_in_some_test() -> None:
    assert invariants.__doc__ is not None
    rows = [line for line in invariants.__doc__.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([A-Z]\w+)`", row.split("|")[1])}
    by_mutants = set(re.findall(r"\| core alone \| `(\w+)` \|", TESTING_PAGE.read_text()))

    assert len(named) > 20
    assert named - by_mutants <= set(BROKEN_BY_HAND)
    assert set(BROKEN_BY_HAND) <= named
