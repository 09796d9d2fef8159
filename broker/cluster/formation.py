"""Take the order to form a cluster on a broker that waits to join one, and make sure that no second cluster is formed beside it (ADR 0021).

Every broker is started with the same `join`, the addresses of all, and waits. One of them is ordered to form the cluster, and the others
join it. Invariant: of the brokers that name each other, at most one forms a cluster, however many of them are ordered.

1. A says of itself that it forms a cluster, from now on until it belongs to one or gives up.
2. A asks every broker of its `join`. It gives up if one does not answer, belongs to a cluster, may join only a certain one, or says that it
   forms one itself.
3. A forms the cluster.

Two orders at A and B: each speaks first and asks afterwards, so at least one of them hears of the other. Both may, and both give up. An order
is lost with the process. A broker with an empty directory only ever waits, because an order is never repeated by a start.
"""

from __future__ import annotations

import asyncio

from raftmq.broker.base.config import BrokerConfig
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.cluster.seeds import Seeds
from raftmq.proto import peer_pb2 as peer_pb
from raftmq.proto import queue_pb2 as pb
from raftmq.storage.registry import Registry

_RETRY_MS = 500


class Formation:
    """Decides whether this broker may form a cluster."""

    def __init__(self, config: BrokerConfig, registry: Registry, seeds: Seeds) -> None:
        self._config = config
        self._registry = registry
        self._seeds = seeds
        self.is_waiting = False
        """Whether the broker waits to join a cluster: only then may it be ordered to form one."""
        self._is_forming = False
        """What the broker answers to others. Invariant: it is set before they are asked, and until the broker has a cluster or gives up."""
        self._ordered = asyncio.Event()
        self._formed: asyncio.Future[str] | None = None
        """The id of the formed cluster. Only an order creates it."""

    # ------------------------------------------------------------------------------------------------ the order

    def describe(self) -> peer_pb.DescribeFormationResponse:
        """Return whether another cluster exists or may come to exist, as far as this broker knows."""
        return peer_pb.DescribeFormationResponse(
            cluster_id=self._known_cluster(), is_forming=self._is_forming or self._config.bootstrap
        )

    def _known_cluster(self) -> str:
        """Return words for a cluster that exists for this broker. Empty if it knows of none."""
        if self._registry.cluster_id or self._config.cluster_id:
            return self._registry.cluster_id or self._config.cluster_id
        return "that it left with its partitions" if self._registry.has_left_cluster else ""

    async def order(self) -> str:
        """Have this broker form a cluster. Return its id when the broker is its first member. A cancellation does not stop the forming.

        Raises:
            RequestError: CLUSTER_ALREADY_FORMED if this broker or another one belongs to a cluster. NOT_READY if another broker does not
                answer, or if a cluster is being formed: nothing was formed here by this order, and it may be repeated.
        """
        self.refuse_another_cluster("an order to form a cluster")
        if known := self._known_cluster():
            raise RequestError(
                pb.CLUSTER_ALREADY_FORMED,
                f"this broker belongs to cluster {known}, or is configured to join it, so it forms no other one",
            )
        if not self.is_waiting or self._is_forming:
            raise _not_now("this broker is starting, or is forming a cluster already")
        self._is_forming = True
        try:
            await self._check_others()
            self._check_waiting()
        except BaseException:
            self._is_forming = False
            raise
        self.is_waiting = False
        self._formed = asyncio.get_running_loop().create_future()
        self._ordered.set()
        return await asyncio.shield(self._formed)

    def refuse_another_cluster(self, cause: str) -> None:
        """Refuse to form a cluster on a broker that `raftmq recover rejoin` took out of one: it keeps its partitions for the recovered one.

        Raises:
            RequestError: CLUSTER_ALREADY_FORMED.
        """
        if self._registry.has_left_cluster:
            raise RequestError(
                pb.CLUSTER_ALREADY_FORMED,
                f"the broker of the data directory {self._config.data_dir} has left its cluster (raftmq recover rejoin), and {cause} would "
                "begin another one beside its data: start with --join HOST:PORT, the peer address of a broker of the recovered cluster, and "
                "without --bootstrap",
            )

    def _check_waiting(self) -> None:
        if not self.is_waiting:
            raise _not_now("this broker was admitted to a cluster in the meantime")

    async def _check_others(self) -> None:
        """Ask every other broker of `join`. Raises as `order`."""
        asked = await asyncio.gather(*(self._seeds.formation_of(seed) for seed in self._config.join))
        for seed, answer in zip(self._config.join, asked, strict=True):
            if answer.cluster_id:
                raise RequestError(
                    pb.CLUSTER_ALREADY_FORMED,
                    f"{seed} belongs to cluster {answer.cluster_id}, or is configured to join it, so no other cluster is formed",
                )
        for seed, answer in zip(self._config.join, asked, strict=True):
            if answer.is_forming:
                raise _not_now(f"{seed} is forming a cluster")

    # ------------------------------------------------------------------------------------------------ the broker's start

    def begin_waiting(self) -> None:
        """Accept an order from now on."""
        self.is_waiting = True

    async def wait_ordered(self) -> None:
        """Wait until this broker must form a cluster."""
        await self._ordered.wait()

    def end_waiting(self) -> None:
        """Accept no more orders, because the broker was admitted to a cluster. One that was accepted just now is given up."""
        self.is_waiting = self._is_forming = False
        if self._formed is not None and not self._formed.done():
            self._formed.set_exception(_not_now("this broker was admitted to a cluster in the meantime"))
            self._formed.exception()  # perhaps nobody waits any more

    def on_formed(self) -> None:
        """Tell the caller of the order that this broker is the first member of a cluster."""
        self._is_forming = False
        if self._formed is not None and not self._formed.done():
            self._formed.set_result(self._registry.cluster_id)


def _not_now(reason: str) -> RequestError:
    return RequestError(pb.NOT_READY, reason, retry_after_ms=_RETRY_MS)
