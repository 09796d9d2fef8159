"""`StaleLeaderStepsDown`: a leader that has a successor and does not hear of it stops leading within two election timeouts of its own
clock (thesis 6.2: it hears no quorum any more).

Otherwise its clients would wait for it, and its followers would not look for the new leader. Time for which its process was frozen does
not count.
"""

from __future__ import annotations

from collections.abc import Iterable

from raftmq.raft.ready import Role

from sim.cluster.cluster import Process
from sim.core.invariants.violation import demand

TIMEOUTS = 2
SLACK_SECONDS = 1.0
"""Tolerance for the time between two looks and for the late detection of a stall."""


class StaleLeaders:
    """The stale leaders of all groups, which are checked periodically."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, int], float] = {}
        """(process, group) -> the time when it was first seen leading in an earlier term than another replica."""

    def look(self, processes: Iterable[Process], now: float) -> None:
        """Check every leading replica."""
        running = [process for process in processes if process.node is not None]
        terms: dict[int, int] = {}
        for process in running:
            assert process.node is not None
            for replica in process.node.engine.replicas.values():
                if replica.core.is_confirmed_leader:
                    terms[replica.group_id] = max(terms.get(replica.group_id, 0), replica.term)
        seen: dict[tuple[str, int], float] = {}
        for process in running:
            assert process.node is not None
            if process.host.is_frozen:
                continue
            for replica in process.node.engine.replicas.values():
                if replica.role is Role.LEADER and replica.term < terms.get(replica.group_id, 0):
                    key = (repr(process.host), replica.group_id)
                    since = seen[key] = self._since.get(key, now)
                    bound = TIMEOUTS * process.node.timing.election_seconds(replica.group_id) / process.host.rate
                    demand(
                        now - since <= bound + SLACK_SECONDS,
                        "StaleLeaderStepsDown",
                        f"{process.host} leads g{replica.group_id} in term {replica.term} for {now - since:.2f} s, "
                        f"while another leads it in term {terms[replica.group_id]}",
                    )
        self._since = seen
