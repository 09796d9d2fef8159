"""All replicas of one run, and queries about them. Injects no faults itself."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from raftmq.raft.core import RaftCore
from raftmq.raft.membership import Membership
from raftmq.raft.messages import Message
from raftmq.raft.ready import Role
from raftmq.types import ReplicaId

from sim.core.checker import Checker
from sim.core.disk import SimDisk
from sim.core.events import EventHeap
from sim.core.network import SimNetwork
from sim.core.options import SwarmOptions
from sim.core.replica import CoreFactory, SimReplica, World


@dataclass(frozen=True, slots=True)
class Build:
    """The simulated code: the product, or a mutant of one of its parts."""

    core: CoreFactory = RaftCore
    replica: type[SimReplica] = SimReplica
    disk: type[SimDisk] = SimDisk


PRODUCT = Build()


class SimCluster:
    """The replicas of one group over one network."""

    def __init__(
        self, random_: random.Random, options: SwarmOptions, build: Build, trace: Callable[[str], None] | None
    ) -> None:
        self.random = random_
        self.options = options
        self.build = build
        self.events = EventHeap()
        self.disks: dict[int, SimDisk] = {}
        self.replicas: dict[ReplicaId, SimReplica] = {}
        """All replicas in the order of their ids, including removed and destroyed ones."""
        self.checker = Checker(self.disks)
        self.network = SimNetwork(self.events, random_, options, self._deliver, self._report)
        self.on_leader: Callable[[SimReplica], None] | None = None
        """Called with every new leader."""
        self.world = World(
            self.events, random_, options, self.network, self.checker, build.core, self._tell_leader, trace
        )
        voters = tuple(ReplicaId(number) for number in range(1, options.voter_count + 1))
        self.initial_membership = Membership(voters=voters)
        for replica_id in voters:
            self._create(replica_id, self.initial_membership)

    def _create(self, replica_id: ReplicaId, membership: Membership | None) -> SimReplica:
        disk = self.disks[replica_id] = self.build.disk(membership)
        replica = self.replicas[replica_id] = self.build.replica(self.world, replica_id, disk)
        return replica

    def create_replica(self) -> ReplicaId:
        """Create a replica with an empty disk and a new id, and return the id. It knows nothing until it receives a snapshot."""
        replica_id = ReplicaId(len(self.replicas) + 1)
        self._create(replica_id, None)
        return replica_id

    def _tell_leader(self, replica: SimReplica) -> None:
        if self.on_leader is not None:
            self.on_leader(replica)

    def _deliver(self, message: Message) -> None:
        replica = self.replicas.get(message.target)
        if replica is not None:
            replica.receive(message)

    def _report(self, message: Message, is_delivered: bool) -> None:
        self.replicas[message.source].report(message, is_delivered)

    @property
    def live(self) -> list[SimReplica]:
        """The running replicas."""
        return [replica for replica in self.replicas.values() if replica.core is not None]

    @property
    def leaders(self) -> list[tuple[SimReplica, RaftCore]]:
        """Every replica that believes it leads, with its core."""
        return [
            (replica, replica.core)
            for replica in self.replicas.values()
            if replica.core is not None and replica.core.role is Role.LEADER
        ]

    def latest_membership(self) -> tuple[int, Membership]:
        """Return the newest configuration of any running replica or disk, preceded by its index."""
        index, membership = 0, self.initial_membership
        for replica in self.replicas.values():
            core = replica.core
            if core is not None and replica.machine.index > index and core.membership.voters:
                index, membership = replica.machine.index, core.membership
            state = replica.disk.state
            if state.machine.index > index and state.membership.voters:
                index, membership = state.machine.index, state.membership
        return index, membership


def members_of(membership: Membership) -> list[ReplicaId]:
    """Return all voters and learners of both halves, in the order of their ids."""
    return sorted({*membership.voters, *membership.outgoing, *membership.learners})
