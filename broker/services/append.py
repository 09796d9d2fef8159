"""Append batches to the partitions of a request, each of which has its own result.

Appends take effect in the order in which they arrive: a request is validated and proposed without an `await`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from raftmq.broker.base.request_error import RequestError, expired
from raftmq.broker.partitions.partition import Partition
from raftmq.broker.partitions.pending_append import Applied, PendingAppend
from raftmq.broker.services.host import ServiceHost
from raftmq.broker.services.locator import Locator, check_partitions
from raftmq.broker.services.request_metrics import OK, RequestMetrics
from raftmq.broker.services.slow_requests import append_phases
from raftmq.methods import APPEND
from raftmq.proto import queue_pb2 as pb

BATCHES_PER_PARTITION_MAX = 64
"""Batches of one partition in one request: far more than a producer may have in flight, and too few to stall the event loop."""


class PartitionAppend(NamedTuple):
    """One partition's part of a request: begun, or refused before it began."""

    partition: Partition | None
    pending: PendingAppend | None
    error: RequestError | None


Begun = Sequence[PartitionAppend]
"""A request that was begun, partition by partition."""


class AppendService:
    """The appends of one broker."""

    def __init__(
        self,
        host: ServiceHost,
        locator: Locator[Partition],
        metrics: RequestMetrics,
    ) -> None:
        self._host = host
        self._locator = locator
        self._metrics = metrics
        self.batches_total = 0
        """Batches acknowledged since the start."""
        self.bytes_total = 0
        """Bytes of these batches."""

    def begin_now(self, request: pb.AppendRequest, deadline: float) -> Begun | None:
        """Validate and propose the whole request now. None if that must wait for metadata: nothing was begun.

        Raises:
            RequestError: INVALID_ARGUMENT, or REQUEST_TIMED_OUT after the deadline. Nothing was begun.
        """
        self.check(request, deadline)
        if not self._locator.has_revision(request.metadata_revision):
            return None
        located: list[Partition | RequestError] = []
        for part in request.partitions:
            try:
                located.append(self._locate(part))
            except RequestError as error:
                if self._locator.is_unconfirmed(error):
                    return None
                located.append(error)
        return [self._begin_one(part, found, deadline) for part, found in zip(request.partitions, located, strict=True)]

    async def begin(self, request: pb.AppendRequest, deadline: float) -> Begun:
        """Begin as `begin_now`, after waiting for metadata that this broker does not have yet."""
        self.check(request, deadline)
        await self._locator.wait_revision(request.metadata_revision, deadline)
        begun: list[PartitionAppend] = []
        for part in request.partitions:
            try:
                _check_batches(part)
                found = await self._locator.locate_confirmed(part.topic_id, part.partition, deadline)
            except RequestError as error:
                begun.append(PartitionAppend(None, None, error))
            else:
                begun.append(self._begin_one(part, found, deadline))
        return begun

    async def wait(self, begun: Begun, deadline: float) -> None:
        """Wait until every batch is decided, until the deadline. Cancelling it undoes nothing."""
        if needs_decision(begun):
            await asyncio.gather(
                *(
                    one.partition.appends.finish(one.pending, deadline)
                    for one in begun
                    if one.partition is not None and one.pending is not None
                )
            )
            return
        waiting = undecided(begun)
        if waiting:
            await asyncio.wait(waiting, timeout=max(0.0, deadline - self._host.loop.time()))

    def response(self, correlation_id: int, begun: Begun) -> pb.AppendResponse:
        """Return the answer as of now. An undecided batch has run out of time."""
        response = pb.AppendResponse(correlation_id=correlation_id)
        for partition, pending, error in begun:
            if partition is None or pending is None:
                assert error is not None
                response.partitions.add(error=error.detail)
                self._refused(error.code)
                continue
            result = partition.appends.result(pending, partition.log_start_offset)
            if result.HasField("error"):
                self._refused(result.error.code)
            self.batches_total += len(result.base_offsets)
            self.bytes_total += sum(map(len, pending.batches[: len(result.base_offsets)]))
            response.partitions.append(result)
        return response

    def check(self, request: pb.AppendRequest, deadline: float) -> None:
        """Raise RequestError for a request that can never begin: INVALID_ARGUMENT, or REQUEST_TIMED_OUT after the deadline."""
        check_partitions(len(request.partitions))
        if self._host.loop.time() >= deadline:
            raise expired()

    def _destination(self, request: pb.AppendRequest) -> dict[str, str | int | float]:
        """Return the destination of a request, as attributes of a span. Partitions of several topics have none."""
        topic_ids = {part.topic_id for part in request.partitions}
        topic = self._host.metadata.state_machine.topic(topic_ids.pop()) if len(topic_ids) == 1 else None
        if topic is None:
            return {}
        found: dict[str, str | int | float] = {"messaging.destination.name": topic.name}
        if len(request.partitions) == 1:
            found["messaging.destination.partition.id"] = str(request.partitions[0].partition)
        return found

    def span_attributes(
        self, request: pb.AppendRequest, begun: Begun, began_at: float, ended_at: float
    ) -> dict[str, str | int | float]:
        """Return the destination and the phases of a request (times of `time.perf_counter`), as attributes of its span."""
        return self._destination(request) | append_phases(began_at, ended_at, proposals(begun)).attributes()

    def _locate(self, part: pb.PartitionAppend) -> Partition:
        _check_batches(part)
        return self._locator.locate(part.topic_id, part.partition)

    @staticmethod
    def _begin_one(part: pb.PartitionAppend, found: Partition | RequestError, deadline: float) -> PartitionAppend:
        if isinstance(found, RequestError):
            return PartitionAppend(None, None, found)
        return PartitionAppend(found, found.appends.begin(list(part.batches), deadline), None)

    def _refused(self, code: pb.ErrorCode) -> None:
        self._metrics.observe_refusal(APPEND.name, pb.ErrorCode.Name(code))


def needs_decision(begun: Begun) -> bool:
    """Return whether a batch must be validated again: waiting for proposals is not enough."""
    return any(one.pending is not None and one.pending.is_undecided for one in begun)


def undecided(begun: Begun) -> set[Applied]:
    """Return the futures of proposals that the request waits for."""
    return {future for one in begun if one.pending is not None for future in one.pending.pending()}


def outcome_of(response: pb.AppendResponse) -> str:
    """Return the code of the first refused partition of an answer, or OK. Metrics count answered requests as OK, whatever it is."""
    return next((pb.ErrorCode.Name(one.error.code) for one in response.partitions if one.HasField("error")), OK)


def proposals(begun: Begun) -> Iterator[Applied]:
    """Yield the future of each proposal of the request, decided or not. One may come several times."""
    for one in begun:
        if one.pending is not None:
            yield from (future for _, future in one.pending.outcomes if future is not None)


def _check_batches(part: pb.PartitionAppend) -> None:
    if len(part.batches) > BATCHES_PER_PARTITION_MAX:
        raise RequestError(
            pb.INVALID_ARGUMENT,
            f"a request holds at most {BATCHES_PER_PARTITION_MAX} batches of one partition, not {len(part.batches)}",
        )
