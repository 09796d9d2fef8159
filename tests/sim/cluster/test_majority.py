"""Before a fault takes machines away for long, it asks whether a group keeps its majority without them."""

from __future__ import annotations

import pytest
from raftmq.raft.core import RaftCore
from raftmq.raft.membership import MembershipOp

from sim.cluster.majority import keeps_majority
from tests.support.raft.harness import Cluster, membership

ALL = (1, 2, 3, 4, 5)


def cores(cluster: Cluster) -> list[RaftCore]:
    return [node.core for node in cluster.nodes.values()]


def growing() -> Cluster:
    """Return voters 1 to 3, led by 1, with learners 4 and 5. The leader has appended, and not sent, that they are to vote."""
    cluster = Cluster(*ALL, config=membership(1, 2, 3, learners=(4, 5)))
    cluster.elect(1)
    cluster.nodes[1].holds_appends = True
    cluster.change(1, (MembershipOp.ADD_VOTER, 4), (MembershipOp.ADD_VOTER, 5))
    return cluster


@pytest.mark.parametrize(("staying", "is_kept"), [((1, 2), True), ((1, 4, 5), False), ((2,), False), ((), False)])
def test_only_voters_are_a_majority(staying: tuple[int, ...], is_kept: bool) -> None:
    cluster = Cluster(*ALL, config=membership(1, 2, 3, learners=(4, 5)))

    assert keeps_majority(cores(cluster), staying) is is_kept


def test_a_leader_that_has_not_applied_a_change_is_not_the_only_one_asked() -> None:
    """The others have applied it, and two of five voters are no majority."""
    cluster = growing()
    cluster.pump()
    assert cluster[1].membership.voters == (1, 2, 3)
    assert cluster[2].membership.voters == ALL

    cluster[1].log.membership_indexes.clear()  # or that alone would be a reason
    assert not keeps_majority(cores(cluster), (1, 2))
    assert not keeps_majority(cores(cluster), (1, 4, 5)), "while joint, the old half needs its majority, too"
    assert keeps_majority(cores(cluster), (1, 2, 4))


def test_nothing_is_certain_while_a_change_is_under_way() -> None:
    cluster = growing()
    assert not keeps_majority(cores(cluster), ALL)

    cluster.nodes[1].holds_appends = False
    cluster.finish_appends(1)
    cluster.pump()
    assert keeps_majority(cores(cluster), (1, 4, 5))


def test_replicas_that_have_received_nothing_know_nothing() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.add(4, is_empty=True)

    assert keeps_majority(cores(cluster), (1, 2))
    assert not keeps_majority([cluster[4]], (4,))
