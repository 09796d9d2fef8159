"""Remember the boots of other nodes, to refuse an older or a second copy of a data directory.

A copy lacks entries that its original acknowledged later. If it voted, a majority might lose acknowledged records. So each node stores
the latest boot of every other node before it exchanges anything else with it, and metadata has the registered boot. This module must not
decide how a refused node reacts: it is told, and stops by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Future

import structlog
from raftmq.broker.base.limits import Limits
from raftmq.broker.cluster.metadata_replica import MetadataReplica
from raftmq.broker.peers.protocol import Hello
from raftmq.fsm.metadata_views import NodeView
from raftmq.fsm.node_lineage import NO_BOOT, Boot, Lineage
from raftmq.storage.registry import Registry

log = structlog.get_logger(__name__)


def lineage_of(registry: Registry) -> Lineage:
    """Return the lineage of this node's own data directory."""
    return Lineage(*registry.lineage)


class PeerBoots:
    """The latest boot of each other node, in memory and in the registry."""

    def __init__(
        self,
        registry: Registry,
        metadata: MetadataReplica,
        write: Callable[..., Future[object]],
        limits: Limits,
    ) -> None:
        """Take `write`, which runs a short write of the registry off the loop."""
        self._registry = registry
        self._metadata = metadata
        self._write = write
        self._boots_max = limits.known_boots_max
        self._known = {uuid: Boot(number, mark) for uuid, (number, mark) in registry.known_boots().items()}
        self._processes: dict[str, bytes] = {}
        """The process that stated the latest boot itself, by uuid. Absent if metadata stated it."""
        self._under_way: dict[str, Future[object]] = {}
        """Boots that are not durable yet, by uuid."""

    def contradiction(self, uuid: str, lineage: Lineage) -> str | None:
        """Return why a directory with this uuid contradicts this node's or metadata's knowledge, or None if it does not."""
        return lineage.contradiction(self._known.get(uuid, NO_BOOT)) or lineage.contradiction(self._registered(uuid))

    def own_contradiction(self) -> str | None:
        """Return why this node's own directory is not the newest one with its uuid according to metadata, or None if it is.

        A lone broker is contradicted only by its own replica. In that case its registry is older than its replicas, and its directory is not a
        copy, so it adopts the boot of the metadata.
        """
        stale = lineage_of(self._registry).contradiction(self._registered(self._registry.uuid))
        replica = self._metadata.replica
        me = replica.state_machine.node(self._registry.node_id) if replica is not None else None
        if stale is None or replica is None or me is None or len(replica.state_machine.nodes()) > 1:
            return stale
        log.warning("registry_older_than_replicas", broker_id=self._registry.node_id, reason=stale)
        self._registry.adopt_boot(me.boot, me.boot_mark)
        return None

    def remember(self, hello: Hello) -> asyncio.Future[object] | None:
        """Store a peer's boot that nothing contradicts. Return None if it is durable, else a future for that."""
        uuid, boot = hello.uuid, hello.lineage.current
        under_way = self._under_way.get(uuid)
        if under_way is not None and under_way.done():
            del self._under_way[uuid]
        has_failed = under_way is not None and _has_failed(under_way)
        if self._known.get(uuid) != boot or has_failed:
            self._store(uuid, boot)
        self._processes[uuid] = hello.process
        under_way = self._under_way.get(uuid)
        # a caller may give up waiting, but the write continues, because others wait for it or rely on it
        return asyncio.shield(asyncio.wrap_future(under_way)) if under_way is not None else None

    def is_of_latest_process(self, hello: Hello) -> bool:
        """Return whether the process of a greeting also stated the latest boot, because it renewed its mark since."""
        return bool(hello.process) and self._processes.get(hello.uuid) == hello.process

    def on_registered(self, nodes: Iterable[NodeView]) -> None:
        """Store the boots of registered nodes that no greeting has brought: a node that renews its mark greets nobody again.

        Metadata is not sufficient, because after a restart it may be older than it was.
        """
        for node in nodes:
            if node.uuid != self._registry.uuid and node.boot > self._known.get(node.uuid, NO_BOOT).number:
                self._store(node.uuid, Boot(node.boot, node.boot_mark))

    def _store(self, uuid: str, boot: Boot) -> None:
        self._known.pop(uuid, None)
        self._processes.pop(uuid, None)
        dropped = self._evict_one()
        self._known[uuid] = boot
        self._under_way[uuid] = self._write(self._registry.remember_boot, uuid, boot.number, boot.mark, dropped)

    def _registered(self, uuid: str) -> Boot:
        replica = self._metadata.replica
        node = replica.state_machine.node_by_uuid(uuid) if replica is not None else None
        return Boot(node.boot, node.boot_mark) if node is not None else NO_BOOT

    def _evict_one(self) -> str:
        """Evict a node if there are too many, preferably one that metadata does not know. Return its uuid, or an empty text if there is none."""
        if len(self._known) < self._boots_max:
            return ""
        machine = self._metadata.replica.state_machine if self._metadata.replica is not None else None
        strangers = (uuid for uuid in self._known if machine is None or machine.node_by_uuid(uuid) is None)
        dropped = next(strangers, next(iter(self._known)))
        del self._known[dropped]
        self._processes.pop(dropped, None)
        self._under_way.pop(dropped, None)
        return dropped


def _has_failed(done: Future[object]) -> bool:
    return done.done() and (done.cancelled() or done.exception() is not None)
