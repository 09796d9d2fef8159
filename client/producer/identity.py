"""Gets a producer its id and epoch from the cluster, and keeps a named one's name.

The epoch of a named producer that goes out with its batches is the name's epoch (it rises with every start under the name) in the
upper bits, and below them what the producer itself raises when it breaks a sequence off (`PartitionQueue`). If both were one
number, a producer that breaks off could reach the epoch of its successor, whose first records would then look like repeated ones
and be acknowledged without being written.

A producer that takes a name over has every broker told before it writes: where it never writes itself, its predecessor must be
refused, too (`broker/partitions/producer_fence.py` is the other half).

Must not send records. Source: KIP-98 (transactional ids and their epochs), KIP-360; without transactions.
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
    """Raise `InvalidArgumentError` for what the brokers would refuse as a producer's name."""
    check_text(name, "producer_name")
    if not isinstance(name, str) or not 1 <= len(name.encode()) <= settings.NAME_BYTES_MAX:
        raise InvalidArgumentError(f"producer_name has between 1 and {settings.NAME_BYTES_MAX} bytes, unlike {name!r}")


class ProducerName:
    """The name of one producer, or that it has none; registered once."""

    def __init__(self, resolver: Resolver, name: str | None, request_timeout_seconds: float) -> None:
        self._resolver = resolver
        self._name = name
        self._request_timeout_seconds = request_timeout_seconds
        self._epoch = 0
        self._producer_id = 0

    async def register(self, timeout_seconds: float) -> ProducerIdentity:
        """An id of its own; under a name the name's id and its next epoch, which fences the producer that had it.

        Returns when no broker takes anything any more that a predecessor sends from now on, in any partition.

        Raises:
            ProducerFencedError: there is a successor already.
            RaftMQError: it could not be had in time. The name's epoch may have risen all the same.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        request = self._request()
        if self._name is not None:
            request.stamp = self._resolver.rng.randbytes(16)  # by it the cluster knows a repeated request
        # Asking twice only wastes an anonymous id, so an unknown outcome is no reason to give up.
        answer = await self._resolver.call_any(INIT_PRODUCER, request, timeout_seconds, is_read=True)
        if self._name is None:
            return ProducerIdentity(answer.producer_id, answer.epoch)
        if answer.epoch >> (64 - settings.OWN_EPOCH_BITS):
            raise InvalidArgumentError(f"the name {self._name!r} is used by another kind of producer: choose another")
        self._producer_id, self._epoch = answer.producer_id, answer.epoch
        identity = ProducerIdentity(answer.producer_id, answer.epoch << settings.OWN_EPOCH_BITS)
        if answer.epoch:  # else nobody had the name before
            await self._fence_predecessors(identity, answer.metadata_revision, deadline)
        return identity

    async def claim(self, epoch: int, timeout_seconds: float) -> int:
        """Take the name at an epoch that the caller chose, and fence all lower ones as `register` does; return its producer id.

        The epoch goes out with the batches as it is. Claiming the same one again changes nothing.

        Raises:
            ProducerFencedError: the name is at a later epoch.
            RaftMQError: it could not be had in time. The name may have the epoch all the same.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        request = self._request()
        request.epoch = epoch
        answer = await self._resolver.call_any(INIT_PRODUCER, request, timeout_seconds, is_read=True)
        self.resume(answer.producer_id, epoch)
        await self._fence_predecessors(ProducerIdentity(answer.producer_id, epoch), answer.metadata_revision, deadline)
        return answer.producer_id

    def resume(self, producer_id: int, epoch: int) -> None:
        """Go on as the producer that claimed the name at this epoch, for `keep`."""
        self._producer_id, self._epoch = producer_id, epoch

    async def _fence_predecessors(self, identity: ProducerIdentity, revision: int, deadline: float) -> None:
        """Have all brokers told of the epoch. A broker that does not answer is told by nobody, and waited for instead."""
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
                    brokers = set(answer.addresses)  # with those that joined before the epoch was given
                elif isinstance(answer, ProducerFencedError):
                    raise answer
            if untold := sorted(brokers - told):
                self._resolver.check()
                if not backoff.failures:
                    log.warning("producer_predecessor_awaited addresses=%s", ",".join(untold))
                await asyncio.sleep(min(backoff.next_seconds(), max(0.0, min(over_at, deadline) - loop.time())))
        if untold and loop.time() < over_at:
            raise RequestTimedOutError(
                f"the broker at {untold[0]} could not be told that the producer {self._name!r} has a successor, and there was no time"
                f" to wait {settings.PREDECESSOR_SECONDS:g} s instead: a larger max_block_ms helps"
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
        """Confirm the name from time to time until cancelled; None without a name."""
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
                    INIT_PRODUCER, request, self._request_timeout_seconds, is_read=True
                )
            except ProducerFencedError as error:
                on_fenced(error)
                return
            except RaftMQError as error:
                log.warning("producer_name_not_confirmed error_code=%s", name_of(error))
                continue
            if answer.producer_id != self._producer_id:
                on_fenced(ProducerFencedError(f"the name {self._name!r} was forgotten and belongs to another producer"))
                return

    def _request(self) -> pb.InitProducerRequest:
        return pb.InitProducerRequest(name=self._name, metadata_revision=self._resolver.metadata_revision)
