"""Let a node enter a cluster: form one, join one, or continue in the cluster of its data directory. `seeds.py` has the calls, `formation.py`
the order to form one.

A cluster forms once, on an operator's order. A joining node never forms one. These steps must be durable in order: the identity, then
the metadata replica, then the cluster's id. Only then may the node speak.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future

import structlog
from raftmq.broker.base.config import BrokerConfig
from raftmq.broker.base.log_throttle import LogThrottle
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.cluster.formation import Formation
from raftmq.broker.cluster.metadata_replica import MetadataReplica
from raftmq.broker.cluster.peer_boots import lineage_of
from raftmq.broker.cluster.peer_directory import PeerDirectory
from raftmq.broker.cluster.replica_manager import ReplicaManager
from raftmq.broker.cluster.seeds import RETRY_SECONDS, RETRY_SECONDS_MAX, Seeds
from raftmq.broker.replica.commands import refused
from raftmq.broker.replica.initial_state import founder_state, joiner_state
from raftmq.errors import InvariantError
from raftmq.fsm.feature_levels import MARK_RENEWAL_LEVEL
from raftmq.fsm.metadata_commands import InitializeCluster, Rejected
from raftmq.fsm.node_lineage import Boot
from raftmq.proto import peer_pb2 as peer_pb
from raftmq.proto import queue_pb2 as pb
from raftmq.raft.membership import Membership
from raftmq.storage.errors import DamagedReplicaError, MissingReplicaError
from raftmq.storage.lmdb_log_store import LmdbLogStore
from raftmq.storage.log_store import ReplicaKey
from raftmq.storage.registry import Registry
from raftmq.storage.registry_codec import ReplicaState
from raftmq.types import METADATA_GROUP_ID, NodeId, ReplicaId

log = structlog.get_logger(__name__)

_FIRST_REPLICA = ReplicaId(1)
"""The metadata replica of the node that forms the cluster."""
_REJOIN = "start with --join HOST:PORT, the peer address of a broker of that cluster, and with the --broker-id that this broker had if its disk was replaced"


class ClusterBootstrap:
    """Takes one node into its cluster. Use it after the ports are bound, because the other nodes are told the addresses."""

    def __init__(
        self,
        config: BrokerConfig,
        registry: Registry,
        store: LmdbLogStore,
        replicas: ReplicaManager,
        metadata: MetadataReplica,
        peers: PeerDirectory,
        seeds: Seeds,
        new_uuid: Callable[[], str],
        on_stale: Callable[[str], None],
        on_removed: Callable[[], None],
        in_background: Callable[..., Future[object]],
        mark_renewal_seconds: float,
    ) -> None:
        """Take `on_stale`, which is called with the reason if the cluster refuses this data directory as an older copy or as used twice,
        `on_removed`, which is called when `removal` is set, and `in_background`, which runs a short write of the registry off the loop.
        """
        self._on_stale = on_stale
        self._on_removed = on_removed
        self._config = config
        self._registry = registry
        self._store = store
        self._replicas = replicas
        self._metadata = metadata
        self._peers = peers
        self.seeds = seeds
        self.formation = Formation(config, registry, seeds)
        self.removal = ""
        """The reason why the cluster permanently refuses this data directory. Empty unless it does."""
        self._is_registered = False
        """Whether the cluster has this boot already, because the node joined or formed it just now."""
        self._postponed_throttle = LogThrottle()
        self._new_uuid = new_uuid
        self._in_background = in_background
        self._mark_renewal_seconds = mark_renewal_seconds

    async def enter(self) -> bool:
        """Continue in the cluster of the data directory, or form or join one. Return whether it continued: then nobody knows of this boot."""
        self._check_broker_id()
        if self._registry.cluster_id:
            await self.check_seeds()
            await self.resume()
            return True
        await (self.bootstrap() if self._config.bootstrap else self.join_or_form())
        self.formation.on_formed()
        self._is_registered = True
        return False

    def _check_broker_id(self) -> None:
        """Refuse a configured broker id that is not the directory's: the directories of two brokers may have been swapped.

        Raises:
            RequestError: INVALID_ARGUMENT.
        """
        mine, wanted = self._registry.node_id, self._config.broker_id
        if mine and wanted not in (0, mine):
            raise RequestError(
                pb.INVALID_ARGUMENT,
                f"the data directory {self._config.data_dir} belongs to broker {mine}, and broker_id = {wanted} is configured: "
                f"give the broker its own data directory, or correct the setting (a directory keeps its number)",
            )

    async def bootstrap(self) -> None:
        """Form a cluster on the order of the configuration.

        Raises:
            RequestError: CLUSTER_ALREADY_FORMED if a broker named by --join is in a cluster, if a cluster id is configured, or if this broker
                left a cluster.
        """
        await self._refuse_second_cluster()
        await self._form()

    async def _form(self) -> None:
        """Form a cluster of one node. The identity becomes durable first, then the replica, and only then may it speak."""
        node_uuid = self._new_uuid()
        cluster_id = self._new_uuid()
        key = ReplicaKey(METADATA_GROUP_ID, _FIRST_REPLICA)
        if not self._registry.uuid:  # a directory that waited to join a cluster has one
            self._registry.set_identity(uuid=node_uuid, node_id=0)
        await self._metadata.create(key, founder_state(Membership((_FIRST_REPLICA,))))
        self._registry.set_cluster(cluster_id)
        self._take_first_number()
        await self._open_metadata(key)
        replica = self._metadata.require()
        while not replica.is_leader:
            await replica.wait_progress()
        await self._initialize_cluster()
        result = await self._metadata.propose(self.seeds.registration())
        if isinstance(result, Rejected):
            raise RequestError(pb.INTERNAL, f"the first broker could not register: {result.message}")
        log.info("cluster_formed", cluster_id=cluster_id, broker_id=self._registry.node_id)

    def _take_first_number(self) -> None:
        """Give the founder its broker id. Not before the cluster's id is durable: if the forming is interrupted, and the broker joins another
        cluster, it must not claim the id of a broker there.
        """
        if not self._registry.node_id:
            self._registry.set_identity(uuid=self._registry.uuid, node_id=self._config.broker_id or 1)

    async def _refuse_second_cluster(self) -> None:
        """Refuse to form a second cluster, because a lost disk looks like a first start.

        The second cluster would answer at the addresses of the first. A broker whose forming was interrupted has an identity, and continues.
        """
        mine = self._config.cluster_id
        if mine:
            raise RequestError(
                pb.CLUSTER_ALREADY_FORMED,
                f"cluster_id = {mine} names a cluster that exists, and --bootstrap would form another one: {_REJOIN}",
            )
        self.formation.refuse_another_cluster("--bootstrap")
        answers = await asyncio.gather(*(self.seeds.membership_of(seed) for seed in self._config.join))
        for seed, cluster_id in zip(self._config.join, answers, strict=True):
            if cluster_id:
                raise RequestError(
                    pb.CLUSTER_ALREADY_FORMED,
                    f"{seed} belongs to {cluster_id}, and --bootstrap would form another one: {_REJOIN}",
                )

    async def _initialize_cluster(self) -> None:
        level = self.seeds.registration().feature_level_max
        command = InitializeCluster(self._registry.cluster_id, level, self._registry.uuid)
        result = await self._metadata.propose(command)
        if isinstance(result, Rejected):
            raise RequestError(pb.INTERNAL, f"the cluster could not be formed: {result.message}")

    async def join_or_form(self) -> None:
        """Register with a seed, then start a metadata replica that waits for its first snapshot. Or form a cluster if an operator orders it
        while no seed admits this node (`Formation`).

        Raises:
            RequestError: NOT_FORMED if there is no broker to ask. INVALID_ARGUMENT if the cluster refuses this node.
        """
        if not self._config.join:
            if self._registry.has_left_cluster:
                raise RequestError(
                    pb.NOT_FORMED,
                    f"the broker of the data directory {self._config.data_dir} has left its cluster (raftmq recover rejoin): start with "
                    "--join HOST:PORT, the peer address of a broker of the recovered cluster",
                )
            raise RequestError(
                pb.NOT_FORMED,
                f"data directory {self._config.data_dir} belongs to no cluster: start with --bootstrap to form one, once, or "
                "--join HOST:PORT (the peer address of a broker) to join one. If this broker's disk was replaced, add the --broker-id that it had to --join",
            )
        if not self._registry.uuid:
            # the requested id is not the node's before the cluster confirms it: a refused one may be corrected
            self._registry.set_identity(uuid=self._new_uuid(), node_id=0)
        answer = await self._admission()
        if answer is None:
            await self._form()
            return
        self._registry.set_identity(uuid=self._registry.uuid, node_id=answer.broker_id)
        row = self._registry.replica(ReplicaKey(METADATA_GROUP_ID, ReplicaId(answer.metadata_replica_id)))
        if row is not None and row.state is ReplicaState.RETIRED:
            # an operator had this node leave the very cluster to which it returns, which does not know that
            answer = await self.seeds.register(self._config.join, answer.metadata_replica_id)
        await self._start_as_learner(answer)
        log.info("cluster_joined", cluster_id=answer.cluster_id, broker_id=answer.broker_id)

    async def _admission(self) -> peer_pb.RegisterBrokerResponse | None:
        """Return the answer of the seed that admits this node. None if this node must form the cluster. Raises as `Seeds.register`."""
        loop = asyncio.get_running_loop()
        registering = loop.create_task(self.seeds.register(self._config.join))
        ordered = loop.create_task(self.formation.wait_ordered())
        self.formation.begin_waiting()
        try:
            await asyncio.wait((registering, ordered), return_when=asyncio.FIRST_COMPLETED)
            if not registering.done():
                return None
            self.formation.end_waiting()  # a node that was admitted forms nothing
            return registering.result()
        finally:
            for task in (registering, ordered):
                task.cancel()
            await asyncio.gather(registering, ordered, return_exceptions=True)

    async def _start_as_learner(self, answer: peer_pb.RegisterBrokerResponse) -> None:
        """Create the metadata replica that the cluster has assigned to this node. It waits for its first snapshot."""
        key = ReplicaKey(METADATA_GROUP_ID, ReplicaId(answer.metadata_replica_id))
        if not self._registry.has_replica(key):
            await self._metadata.create(key, joiner_state())
        self._registry.set_cluster(answer.cluster_id)
        self._peers.learn({NodeId(b.broker_id): b.peer_address for b in answer.brokers})
        await self._open_metadata(key)
        replica = self._metadata.require()
        for member in answer.metadata_replicas:
            replica.learn_node(ReplicaId(member.replica_id), NodeId(member.broker_id))

    async def check_seeds(self) -> None:
        """Check before a restart that the seeds do not belong to another cluster than this data directory.

        Seeds that do not answer prove nothing. A seed of another cluster counts only if no seed belongs to this one.

        Raises:
            RequestError: WRONG_CLUSTER.
        """
        mine = self._registry.cluster_id
        insisted = self._config.cluster_id
        if insisted not in ("", mine):
            raise RequestError(
                pb.WRONG_CLUSTER,
                f"cluster_id = {insisted}, and the data directory {self._config.data_dir} belongs to cluster {mine}: correct the "
                f"setting, or give the broker its own data directory. {self._rejoin_advice()}",
            )
        answers = await asyncio.gather(*(self.seeds.cluster_of(seed) for seed in self._config.join))
        others = [
            (seed, other) for seed, other in zip(self._config.join, answers, strict=True) if other not in ("", mine)
        ]
        if not others:
            return
        seed, other = others[0]
        if mine in answers:
            log.warning("seed_of_another_cluster", address=seed, cluster_id=other)
            return
        raise RequestError(
            pb.WRONG_CLUSTER,
            f"{seed} belongs to cluster {other}, and the data directory {self._config.data_dir} to cluster {mine}: name "
            f"brokers of cluster {mine} with --join. {self._rejoin_advice()}",
        )

    def _rejoin_advice(self) -> str:
        """Return the advice for a survivor of a cluster whose metadata was recovered. An empty directory would give its data up."""
        return (
            "If the other cluster was recovered from the metadata of this one, keep the directory and run "
            f"raftmq recover rejoin {self._config.data_dir}"
        )

    async def resume(self) -> None:
        """Continue after a restart: identity and replicas are on disk, and addresses may have changed (see `announce`)."""
        self._take_first_number()  # only a founder whose forming was interrupted has none
        self._peers.learn(self._registry.peer_addresses())
        # an older one is damaged, or that of a cluster whose forming was interrupted, and this node's vote is the newest one's
        newest = [key for key in self._registry.live_replicas() if key.group_id == METADATA_GROUP_ID][-1]
        reason = self._registry.quarantined().get(newest)
        if reason is None:
            try:
                await self._open_metadata(newest)
                return
            except (DamagedReplicaError, MissingReplicaError, InvariantError) as error:
                reason = str(error)
        await self._replace_metadata_replica(newest, reason)

    async def _open_metadata(self, key: ReplicaKey) -> None:
        await self._metadata.open(key)
        self._peers.refresh()

    async def _replace_metadata_replica(self, damaged: ReplicaKey, reason: str) -> None:
        """Replace an unusable metadata replica: the peers give this node a new one, which catches up from them."""
        self._registry.quarantine(damaged, reason)
        log.error("replica_quarantined", group_id=damaged.group_id, replica_id=damaged.replica_id, reason=reason)
        seeds = tuple(dict.fromkeys((*self._registry.seeds, *self._config.join)))
        if not seeds:
            raise RequestError(
                pb.REPLICA_QUARANTINED,
                f"the metadata replica in {self._config.data_dir} cannot be used ({reason}) and no other broker is known "
                "that could replace it: name the peer address of one with --join, or restore the directory",
            )
        answer = await self.seeds.register(seeds, damaged_metadata_replica=damaged.replica_id)
        await self._start_as_learner(answer)
        # the cluster has given it up, so no node will ever ask for it again
        await self._replicas.on_writer(damaged, lambda: self._store.retire(damaged))
        self._registry.retire_replica(damaged)

    # ------------------------------------------------------------------------------------------------ announcing

    async def announce(self) -> None:
        """Tell the cluster this boot and its addresses until metadata has them, through known peers or the seeds.

        Repeat it whenever metadata has had no leader for long: a node that was removed in the meantime learns of it only this way. Renew
        the mark regularly, which begins another boot. It ends when the cluster permanently refuses this node.
        """
        pause = RETRY_SECONDS / 2
        now = asyncio.get_running_loop().time
        renew_at = now() + self._mark_renewal_seconds
        if self._is_registered:  # its metadata will soon show that, unless it was removed in the meantime
            await asyncio.sleep(min(RETRY_SECONDS_MAX, self._mark_renewal_seconds))
        while not self.removal:
            if self._is_known() and not self._metadata.leaderless_seconds():
                pause = RETRY_SECONDS / 2
                if now() < renew_at:
                    await asyncio.sleep(min(RETRY_SECONDS_MAX, renew_at - now()))
                else:
                    renew_at = now() + self._mark_renewal_seconds
                    await self._renew_mark()
                continue
            try:
                await self._announce_once()
            except RequestError as error:
                if error.code == pb.STALE_DIRECTORY:
                    self._on_stale(str(error))
                    return
                if error.code == pb.BROKER_REMOVED:
                    self.removal = str(error)
                    log.error("removed_from_cluster", broker_id=self._registry.node_id, reason=self.removal)
                    self._on_removed()
                # else: leadership moved, or the broker could not confirm it: try again
                elif self._postponed_throttle.is_due(str(error)):
                    log.warning("announcement_postponed", reason=str(error))
            await asyncio.sleep(pause := min(2 * pause, RETRY_SECONDS_MAX))

    async def _renew_mark(self) -> None:
        """Begin another boot, so that the cluster refuses every copy of the directory that was made before.

        1. The mark becomes durable here. If the process ends now, the directory is ahead of metadata, and descends from the boot there.
        2. `announce` registers it, however long that takes. Until metadata has it, no further mark is drawn: a node that is cut off does
           not use up its lineage.
        """
        if self._metadata.feature_level() >= MARK_RENEWAL_LEVEL:
            await asyncio.wrap_future(self._in_background(self._registry.renew_mark))

    def _is_known(self) -> bool:
        """Return whether metadata has the registration of this boot. A node's description changes only with its boots."""
        me = self._metadata.require().state_machine.node(self._registry.node_id)
        if me is None or me.uuid != self._registry.uuid:
            return False
        return Boot(me.boot, me.boot_mark) == lineage_of(self._registry).current

    async def _announce_once(self) -> None:
        replica = self._metadata.require()
        if replica.is_leader:
            if not replica.state_machine.cluster_id and replica.replica_id == _FIRST_REPLICA:
                await self._initialize_cluster()  # a crash happened between the replica's creation and this step
            result = await self._metadata.propose(self.seeds.registration())
            if isinstance(result, Rejected):
                raise refused(result)
            return
        me = self._registry.node_id
        known = [n.peer_address for n in replica.state_machine.nodes() if n.node_id != me and n.state != "removed"]
        # a dead host takes seconds, and all known ones may have moved, so connected peers come first
        seeds = dict.fromkeys((*self._peers.stated_addresses(), *known, *self._config.join))
        if seeds:
            await self.seeds.register_once(tuple(seeds))
