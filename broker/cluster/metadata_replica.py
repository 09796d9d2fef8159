"""Manage this node's replica of the metadata group, which is opened first, and must catch up before anything else is trusted.

This module must not decide anything that metadata contains: it opens the replica, proposes to it, and reports each change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import cast

from raftmq.broker.base.readiness import METADATA_LEADERLESS_ELECTIONS
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.cluster.replica_files import create_replica, open_replica
from raftmq.broker.cluster.replica_manager import ReplicaManager
from raftmq.broker.replica.engine import Engine
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.metadata_commands import MetadataCommand, encode_command
from raftmq.proto import queue_pb2 as pb
from raftmq.raft.core import RestoredState
from raftmq.raft.entry import Entry, EntryKind, Proposal
from raftmq.storage.lmdb_log_store import LmdbLogStore
from raftmq.storage.log_store import ReplicaKey
from raftmq.storage.registry import Registry
from raftmq.types import METADATA_GROUP_ID, NO_NODE


class MetadataReplica:
    """Opens the metadata replica of one node and proposes to it."""

    def __init__(
        self,
        engine: Engine,
        store: LmdbLogStore,
        registry: Registry,
        replicas: ReplicaManager,
        on_change: Callable[[], None],
    ) -> None:
        self.replica: Replica[Metadata] | None = None
        """The replica. None until this node belongs to a cluster."""
        self._engine = engine
        self._store = store
        self._registry = registry
        self._replicas = replicas
        self._on_change = on_change

    async def create(self, key: ReplicaKey, state: RestoredState) -> None:
        """Make the replica durable. It must not speak before that."""
        await self._replicas.on_writer(key, lambda: create_replica(self._store, self._registry, key, state))

    async def open(self, key: ReplicaKey) -> Replica[Metadata]:
        """Open the replica and step it from now on. The engine starts its timers.

        Raises:
            DamagedReplicaError, MissingReplicaError, InvariantError: The replica cannot be used.
            UnsupportedDataError: A newer version wrote its file or its state.
        """
        machine = Metadata()
        self._registry.mark_open([key])
        restored = await self._replicas.on_writer(key, lambda: open_replica(self._store, self._registry, key, machine))

        if self._engine.node_id == NO_NODE:
            self._engine.start(self._registry.node_id)
        replica = cast(
            "Replica[Metadata]",
            self._engine.add_replica(key, restored, machine, partial(machine.replica_node, METADATA_GROUP_ID)),
        )
        replica.applier.listeners.append(self._on_applied)
        replica.restored_listeners.append(self._on_change)
        self.replica = replica
        membership = replica.core.membership
        if membership.voters == (key.replica_id,) and not membership.outgoing:
            # there is no other member whose silence must be waited out: otherwise a lone broker's start would take an election timeout
            self._engine.campaigns.begin_first(replica)
        return replica

    def _on_applied(self, entry: Entry, result: object) -> None:
        if entry.kind is EntryKind.COMMAND:
            self._on_change()

    def require(self) -> Replica[Metadata]:
        """Return the replica, even if it is empty. Raises RequestError NOT_FORMED."""
        if self.replica is None:
            raise RequestError(pb.NOT_FORMED, "this broker belongs to no cluster yet", retry_after_ms=500)
        return self.replica

    def require_filled(self) -> Replica[Metadata]:
        """Return the replica if it has the cluster's metadata. Raises RequestError NOT_FORMED or NOT_READY."""
        replica = self.replica or self.require()
        if replica.state_machine.applied_index < replica.core.state_floor or not replica.state_machine.cluster_id:
            raise _not_received()
        return replica

    def require_known(self) -> Metadata:
        """Return the metadata that this broker had last, also while a snapshot is replacing it. Raises as `require_filled` without any."""
        machine = self.require().state_machine
        if not machine.cluster_id:
            raise _not_received()
        return machine

    async def wait_confirmed(self, on_retry: Callable[[], None]) -> None:
        """Wait until a quorum confirmed this replica's metadata in this boot. `on_retry` is called after each failure."""
        replica = self.require()
        while True:
            try:
                await replica.read_index()
                return
            except RequestError:
                on_retry()
                await asyncio.sleep(self._engine.timing.metadata_tick_seconds)

    def feature_level(self) -> int:
        """Return the level that every broker of the cluster knows, according to this replica, or 0 before it is filled."""
        return self.replica.state_machine.feature_level if self.replica is not None else 0

    def leaderless_seconds(self) -> float:
        """Return how long the group has had no leader, or 0 while an election may be under way."""
        since = self.replica.leaderless_since if self.replica is not None else None
        seconds = self._engine.loop.time() - since if since is not None else 0.0
        longest = METADATA_LEADERLESS_ELECTIONS * self._engine.timing.election_seconds(METADATA_GROUP_ID)
        return seconds if seconds > longest else 0.0

    async def propose(self, command: MetadataCommand) -> object:
        """Propose a command here and wait for its result. Raises RequestError as `Replica.propose`."""
        _, applied = self.require().propose([Proposal(EntryKind.COMMAND, encode_command(command))])
        return (await applied)[0]


def _not_received() -> RequestError:
    return RequestError(pb.NOT_READY, "this broker has not received the cluster's metadata yet", retry_after_ms=200)
