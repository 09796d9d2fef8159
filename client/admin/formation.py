"""Form a cluster of brokers that wait for one, on an operator's order. Repeating it is harmless.

This module must not choose who may form: the broker that gets the order refuses it while a second cluster could come to exist (ADR 0021).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from raftmq.client.connection.addresses import parse_addresses
from raftmq.client.connection.transport import Connection, GrpcTransport, Transport
from raftmq.errors import (
    ClusterAlreadyFormedError,
    InvalidArgumentError,
    NotFormedError,
    Outcome,
    PermissionDeniedError,
    RaftMQError,
    UnreachableError,
    UnsupportedVersionError,
    WrongClusterError,
)
from raftmq.methods import DESCRIBE_CLUSTER, FORM_CLUSTER
from raftmq.proto import queue_pb2 as pb

RETRY_SECONDS: Final = 0.5
_QUESTION_SECONDS: Final = 2.0
"""Time in which a running broker says whether it belongs to a cluster."""
_ORDER_SECONDS: Final = 30.0
"""Time of one order: the broker asks its peers, for 5 s at most, and writes its first files."""
_PERMANENT: Final = (PermissionDeniedError, UnsupportedVersionError, InvalidArgumentError)


@dataclass(frozen=True, slots=True)
class FormedCluster:
    """The cluster of the brokers."""

    cluster_id: str
    is_new: bool
    """Whether this call formed it. False: it existed before."""


async def form_cluster(
    bootstrap_servers: str, timeout_seconds: float, *, transport: Transport | None = None
) -> FormedCluster:
    """Wait until every broker of `bootstrap_servers` answers, and order the first one to form a cluster unless one of them has a cluster.

    The other brokers must have been started with `join`, and join it by themselves.

    Args:
        bootstrap_servers: the client addresses of all brokers of the cluster to be.
        timeout_seconds: time limit, including the wait for brokers that are not started yet and for names that cannot be resolved yet.
        transport: replaces gRPC, for simulations.

    Raises:
        WrongClusterError: the brokers belong to several clusters.
        ClusterAlreadyFormedError: the first broker refuses, because a cluster exists that none of the named brokers belongs to.
        RaftMQError: the obstacle when the time ended: that of an order whose outcome is unknown, or else the last one, and nothing was formed.
    """
    transport = transport or GrpcTransport()
    connections = [transport.connect(address) for address in parse_addresses(bootstrap_servers)]
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_seconds
    obstacle: RaftMQError = UnreachableError("no broker was asked in time")
    doubt: RaftMQError | None = None
    try:
        while (seconds := deadline - loop.time()) > 0:
            is_ordered = False
            try:
                cluster_id = await _existing(connections, min(seconds, _QUESTION_SECONDS))
                if cluster_id:
                    return FormedCluster(cluster_id, is_new=False)
                is_ordered = True
                response = await connections[0].call(
                    FORM_CLUSTER, pb.FormClusterRequest(), min(deadline - loop.time(), _ORDER_SECONDS)
                )
                return FormedCluster(response.cluster_id, is_new=True)
            except (WrongClusterError, *_PERMANENT):
                raise
            except RaftMQError as error:
                if isinstance(error, ClusterAlreadyFormedError) and isinstance(obstacle, ClusterAlreadyFormedError):
                    raise  # at the first time it may have been formed between the question and the order
                obstacle = error
                if is_ordered and error.outcome is Outcome.UNKNOWN:
                    doubt = error  # a later order or question may fail, and the cluster of this order may be formed nevertheless
            await asyncio.sleep(RETRY_SECONDS)
        raise doubt or obstacle
    finally:
        await asyncio.gather(*(connection.close() for connection in connections))


async def _existing(connections: list[Connection], timeout_seconds: float) -> str:
    """Return the id of the cluster of any of the brokers. Empty if all of them wait for one.

    Raises:
        RaftMQError: none of them names a cluster, and one of them cannot say that it has none.
    """
    answers = await asyncio.gather(*(_cluster_of(one, timeout_seconds) for one in connections))
    found = {answer: one.address for one, answer in zip(connections, answers, strict=True) if isinstance(answer, str)}
    found.pop("", None)
    if len(found) > 1:
        pairs = ", ".join(f"{address} belongs to {cluster_id}" for cluster_id, address in found.items())
        raise WrongClusterError(f"the brokers belong to several clusters: {pairs}")
    if found:
        return next(iter(found))
    for answer in answers:
        if isinstance(answer, RaftMQError):
            raise answer
    return ""


async def _cluster_of(connection: Connection, timeout_seconds: float) -> str | RaftMQError:
    """Return the cluster id of a broker, empty if it waits for a cluster, or the error if it cannot say so."""
    try:
        response = await connection.call(DESCRIBE_CLUSTER, pb.DescribeClusterRequest(), timeout_seconds)
    except NotFormedError:
        return ""
    except RaftMQError as error:
        return error
    return response.cluster_id
