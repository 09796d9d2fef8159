"""The run of one seed: a first phase with faults, in which nothing unsafe may happen, and a second phase without faults, at
whose end all members must be equal. Pure except for the trace callback.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from raftmq.errors import InvariantError
from raftmq.raft.entry import Entry

from sim.core.administrator import Administrator
from sim.core.clients import Clients
from sim.core.cluster import PRODUCT, Build, SimCluster, members_of
from sim.core.faults import Nemesis
from sim.core.invariants.violation import InvariantViolation
from sim.core.options import TICK, Profile, draw_options

LIVENESS_ELECTIONS = 40
"""Number of election timeouts (of the slowest clock) within which a healed cluster must make progress. Failed pre-votes back
off to four times the timeout, a joint change takes two commits, and a follower may need a snapshot and the whole log.
"""
ENTRY_TICKS = 2
"""Nominal ticks allowed for each entry that a follower may have to receive, in the worst case one at a time."""
ENTRIES_EXTRA = 50
"""Allowance for entries that are not known to be committed when the cluster is healed."""


class Verdict(IntEnum):
    """The result of a run, and the exit code of the command."""

    OK = 0
    SAFETY = 1
    LIVENESS = 2
    CRASH = 3


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one run in detail."""

    seed: int
    verdict: Verdict
    detail: str
    """The description of the problem. For a broken invariant it begins with the invariant's name."""
    event_count: int
    committed_count: int
    read_count: int
    healing_ticks: int
    """Duration of the second phase in ticks."""


class LivenessFailure(Exception):  # noqa: N818 - it is what it is called
    """The healed cluster did not make progress in time."""


def run_seed(
    seed: int,
    build: Build = PRODUCT,
    trace: Callable[[str], None] | None = None,
    profile: Profile | None = None,
) -> Outcome:
    """Run one seed and return its outcome. With `trace` an unexpected exception is raised, otherwise it becomes a verdict."""
    random_ = random.Random(seed)
    options = draw_options(random_, profile)
    if trace:
        trace(f"        -- seed {seed}: {options}")
    cluster = SimCluster(random_, options, build, trace)
    verdict, detail, healing = Verdict.OK, "", 0
    try:
        healing = _run_phases(cluster)
    except InvariantViolation as violation:
        verdict, detail = Verdict.SAFETY, str(violation)
    except InvariantError as error:
        verdict, detail = Verdict.SAFETY, str(error)
    except LivenessFailure as failure:
        verdict, detail = Verdict.LIVENESS, str(failure)
    except Exception as error:
        if trace:
            raise
        verdict, detail = Verdict.CRASH, f"{type(error).__name__}: {error}"
    checker = cluster.checker
    return Outcome(
        seed,
        verdict,
        detail,
        cluster.events.count,
        checker.committed.last_index - checker.committed.first_index + 1,
        checker.reads.confirmed_count,
        healing,
    )


def _run_phases(cluster: SimCluster) -> int:
    clients = Clients(cluster)
    administrator = Administrator(cluster)
    nemesis = Nemesis(cluster)
    cluster.events.run_until(cluster.options.fault_ticks * TICK)
    clients.stop()
    administrator.stop()
    nemesis.stop()
    if cluster.world.trace:
        cluster.world.trace(f"{cluster.events.now:>7} -- healed")
    begun = cluster.events.now
    _heal(cluster, clients)
    cluster.checker.at_end()
    return (cluster.events.now - begun) // TICK


def _heal(cluster: SimCluster, clients: Clients) -> None:
    """Run until a new operation is committed and applied by every member, and a read is confirmed."""
    slowest = max(replica.tick_length for replica in cluster.replicas.values())
    limit = cluster.events.now + LIVENESS_ELECTIONS * cluster.options.settings.election_ticks * slowest
    # With the smallest windows a follower receives one entry per round trip, and it may need the whole log.
    limit += (cluster.checker.committed.last_index + ENTRIES_EXTRA) * ENTRY_TICKS * TICK
    proposed: Entry | None = None
    reads_before: int | None = None
    while cluster.events.now < limit:
        cluster.events.run_until(cluster.events.now + TICK)
        if proposed is not None:
            known = cluster.checker.committed.at(proposed.index)
            if known is None and _is_taken_by_leader(cluster, proposed):
                continue
            if known is None or known.entry != proposed:
                proposed = None
        if proposed is None:
            # The leader of the newest term: an older leader may not know yet that it was deposed.
            leaders = sorted(cluster.leaders, key=lambda pair: -pair[1].term)
            result = clients.propose_new(leaders[0][0]) if leaders else None
            proposed = result.entries[0] if result else None
            continue
        if not _is_everywhere(cluster, proposed):
            continue
        if reads_before is None or cluster.events.now % (5 * TICK) == 0:
            reads_before = cluster.checker.reads.confirmed_count if reads_before is None else reads_before
            for leader, _ in cluster.leaders:
                clients.read(leader)
        if cluster.checker.reads.confirmed_count > reads_before:
            return
    raise LivenessFailure(_describe_stuck(cluster, proposed))


def _is_taken_by_leader(cluster: SimCluster, proposed: Entry) -> bool:
    """Return whether the leader that accepted the operation still leads. If so, the operation only needs more time."""
    return any(core.term == proposed.term for _, core in cluster.leaders)


def _is_everywhere(cluster: SimCluster, proposed: Entry) -> bool:
    """Return whether every running member has applied the operation and all agree on the leader."""
    _, membership = cluster.latest_membership()
    members = [cluster.replicas[member] for member in members_of(membership)]
    running = [(member, member.core) for member in members if member.core is not None]
    leaders = {core.leader_id for _, core in running}
    return (
        bool(running)
        and all(member.machine.index >= proposed.index for member, _ in running)
        and all(core.applied_index >= proposed.index for _, core in running)
        and len(leaders) == 1
        and 0 not in leaders
    )


def _describe_stuck(cluster: SimCluster, proposed: Entry | None) -> str:
    parts = [f"no progress in {LIVENESS_ELECTIONS} election timeouts, proposed {proposed and proposed.index};"]
    for replica in cluster.replicas.values():
        core = replica.core
        if core is None:
            parts.append(f"r{replica.replica_id} gone")
        else:
            text = f"{core.role.value} term={core.term} leader={core.leader_id}"
            indexes = f"last={core.last_index} commit={core.commit_index} applied={core.applied_index}"
            parts.append(f"r{replica.replica_id} {text} {indexes}")
    return " | ".join(parts)
