# ruff: noqa: N802 - the names of gRPC's servicer methods
"""Provide a FAKE service Queue for the SDK's tests: a list of messages per partition, without Raft, fairness or a disk.

It keeps the promises on which a client relies: one valid lease at a time, tokens compared, requests of a session answered once. Its clock is
the monotonic clock plus an offset, which a test moves.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from raftmq.message_block import MessageBlock, pack_block
from raftmq.message_checks import TIME_AFTER, TIME_AT
from raftmq.proto import queue_pb2 as pb
from raftmq.proto import queue_pb2_grpc as rpc
from raftmq.queue_batch import QueueBodies, parse_fields

if TYPE_CHECKING:
    from tests.support.client.fake_broker import FakeBroker, FakePartition, FakeTopic

LEASE_MS = 30_000
LEASE_MAX_MS = 12 * 60 * 60 * 1000
BACKOFF_MS = 50
SESSION_REQUESTS_MAX = 5


@dataclass
class FakeMessage:
    sequence: int
    body: bytes
    checksum: int
    position: int
    codec: int
    enqueued_ms: int
    due_ms: int
    priority: int = 0
    tenant: bytes = b""
    id: bytes | None = None
    key: bytes | None = None
    headers: bytes | None = None
    expires_ms: int | None = None
    attempts: int = 0
    lease_number: int = 0
    lease_until_ms: int | None = None
    version: int = 1
    error: str = ""
    progress: str = ""
    dead_reason: str = ""

    def state(self, now_ms: int) -> int:
        if self.dead_reason:
            return pb.DEAD
        if self.lease_until_ms is not None:
            return pb.LEASED
        return pb.READY if self.due_ms <= now_ms else pb.DELAYED


@dataclass
class FakeSession:
    answers: dict[int, pb.PartitionAckResult] = field(default_factory=dict)


class FakeQueue:
    """The messages of one partition."""

    def __init__(self) -> None:
        self.messages: dict[int, FakeMessage] = {}
        self.sessions: dict[int, FakeSession] = {}
        self.sessions_max = 10_000
        self.attempts_max = 3
        self.lease_ms = LEASE_MS
        self.lease_max_ms = LEASE_MAX_MS
        self.offset_ms = 0
        self.paused: set[bytes] = set()
        self.settled: list[tuple[str, int]] = []
        """Every settlement that was applied: the name of the operation and the sequence."""
        self.releases: list[pb.AckDetail] = []
        self.schedules: dict[str, pb.Schedule] = {}
        self.scheduled: dict[str, bytes] = {}
        self.accepted_total = 0
        self.enqueued_total = 0
        self.clock_behind_ms = 0
        self._last_session = 0

    def now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000 + self.offset_ms

    def next_due_ms(self) -> int | None:
        """Return the time until the next delayed message is due, if that is soon. A test moves the clock to later ones."""
        now = self.now_ms()
        left = [m.due_ms - now for m in self.messages.values() if m.state(now) == pb.DELAYED]
        return min(left) + 1 if left and min(left) < 10 * BACKOFF_MS else None

    # ------------------------------------------------------------------------------------------------------------ enqueue

    def enqueue(self, base: int, batch: bytes) -> list[tuple[int, int, bool]]:
        """Add the messages of a batch. Return position, sequence and replacement of each id that was known."""
        fields, bodies, now = parse_fields(batch), QueueBodies(batch), self.now_ms()
        tenants = fields.tenants.to_list()
        known: list[tuple[int, int, bool]] = []
        for at in range(bodies.count):
            name = fields.ids[at] if fields.ids is not None else None
            earlier = next((m for m in self.messages.values() if name is not None and m.id == name), None)
            if earlier is not None:
                is_replaced = bool(fields.replaces and fields.replaces[at]) and earlier.lease_until_ms is None
                known.append((at, earlier.sequence, is_replaced))
                if not is_replaced:
                    continue
                del self.messages[earlier.sequence]
            kind, value = (fields.due.kinds[at], fields.due.values_ms[at]) if fields.due is not None else (0, 0)
            due = {TIME_AFTER: now + value, TIME_AT: now + value - time.time_ns() // 1_000_000}.get(kind, now)
            self.enqueued_total += 1
            self.messages[base + at] = FakeMessage(
                base + at,
                bytes(bodies.body(at)),
                bodies.checksum(at),
                at,
                bodies.codecs[at] if bodies.codecs is not None else 0,
                now,
                due,
                priority=fields.priorities[at] if fields.priorities is not None else 0,
                tenant=tenants[at],
                id=name,
                key=fields.keys[at] if fields.keys is not None else None,
                headers=fields.headers[at] if fields.headers is not None else None,
                expires_ms=fields.expiry.values_ms[at] if fields.expiry is not None else None,
            )
        return known

    # -------------------------------------------------------------------------------------------------------------- lease

    def lease(
        self, count: int, lease_ms: int, tenants: Iterable[str], *, auto_accept: bool = False, key: bytes = b""
    ) -> list[FakeMessage]:
        now = self.now_ms()
        self.expire(now)
        if key:
            (tenant,) = tenants
            line = sorted(m.sequence for m in self.messages.values() if (m.tenant.decode(), m.key) == (tenant, key))
            if not line or self.messages[line[0]].state(now) != pb.READY:
                return []
            return self._take([self.messages[line[0]]], lease_ms, now, auto_accept=auto_accept)
        wanted = [tenant.encode() for tenant in tenants]
        ready = [m for m in self.messages.values() if m.state(now) == pb.READY and self._is_wanted(m, wanted)]
        taken = sorted(ready, key=lambda m: (m.priority, m.due_ms, m.sequence))[:count]
        return self._take(taken, lease_ms, now, auto_accept=auto_accept)

    def _take(self, taken: list[FakeMessage], lease_ms: int, now: int, *, auto_accept: bool) -> list[FakeMessage]:
        for message in taken:
            message.attempts += 1
            message.lease_number += 1
            message.version += 1
            message.lease_until_ms = now + min(lease_ms or self.lease_ms, self.lease_max_ms)
            if auto_accept:
                del self.messages[message.sequence]
        return taken

    def _is_wanted(self, message: FakeMessage, tenants: list[bytes]) -> bool:
        if any(_is_below(message.tenant, paused) for paused in self.paused):
            return False
        return not tenants or any(_is_below(message.tenant, tenant) for tenant in tenants)

    def expire(self, now: int) -> None:
        for message in self.messages.values():
            if message.lease_until_ms is not None and message.lease_until_ms <= now:
                self._back(message, now)

    def _back(self, message: FakeMessage, due_ms: int) -> bool:
        message.lease_until_ms = None
        message.version += 1
        message.due_ms = due_ms
        if message.attempts >= self.attempts_max:
            message.dead_reason = "exhausted"
        return not message.dead_reason

    # ------------------------------------------------------------------------------------------------------------- settle

    def open_session(self) -> int:
        self._last_session += 1
        self.sessions[self._last_session] = FakeSession()
        return self._last_session

    def settle(self, ack: pb.PartitionAck, partition: FakePartition) -> pb.PartitionAckResult:
        result = pb.PartitionAckResult(topic_id=ack.topic_id, partition=ack.partition)
        session = self.sessions.get(ack.session)
        if ack.session and session is None:
            result.error.CopyFrom(pb.ErrorDetail(code=pb.UNKNOWN_SESSION, message="the session has ended"))
            return result
        if session is not None and ack.request in session.answers:
            return session.answers[ack.request]
        for at, operation in enumerate(ack.operations):
            detail = ack.details[ack.detail_numbers[at] - 1] if ack.detail_numbers and ack.detail_numbers[at] else None
            for sequence in range(ack.first_sequences[at], ack.first_sequences[at] + ack.counts[at]):
                code = self._settle_one(operation, sequence, ack.lease_numbers[at], detail)
                if result.codes and result.codes[-1] == code:
                    result.counts[-1] += 1
                else:
                    result.codes.append(code)
                    result.counts.append(1)
        if pb.RENEW in ack.operations:
            result.granted_ms.extend(self._granted_ms(ack))
        if ack.put:
            self._put_chain(ack, result, partition)
        if session is not None:
            session.answers[ack.request] = result
            while len(session.answers) > SESSION_REQUESTS_MAX:
                del session.answers[min(session.answers)]
        return result

    def _granted_ms(self, ack: pb.PartitionAck) -> list[int]:
        """Return the shortest time left of the leases of each run. 0: none is there."""
        now, granted = self.now_ms(), []
        runs = zip(ack.operations, ack.first_sequences, ack.counts, ack.lease_numbers, strict=True)
        for operation, first, count, number in runs:
            found = [self.messages.get(sequence) for sequence in range(first, first + count)]
            untils = [m.lease_until_ms for m in found if m is not None and m.lease_number == number]
            left = [until - now for until in untils if until is not None and operation == pb.RENEW]
            granted.append(min(left, default=0))
        return granted

    def _put_chain(self, ack: pb.PartitionAck, result: pb.PartitionAckResult, partition: FakePartition) -> None:
        """Enqueue the messages that belong to accepted ones."""
        base = partition.end
        assert partition.append(ack.put, 0) == (base, None)
        codes = [code for code, count in zip(result.codes, result.counts, strict=True) for _ in range(count)]
        belongs = [code for code, count in zip(codes, ack.put_counts, strict=True) for _ in range(count)]
        for at, code in enumerate(belongs):
            if code != pb.OK:
                del self.messages[base + at]

    def _settle_one(self, operation: int, sequence: int, lease_number: int, detail: pb.AckDetail | None) -> int:
        now = self.now_ms()
        self.expire(now)
        message = self.messages.get(sequence)
        if message is None:
            return pb.LEASE_UNKNOWN
        if message.lease_until_ms is None or message.lease_number != lease_number:
            return pb.LEASE_LOST
        detail = detail or pb.AckDetail()
        self.settled.append((pb.AckOperation.Name(operation), sequence))
        message.error = detail.error or message.error
        if operation == pb.ACCEPT:
            del self.messages[sequence]
            self.accepted_total += 1
        elif operation == pb.REJECT:
            message.lease_until_ms, message.dead_reason = None, "rejected"
        elif operation == pb.RENEW:
            message.lease_until_ms = now + min(detail.lease_ms or self.lease_ms, self.lease_max_ms)
            message.progress = detail.progress or message.progress
        else:
            self.releases.append(detail)
            message.attempts -= detail.is_uncounted
            message.priority = detail.priority if detail.HasField("priority") else message.priority
            delay = detail.delay_ms if detail.HasField("delay_ms") else BACKOFF_MS
            keeps_place = detail.is_uncounted and not detail.HasField("delay_ms")
            if not self._back(message, message.due_ms if keeps_place else now + delay):
                return pb.ATTEMPTS_EXHAUSTED
        return pb.OK

    # ------------------------------------------------------------------------------------------------------------- change

    def change(self, change: pb.MessageChange) -> pb.ChangeResult:
        now = self.now_ms()
        found = [m for m in self.messages.values() if m.sequence == change.sequence or m.id == change.id.encode()]
        message = next((m for m in found if m.id == change.id.encode() if change.id), None) if change.id else None
        if message is None and not change.id:
            message = self.messages.get(change.sequence)
        if message is None:
            return pb.ChangeResult(code=pb.NO_SUCH_MESSAGE)
        state = message.state(now)
        if state == pb.LEASED:
            return pb.ChangeResult(code=pb.MESSAGE_LEASED, version=message.version)
        if change.HasField("version") and change.version != message.version:
            return pb.ChangeResult(code=pb.VERSION_CONFLICT, version=message.version)
        is_fitting = {pb.MOVE: state != pb.DEAD, pb.REDRIVE: state == pb.DEAD, pb.CANCEL: True}[change.operation]
        if not is_fitting:
            return pb.ChangeResult(code=pb.WRONG_MESSAGE_STATE, version=message.version)
        message.version += 1
        if change.operation == pb.CANCEL:
            del self.messages[message.sequence]
            return pb.ChangeResult(code=pb.OK)
        if change.operation == pb.REDRIVE:
            message.dead_reason, message.attempts, message.due_ms = "", 0, now
        if change.HasField("delay_ms"):
            message.due_ms = now + change.delay_ms
        if change.HasField("not_before_ms"):
            message.due_ms = now + change.not_before_ms - time.time_ns() // 1_000_000
        if change.HasField("priority"):
            message.priority = change.priority
        return pb.ChangeResult(code=pb.OK, version=message.version)

    def purge(self, states: Iterable[int]) -> int:
        wanted, now = set(states), self.now_ms()
        gone = [m.sequence for m in self.messages.values() if not wanted or m.state(now) in wanted]
        for sequence in gone:
            del self.messages[sequence]
        return len(gone)

    def redrive_all(self) -> int:
        now = self.now_ms()
        dead = [m for m in self.messages.values() if m.dead_reason]
        for message in dead:
            message.dead_reason, message.attempts, message.due_ms = "", 0, now
        return len(dead)


def _counts(messages: list[FakeMessage], now_ms: int) -> pb.StateCounts:
    states = [m.state(now_ms) for m in messages]
    return pb.StateCounts(
        ready=states.count(pb.READY),
        delayed=states.count(pb.DELAYED),
        leased=states.count(pb.LEASED),
        dead=states.count(pb.DEAD),
    )


def _is_below(tenant: bytes, root: bytes) -> bool:
    return not root or tenant == root or tenant.startswith(root + b".")


def block_of(messages: list[FakeMessage], now_ms: int, *, is_leased: bool = True, with_bodies: bool = True) -> bytes:
    return pack_block(
        MessageBlock(
            sequences=[m.sequence for m in messages],
            lease_numbers=[m.lease_number for m in messages],
            attempts=[m.attempts for m in messages],
            enqueued_ms=[m.enqueued_ms for m in messages],
            bodies=[m.body if with_bodies else b"" for m in messages],
            body_checksums=[m.checksum for m in messages],
            body_positions=[m.position for m in messages],
            codecs=[m.codec for m in messages],
            lease_remaining_ms=[max(0, (m.lease_until_ms or 0) - now_ms) for m in messages] if is_leased else None,
            priorities=[m.priority for m in messages],
            tenants=[m.tenant for m in messages],
            ids=[m.id for m in messages],
            keys=[m.key for m in messages],
            headers=[m.headers for m in messages],
        )
    )


AckHook = Callable[[pb.PartitionAck], "pb.ErrorDetail | str | None"]
"""Called with each PartitionAck. Returns None (apply), an error (refuse) or "drop" (apply, and break the stream without an answer)."""


class FakeStream:
    """One PollStream, without a network."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.open = pb.QueueStreamOpen()
        self.credit = 0
        self.sent = 0
        self.responses: asyncio.Queue[pb.QueueStreamResponse | None] = asyncio.Queue()
        """None: the stream ends."""
        self.is_broken = False
        broker.cluster.queue_streams[self] = None

    def on_request(self, request: pb.QueueStreamRequest) -> None:
        self.broker.cluster.stream_requests.append((self.broker.broker_id, request))
        if request.HasField("open"):
            self.open = request.open
            if self.broker.cluster.stream_error is not None:
                self.responses.put_nowait(pb.QueueStreamResponse(error=self.broker.cluster.stream_error))
                self.end()
                return
        self.credit = request.messages_limit - self.sent
        if request.acks:
            results = self.broker.queue.settle_all(request.acks)
            if results is None:
                self.break_off()
                return
            answer = pb.QueueStreamResponse(correlation_id=request.correlation_id, results=results)
            if self.broker.cluster.held_answers is None:
                self.responses.put_nowait(answer)
            else:
                self.broker.cluster.held_answers.append((self, answer))
        self.broker.cluster.serve_queues()
        if request.goodbye:
            self.end()

    def push(self) -> None:
        """Send messages within the credit."""
        if self.credit <= 0 or self.is_broken:
            return
        leased = self.broker.queue.lease_all(self.open, self.credit)
        count = sum(count for _, count in leased)
        self.credit -= count
        self.sent += count
        if leased:
            self.responses.put_nowait(pb.QueueStreamResponse(messages=[block for block, _ in leased]))

    def end(self) -> None:
        self.credit = 0
        self.broker.cluster.queue_streams.pop(self, None)
        self.responses.put_nowait(None)

    def break_off(self) -> None:
        self.is_broken = True
        self.end()


class FakeQueueService(rpc.QueueServicer):
    """The service Queue of one broker."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker

    def _led(self, topic_id: int) -> list[tuple[FakeTopic, int, FakePartition]]:
        topic = self.broker.cluster.find(topic_id)
        parts = [] if topic is None else list(enumerate(topic.partitions))
        return [(topic, n, p) for n, p in parts if topic is not None and p.leader == self.broker.broker_id]

    def lease_all(
        self, wanted: pb.QueueStreamOpen, count: int, partitions: Iterable[int] = (), key: bytes = b""
    ) -> list[tuple[pb.LeasedMessages, int]]:
        found: list[tuple[pb.LeasedMessages, int]] = []
        named = set(partitions)
        for topic, number, partition in self._led(wanted.topic_id):
            if named and number not in named:
                continue
            messages = partition.queue.lease(
                count, wanted.lease_ms, wanted.tenants, auto_accept=wanted.auto_accept, key=key
            )
            if messages:
                block = block_of(messages, partition.queue.now_ms())
                found.append((pb.LeasedMessages(topic_id=topic.topic_id, partition=number, block=block), len(messages)))
                count -= len(messages)
        return found

    def settle_all(self, acks: Iterable[pb.PartitionAck]) -> list[pb.PartitionAckResult] | None:
        """Settle, and return the results. None: the answer is lost."""
        cluster, is_dropped = self.broker.cluster, False
        results: list[pb.PartitionAckResult] = []
        for ack in acks:
            cluster.acks.append(ack)
            verdict = cluster.ack_hook(ack) if cluster.ack_hook is not None else None
            topic = cluster.find(ack.topic_id)
            partition = topic.partitions[ack.partition] if topic is not None else None
            result = pb.PartitionAckResult(topic_id=ack.topic_id, partition=ack.partition)
            if isinstance(verdict, pb.ErrorDetail):
                result.error.CopyFrom(verdict)
            elif partition is None:
                result.error.CopyFrom(pb.ErrorDetail(code=pb.UNKNOWN_TOPIC))
            elif partition.leader != self.broker.broker_id:
                result.error.CopyFrom(self.broker._not_leader(partition))
            else:
                result = partition.queue.settle(ack, partition)
                is_dropped |= verdict == "drop"
            results.append(result)
        cluster.on_settled()
        return None if is_dropped else results

    # -------------------------------------------------------------------------------------------------------------- calls

    async def Poll(self, request, context):
        self.broker.cluster.queue_polls.append((self.broker.broker_id, request))
        if self.broker.broker_id == self.broker.cluster.silent_poller:
            await asyncio.Event().wait()
        wanted = pb.QueueStreamOpen(
            topic_id=request.topic_id,
            lease_ms=request.lease_ms,
            tenants=request.tenants,
            auto_accept=request.auto_accept,
        )
        deadline = time.monotonic() + request.max_wait_ms / 1000
        while True:
            leased = self.lease_all(wanted, request.max_messages, request.partitions, request.key)
            left = deadline - time.monotonic()
            if leased or left <= 0:
                return pb.QueuePollResponse(partitions=[block for block, _ in leased] + self._refusals(request))
            try:
                async with asyncio.timeout(left), self.broker.cluster.queue_changed:
                    await self.broker.cluster.queue_changed.wait()
            except TimeoutError:
                continue

    def _refusals(self, request: pb.QueuePollRequest) -> list[pb.LeasedMessages]:
        topic = self.broker.cluster.find(request.topic_id)
        return [
            pb.LeasedMessages(topic_id=topic.topic_id, partition=number, error=self.broker._not_leader(partition))
            for number, partition in enumerate(topic.partitions)
            if number in request.partitions and partition.leader != self.broker.broker_id
        ]

    async def PollStream(self, request_iterator, context) -> AsyncIterator[pb.QueueStreamResponse]:
        stream = FakeStream(self.broker)

        async def read() -> None:
            async for request in request_iterator:
                stream.on_request(request)

        reader = asyncio.ensure_future(read())
        try:
            while (response := await stream.responses.get()) is not None:
                yield response
        finally:
            reader.cancel()
            self.broker.cluster.queue_streams.pop(stream, None)

    async def Ack(self, request, context):
        self.broker.cluster.unary_acks.append(request)
        return pb.AckResponse(partitions=self.settle_all(request.partitions))

    async def OpenSession(self, request, context):
        response = pb.OpenSessionResponse()
        for number in request.partitions:
            partition = await self._partition(request.topic_id, number, context)
            if len(partition.queue.sessions) >= partition.queue.sessions_max:
                too_many = pb.ErrorDetail(
                    code=pb.TOO_MANY_SESSIONS, message="too many sessions", outcome=pb.NOT_APPLIED
                )
                response.partitions.add(partition=number, error=too_many)
            else:
                response.partitions.add(partition=number, session=partition.queue.open_session())
        return response

    async def Browse(self, request, context):
        queue = (await self._partition(request.topic_id, request.partition, context)).queue
        now = queue.now_ms()
        after = int(request.cursor or b"-1")
        found = [
            m
            for m in sorted(queue.messages.values(), key=lambda m: m.sequence)
            if m.sequence > after
            and request.state in (pb.ANY_STATE, m.state(now))
            and _is_below(m.tenant, request.tenant.encode())
            and (not request.id or m.id == request.id.encode())
            and (not request.is_single or m.sequence == request.sequence)
        ]
        page = found[: request.limit or len(found)]
        if not page:
            return pb.BrowseResponse()
        statuses = [
            pb.MessageStatus(
                state=m.state(now),
                version=m.version,
                due_in_ms=m.due_ms - now,
                lease_left_ms=max(0, (m.lease_until_ms or 0) - now),
                error=m.error,
                progress=m.progress,
                dead_reason=m.dead_reason,
            )
            for m in page
        ]
        cursor = b"%d" % page[-1].sequence if len(found) > len(page) else b""
        block = block_of(page, now, is_leased=False, with_bodies=request.with_bodies)
        return pb.BrowseResponse(block=block, statuses=statuses, cursor=cursor)

    async def QueueStats(self, request, context):
        response = pb.QueueStatsResponse()
        for number in request.partitions:
            queue = (await self._partition(request.topic_id, number, context)).queue
            now = queue.now_ms()
            messages = list(queue.messages.values())
            tenants = sorted({m.tenant for m in messages if m.tenant})
            response.partitions.add(
                partition=number,
                counts=_counts(messages, now),
                oldest_ready_age_ms=max((now - m.due_ms for m in messages if m.state(now) == pb.READY), default=0),
                enqueued_total=queue.enqueued_total,
                accepted_total=queue.accepted_total,
                clock_difference_ms=-queue.clock_behind_ms,
                dwell=pb.DwellTimes(bounds_seconds=[0.1, 1.0], counts=[1, 2, 0], total_seconds=2.0),
                tenants=[
                    pb.TenantStats(
                        tenant=tenant.decode(), counts=_counts([m for m in messages if m.tenant == tenant], now)
                    )
                    for tenant in tenants[: request.tenants_max]
                ],
                paused=[pb.PausedTenant(tenant=tenant.decode(), left_ms=-1) for tenant in queue.paused],
            )
        return response

    async def Change(self, request, context):
        partition = await self._partition(request.topic_id, request.partition, context)
        results = [partition.queue.change(change) for change in request.changes]
        self.broker.cluster.serve_queues()
        return pb.ChangeResponse(results=results)

    async def WaitFinished(self, request, context):
        queue = (await self._partition(request.topic_id, request.partition, context)).queue
        deadline = time.monotonic() + request.max_wait_ms / 1000
        while True:
            found = next((m for m in queue.messages.values() if m.id == request.id.encode()), None)
            left = deadline - time.monotonic()
            if found is None or left <= 0:
                state = pb.ANY_STATE if found is None else found.state(queue.now_ms())
                return pb.WaitFinishedResponse(is_finished=found is None, state=state)
            try:
                async with asyncio.timeout(left), self.broker.cluster.queue_changed:
                    await self.broker.cluster.queue_changed.wait()
            except TimeoutError:
                continue

    async def StartJob(self, request, context):
        queue = (await self._partition(request.topic_id, request.partition, context)).queue
        self.broker.cluster.job_requests.append(request)
        done = queue.purge(request.states) if request.kind == pb.PURGE_JOB else queue.redrive_all()
        self.broker.cluster.serve_queues()
        self.broker.cluster.jobs[1] = done
        return pb.StartJobResponse(job=1)

    async def ListJobs(self, request, context):
        """Show the job once as running, then as finished, unless it is endless."""
        if self.broker.cluster.is_job_endless:
            running = pb.QueueJob(partition=request.partitions[0], job=1, kind=pb.PURGE_JOB, done_count=3)
            return pb.ListJobsResponse(jobs=[running])
        done = self.broker.cluster.jobs.pop(1, None)
        jobs = [] if done is None else [pb.QueueJob(partition=request.partitions[0], job=1, done_count=done)]
        return pb.ListJobsResponse(jobs=jobs)

    async def CancelJob(self, request, context):
        await self._partition(request.topic_id, request.partition, context)
        if not self.broker.cluster.is_job_endless:
            await self.broker.refuse(context, pb.UNKNOWN_JOB)
        self.broker.cluster.cancelled_jobs.append(request)
        self.broker.cluster.is_job_endless = False
        return pb.CancelJobResponse(done_count=3)

    async def Pause(self, request, context):
        for number in request.partitions:
            queue = (await self._partition(request.topic_id, number, context)).queue
            if request.pause_ms:
                queue.paused.add(request.tenant.encode())
            else:
                queue.paused.discard(request.tenant.encode())
        self.broker.cluster.serve_queues()
        return pb.PauseResponse()

    async def StepClock(self, request, context):
        response = pb.StepClockResponse()
        for number in request.partitions:
            queue = (await self._partition(request.topic_id, number, context)).queue
            response.partitions.add(partition=number, stepped_ms=queue.clock_behind_ms)
            queue.clock_behind_ms = 0
        return response

    # ---------------------------------------------------------------------------------------------------------- schedules

    async def PutSchedule(self, request, context):
        queue = (await self._partition(request.topic_id, request.partition, context)).queue
        known = queue.schedules.get(request.name)
        version = known.version if known is not None else 0
        if request.HasField("version") and request.version != version:
            await self.broker.refuse(context, pb.VERSION_CONFLICT)
        queue.scheduled[request.name] = request.message
        queue.schedules[request.name] = pb.Schedule(
            partition=request.partition,
            name=request.name,
            rule=request.rule,
            is_paused=request.is_paused,
            version=version + 1,
            next_due_ms=5000,
        )
        return pb.PutScheduleResponse(version=version + 1, next_due_ms=5000)

    async def ChangeSchedule(self, request, context):
        queue = (await self._partition(request.topic_id, request.partition, context)).queue
        schedule = queue.schedules.get(request.name)
        if schedule is None:
            await self.broker.refuse(context, pb.UNKNOWN_SCHEDULE)
        schedule.version += 1
        schedule.is_paused = request.pause or (schedule.is_paused and not request.resume)
        if request.run_now:
            schedule.last_fired_ms = queue.now_ms()
        return pb.ChangeScheduleResponse(version=schedule.version, next_due_ms=schedule.next_due_ms)

    async def DeleteSchedule(self, request, context):
        queue = (await self._partition(request.topic_id, request.partition, context)).queue
        if queue.schedules.pop(request.name, None) is None:
            await self.broker.refuse(context, pb.UNKNOWN_SCHEDULE)
        return pb.DeleteScheduleResponse()

    async def ListSchedules(self, request, context):
        response = pb.ListSchedulesResponse()
        for number in request.partitions:
            queue = (await self._partition(request.topic_id, number, context)).queue
            named = [s for name, s in sorted(queue.schedules.items()) if request.name in ("", name)]
            later = [s for s in named if s.name > request.after_name]
            response.schedules.extend(later[: request.limit or None])
        return response

    async def _partition(self, topic_id: int, number: int, context) -> FakePartition:
        topic = self.broker.cluster.find(topic_id)
        if topic is None:
            await self.broker.refuse(context, pb.UNKNOWN_TOPIC)
        partition = topic.partitions[number]
        if partition.leader != self.broker.broker_id:
            await self.broker.refuse_not_leader(context, partition)
        return partition
