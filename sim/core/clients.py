"""Clients of the simulated group: they propose, repeat proposals of unknown outcome, and read."""

from __future__ import annotations

from collections import deque

from raftmq.raft.entry import EntryKind, Proposal
from raftmq.raft.ready import Appended, Role

from sim.core.cluster import SimCluster
from sim.core.options import TICK
from sim.core.replica import SimReplica


class Clients:
    """Sends proposals and reads at random times until stopped."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._number = 0
        self._read_number = 0
        self._unknown: deque[Proposal] = deque(maxlen=8)
        """Proposals that a leader accepted, with unknown outcome. They are repeated now and then."""
        self._is_stopped = False
        options = cluster.options
        self._later(options.propose_every, self._propose_at_random)
        if options.read_every:
            self._later(options.read_every, self._read_at_random)
            cluster.on_leader = self._welcome

    def stop(self) -> None:
        """Send no more random requests. The methods below may still be called."""
        self._is_stopped = True

    def _later(self, every: float, action: object) -> None:
        assert callable(action)
        self._cluster.events.after(int(self._cluster.random.expovariate(1 / (every * TICK))) + 1, action)

    def _propose_at_random(self) -> None:
        if self._is_stopped:
            return
        random_ = self._cluster.random
        leaders = self._cluster.leaders
        replica = random_.choice(leaders)[0] if leaders else None
        if replica is None or random_.random() < 0.05:
            live = self._cluster.live
            replica = random_.choice(live) if live else None
        if replica is not None:
            if self._unknown and random_.random() < 0.2:
                self.propose(replica, [self._unknown.popleft()])
            else:
                self.propose(replica, [self._new_proposal() for _ in range(random_.choice((1, 1, 1, 2, 5)))])
        self._later(self._cluster.options.propose_every, self._propose_at_random)

    def _new_proposal(self) -> Proposal:
        random_ = self._cluster.random
        self._number += 1
        payload = b"%d" % self._number
        if random_.random() < 0.1:
            return Proposal(EntryKind.COMMAND, payload)
        if random_.random() < 0.2:
            payload += b"." * random_.randrange(60)
        return Proposal(EntryKind.DATA, payload, random_.randrange(1, 4))

    def propose(self, replica: SimReplica, proposals: list[Proposal]) -> Appended | None:
        """Propose on a replica. Return None if the replica definitely refuses."""
        core = replica.core
        if core is None or replica.paused_until > self._cluster.events.now:
            return None
        trace = self._cluster.world.trace
        result = core.propose(proposals, now_ms=self._cluster.events.now * replica.tick_length // TICK)
        if trace:
            text = "takes" if isinstance(result, Appended) else f"refuses ({result.reason.value})"
            trace(f"{self._cluster.events.now:>7} r{replica.replica_id} {text} {[p.payload for p in proposals]}")
        if not isinstance(result, Appended):
            replica.pump()
            return None
        self._cluster.checker.acknowledged.on_appended(result.entries)
        for entry in result.entries:
            replica.waiters[entry.index] = entry
        self._unknown.extend(proposals)
        replica.pump()
        return result

    def propose_new(self, replica: SimReplica) -> Appended | None:
        """Propose one new operation."""
        return self.propose(replica, [self._new_proposal()])

    def _welcome(self, leader: SimReplica) -> None:
        """Send a read shortly after an election, as a client does that has waited for a leader."""
        if not self._is_stopped and self._cluster.random.random() < 0.7:
            self._cluster.events.after(int(self._cluster.random.random() * TICK / 2), self.read, leader)

    def _read_at_random(self) -> None:
        if self._is_stopped:
            return
        live = self._cluster.live
        leaders = self._cluster.leaders
        if leaders and self._cluster.random.random() < 0.6:
            self.read(self._cluster.random.choice(leaders)[0])
        elif live:
            self.read(self._cluster.random.choice(live))
        self._later(self._cluster.options.read_every, self._read_at_random)

    def read(self, replica: SimReplica) -> None:
        """Ask a replica for a confirmed read index."""
        self._read_number += 1
        checker = self._cluster.checker
        checker.reads.on_asked(self._read_number, checker.committed.last_index)
        self._arrive(replica, replica.life, self._read_number)

    def _arrive(self, replica: SimReplica, life: int, request_id: int) -> None:
        core = replica.core
        if core is None or replica.life != life:
            return
        pause = replica.paused_until - self._cluster.events.now
        if pause > 0:
            self._cluster.events.after(pause, self._arrive, replica, life, request_id)
            return
        trace = self._cluster.world.trace
        if trace:
            role = "leader" if core.role is Role.LEADER else "follower"
            trace(f"{self._cluster.events.now:>7} r{replica.replica_id} ({role}) is asked read {request_id}")
        core.read_index(request_id)
        replica.pump()
