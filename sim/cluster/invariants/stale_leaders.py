"""`StaleLeaderStepsDown`: a leader that was succeeded, and hears nothing of it, stops leading within two election timeouts of its
own clock (thesis 6.2: it hears no quorum any more).

Its clients would wait for it, and a replica that follows it would not look for the other. Time in which its process stood still
does not count.
"""

from __future__ import annotations

from collections.abc import Iterable

from raftmq.raft.ready import Role

from sim.cluster.cluster import Process
from sim.core.invariants.violation import demand

TIMEOUTS = 2
SLACK_SECONDS = 1.0
"""Looks are apart, and a stall is noticed late."""


class StaleLeaders:
    """All groups, looked at from time to time."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, int], float] = {}
        """(process, group) -> when it was first seen to lead in an earlier term than somebody else."""

    def look(self, processes: Iterable[Process], now: float) -> None:
        """Every replica that leads."""
        running = [process for process in processes if process.node is not None]
        terms: dict[int, int] = {}
        for process in running:
            assert process.node is not None
            for group in process.node.engine.replicas.values():
                if group.core.is_confirmed_leader:
                    terms[group.group_id] = max(terms.get(group.group_id, 0), group.term)
        seen: dict[tuple[str, int], float] = {}
        for process in running:
            assert process.node is not None
            if process.host.is_frozen:
                continue
            for group in process.node.engine.replicas.values():
                if group.role is Role.LEADER and group.term < terms.get(group.group_id, 0):
                    key = (repr(process.host), group.group_id)
                    since = seen[key] = self._since.get(key, now)
                    bound = TIMEOUTS * process.node.timing.election_seconds(group.group_id) / process.host.rate
                    demand(
                        now - since <= bound + SLACK_SECONDS,
                        "StaleLeaderStepsDown",
                        f"{process.host} leads g{group.group_id} in term {group.term} for {now - since:.2f} s, "
                        f"while another leads it in term {terms[group.group_id]}",
                    )
        self._since = seen
