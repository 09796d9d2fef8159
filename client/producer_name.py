"""Gets a producer its id and epoch from the cluster, and keeps a named one's name.

The epoch of a named producer that goes out with its batches is the name's epoch (it rises with every start under the name) in the
upper bits, and below them what the producer itself raises when it breaks a sequence off (`PartitionQueue`). If both were one
number, a producer that breaks off could reach the epoch of its successor, whose first records would then look like repeated ones
and be acknowledged without being written.

Must not send records. Source: KIP-98 (transactional ids and their epochs), KIP-360; without transactions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from raftmq.client import settings
from raftmq.client.background import spawn
from raftmq.client.error_details import name_of
from raftmq.client.logs import log
from raftmq.client.partition_queue import Identity
from raftmq.client.resolver import Resolver
from raftmq.client.transport import INIT_PRODUCER
from raftmq.errors import InvalidArgumentError, ProducerFencedError, RaftMQError
from raftmq.proto import queue_pb2 as pb


def check_name(name: object) -> None:
    """Raise `InvalidArgumentError` for what the brokers would refuse as a producer's name."""
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

    async def register(self, timeout_seconds: float) -> Identity:
        """An id of its own; under a name the name's id and its next epoch, which fences the producer that had it.

        Raises:
            RaftMQError: it could not be had in time. The name's epoch may have risen all the same.
        """
        # Asking twice only wastes an id or an epoch, so an unknown outcome is no reason to give up.
        answer = await self._resolver.call_any(INIT_PRODUCER, self._request(), timeout_seconds, is_read=True)
        if self._name is None:
            return Identity(answer.producer_id, answer.epoch)
        if answer.epoch >> (64 - settings.OWN_EPOCH_BITS):
            raise InvalidArgumentError(f"the name {self._name!r} is used by another kind of producer: choose another")
        self._producer_id, self._epoch = answer.producer_id, answer.epoch
        return Identity(answer.producer_id, answer.epoch << settings.OWN_EPOCH_BITS)

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
