"""Several real engines on one loop, with real cores, state machines and stores. Only the network is in memory."""

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor

from raftmq.broker.base.clock import WallClock
from raftmq.broker.base.limits import Limits, Timing
from raftmq.broker.peers.protocol import Channel
from raftmq.broker.replica.engine import Engine
from raftmq.broker.replica.initial_state import founder_state, joiner_state
from raftmq.broker.replica.snapshot_rows import rows_to_restore
from raftmq.broker.replica.thread_pools import ThreadPools
from raftmq.fsm.log_partition import LogPartition
from raftmq.fsm.queue.partition import QueuePartition
from raftmq.raft.entry import EntryKind, Proposal
from raftmq.raft.membership import Membership
from raftmq.storage.log_store import ReplicaKey
from raftmq.storage.memory_log_store import MemoryLogStore
from raftmq.storage.writer_threads import WriterThreads
from raftmq.types import NodeId

TIMING = Timing(
    data_tick_seconds=0.02, metadata_tick_seconds=0.02, leadership_publish_seconds=0.5, controller_seconds=0.05
)
SLOW_TIMING = Timing(data_tick_seconds=0.1, metadata_tick_seconds=0.1)
"""Timing for leaders that last: a machine under load may stall for longer than an election of the usual tests."""


class MemoryTransport:
    """Delivers frames on the next turn of the loop, unless the link is cut."""

    def __init__(self, cluster, node_id):
        self.cluster = cluster
        self.node_id = node_id

    def set_peers(self, addresses): ...

    def flush(self): ...

    def is_connected(self, node_id):
        return node_id in self.cluster.nodes and not self.cluster.is_cut(self.node_id, node_id)

    async def drained(self, node_id, channel):
        while channel is Channel.SNAPSHOT and (self.node_id, node_id) in self.cluster.held:
            await asyncio.sleep(0.001)
        return self.is_connected(node_id)

    def hold_snapshots(self, node_id, is_held):
        (self.cluster.held.add if is_held else self.cluster.held.discard)((node_id, self.node_id))

    def send(self, node_id, channel, frame_type, body):
        if not self.is_connected(node_id):
            return False
        data = b"".join(bytes(part) for part in body)
        self.cluster.loop.call_soon(self.cluster.deliver, self.node_id, node_id, frame_type, data)
        return True


class EngineNode:
    """An engine with its store and writers, and the owner of both."""

    def __init__(self, cluster, node_id, limits, clock, timing, store=None):
        self.cluster = cluster
        self.node_id = node_id
        self.store = store or MemoryLogStore()
        self.readers = ThreadPoolExecutor(2)
        self.broken = []
        cluster.starts += 1
        rng = random.Random(f"{node_id} {cluster.starts}")
        self.writers = WriterThreads(
            self.store,
            thread_count=1,
            on_done=lambda done: cluster.loop.call_soon_threadsafe(self.engine.on_completions, done),
            on_error=self.on_fatal,
        )
        self.engine = Engine(
            cluster.loop, self, self.store, ThreadPools.shared(self.readers), MemoryTransport(cluster, node_id), self.writers, clock,
            rng, rng.random, limits, timing,
        )  # fmt: skip
        self.engine.start(node_id)

    def on_leadership_row(self, group_id): ...

    def on_replica_broken(self, replica, error):
        self.broken.append((replica.group_id, error))

    def on_fatal(self, error):
        self.cluster.fatal.append(error)

    def client_address_of(self, node_id):
        return f"node-{node_id}"

    def add(self, group_id, state):
        """Create and host a replica whose id equals its node's."""
        key = ReplicaKey(group_id, self.node_id)
        self.store.create(key, state, ())
        return self.open(key)

    def add_queue(self, group_id, state):
        """Create and host a replica of a queue, whose state has a file of its own."""
        key = ReplicaKey(group_id, self.node_id)
        self.store.create_with_state_file(key, state)
        return self.open(key)

    def open(self, key):
        """Host the replica that the store has."""
        restored = self.store.open(key)
        machine = QueuePartition() if self.store.has_state_file(key) else LogPartition()
        machine.restore(rows_to_restore(machine, self.store.state_rows(key)), restored.state_index)
        return self.engine.add_replica(key, restored, machine, NodeId)

    def close(self):
        self.engine.close()
        self.writers.close()
        self.readers.shutdown()


class EngineCluster:
    """Runs engines. Use it as an async context manager. Replica ids equal node ids."""

    def __init__(self, size=3, limits=None, clock=None, timing=TIMING, make_store=lambda node_id: None):
        self.size = size
        self.make_store = make_store
        self.timing = timing
        self.clock = clock or WallClock()
        self.limits = limits or Limits()
        self.nodes = {}
        self.starts = 0
        """Counts started engines, because each gets a random generator of its own."""
        self.cuts = set()
        self.held = set()
        """Pairs of sender and receiver whose snapshots are not read at present."""
        self.fatal = []

    async def __aenter__(self):
        self.loop = asyncio.get_running_loop()
        for node_id in range(1, self.size + 1):
            store = self.make_store(node_id)
            self.nodes[node_id] = EngineNode(self, node_id, self.limits, self.clock, self.timing, store)
        for node in self.nodes.values():
            node.engine.publisher.peers = tuple(n for n in self.nodes if n != node.node_id)
        return self

    async def __aexit__(self, *_):
        for node in self.nodes.values():
            node.close()
        assert not self.fatal

    def is_cut(self, source, target):
        return (source, target) in self.cuts

    def isolate(self, node_id):
        for other in self.nodes:
            self.cuts |= {(node_id, other), (other, node_id)} - {(node_id, node_id)}

    def heal(self):
        self.cuts.clear()

    def deliver(self, source, target, frame_type, data):
        if not self.is_cut(source, target):
            self.nodes[target].engine.on_frame(source, frame_type, memoryview(data))

    def restart(self, *node_ids):
        """End processes abruptly, and start them again with the contents of their stores."""
        for node_id in node_ids:
            before = self.nodes[node_id]
            keys = before.store.open_replicas()
            before.close()
            before.store.crash()
            node = EngineNode(self, node_id, self.limits, self.clock, self.timing, before.store)
            self.nodes[node_id] = node
            node.engine.publisher.peers = tuple(n for n in self.nodes if n != node_id)
            for key in keys:
                node.open(key)

    def create_group(self, group_id, voters=(1, 2, 3)):
        return {node: self.nodes[node].add(group_id, founder_state(Membership(tuple(voters)))) for node in voters}

    def add_empty(self, group_id, node_id):
        return self.nodes[node_id].add(group_id, joiner_state())

    def replica(self, group_id, node_id):
        return self.nodes[node_id].engine.replicas[group_id]

    async def leader(self, group_id, *, among=None):
        """Return the leading group as soon as exactly one may validate proposals."""
        nodes = [self.nodes[n] for n in (among or self.nodes) if group_id in self.nodes[n].engine.replicas]
        while True:
            led = [n.engine.replicas[group_id] for n in nodes if n.engine.replicas[group_id].is_leader]
            if led:
                return max(led, key=lambda replica: replica.term)
            await next_progress([n.engine.replicas[group_id] for n in nodes])


async def next_progress(replicas):
    """Wait until any of the groups makes progress."""
    await asyncio.wait([replica.wait_progress() for replica in replicas], return_when=asyncio.FIRST_COMPLETED)


async def state_durable(engine, replica):
    """Wait until the group's whole applied state is durable. It polls, because no part of a broker signals that."""
    while replica.durable_state_index < replica.core.applied_index:
        engine.commits.flush_state(replica)
        await asyncio.sleep(0.001)


def data(number):
    """Return a proposal of one record without a producer."""
    from raftmq.batch_header import seal

    body = b"%d" % number
    batch = seal(
        body,
        record_count=1,
        raw_body_bytes=len(body),
        base_timestamp_ms=0,
        max_timestamp_ms=0,
    )
    return Proposal(EntryKind.DATA, batch, 1)
