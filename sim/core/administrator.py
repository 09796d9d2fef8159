"""The administrator of the simulated group: changes its membership, transfers its leadership, and compacts its logs."""

from __future__ import annotations

from raftmq.raft.core import RaftCore
from raftmq.raft.membership import MembershipChange, MembershipOp
from raftmq.raft.ready import Appended
from raftmq.types import ReplicaId

from sim.core.cluster import SimCluster, members_of
from sim.core.options import TICK
from sim.core.replica import SimReplica

REPLICAS_MAX = 10
"""Maximum number of replicas created in one run."""

Step = tuple[MembershipOp, ReplicaId]


class Administrator:
    """Acts at random times until stopped."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._is_stopped = False
        options = cluster.options
        self._voters_min = 3 if options.wipe else options.voters_min
        if options.compact_every:
            self._later(options.compact_every, self._compact)
        if options.transfer_every:
            self._later(options.transfer_every, self._transfer)
        if options.membership_every:
            self._later(options.membership_every, self._change)

    def stop(self) -> None:
        """Stop acting."""
        self._is_stopped = True

    def _later(self, every: float, action: object) -> None:
        assert callable(action)
        self._cluster.events.after(int(self._cluster.random.expovariate(1 / (every * TICK))) + 1, action)

    def _note(self, text: str) -> None:
        if self._cluster.world.trace:
            self._cluster.world.trace(f"{self._cluster.events.now:>7} -- {text}")

    def _compact(self) -> None:
        if self._is_stopped:
            return
        leaders = self._cluster.leaders
        if leaders and self._cluster.random.random() < 0.5:
            self._cluster.random.choice(leaders)[0].compact(0)
        elif self._cluster.live:
            self._cluster.random.choice(self._cluster.live).compact(self._cluster.random.choice((0, 0, 2, 10)))
        self._later(self._cluster.options.compact_every, self._compact)

    def _transfer(self) -> None:
        if self._is_stopped:
            return
        leaders = self._cluster.leaders
        if leaders:
            leader, core = self._cluster.random.choice(leaders)
            target = self._cluster.random.choice(members_of(core.membership))
            refused = core.transfer_leader(target)
            self._note(f"r{leader.replica_id} transfers to r{target}: {refused.reason.value if refused else 'begins'}")
            leader.pump()
        self._later(self._cluster.options.transfer_every, self._transfer)

    def _change(self) -> None:
        if self._is_stopped:
            return
        leaders = self._cluster.leaders
        if leaders:
            leader, core = self._cluster.random.choice(leaders)
            change = self._draw_change(core)
            if change is not None:
                self._propose(leader, core, change)
            if self._cluster.random.random() < 0.3:  # do not wait for the first change
                change = self._draw_change(core)
                if change is not None:
                    self._propose(leader, core, change)
        self._retire()
        self._later(self._cluster.options.membership_every, self._change)

    def _propose(self, leader: SimReplica, core: RaftCore, change: MembershipChange) -> None:
        result = core.propose_membership(change, now_ms=self._cluster.events.now)
        steps = ", ".join(f"{op.name} {replica_id}" for op, replica_id in change.steps) or "leave joint"
        if isinstance(result, Appended):
            self._cluster.checker.acknowledged.on_appended(result.entries)
        text = f"at {result.entries[-1].index}" if isinstance(result, Appended) else result.reason.value
        self._note(f"r{leader.replica_id} change [{steps}]: {text}")
        leader.pump()

    def _draw_change(self, core: RaftCore) -> MembershipChange | None:
        random_ = self._cluster.random
        membership = core.membership
        if membership.is_joint and not membership.auto_leave:
            return MembershipChange(steps=())
        steps = random_.choice((self._add_learner, self._promote, self._remove, self._demote, self._replace))(core)
        return MembershipChange(tuple(steps), is_explicit=random_.random() < 0.15) if steps else None

    def _new_id(self) -> ReplicaId | None:
        if len(self._cluster.replicas) >= REPLICAS_MAX:
            return None
        return self._cluster.create_replica()

    def _add_learner(self, core: RaftCore) -> list[Step]:
        if len(core.membership.learners) >= 2:
            return self._promote(core)
        new = self._new_id()
        return [] if new is None else [(MembershipOp.ADD_LEARNER, new)]

    def _promote(self, core: RaftCore) -> list[Step]:
        learners = [learner for learner in core.membership.learners if not self._cluster.replicas[learner].is_destroyed]
        if not learners or len(core.membership.voters) >= 5:
            return []
        return [(MembershipOp.ADD_VOTER, learner) for learner in learners[: self._cluster.random.choice((1, 1, 2))]]

    def _surplus(self, core: RaftCore) -> list[ReplicaId]:
        """Return the voters that may be removed, a destroyed one first."""
        voters = list(core.membership.voters)
        if len(voters) <= self._voters_min:
            return []
        self._cluster.random.shuffle(voters)
        voters.sort(key=lambda voter: not self._cluster.replicas[voter].is_destroyed)
        return voters

    def _remove(self, core: RaftCore) -> list[Step]:
        if core.membership.learners and self._cluster.random.random() < 0.3:
            return [(MembershipOp.REMOVE, core.membership.learners[0])]
        return [(MembershipOp.REMOVE, voter) for voter in self._surplus(core)[:1]]

    def _demote(self, core: RaftCore) -> list[Step]:
        return [(MembershipOp.ADD_LEARNER, voter) for voter in self._surplus(core)[:1]]

    def _replace(self, core: RaftCore) -> list[Step]:
        """Replace one or two voters in one joint change, by learners if there are any."""
        membership = core.membership
        count = self._cluster.random.choice((1, 2))
        incoming = [learner for learner in membership.learners if not self._cluster.replicas[learner].is_destroyed]
        incoming = incoming[:count]
        while len(incoming) < count:
            new = self._new_id()
            if new is None:
                return []
            incoming.append(new)
        voters = list(membership.voters)
        self._cluster.random.shuffle(voters)
        voters.sort(key=lambda voter: not self._cluster.replicas[voter].is_destroyed)
        steps = [(MembershipOp.ADD_VOTER, replica_id) for replica_id in incoming]
        return steps + [(MembershipOp.REMOVE, voter) for voter in voters[:count]]

    def _retire(self) -> None:
        """Delete some of the removed replicas. The others stay and campaign in vain.

        A replica is deleted only when all members have durably applied its removal. Before that they may still need its
        vote to learn that the change was committed.
        """
        _, membership = self._cluster.latest_membership()
        members = members_of(membership)
        for replica in self._cluster.live:
            if replica.replica_id in members or replica.observation.commit == 0:
                continue
            states = [self._cluster.disks[member].state for member in members]
            is_known = all(replica.replica_id not in members_of(state.membership) for state in states)
            is_applied = all(state.membership.voters for state in states)
            if is_known and is_applied and self._cluster.random.random() < 0.5:
                self._note(f"r{replica.replica_id} was removed and is deleted")
                replica.destroy()
