"""Answer `Queue.Browse` and `Queue.QueueStats`: the messages of a queue without leasing them, and its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from raftmq.broker.base.histogram import Histogram
from raftmq.broker.base.limits import Limits
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.partitions.queue.blocks import MessageFacts
from raftmq.broker.partitions.queue.bodies import StoredBody
from raftmq.broker.partitions.queue.partition import PartitionQueue
from raftmq.broker.partitions.queue.statistics import Counts
from raftmq.broker.partitions.queue.views import STATES, Page, Wanted
from raftmq.broker.services.call import Call
from raftmq.broker.services.queue.partitions import QueuePartitions, reading
from raftmq.fsm.queue.commands import validate_tenant
from raftmq.fsm.queue.limits import ID_BYTES_MAX
from raftmq.fsm.queue.message import DEAD, DELAYED, LEASED, LINED, READY, DeadReason, Message
from raftmq.fsm.queue.tenants import PAUSED_FOREVER, Tenant
from raftmq.message_checks import HEADERS_BYTES_MAX, MESSAGE_BYTES_MAX, MESSAGE_COUNT_MAX
from raftmq.proto import queue_pb2 as pb

PAGE_MESSAGES_MAX: Final = MESSAGE_COUNT_MAX
PAGE_BODIES_MAX: Final = 100
"""Messages of a page with bodies: each body may be in an entry of its own, which is read as a whole."""
PAGE_BYTES_MAX: Final = 1024 * 1024
"""Bytes of a page, unless it has only one message."""
FACTS_BYTES_MAX: Final = 1024
"""Bytes of a message's fields in a block: id, key and tenant of 249 bytes each, and numbers."""
STATUS_BYTES_MAX: Final = 3072
"""Bytes of a message's status: error and progress of 1 KiB each, and numbers."""
TENANTS_SHOWN_MAX: Final = 1_000
_MESSAGE_BYTES_MAX: Final = MESSAGE_BYTES_MAX + HEADERS_BYTES_MAX + FACTS_BYTES_MAX + STATUS_BYTES_MAX
_NO_BODY: Final = StoredBody(b"", 0, 0, 0, None)
_STATES: Final[dict[int, pb.MessageState]] = {
    READY: pb.READY,
    DELAYED: pb.DELAYED,
    LEASED: pb.LEASED,
    DEAD: pb.DEAD,
    LINED: pb.BLOCKED,
}
_DEAD_REASONS: Final = {
    DeadReason.REJECTED: "rejected",
    DeadReason.EXHAUSTED: "exhausted",
    DeadReason.EXPIRED: "expired",
}


def browse_bytes_max(request: pb.BrowseRequest, _limits: Limits) -> int:
    """Return an upper bound of the answer to a request."""
    return _MESSAGE_BYTES_MAX if request.with_bodies else PAGE_BYTES_MAX


class QueueBrowseService:
    """Shows the messages and the numbers of queue partitions."""

    def __init__(self, partitions: QueuePartitions) -> None:
        self._partitions = partitions

    # ------------------------------------------------------------------------------------------------------------- browse

    async def browse(self, request: pb.BrowseRequest, call: Call) -> pb.BrowseResponse:
        """Return a page of messages, by state and within a state in the order of leasing, or the one message that is named.

        Every page shows one moment. The page after it shows a later one: a message that went on in the meantime may be shown twice, and
        one that went back may be left out.
        """
        _check(request)
        partition = await self._partitions.one(
            request.topic_id, request.partition, request.metadata_revision, call.deadline
        )
        return await reading(self._browse(partition, request), call.deadline)

    async def _browse(self, partition: PartitionQueue, request: pb.BrowseRequest) -> pb.BrowseResponse:
        await partition.replica.read_index()
        page = await _page_of(partition, request)
        if not page.messages:
            return pb.BrowseResponse(cursor=page.cursor)
        # the rest of the page is taken in one turn of the loop, except the bodies, which never change
        now_ms = partition.clock.read_ms()
        facts = [(message, status_of(message, now_ms)) for message in page.messages]
        bodies: Sequence[StoredBody | None] = [_NO_BODY] * len(facts)
        if request.with_bodies:
            bodies = await partition.read_bodies_within([m.sequence for m in page.messages], PAGE_BYTES_MAX)
        return _response(page, facts, bodies)

    # -------------------------------------------------------------------------------------------------------------- stats

    async def queue_stats(self, request: pb.QueueStatsRequest, call: Call) -> pb.QueueStatsResponse:
        """Return the numbers of each partition."""

        async def stats_of(partition: PartitionQueue) -> pb.PartitionQueueStats:
            await reading(partition.replica.read_index(), call.deadline)
            await reading(partition.statistics.measure(partition.views), call.deadline)
            return _stats(partition, min(request.tenants_max, TENANTS_SHOWN_MAX))

        outcomes = await self._partitions.each(
            "QueueStats", request.topic_id, request.partitions, request.metadata_revision, call.deadline, stats_of
        )
        response = pb.QueueStatsResponse()
        for outcome in outcomes:
            stats = outcome.answer or pb.PartitionQueueStats()
            stats.partition = outcome.partition
            if outcome.error is not None:
                stats.error.CopyFrom(outcome.error.detail)
            response.partitions.append(stats)
        return response


def _check(request: pb.BrowseRequest) -> None:
    reason = validate_tenant(request.tenant)
    if len(request.id.encode()) > ID_BYTES_MAX:
        reason = f"an id has at most {ID_BYTES_MAX} bytes"
    if request.id and request.is_single:
        reason = "a message is named by its id or by its sequence, not by both"
    if request.state not in pb.MessageState.values():
        reason = f"the state {request.state} is unknown"
    if request.limit > PAGE_MESSAGES_MAX:
        reason = f"a page has at most {PAGE_MESSAGES_MAX} messages, not {request.limit}"
    if reason:
        raise RequestError(pb.INVALID_ARGUMENT, reason)


async def _page_of(partition: PartitionQueue, request: pb.BrowseRequest) -> Page:
    wanted = Wanted(
        STATES if request.state == pb.ANY_STATE else (request.state,), request.tenant, request.enqueued_before_ms
    )
    if not request.id and not request.is_single:
        limit = min(request.limit or PAGE_MESSAGES_MAX, PAGE_BODIES_MAX if request.with_bodies else PAGE_MESSAGES_MAX)
        return await partition.views.page(wanted, request.cursor, limit)
    views = partition.views
    found = await (views.by_id(request.id.encode()) if request.id else views.by_sequence(request.sequence))
    if found is None or found.state not in wanted.states or not views.is_wanted(found, wanted):
        return Page((), (), (), b"")
    return Page((found,), (views.tenant_of(found),), (b"",), b"")


def _response(
    page: Page, facts: Sequence[tuple[Message, pb.MessageStatus]], bodies: Sequence[StoredBody | None]
) -> pb.BrowseResponse:
    """Return the messages of a page whose bodies are known, as far as they fit."""
    chosen: list[int] = []
    cursor, size = page.cursor, 0
    for at, (_, status) in enumerate(facts):
        body = bodies[at] if at < len(bodies) else None
        if at >= len(bodies) or (chosen and size + _bytes_of(body, status) > PAGE_BYTES_MAX):
            cursor = page.places[at - 1]
            break
        if body is not None:  # otherwise it was finished in the meantime
            chosen.append(at)
            size += _bytes_of(body, status)
    if not chosen:
        return pb.BrowseResponse(cursor=cursor)
    messages = [page.messages[at] for at in chosen]
    block = MessageFacts(messages, [page.tenants[at] for at in chosen], None).block(
        [body for body in (bodies[at] for at in chosen) if body is not None]
    )
    return pb.BrowseResponse(block=block, statuses=[facts[at][1] for at in chosen], cursor=cursor)


def _bytes_of(body: StoredBody | None, status: pb.MessageStatus) -> int:
    """Return an upper bound of a message's bytes in an answer."""
    if body is None:
        return 0
    return FACTS_BYTES_MAX + status.ByteSize() + len(body.body) + len(body.headers or b"")


def status_of(message: Message, now_ms: int) -> pb.MessageStatus:
    """Return the fields of a message that a consumer does not get."""
    state = message.state
    return pb.MessageStatus(
        state=_STATES[state],
        version=message.version,
        due_in_ms=message.due - now_ms,
        lease_left_ms=max(0, message.deadline - now_ms) if state == LEASED else 0,
        expires_in_ms=max(1, message.expires_at - now_ms) if message.expires_at else 0,
        error=message.error,
        progress=message.progress,
        dead_reason=_DEAD_REASONS.get(DeadReason(message.dead_reason), "") if state == DEAD else "",
        dead_since_ms=message.dead_at,
    )


def _stats(partition: PartitionQueue, tenants_max: int) -> pb.PartitionQueueStats:
    statistics, clock = partition.statistics, partition.clock
    totals, now_ms = statistics.totals, clock.read_ms()
    return pb.PartitionQueueStats(
        counts=_state_counts(statistics.counts()),
        oldest_ready_age_ms=statistics.oldest_ready_ms(),
        waiting_bytes=partition.replica.state_machine.byte_count,
        enqueued_total=totals.enqueued,
        leased_total=totals.leased,
        accepted_total=totals.accepted,
        released_total=totals.released,
        expired_leases_total=totals.expired_leases,
        dead_total=statistics.dead_total,
        clock_difference_ms=clock.difference_ms or 0,
        tenants=[
            pb.TenantStats(tenant=tenant.path, counts=_state_counts(_counts_of(tenant)))
            for tenant in statistics.busiest(tenants_max)
        ],
        paused=[
            pb.PausedTenant(tenant=path, left_ms=-1 if until >= PAUSED_FOREVER else max(1, until - now_ms))
            for path, until in statistics.paused()
        ],
        consumers=partition.leases.consumers,
        dwell=_dwell(statistics.dwell()),
    )


def _dwell(histogram: Histogram) -> pb.DwellTimes:
    return pb.DwellTimes(bounds_seconds=histogram.bounds, counts=histogram.counts, total_seconds=histogram.total)


def _counts_of(tenant: Tenant) -> Counts:
    return Counts(tenant.ready, tenant.delayed, tenant.leased, tenant.dead, tenant.lined)


def _state_counts(counts: Counts) -> pb.StateCounts:
    return pb.StateCounts(
        ready=counts.ready, delayed=counts.delayed, leased=counts.leased, dead=counts.dead, blocked=counts.blocked
    )
