"""Gets a producer's id and epoch from the cluster, and keeps the name of a named producer.

The epoch in the batches of a named producer has two parts. The upper bits are the name's epoch, which rises with every start under the
name. The lower bits are raised by the producer itself when it abandons a sequence (`PartitionQueue`). If both were one number, a producer
that abandons sequences could reach the epoch of its successor. The successor's first records would then look repeated, and brokers would
acknowledge them without writing them.

A producer that takes over a name first informs every broker. Otherwise brokers to which it never writes would still accept the batches of
its predecessor (`broker/partitions/producer_fence.py` is the other half).

Must not send records. Source: KIP-98 (transactional ids and their epochs) and KIP-360, without transactions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from raftmq.client.base import settings
from raftmq.client.base.background import Backoff, spawn
from raftmq.client.base.error_details import name_of
from raftmq.client.base.logs import log
from raftmq.client.base.texts import check_text
from raftmq.client.connection.resolver import Resolver
from raftmq.client.producer.partition_queue import ProducerIdentity
from raftmq.errors import InvalidArgumentError, ProducerFencedError, RaftMQError, RequestTimedOutError
from raftmq.methods import FENCE_PRODUCER, INIT_PRODUCER
from raftmq.proto import queue_pb2 as pb


def check_name(name: object) -> None:
    """Raise `InvalidArgumentError` if brokers would refuse a producer name."""
    check_text(name, "producer_name")
    if not isinstance(name, str) or not 1 <= len(name.encode()) <= settings.NAME_BYTES_MAX:
        raise InvalidArgumentError(f"producer_name must have 1 to {settings.NAME_BYTES_MAX} bytes, unlike {name!r}")


class ProducerName:
    """The name of one producer, or its lack of one. Registered once."""

    def __init__(self, resolver: Resolver, name: str | None, request_timeout_seconds: float) -> None:
        self._resolver = resolver
        self._name = name
        self._request_timeout_seconds = request_timeout_seconds
        self._epoch = 0
        self._producer_id = 0

    async def register(self, timeout_seconds: float) -> ProducerIdentity:
        """Get a producer id of its own. Under a name, get the name's id and its next epoch, which fences the name's previous producer.

        When it returns, no broker accepts anything that a predecessor sends from now on, in any partition.

        Raises:
            ProducerFencedError: the name already has a successor.
            RaftMQError: the registration failed in time. The name's epoch may have risen nevertheless.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        request = self._request()
        if self._name is not None:
            request.stamp = self._resolver.rng.randbytes(16)  # by which the cluster recognizes a repeated request
        # A second registration only wastes an anonymous id, so an unknown outcome is no reason to give up.
        answer = await self._resolver.call_any(
            INIT_PRODUCER, request, timeout_seconds, is_read=True, prefers_metadata_leader=True
        )
        if self._name is None:
            return ProducerIdentity(answer.producer_id, answer.epoch)
        if answer.epoch >> (64 - settings.OWN_EPOCH_BITS):
            raise InvalidArgumentError(f"another kind of producer uses the name {self._name!r}: choose another name")
        self._producer_id, self._epoch = answer.producer_id, answer.epoch
        identity = ProducerIdentity(answer.producer_id, answer.epoch << settings.OWN_EPOCH_BITS)
        if answer.epoch:  # 0: the name had no producer before
            await self._fence_predecessors(identity, answer.metadata_revision, deadline)
        return identity

    async def claim(self, epoch: int, timeout_seconds: float) -> int:
        """Claim the name at an epoch that the caller chose, and fence all lower ones as `register` does. Return its producer id.

        The batches carry exactly this epoch. Claiming the same epoch again changes nothing.

        Raises:
            ProducerFencedError: the name is at a later epoch.
            RaftMQError: the claim failed in time. The name may have the epoch nevertheless.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        request = self._request()
        request.epoch = epoch
        answer = await self._resolver.call_any(
            INIT_PRODUCER, request, timeout_seconds, is_read=True, prefers_metadata_leader=True
        )
        self.resume(answer.producer_id, epoch)
        await self._fence_predecessors(ProducerIdentity(answer.producer_id, epoch), answer.metadata_revision, deadline)
        return answer.producer_id

    def resume(self, producer_id: int, epoch: int) -> None:
        """Continue as the producer that claimed the name at this epoch, for `keep`."""
        self._producer_id, self._epoch = producer_id, epoch

    async def _fence_predecessors(self, identity: ProducerIdentity, revision: int, deadline: float) -> None:
        """Inform all brokers of the epoch. For a broker that does not answer, wait until its predecessor can write no more."""
        loop = asyncio.get_running_loop()
        over_at = loop.time() + settings.PREDECESSOR_SECONDS
        backoff = Backoff(settings.RETRY_BACKOFF_MIN_SECONDS, settings.RETRY_BACKOFF_MAX_SECONDS, self._resolver.rng)
        self._resolver.record_revision(revision)
        request = pb.FenceProducerRequest(
            producer_id=identity.producer_id, epoch=identity.epoch, metadata_revision=revision
        )
        brokers, told = set(self._resolver.broker_addresses()), set[str]()
        while untold := sorted(brokers - told):
            remaining = min(over_at, deadline) - loop.time()
            if remaining <= 0:
                break
            seconds = min(remaining, settings.FENCE_ANSWER_SECONDS)
            answers = await asyncio.gather(*(self._tell(address, request, seconds) for address in untold))
            for address, answer in zip(untold, answers, strict=True):
                if isinstance(answer, pb.FenceProducerResponse):
                    told.add(address)
                    brokers = set(answer.addresses)  # including brokers that joined before the epoch was assigned
                elif isinstance(answer, ProducerFencedError):
                    raise answer
            if untold := sorted(brokers - told):
                self._resolver.check()
                if not backoff.failures:
                    log.warning("producer_predecessor_awaited addresses=%s", ",".join(untold))
                await asyncio.sleep(min(backoff.next_seconds(), max(0.0, min(over_at, deadline) - loop.time())))
        if untold and loop.time() < over_at:
            raise RequestTimedOutError(
                f"the broker at {untold[0]} could not be told that the producer {self._name!r} has a successor, and the time did not suffice"
                f" to wait {settings.PREDECESSOR_SECONDS:g} s instead: use a larger max_block_ms"
            )

    async def _tell(
        self, address: str, request: pb.FenceProducerRequest, seconds: float
    ) -> pb.FenceProducerResponse | RaftMQError:
        try:
            return await self._resolver.connection(address).call(FENCE_PRODUCER, request, seconds)
        except RaftMQError as error:
            return error

    def keep(
        self, on_fenced: Callable[[ProducerFencedError], None], on_crash: Callable[[BaseException], None]
    ) -> asyncio.Task[None] | None:
        """Start a task that confirms the name periodically until it is cancelled. Return None without a name."""
        if self._name is None:
            return None
        return spawn(self._confirm_forever(on_fenced), "raftmq-producer-name", on_crash)

    async def _confirm_forever(self, on_fenced: Callable[[ProducerFencedError], None]) -> None:
        while True:
            await asyncio.sleep(settings.NAME_CONFIRM_SECONDS)
            request = self._request()
            request.epoch = self._epoch
            try:
                answer = await self._resolver.call_any(
                    INIT_PRODUCER, request, self._request_timeout_seconds, is_read=True, prefers_metadata_leader=True
                )
            except ProducerFencedError as error:
                on_fenced(error)
                return
            except RaftMQError as error:
                log.warning("producer_name_not_confirmed error_code=%s", name_of(error))
                continue
            if answer.producer_id != self._producer_id:
                on_fenced(ProducerFencedError(f"the name {self._name!r} expired and now belongs to another producer"))
                return

    def _request(self) -> pb.InitProducerRequest:
        return pb.InitProducerRequest(name=self._name, metadata_revision=self._resolver.metadata_revision)
