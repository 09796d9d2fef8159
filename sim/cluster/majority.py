"""Tell whether a group keeps its majority when some of its replicas are lost, as all its running replicas together know it.

This module must not use the product's own majorities, which mutants change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from raftmq.raft.core import RaftCore


def keeps_majority(cores: Iterable[RaftCore], staying: Collection[int]) -> bool:
    """Return whether a majority stays, by the membership of every core, and no core has a change that it has not applied yet.

    No single core can be asked, not even the leader. A change becomes active on each core when that core applies it, and the leader applies
    only entries that are durable on its own disk.

    Scenario (seed 811567):
    1. The disk of the leader n1 hangs. The group {1, 2, 3} becomes {1, 2, 3, 4, 20}: 2 and 3 commit the change, and n1 has not applied it.
    2. 3 and 4 are lost. By the membership that n1 uses, 1 and 2 are a majority.
    3. 20 is lost, too. Of five voters, two remain.

    Args:
        cores: All running replicas of the group. Those that have received nothing yet know nothing.
        staying: The ids of the running replicas that are not lost. Some of them may be no voters.
    """
    known = [core for core in cores if core.membership.voters]
    return bool(known) and all(
        not core.log.membership_indexes
        and all(_is_majority(half, staying) for half in (core.membership.voters, core.membership.outgoing))
        for core in known
    )


def _is_majority(voters: Collection[int], staying: Collection[int]) -> bool:
    return not voters or 2 * len(set(staying).intersection(voters)) > len(voters)
