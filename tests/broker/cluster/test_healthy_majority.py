"""`has_healthy_majority` never promises too much while replicas move, grow, shrink and get lost: a model of a partition and its group."""

import random
from functools import partial

import pytest
from raftmq.broker.cluster.membership_plan import has_healthy_majority, is_reached, partition_target, plan_change
from raftmq.fsm.feature_levels import FEATURE_LEVEL
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.metadata_commands import (
    AdmitReplica,
    CreateTopic,
    Done,
    InitializeCluster,
    PartitionPlan,
    RegisterNode,
    RemoveNode,
    RemoveReplica,
    ReplaceReplica,
    SetReplicas,
    encode_command,
)
from raftmq.raft.entry import Entry, EntryKind
from raftmq.raft.membership import Membership, MembershipOp
from raftmq.types import LogIndex, Offset, ReplicaId, Term

NODES = 6
GROUP = 1


class Model:
    """One partition in real metadata, and its group, whose leaders may know old metadata."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.metadata = Metadata()
        self.index = int(self.metadata.applied_index)
        self.do(InitializeCluster("cluster", FEATURE_LEVEL))
        self.nodes = [self.register() for _ in range(NODES)]
        born = tuple(self.rng.sample(self.nodes, self.rng.choice([1, 3, 5])))
        self.do(CreateTopic("t", "log", len(born), {}, (PartitionPlan(born),)))
        self.voters = {replica.replica_id for replica in self.partition.replicas}
        self.learners = set()
        self.revision = 0
        self.promises = 0
        self.targets = [partition_target(self.partition)]

    @property
    def partition(self):
        return self.metadata.partition(GROUP)

    def do(self, command):
        self.index += 1
        payload = encode_command(command)
        return self.metadata.apply(Entry(LogIndex(self.index), Term(1), EntryKind.COMMAND, Offset(0), 0, 0, payload))

    def set_replicas(self):
        size = self.rng.choice([1, 2, 3, 3, 5])
        node_ids = tuple(self.rng.sample(self.nodes, size))
        self.do(SetReplicas(GROUP, node_ids, self.partition.revision))

    def lose(self):
        """Replace a replica as damaged, which a leader permits only while a majority answers without it."""
        replica = self.rng.choice(self.partition.replicas)
        others = self.voters - {replica.replica_id}
        alive = {one for one in others if one not in self.lost}
        if 2 * len(alive) > len(self.voters):
            self.do(ReplaceReplica(GROUP, replica.replica_id))

    def remove_node(self):
        """Remove a node by force, and let another one register. The first one is the only metadata voter."""
        position = self.rng.randrange(1, NODES)
        node_id = self.nodes[position]
        held = {
            one.replica_id for one in (*self.partition.replicas, *self.partition.retiring) if one.node_id == node_id
        }
        alive = self.voters - held - self.lost
        if 2 * len(alive) > len(self.voters) and {one.node_id for one in self.partition.replicas} != {node_id}:
            assert isinstance(self.do(RemoveNode(node_id, is_forced=True)), Done)
            self.nodes[position] = self.register()

    def register(self):
        name = f"n{self.index}"
        registered = self.do(RegisterNode(name, 0, f"{name}:1", f"{name}:2", "", name, "", "1", FEATURE_LEVEL))
        return registered.node_id

    @property
    def lost(self):
        """Voters whose data is gone: their rows may be gone, too."""
        present = {one.replica_id for one in (*self.partition.replicas, *self.partition.retiring) if not one.is_lost}
        return self.voters - present

    def advance(self):
        """Let a leader, whose metadata is not older than the group's last change, make the next change."""
        known = [target for target in self.targets if target.revision >= self.revision]
        target = self.rng.choice(known[-2:])
        membership = Membership(tuple(sorted(self.voters)), tuple(sorted(self.learners)))
        caught_up = {ReplicaId(one) for one in self.learners if self.rng.random() < 0.7}
        change = plan_change(membership, target, caught_up)
        if change is None:
            return
        before = set(self.voters)
        for op, replica_id in change.steps:
            self.voters.discard(replica_id)
            self.learners.discard(replica_id)
            if op is MembershipOp.ADD_VOTER:
                self.voters.add(replica_id)
            elif op is MembershipOp.ADD_LEARNER:
                self.learners.add(replica_id)
        assert self.voters, (before, change)
        self.revision = target.revision
        self.check(before)  # while it is joint, both majorities count

    def report(self):
        """Report as the group's leader does: only when it refuses older targets, and has the newest one."""
        partition, target = self.partition, partition_target(self.partition)
        if self.revision < partition.revision:
            self.revision = partition.revision  # the change that only closes the group to older targets
            return
        members = self.voters | self.learners
        is_whole = is_reached(Membership(tuple(sorted(self.voters)), tuple(sorted(self.learners))), target)
        voting_seats = {one.seat for one in partition.replicas if one.replica_id in self.voters}
        for gone in partition.retiring:
            if gone.replica_id not in members and (is_whole or not gone.is_lost or gone.seat in voting_seats):
                assert isinstance(self.do(RemoveReplica(GROUP, gone.replica_id)), Done)
                return
        for newcomer in partition.replicas:
            if newcomer.is_newcomer and newcomer.replica_id in self.voters:
                assert isinstance(self.do(AdmitReplica(GROUP, newcomer.replica_id)), Done)
                return

    def check(self, voters):
        """Whatever is unsound besides: a majority that metadata promises, the group has."""
        partition = self.partition
        known = {one.replica_id: one for one in (*partition.replicas, *partition.retiring)}
        for _ in range(4):
            here = set(self.rng.sample(self.nodes, self.rng.randint(3, NODES)))
            if not has_healthy_majority(partition, lambda one: False, partial(_is_on, here)):
                continue
            self.promises += 1
            sound = {one for one in voters if one in known and not known[one].is_lost and _is_on(here, known[one])}
            assert 2 * len(sound) > len(voters), (partition, sorted(voters), here)

    def step(self):
        action = self.rng.choice(
            [self.set_replicas, self.lose, self.remove_node, *[self.advance] * 6, *[self.report] * 4]
        )
        action()
        if self.targets[-1].revision != self.partition.revision:
            self.targets.append(partition_target(self.partition))
        self.check(self.voters)


def _is_on(node_ids, replica):
    return replica.node_id in node_ids


@pytest.mark.parametrize("first", range(0, 600, 100))
def test_a_promised_majority_exists_in_every_membership_on_the_way(first):
    promises = 0
    for seed in range(first, first + 100):
        model = Model(seed)
        for _ in range(80):
            model.step()
        promises += model.promises
    assert promises > 8_000, "a promise is the rule"
