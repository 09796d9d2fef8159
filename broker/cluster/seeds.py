"""Ask the brokers at known addresses which cluster they belong to, and to admit this node.

A node that is no member yet has no peers: it visits their peer ports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import grpc
import structlog
from raftmq.broker.base.config import BrokerConfig
from raftmq.broker.base.log_throttle import LogThrottle
from raftmq.broker.base.peer_methods import DESCRIBE_FORMATION, REGISTER_BROKER
from raftmq.broker.base.request_error import RequestError, parsed
from raftmq.broker.base.statuses import status_of
from raftmq.broker.cluster.peer_directory import NodeAddresses
from raftmq.broker.peers.protocol import Hello
from raftmq.broker.peers.visits import ForeignVersionError, NoPeerPortError, Visit
from raftmq.fsm.metadata_commands import RegisterNode
from raftmq.proto import peer_pb2 as peer_pb
from raftmq.proto import queue_pb2 as pb
from raftmq.storage.registry import Registry

log = structlog.get_logger(__name__)

RETRY_SECONDS: Final = 0.5
RETRY_SECONDS_MAX: Final = 4.0
_CALL_SECONDS: Final = 5.0
_CHECK_SECONDS: Final = 2.0
"""Time that a restart waits for seeds whose hosts do not even refuse a connection."""
_DEFINITE_REFUSALS: Final = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.FAILED_PRECONDITION,
)
_SILENCE_CODES: Final = (pb.NO_LEADER, pb.REQUEST_TIMED_OUT)
"""Codes without a statement of the seed: it could not be reached, or did not answer."""


class Seeds:
    """Calls the brokers that may admit one node."""

    def __init__(
        self,
        config: BrokerConfig,
        version: str,
        addresses: NodeAddresses,
        registry: Registry,
        partitions_max: int,
        feature_level: int,
        visit: Callable[[str, float], Visit],
    ) -> None:
        """Take the bound `addresses` of this node, `partitions_max`, the number of replicas that it can host, the highest
        `feature_level` that its program knows, and `visit`, which opens a connection to a peer address until a deadline.
        """
        self._config = config
        self._version = version
        self._addresses = addresses
        self._registry = registry
        self._partitions_max = partitions_max
        self._feature_level = feature_level
        self._visit = visit
        self._unavailable_throttle = LogThrottle()
        self.on_met: Callable[[str, Hello], None] = lambda address, hello: None
        """Called with each address at which a broker was met, and its description of itself."""
        self.postponement = ""
        """The reason why a broker postponed the admission of this node at the last attempt. Empty if none gave a reason."""

    # ------------------------------------------------------------------------------------------------ clusters

    async def membership_of(self, seed: str) -> str:
        """Return a text that names a broker's cluster. Empty if the broker is in none or does not answer.

        Raises:
            NoPeerPortError: A port for another purpose is there. A cluster may exist behind it.
        """
        try:
            cluster_id = await self._ask_cluster_id(seed)
        except NoPeerPortError:
            raise
        except RequestError as error:
            return "a cluster of another version" if error.code == pb.UNSUPPORTED_VERSION else ""
        return f"cluster {cluster_id}" if cluster_id else ""

    async def cluster_of(self, seed: str) -> str:
        """Return the id of the cluster to which a broker belongs. Empty if it does not answer."""
        try:
            return await self._ask_cluster_id(seed)
        except RequestError:
            return ""

    async def _ask_cluster_id(self, seed: str) -> str:
        try:
            async with self._visit(seed, asyncio.get_running_loop().time() + _CHECK_SECONDS) as visit:
                self.on_met(seed, visit.host)
                return "" if self._is_self(visit) else visit.host.cluster_id
        except RequestError as error:
            log.warning("seed_unavailable", address=seed, reason=str(error))
            raise

    def _is_self(self, visit: Visit) -> bool:
        """Return whether this node visits itself: all brokers may have the same `join`, with the addresses of all."""
        return bool(self._registry.uuid) and visit.host.uuid == self._registry.uuid

    async def formation_of(self, seed: str) -> peer_pb.DescribeFormationResponse:
        """Ask a broker whether a cluster exists or may come to exist. This node itself has nothing to say.

        Raises:
            RequestError: NOT_READY if the broker does not answer, or cannot.
        """
        try:
            async with self._visit(seed, asyncio.get_running_loop().time() + _CALL_SECONDS) as visit:
                if self._is_self(visit):
                    return peer_pb.DescribeFormationResponse()
                answer = await visit.ask(DESCRIBE_FORMATION.path, b"")
                said = parsed(peer_pb.DescribeFormationResponse.FromString, answer)
                said.cluster_id = said.cluster_id or visit.host.cluster_id
                return said
        except RequestError as error:
            raise RequestError(
                pb.NOT_READY,
                f"{seed} cannot be asked whether a cluster exists ({error}): start all brokers, and correct the addresses of --join",
                retry_after_ms=int(1000 * RETRY_SECONDS),
            ) from error

    # ------------------------------------------------------------------------------------------------ registering

    async def register(
        self, seeds: tuple[str, ...], damaged_metadata_replica: int = 0
    ) -> peer_pb.RegisterBrokerResponse:
        """Ask the seeds until one admits this node.

        Raises:
            RequestError: A definite refusal of the cluster. WRONG_CLUSTER, `NoPeerPortError` or `ForeignVersionError` when every seed
                belongs to another cluster, is no peer port, or speaks another version.
        """
        pause = RETRY_SECONDS / 2
        while True:
            answer = await self.register_once(seeds, damaged_metadata_replica)
            if answer is not None:
                return answer
            await asyncio.sleep(pause := min(2 * pause, RETRY_SECONDS_MAX))

    async def register_once(
        self, seeds: tuple[str, ...], damaged_metadata_replica: int = 0
    ) -> peer_pb.RegisterBrokerResponse | None:
        """Ask one seed after another. Return None if none of them could answer now. Raises as `register`.

        A seed of another cluster refuses only for that cluster: it may be at the old address of a broker of this one. So may a port for
        another purpose, or a broker of a version that is too old or too new to be asked for its cluster.
        """
        request = self._request(damaged_metadata_replica)
        strangers: list[RequestError] = []
        postponement = ""
        for seed in seeds:
            try:
                answer = await self._register_at(seed, request)
            except RequestError as error:
                if status_of(error.code) in _DEFINITE_REFUSALS:
                    if error.code != pb.WRONG_CLUSTER and not isinstance(error, NoPeerPortError | ForeignVersionError):
                        raise
                    strangers.append(error)
                    postponement = str(error)
                elif error.code not in _SILENCE_CODES:
                    postponement = f"{seed} says: {error}"
                if self._unavailable_throttle.is_due((seed, str(error))):
                    log.warning("seed_unavailable", address=seed, reason=str(error))
            else:
                self.postponement = ""
                return answer
        self.postponement = postponement
        if len(strangers) == len(seeds):
            raise strangers[0]
        return None

    async def _register_at(self, seed: str, request: peer_pb.RegisterBrokerRequest) -> peer_pb.RegisterBrokerResponse:
        async with self._visit(seed, asyncio.get_running_loop().time() + _CALL_SECONDS) as visit:
            self.on_met(seed, visit.host)
            try:
                answer = await visit.ask(REGISTER_BROKER.path, request.SerializeToString(deterministic=True))
            except RequestError as error:
                if status_of(error.code) in _DEFINITE_REFUSALS:
                    raise _refusal(seed, error) from error
                raise
            return parsed(peer_pb.RegisterBrokerResponse.FromString, answer)

    def _request(self, damaged_metadata_replica: int) -> peer_pb.RegisterBrokerRequest:
        me = self.registration()
        return peer_pb.RegisterBrokerRequest(
            uuid=me.uuid,
            broker_id=me.node_id,
            client_address=me.client_address,
            peer_address=me.peer_address,
            http_address=me.http_address,
            host=me.host,
            rack=me.rack,
            version=me.version,
            feature_level_max=me.feature_level_max,
            partitions_max=me.partitions_max,
            cluster_id=self._registry.cluster_id or self._config.cluster_id,
            damaged_metadata_replica_id=damaged_metadata_replica,
            replaces_lost=self._config.replace_lost,
            boot=me.boot,
            lineage=me.lineage,
            process_mark=self._registry.process_mark,
        )

    def registration(self) -> RegisterNode:
        """Return this node's registration for the metadata."""
        boot, marks = self._registry.lineage
        return RegisterNode(
            uuid=self._registry.uuid,
            node_id=self._registry.node_id or self._config.broker_id,
            client_address=self._addresses.client,
            peer_address=self._addresses.peer,
            http_address=self._addresses.http,
            host=self._config.host_label(),
            rack=self._config.rack,
            version=self._version,
            feature_level_max=self._feature_level,
            partitions_max=self._partitions_max,
            boot=boot,
            lineage=marks,
        )


def _refusal(seed: str, error: RequestError) -> RequestError:
    """Return the error for a definite refusal by the cluster, with its remedy."""
    if error.code == pb.BROKER_REMOVED:
        return RequestError(
            pb.BROKER_REMOVED,
            f"{seed} permanently refuses this data directory: {error}. Stop this broker; to use the machine again, start "
            "it on an empty data directory",
        )
    return RequestError(error.code, f"{seed} refused this broker: {error}")
