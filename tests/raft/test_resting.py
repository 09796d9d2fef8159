"""A core that rests needs no ticks: beside one that is ticked every time, it sends the same messages and has the same state."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raftmq.raft.core import RaftCore
from raftmq.raft.membership import MembershipOp
from raftmq.raft.messages import AppendRequest, Heartbeat, HeartbeatResponse, TimeoutNow
from raftmq.raft.ready import AppendToken, Role
from raftmq.types import LogIndex, ReplicaId, Term

from tests.support.raft.harness import SETTINGS, Cluster, change, data
from tests.support.raft.resting_core import RestingCore


class PackedCluster(Cluster):
    """Takes heartbeats and their responses on the fast path first, as the engine does."""

    def deliver_one(self) -> None:
        message = self.wire[0]
        node = self.nodes[message.target]
        core = node.core
        if node.is_up and isinstance(message, Heartbeat):
            if core.on_quiet_heartbeat(message.source, message.term, message.commit_index):
                self.wire.popleft()
                self.send(HeartbeatResponse(message.target, message.source, message.term, message.read_counter))
                return
        elif (
            node.is_up
            and isinstance(message, HeartbeatResponse)
            and core.on_quiet_heartbeat_response(message.source, message.term, message.read_counter)
        ):
            self.wire.popleft()
            return
        super().deliver_one()


def on_leaders(cluster: Cluster, act: Callable[[RaftCore], object]) -> None:
    for leader in cluster.leaders():
        act(cluster[leader])
    cluster.pump()


ids = st.integers(1, 3)
actions = st.one_of(
    st.tuples(st.just("live"), st.integers(1, 25)),
    st.tuples(st.just("live"), st.integers(1, 25)),
    st.tuples(
        st.sampled_from(("propose", "isolate", "heal", "transfer", "confirm", "lose")),
        ids,
    ),
    st.tuples(st.sampled_from(("read", "forget", "step_down", "restart", "hold", "unreachable", "return")), ids),
)


def run(cluster: Cluster, action: tuple[str, int]) -> None:
    match action:
        case "live", count:
            cluster.live(count)
        case "propose", _:
            on_leaders(cluster, lambda core: core.propose([data()], 0))
        case "isolate", one:
            cluster.isolate(one)
        case "heal", _:
            cluster.heal()
        case "transfer", one:
            on_leaders(cluster, lambda core: core.transfer_leader(cluster[one].replica_id))
        case "confirm", _:
            on_leaders(cluster, lambda core: core.require_confirmation())
        case "lose", one:
            # every message that carries entries to it, so that it falls behind while it answers heartbeats
            cluster.is_lost = lambda message: isinstance(message, AppendRequest) and message.target == one
        case "read", one:
            cluster[one].read_index(7)
            cluster.pump()
        case "forget", one:
            cluster[one].forget_leader()
        case "step_down", one:
            cluster[one].step_down()
            cluster.pump()
        case "restart", one:
            cluster.restart(one)
        case "hold", one:
            cluster.nodes[one].holds_applies ^= True
            cluster.finish_applies(one)
        case "unreachable", one:
            on_leaders(cluster, lambda core: core.report_unreachable(cluster[one].replica_id))
        case "return", one:
            cluster[one].peer_returned()
            cluster.is_lost = lambda _message: False


def state(cluster: Cluster) -> list[object]:
    return [
        (
            core.role,
            core.term,
            core.leader_id,
            core.commit_index,
            core.applied_index,
            core.last_index,
            core.campaign_due,
            core.heartbeat_due,
            core._election_elapsed,
            [
                (one.match_index, one.is_recently_active, one.silent_ticks, one.behind_ticks)
                for one in core.progress.values()
            ],
            core.lagging_voters(3),
        )
        for core in (node.core for node in cluster.nodes.values())
    ]


@settings(max_examples=60)
@given(st.lists(actions, min_size=3, max_size=12))
def test_a_cluster_of_resting_cores_does_the_same(script: list[tuple[str, int]]) -> None:
    plain, resting = PackedCluster(1, 2, 3), PackedCluster(1, 2, 3, core_class=RestingCore)

    for action in [("live", 40), *script, ("live", 15)]:
        run(plain, action)
        run(resting, action)

        assert state(resting) == state(plain), action
        assert resting.sent == plain.sent, action


def test_in_a_quiet_cluster_followers_rest_until_their_timeout_and_leaders_until_their_quorum_check() -> None:
    cluster = PackedCluster(1, 2, 3, core_class=RestingCore)
    cluster.elect(1)
    cluster.live(20)
    RestingCore.left_out.clear()

    cluster.live(100)

    assert cluster.leaders() == [1]
    assert RestingCore.left_out[Role.LEADER] == 100 - 100 // SETTINGS.election_ticks
    assert RestingCore.left_out[Role.FOLLOWER] > 2 * (100 - 100 // SETTINGS.election_ticks)


INPUTS: dict[str, Callable[[RaftCore], object]] = {
    "wake": lambda core: core.wake(),
    "campaign": lambda core: core.campaign(),
    "forget_leader": lambda core: core.forget_leader(),
    "peer_returned": lambda core: core.peer_returned(),
    "step_down": lambda core: core.step_down(),
    "require_confirmation": lambda core: core.require_confirmation(),
    "step": lambda core: core.step(TimeoutNow(ReplicaId(2), core.replica_id, core.term)),
    "propose": lambda core: core.propose([data()], 0),
    "propose_membership": lambda core: core.propose_membership(change((MembershipOp.ADD_LEARNER, 4)), 0),
    "read_index": lambda core: core.read_index(7),
    "transfer_leader": lambda core: core.transfer_leader(ReplicaId(2)),
    "append_done": lambda core: core.append_done(AppendToken(core.term, core.vote, LogIndex(0), Term(0), 10**6)),
    "apply_done": lambda core: core.apply_done(core.applied_index),
    "entries_fetched": lambda core: core.entries_fetched(),
    "resume_copies": lambda core: core.resume_copies(),
    "report_unreachable": lambda core: core.report_unreachable(ReplicaId(2)),
    "report_snapshot": lambda core: core.report_snapshot(ReplicaId(2), is_sent=True),
    "compacted": lambda core: core.compacted(core.log.position),
}


@pytest.mark.parametrize("name", INPUTS)
def test_every_input_ends_the_rest(name: str) -> None:
    """The next tick finds the work that an input leaves, even if the shell looks for it at no other time."""
    cluster = PackedCluster(1, 2, 3, core_class=RestingCore)
    leader = cluster.elect(1)
    cluster.live(2)
    assert leader.next_tick > leader.ticks.now

    INPUTS[name](leader)

    assert leader.next_tick == 0
