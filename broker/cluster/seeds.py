"""Ask the brokers at known addresses which cluster they belong to, and to admit this node.

A node that is no member yet has no peer connections: it is a client of their gRPC ports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

import grpc.aio
import structlog
from raftmq.broker.base.config import BrokerConfig
from raftmq.broker.base.log_throttle import LogThrottle
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.base.statuses import detail_of
from raftmq.broker.cluster.peer_directory import NodeAddresses
from raftmq.fsm.metadata_commands import RegisterNode
from raftmq.proto import queue_pb2 as pb
from raftmq.proto import queue_pb2_grpc as pb_grpc
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
        open_channel: Callable[[str], grpc.aio.Channel],
    ) -> None:
        """Take the bound `addresses` of this node, `partitions_max`, the number of replicas that it can host, and the highest
        `feature_level` that its program knows.
        """
        self._config = config
        self._version = version
        self._addresses = addresses
        self._registry = registry
        self._partitions_max = partitions_max
        self._feature_level = feature_level
        self._open_channel = open_channel
        self._unavailable_throttle = LogThrottle()
        self.postponement = ""
        """The reason why a broker postponed the admission of this node at the last attempt. Empty if none gave a reason."""

    # ------------------------------------------------------------------------------------------------ clusters

    async def membership_of(self, seed: str) -> str:
        """Return a text that names a broker's cluster. Empty if the broker is in none or does not answer."""
        try:
            cluster_id = await self._ask_cluster_id(seed)
        except grpc.aio.AioRpcError as error:
            detail = detail_of(error)
            if detail is None:
                log.warning("seed_unavailable", address=seed, reason=error.details())
            # a member answers NOT_READY, or a similar error, while it has no majority of its cluster
            return "" if detail is None or detail.code == pb.NOT_FORMED else "a cluster that is not ready"
        return f"cluster {cluster_id}" if cluster_id else ""

    async def cluster_of(self, seed: str) -> str:
        """Return the id of the cluster to which a broker belongs. Empty if it does not answer."""
        try:
            return await self._ask_cluster_id(seed)
        except grpc.aio.AioRpcError:
            return ""

    async def _ask_cluster_id(self, seed: str) -> str:
        async with self._open_channel(seed) as channel:
            stub = pb_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]
            answer = await stub.DescribeCluster(pb.DescribeClusterRequest(), timeout=_CHECK_SECONDS)
            return str(answer.cluster_id)

    # ------------------------------------------------------------------------------------------------ registering

    async def register(self, seeds: tuple[str, ...], damaged_metadata_replica: int = 0) -> pb.RegisterBrokerResponse:
        """Ask the seeds until one admits this node.

        Raises:
            RequestError: A definite refusal of the cluster, or WRONG_CLUSTER when every seed belongs to another one.
        """
        pause = RETRY_SECONDS / 2
        while True:
            answer = await self.register_once(seeds, damaged_metadata_replica)
            if answer is not None:
                return answer
            await asyncio.sleep(pause := min(2 * pause, RETRY_SECONDS_MAX))

    async def register_once(
        self, seeds: tuple[str, ...], damaged_metadata_replica: int = 0
    ) -> pb.RegisterBrokerResponse | None:
        """Ask one seed after another. Return None if none of them could answer now. Raises as `register`.

        A seed of another cluster refuses only for that cluster: it may be at the old address of a broker of this one.
        """
        request = self._request(damaged_metadata_replica)
        strangers: list[RequestError] = []
        postponement = ""
        for seed in seeds:
            async with self._open_channel(seed) as channel:
                stub = pb_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]
                try:
                    answer = await stub.RegisterBroker(request, timeout=_CALL_SECONDS)
                except grpc.aio.AioRpcError as error:
                    if error.code() in _DEFINITE_REFUSALS:
                        refusal = _refusal(seed, error)
                        if refusal.code != pb.WRONG_CLUSTER:
                            raise refusal from error
                        strangers.append(refusal)
                    elif (detail := detail_of(error)) is not None:
                        postponement = f"{seed} says: {detail.message}"
                    if self._unavailable_throttle.is_due((seed, error.details())):
                        log.warning("seed_unavailable", address=seed, reason=error.details())
                else:
                    self.postponement = ""
                    return cast("pb.RegisterBrokerResponse", answer)
        self.postponement = postponement
        if len(strangers) == len(seeds):
            raise strangers[0]
        return None

    def _request(self, damaged_metadata_replica: int) -> pb.RegisterBrokerRequest:
        me = self.registration()
        return pb.RegisterBrokerRequest(
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
        )

    def registration(self) -> RegisterNode:
        """Return this node's registration for the metadata."""
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
            boot=self._registry.boot,
            lineage=self._registry.boot_marks,
        )


def _refusal(seed: str, error: grpc.aio.AioRpcError) -> RequestError:
    """Return the error for a definite refusal by the cluster, with its remedy."""
    detail = detail_of(error)
    if detail is not None and detail.code == pb.BROKER_REMOVED:
        return RequestError(
            pb.BROKER_REMOVED,
            f"{seed} permanently refuses this data directory: {detail.message}. Stop this broker; to use the machine again, start "
            "it on an empty data directory",
        )
    code = detail.code if detail is not None else pb.INVALID_ARGUMENT
    return RequestError(code, f"{seed} refused this broker: {error.details()}")
