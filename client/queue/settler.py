"""Sends settlements to the leaders of their partitions, and repeats them until each has a verdict or its time is over.

Settlements of one turn of the event loop, and those that arrive while a partition has `settings.ACKS_IN_FLIGHT_MAX` unanswered requests,
travel together. Requests have the numbers of a session: a leader that has seen a repeated request returns the first answer. Must not know
streams (the links do) or renew leases by itself.

Invariants: the numbers of a session's unanswered requests are so close together that its partition remembers the answers to all of them, and
requests go out, and are repeated, in the order of their numbers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from raftmq.client.base import settings
from raftmq.client.base.background import Backoff, cancel_and_wait, spawn
from raftmq.client.base.error_details import error_from_detail, name_of
from raftmq.client.base.logs import log
from raftmq.client.connection.resolver import Resolver
from raftmq.client.queue.broker_link import BrokerLink
from raftmq.client.queue.leader_call import call_leader, whole_ms
from raftmq.client.queue.lease import Lease, Verdict
from raftmq.client.queue.refusals import refusal
from raftmq.client.queue.settlement_runs import Settlement, build_ack, build_chain, codes_of, granted_of, share_of
from raftmq.client.queue.topic import QueuePartition
from raftmq.errors import (
    BrokenConnectionError,
    ClosedClientError,
    InvalidArgumentError,
    NotLeaderError,
    Outcome,
    ProtocolError,
    QueueFullError,
    RaftMQError,
    RequestTimedOutError,
    TenantFullError,
    TooManySessionsError,
    UnknownSessionError,
    UnknownTopicError,
)
from raftmq.methods import OPEN_SESSION
from raftmq.proto import queue_pb2 as pb

_NO_SESSION: Final = 0


class Links(Protocol):
    """Knows the streams to brokers."""

    def link_for_settlements(self, address: str) -> BrokerLink:
        """Return a stream to the broker, opened if there is none."""
        ...

    def links(self) -> list[BrokerLink]:
        """Return all streams."""
        ...


class _Call:
    """The verdicts on the settlements of one call, which ends with the last of them."""

    __slots__ = ("_undecided", "_verdicts", "verdicts")

    def __init__(self, count: int, verdicts: asyncio.Future[list[Verdict]]) -> None:
        self.verdicts = verdicts
        self._verdicts: list[Verdict] = [None] * count
        self._undecided = count

    def end(self, position: int, verdict: Verdict) -> None:
        self._verdicts[position] = verdict
        self._undecided -= 1
        if not self._undecided and not self.verdicts.done():  # it is done if its caller was cancelled
            self.verdicts.set_result(self._verdicts)


class _Waiting:
    """A settlement without a verdict, and its place in its call."""

    __slots__ = ("_call", "_position", "deadline", "is_alone", "is_ended", "settlement")

    def __init__(self, settlement: Settlement, deadline: float, call: _Call, position: int) -> None:
        self.settlement = settlement
        self.deadline = deadline
        self.is_alone = False
        """Whether it travels alone, because a request with others was refused."""
        self.is_ended = False
        self._call = call
        self._position = position

    def end(self, verdict: Verdict) -> None:
        if not self.is_ended:
            self.is_ended = True
            self._call.end(self._position, verdict)


class _Request:
    """Settlements of a partition. They have one number until they are answered, or until its session is forgotten."""

    def __init__(self, owner: _PartitionSettlements, ack: pb.PartitionAck, waiting: list[_Waiting]) -> None:
        self.ack = ack
        self.waiting = waiting
        self.is_numbered = False
        self.is_sent = False
        """Whether a link has it, and will report its answer or its loss."""
        self.may_be_applied = False
        """Whether an attempt was lost, so that a later refusal does not say that nothing was done."""
        self.is_first_answer_forgotten = False
        """Whether such an attempt was made under a number whose answer nobody remembers."""
        self._owner = owner

    @property
    def trace_contexts(self) -> list[bytes]:
        return [one.settlement.trace_context for one in self.waiting]

    def on_result(self, result: pb.PartitionAckResult) -> None:
        self._owner.on_result(self, result)

    def on_lost(self, error: RaftMQError) -> None:
        self._owner.on_lost(self, error)


class ChainSettings(NamedTuple):
    """The conditions of messages that are put with settlements."""

    codec: int
    bytes_max: int
    """Bytes of messages in one request, unless it holds the messages of one settlement."""


class Settler:
    """The settlements of one `Queue`. One event loop."""

    def __init__(
        self,
        resolver: Resolver,
        links: Links,
        timeout_seconds: float,
        puts: ChainSettings,
        on_crash: Callable[[BaseException], None],
    ) -> None:
        self.puts = puts
        self.resolver = resolver
        self.timeout_seconds = timeout_seconds
        self.on_crash = on_crash
        self.loop = asyncio.get_running_loop()
        self._links = links
        self._partitions: dict[QueuePartition, _PartitionSettlements] = {}
        self._ticker: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._drained = asyncio.Event()
        self._drained.set()

    def prepare(self, partition: QueuePartition) -> None:
        """Open a session in a partition, if there is none."""
        self._of(partition).open_session()

    def settle(self, settlements: Sequence[Settlement]) -> asyncio.Future[list[Verdict]]:
        """Begin settlements. The future gets their verdicts, at the latest when the time is over. Cancelling it withdraws nothing."""
        verdicts: asyncio.Future[list[Verdict]] = self.loop.create_future()
        if self._is_closed or not settlements:
            closed = ClosedClientError("the queue is closed, and its messages are delivered again")
            verdicts.set_result([closed] * len(settlements))
            return verdicts
        call, deadline = _Call(len(settlements), verdicts), self.loop.time() + self.timeout_seconds
        for position, settlement in enumerate(settlements):
            self._of(settlement.lease.partition).add(_Waiting(settlement, deadline, call, position))
        self._drained.clear()
        if self._ticker is None:
            self._ticker = self.loop.call_later(settings.ACK_CHECK_SECONDS, self._tick)
        return verdicts

    async def drain(self, timeout_seconds: float) -> None:
        """Wait until every settlement has a verdict, or the time is over."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._drained.wait()
        except TimeoutError:
            log.warning("settlements_abandoned timeout_seconds=%g", timeout_seconds)

    async def close(self) -> None:
        """End the settlements that have no verdict: they may be applied."""
        self._is_closed = True
        if self._ticker is not None:
            self._ticker.cancel()
        for partition in self._partitions.values():
            partition.end(BrokenConnectionError("the queue was closed, and the settlement may have been applied"))
        await cancel_and_wait(*(partition.opening for partition in self._partitions.values()))

    def link(self, partition: QueuePartition) -> BrokerLink | None:
        """Return a stream to the partition's leader, or None if no leader is known."""
        leader = self.resolver.leader(partition.group_id)
        return None if leader is None else self._links.link_for_settlements(self.resolver.address(leader))

    def record_idle(self) -> None:
        """Note that a partition has no more settlements."""
        if not any(partition.is_busy for partition in self._partitions.values()):
            self._drained.set()

    def _of(self, partition: QueuePartition) -> _PartitionSettlements:
        found = self._partitions.get(partition)
        if found is None:
            found = self._partitions[partition] = _PartitionSettlements(self, partition)
        return found

    def _tick(self) -> None:
        self._ticker = None
        now = self.loop.time()
        for link in self._links.links():
            link.check_late(now, self.timeout_seconds)
        for partition in self._partitions.values():
            partition.end_overdue(now)
        if any(partition.is_busy for partition in self._partitions.values()):
            self._ticker = self.loop.call_later(settings.ACK_CHECK_SECONDS, self._tick)


class _PartitionSettlements:
    """The settlements of one partition: those that wait, and the requests in flight."""

    def __init__(self, settler: Settler, partition: QueuePartition) -> None:
        self.opening: asyncio.Task[None] | None = None
        self._settler = settler
        self._partition = partition
        self._session: int | None = None
        """None: it must be opened. `_NO_SESSION`: the partition had too many."""
        self._ask_again_at = 0.0
        """Loop time from which the partition is asked again for a session if it had too many."""
        self._next_request = 1
        self._waiting: list[_Waiting] = []
        self._requests: list[_Request] = []
        """The requests in flight, and those to repeat, in the order in which they were made."""
        self._flush_handle: asyncio.Handle | None = None
        self._is_retry_scheduled = False
        """Whether the flush is a repetition after a failure. Nothing is sent before it."""
        self._backoff = Backoff(
            settings.RETRY_BACKOFF_MIN_SECONDS, settings.RETRY_BACKOFF_MAX_SECONDS, settler.resolver.rng
        )

    @property
    def is_busy(self) -> bool:
        """Return whether a settlement has no verdict."""
        return bool(self._waiting or self._requests)

    def add(self, waiting: _Waiting) -> None:
        """Add a settlement. It is sent at the end of this turn of the event loop, unless too many requests are in flight."""
        self._waiting.append(waiting)
        if self._flush_handle is None and self._has_room():
            self._flush_handle = self._settler.loop.call_soon(self._flush)

    def end_overdue(self, now: float) -> None:
        """End settlements whose time is over. Those in flight may still be applied."""
        late = [waiting for waiting in self._waiting if waiting.deadline <= now]
        if late:
            self._waiting = [waiting for waiting in self._waiting if waiting.deadline > now]
        late += [waiting for request in self._requests for waiting in request.waiting if waiting.deadline <= now]
        for waiting in late:
            waiting.end(
                RequestTimedOutError(
                    f"no answer to the settlement of message {waiting.settlement.lease.sequence} in time"
                )
            )
        # nobody waits for the others: a later answer is ignored
        self._requests = [
            request for request in self._requests if not all(waiting.is_ended for waiting in request.waiting)
        ]
        self._continue()

    def end(self, error: RaftMQError) -> None:
        """End everything."""
        in_flight = [waiting for request in self._requests for waiting in request.waiting]
        for waiting in (*in_flight, *self._waiting):
            waiting.end(error)
        self._waiting, self._requests = [], []
        if self._flush_handle is not None:
            self._flush_handle.cancel()

    # ---------------------------------------------------------------------------------------------------------- sessions

    def open_session(self) -> None:
        """Open a session in the background, if there is none. A partition that had too many is asked from time to time: they expire."""
        is_due = self._session == _NO_SESSION and self._settler.loop.time() >= self._ask_again_at
        if (self._session is None or is_due) and self.opening is None:
            self._ask_again_at = self._settler.loop.time() + settings.SESSION_RETRY_SECONDS
            self.opening = spawn(self._open_session(), "raftmq-queue-session", self._settler.on_crash)

    async def _open_session(self) -> None:
        try:
            self._session = await self._ask_session()
        except UnknownTopicError as error:
            self._give_up(error)
        except RaftMQError as error:
            log.debug("session_not_opened partition=%d error_code=%s", self._partition.partition, name_of(error))
        finally:
            self.opening = None
        self._next_request = 1
        if self.is_busy:
            self._flush_after(0.0 if self._session is not None else self._backoff.next_seconds())

    async def _ask_session(self) -> int:
        partition = self._partition
        request = pb.OpenSessionRequest(
            metadata_revision=self._settler.resolver.metadata_revision,
            timeout_ms=whole_ms(self._settler.timeout_seconds),
            topic_id=partition.topic_id,
            partitions=[partition.partition],
        )

        def session_of(answer: pb.OpenSessionResponse) -> int:
            if len(answer.partitions) != 1:
                raise ProtocolError(f"the broker opened {len(answer.partitions)} sessions instead of 1")
            if answer.partitions[0].HasField("error"):
                error = error_from_detail(answer.partitions[0].error)
                if isinstance(error, TooManySessionsError):
                    return _NO_SESSION  # one must expire first, and no settlement should wait for that
                raise error
            return answer.partitions[0].session

        # A session that is opened twice only expires, so an unknown outcome is no reason to give up.
        return await call_leader(
            self._settler.resolver,
            partition,
            OPEN_SESSION,
            request,
            session_of,
            self._settler.timeout_seconds,
            is_read=True,
        )

    # ----------------------------------------------------------------------------------------------------------- sending

    def _flush_after(self, seconds: float) -> None:
        if self._flush_handle is not None:
            self._flush_handle.cancel()
        loop = self._settler.loop
        self._flush_handle = loop.call_later(seconds, self._flush) if seconds else loop.call_soon(self._flush)

    def _retry_after(self, seconds: float) -> None:
        """Repeat lost and refused requests. All those of one broken stream are repeated together."""
        self._is_retry_scheduled = True
        self._flush_after(seconds)

    def _flush(self) -> None:
        self._flush_handle = None
        self._is_retry_scheduled = False
        try:
            self._send()
        except Exception as error:  # noqa: BLE001 -- the root of a callback
            self._settler.on_crash(error)

    def _send(self) -> None:
        """Send the requests that are not sent, and make others of the settlements that wait."""
        for request in list(self._requests):
            if not request.is_sent and not self._ship(request):
                return
        while self._waiting and self._has_room():
            if self._session is None:
                self.open_session()
                return
            made = self._make_request()
            if made is None:
                continue
            self._requests.append(made)
            if not self._ship(made):
                return
        if not self.is_busy:
            self._settler.record_idle()

    def _has_room(self) -> bool:
        """Return whether there may be one more request in flight."""
        requests = self._requests
        if not requests:
            return True
        if any(not request.is_numbered or request.ack.session != self._session for request in requests):
            return False  # those of an earlier session get their numbers first
        span = self._next_request - min(request.ack.request for request in requests) if self._session else 0
        return max(len(requests), span) < settings.ACKS_IN_FLIGHT_MAX

    def _ship(self, request: _Request) -> bool:
        """Hand a request to the link to the leader. Return whether later ones may follow now."""
        if not request.is_numbered:
            if self._session is None:
                self.open_session()
                return False
            self._number(request)
        link = self._settler.link(self._partition)
        if link is not None:
            request.is_sent = True
            link.ship(request)
            return True
        if any(info.topic_id == self._partition.topic_id for info in self._settler.resolver.topics.values()):
            self._retry_after(self._backoff.next_seconds())
        else:
            self._give_up(UnknownTopicError("the topic was deleted, and its messages with it"))
        return False

    def _make_request(self) -> _Request | None:
        """Return the next request. None: the oldest settlements cannot be sent together, and the next request has fewer of them."""
        taken = self._take_waiting()
        try:
            if taken[0].settlement.puts:
                ack = build_chain(self._partition, [one.settlement for one in taken], self._settler.puts.codec)
            else:
                taken.sort(key=lambda waiting: waiting.settlement.lease.sequence)
                ack = build_ack(self._partition, [one.settlement for one in taken])
        except Exception as defect:  # noqa: BLE001 -- the callers of the other settlements must not wait without end
            lease = taken[0].settlement.lease
            error = InvalidArgumentError(
                f"the settlement of message {lease.sequence} of partition {lease.partition.partition} cannot be sent: {defect}"
            )
            error.__cause__ = defect
            self._refuse(taken, error)
            return None
        return _Request(self, ack, taken)

    def _take_waiting(self) -> list[_Waiting]:
        """Remove and return the oldest settlements, as many as one request carries."""
        if self._waiting[0].is_alone:
            return [self._waiting.pop(0)]
        candidates = [waiting.settlement for waiting in self._waiting[: settings.ACK_MESSAGES_MAX]]
        count = share_of(candidates, self._settler.puts.bytes_max)
        taken = self._waiting[:count]
        del self._waiting[:count]
        return taken

    def _number(self, request: _Request) -> None:
        """Put a request under the next number of the session."""
        request.is_numbered = True
        request.ack.session, request.ack.request = self._session or _NO_SESSION, 0
        if request.ack.session:
            request.ack.request = self._next_request
            self._next_request += 1

    # ----------------------------------------------------------------------------------------------------------- answers

    def on_result(self, request: _Request, result: pb.PartitionAckResult) -> None:
        """Handle the answer to a request."""
        if request not in self._requests:
            return
        request.is_sent = False
        if result.HasField("error"):
            self._on_refused(request, error_from_detail(result.error))
            return
        self._backoff.reset()
        self._requests.remove(request)
        ack, done = request.ack, request.waiting
        codes, granted = codes_of(result, len(done)), granted_of(ack, result)
        is_doubtful = request.may_be_applied and (request.is_first_answer_forgotten or not ack.session)
        for waiting, code, granted_ms in zip(done, codes, granted, strict=True):
            settlement = waiting.settlement
            settlement.lease.on_granted(granted_ms)
            if is_doubtful and code == pb.LEASE_LOST and settlement.operation != pb.RENEW:
                code = pb.LEASE_UNKNOWN  # the newer lease may follow from this settlement
            waiting.end(_verdict_of(code, settlement.lease))
        self._continue()

    def _on_refused(self, request: _Request, error: RaftMQError) -> None:
        if isinstance(error, UnknownSessionError):
            # The tokens alone now decide: a settlement that was applied under the old session is reported as unknown.
            request.is_numbered = False
            request.is_first_answer_forgotten |= request.may_be_applied
            if request.ack.session == self._session:
                self._session = None
                self.open_session()
            else:
                self._continue()
        elif isinstance(error, NotLeaderError):
            has_better = self._settler.resolver.on_not_leader(self._partition.group_id, error)
            if not self._is_retry_scheduled:
                is_first = has_better and not self._backoff.failures
                self._retry_after(0.0 if is_first else self._backoff.next_seconds())
        elif error.outcome is Outcome.UNKNOWN:
            request.may_be_applied = True
            self._repeat(error)
        elif _is_final(request, error):
            self._requests.remove(request)
            self._end_refused(request, error)
            self._continue()
        else:
            self._repeat(error)

    def _end_refused(self, request: _Request, error: RaftMQError) -> None:
        """End the settlements of a request that was refused. They are first tried alone if the refusal may concern one of them."""
        if request.ack.put or isinstance(error, InvalidArgumentError):
            self._refuse(request.waiting, error)
            return
        for waiting in request.waiting:
            waiting.end(error)

    def _refuse(self, refused: Sequence[_Waiting], error: RaftMQError) -> None:
        """Try settlements alone that cannot be sent together, or end the one that cannot be sent alone."""
        if len(refused) == 1:
            refused[0].end(error)
            return
        for waiting in refused:
            waiting.is_alone = True
        self._waiting[:0] = [waiting for waiting in refused if not waiting.is_ended]

    def on_lost(self, request: _Request, error: RaftMQError) -> None:
        """Handle the end of a stream before the answer to a request."""
        if isinstance(error, UnknownTopicError):
            self._give_up(error)
        elif request in self._requests:
            request.is_sent = False
            request.may_be_applied |= error.outcome is Outcome.UNKNOWN
            self._repeat(error)

    def _give_up(self, error: UnknownTopicError) -> None:
        """End everything, because the topic was deleted."""
        self.end(error)
        self._settler.record_idle()

    def _repeat(self, error: RaftMQError) -> None:
        """Send the requests that were lost or refused again, under their numbers."""
        if not self._is_retry_scheduled:
            log.debug("settlements_repeated partition=%d error_code=%s", self._partition.partition, name_of(error))
            self._retry_after(max(self._backoff.next_seconds(), error.retry_after_ms / 1000))

    def _continue(self) -> None:
        is_unsent = any(not request.is_sent for request in self._requests)
        if is_unsent or (self._waiting and self._has_room()):
            must_wait = self._session is None and self.opening is not None
            if self._flush_handle is None and not must_wait:
                self._flush_handle = self._settler.loop.call_soon(self._flush)
        elif not self.is_busy:
            self._settler.record_idle()


def _is_final(request: _Request, error: RaftMQError) -> bool:
    """Return whether a refusal, which says that nothing was done, ends a request.

    Only consumers make room in a full partition, perhaps much later, and this one may hold what is needed for that.
    """
    if isinstance(error, QueueFullError | TenantFullError):
        return not request.may_be_applied
    return not error.retriable


def _verdict_of(code: int, lease: Lease) -> Verdict:
    if code == pb.OK:
        return None
    return refusal(code, f"message {lease.sequence} of partition {lease.partition.partition}")
