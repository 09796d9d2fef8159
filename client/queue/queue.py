"""`Queue`: the public class for a queue topic. It checks arguments and builds the parts that put, lease, settle and ask.

Must not know streams, retries or batches (its parts do). One event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from datetime import datetime
from types import TracebackType
from typing import Any, Generic, Literal, Self, cast

from raftmq.client.base import settings
from raftmq.client.base.affinity import ClientAffinity
from raftmq.client.base.arguments import check_at_least, check_not_negative, check_positive, check_range, check_whole
from raftmq.client.base.error_details import name_of
from raftmq.client.base.logs import log
from raftmq.client.base.texts import check_text
from raftmq.client.base.tracing import active_tracing
from raftmq.client.codec.codecs import CODECS
from raftmq.client.connection.resolver import Resolver
from raftmq.client.connection.transport import GrpcTransport, Transport
from raftmq.client.producer.producer import CompressionType
from raftmq.client.queue.chain import ChainChecks
from raftmq.client.queue.change_arguments import (
    MessageReference,
    change_of,
    check_key_tenant,
    check_tenants,
    moment_ms,
    set_move,
)
from raftmq.client.queue.intake import LeaseOptions
from raftmq.client.queue.job_view import QueueJob, parse_job
from raftmq.client.queue.lease import accept_all
from raftmq.client.queue.lease_desk import LeaseDesk
from raftmq.client.queue.lease_token import SettlementName, find_lease, parse_token, settle_lease
from raftmq.client.queue.message import Message, leases_of
from raftmq.client.queue.new_message import NewMessage, check_duration, check_id, check_key, check_lease, check_tenant
from raftmq.client.queue.put_batch import PutResult
from raftmq.client.queue.putter import PutSettings, Putter
from raftmq.client.queue.queue_calls import JobOrder, MessageFilter, QueueCalls
from raftmq.client.queue.receiver import Receiver
from raftmq.client.queue.settler import ChainSettings
from raftmq.client.queue.topic import QueueTopic
from raftmq.client.queue.views import BrowsedMessage, MessageStateName, QueueStats, state_number
from raftmq.errors import ClosedClientError, InvalidArgumentError, UnsupportedCompressionError
from raftmq.proto import queue_pb2 as pb
from raftmq.types import QueueValueT

State = Literal["new", "starting", "open", "closing", "closed"]


class Queue(Generic[QueueValueT]):
    """Puts messages into a queue topic, and leases and settles them. One event loop.

    ::

        async with Queue("jobs", bootstrap_servers="localhost:9400") as queue:
            await queue.put(b"resize 17", tenant="acme", id="resize-17")
            message = await queue.get()
            try:
                work(message.value)
            except Exception as error:
                await message.release(delay_ms=None, error=repr(error))
            else:
                await message.ack()

    A message that was put is never lost: it is delivered until it is settled with `Message.ack` or is dead. It may be delivered more than
    once, because a consumer can die after its work and before its `ack`, so make the work idempotent. At any time at most one consumer holds
    a valid lease of it.

    Within a partition the topic's fairness chooses the tenant; of a tenant, the smallest `priority` comes first, then the earliest due time,
    then the order of enqueuing. Topics have one partition unless they were created with more.

    Type checkers infer the type of values from the serializers: with ``value_serializer=Json(Order).serialize`` and
    ``value_deserializer=Json(Order).deserialize`` it is a ``Queue[Order]``. Without them values are bytes.

    Args:
        topic: the queue topic. Create it with ``Admin.create_topic(name, kind="queue")``.
        bootstrap_servers: ``"host:port[,host:port...]"`` or a sequence; any of the cluster's brokers.
        cluster_id: the only cluster to use, as for `Producer`.
        client_id: a name for logs.
        compression_type: None, ``"lz4"``, ``"zstd"``, ``"snappy"`` or ``"gzip"``. Each value of 512 bytes or more is compressed on its own.
        linger_ms: time for which an unfilled batch waits for more messages. The default suits almost every program.
        max_batch_size: bytes of messages in a batch, before compression.
        buffer_memory: maximum bytes of messages that are being put. When it is exhausted, `put` waits.
        max_block_ms: time limit of `start`, and of each wait of `put` for buffer space.
        delivery_timeout_ms: time limit of a put; at most an hour.
        request_timeout_ms: time limit of every other call, and of a settlement.
        value_serializer: function that converts a value to bytes, such as those in `raftmq.serializers`.
        value_deserializer: function that converts bytes to a value. A message on which it fails is rejected with the reason.
        transport: replaces gRPC, for simulations.
    """

    def __init__(
        self,
        topic: str,
        *,
        bootstrap_servers: str | Sequence[str] = "localhost:9400",
        cluster_id: str = "",
        client_id: str = "raftmq",
        compression_type: CompressionType | None = None,
        linger_ms: float = 0,
        max_batch_size: int = 512 * settings.KIB,
        buffer_memory: int = 64 * settings.MIB,
        max_block_ms: float = 60_000,
        delivery_timeout_ms: float = 120_000,
        request_timeout_ms: float = 30_000,
        value_serializer: Callable[[QueueValueT], bytes] | None = None,
        value_deserializer: Callable[[bytes], QueueValueT] | None = None,
        transport: Transport | None = None,
    ) -> None:
        if not topic:
            raise InvalidArgumentError(f"topic must be the name of a queue topic, not {topic!r}")
        check_text(topic, "topic")
        check_text(client_id, "client_id")
        if compression_type not in CODECS:
            raise UnsupportedCompressionError(f"unknown compression_type {compression_type!r}")
        check_range("max_batch_size", max_batch_size, settings.BATCH_BYTES_MIN, settings.BATCH_BYTES_MAX)
        check_at_least("buffer_memory", buffer_memory, settings.BULK_CHUNK_BYTES)
        check_not_negative(linger_ms=linger_ms, max_block_ms=max_block_ms)
        check_positive(request_timeout_ms=request_timeout_ms, delivery_timeout_ms=delivery_timeout_ms)
        check_range("delivery_timeout_ms", delivery_timeout_ms, 0, settings.DELIVERY_TIMEOUT_MS_MAX)
        self.topic = topic
        self.client_id = client_id
        self._value_serializer = value_serializer
        self._value_deserializer = value_deserializer
        self._put_settings = PutSettings(
            codec=CODECS[compression_type],
            linger_seconds=linger_ms / 1000,
            batch_bytes_max=max_batch_size,
            buffer_bytes_max=buffer_memory,
            max_block_seconds=max_block_ms / 1000,
            delivery_timeout_seconds=delivery_timeout_ms / 1000,
            request_timeout_seconds=min(request_timeout_ms, settings.PUT_REQUEST_MS_MAX) / 1000,
        )
        self._timeout_seconds = request_timeout_ms / 1000
        self._max_block_seconds = max_block_ms / 1000
        self._transport = transport or GrpcTransport()
        self._resolver = Resolver(bootstrap_servers, self._transport, cluster_id=cluster_id)
        self._queue_topic = QueueTopic(self._resolver, topic, self._timeout_seconds)
        self._calls = QueueCalls(self._resolver, self._queue_topic, self._timeout_seconds)
        self._affinity = ClientAffinity("queue")
        self._close_lock = asyncio.Lock()
        self._state: State = "new"

    # -------------------------------------------------------------------------------------------------------- lifecycle

    async def start(self) -> None:
        """Connect, and look the topic up. ``async with`` calls it. If it fails or is cancelled, the queue is closed.

        Raises:
            BootstrapError: no bootstrap address answered in time.
            UnknownTopicError: the cluster has no such topic.
            TopicKindMismatchError: the topic is a log.
        """
        self._affinity.check()
        if self._state != "new":
            raise ClosedClientError("a queue is started only once: create a new one")
        self._affinity.bind()
        self._state = "starting"
        try:
            await self._resolver.start(self._max_block_seconds)
            await self._queue_topic.info()
        except BaseException:
            self._state = "closed"
            self._affinity.release()
            await self._resolver.close()
            raise
        self._tracing = active_tracing()
        self._putter = Putter(
            self._resolver,
            self._queue_topic,
            self.client_id,
            self._put_settings,
            cast("Callable[[Any], bytes | None] | None", self._value_serializer),  # Any: as `Serializer`
        )
        self._desk = LeaseDesk(
            self._resolver,
            self._transport,
            self._queue_topic,
            self._timeout_seconds,
            ChainSettings(self._put_settings.codec, self._put_settings.batch_bytes_max),
            self._on_crash,
            self._affinity.check,
        )
        chain_checks = ChainChecks(
            self._queue_topic,
            cast("Callable[[Any], bytes | None] | None", self._value_serializer),  # Any: as above
            self._put_settings.batch_bytes_max,
        )
        self._receiver = Receiver(
            self._resolver, self._queue_topic, self._desk, chain_checks, self._value_deserializer, self._timeout_seconds
        )
        self._state = "open"
        log.info("queue_started client_id=%s topic=%s", self.client_id, self.topic)

    async def close(self) -> None:
        """Give back messages that nobody has got yet, wait for puts and settlements, and close. A repeated call does nothing.

        Messages that the program has got and not settled are delivered again when their leases end. If it is cancelled, it closes
        immediately.
        """
        self._affinity.check()
        async with self._close_lock:
            if self._state == "closed":
                return
            was_open, self._state = self._state == "open", "closing"
            try:
                if was_open:
                    await self._close_parts()
            finally:
                try:
                    await self._resolver.close()
                finally:
                    self._state = "closed"
                    self._affinity.release()
                    log.info("queue_closed client_id=%s topic=%s", self.client_id, self.topic)

    async def _close_parts(self) -> None:
        try:
            await self._desk.close()
        finally:
            await self._putter.close()

    def __del__(self) -> None:
        if getattr(self, "_state", "new") in ("open", "closing"):
            self._affinity.warn_unclosed(self, "messages that it has got are delivered again only after their leases")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # ----------------------------------------------------------------------------------------------------------- putting

    async def put(
        self,
        value: QueueValueT,
        *,
        key: str | bytes | None = None,
        tenant: str | None = None,
        priority: int = 0,
        delay_ms: float = 0,
        not_before: datetime | None = None,
        id: str | None = None,  # noqa: A002 - the name of the field
        expires_ms: float | None = None,
        headers: Iterable[tuple[str, bytes]] = (),
        replace: bool = False,
    ) -> PutResult:
        """Enqueue a message. Returns when it is on disk on a majority of its partition's replicas.

        Args:
            value: bytes, or a value for `value_serializer`. At most 1 MiB with its headers, unless the topic allows more.
            key: on a topic that is ordered by key, messages of one tenant and key are worked on one at a time, in this order.
            tenant: on whose behalf it is put, a path such as ``"acme.eu"``; at most 249 bytes and 8 levels. The topic shares its consumers
                fairly among tenants.
            priority: smaller numbers are delivered first.
            delay_ms: the time until it may be delivered; at most ten years.
            not_before: the point in time from which it may be delivered, with a time zone.
            id: a name of at most 249 bytes. While the topic knows it (its deduplication window, and until the message is finished), another
                put with it enqueues nothing. A dead message is not finished, and keeps its id until it is redriven, cancelled or purged.
            expires_ms: the time after which an undelivered message is given up. None: the topic's.
            headers: pairs of name and bytes; at most 16 KiB together.
            replace: replace the waiting message with this id, instead of being deduplicated ("debounce"). A message that is leased or dead is
                not replaced.

        Returns:
            A `PutResult`, which says whether the id was known.

        Raises:
            QueueFullError, TenantFullError: the limit is reached. Nothing was enqueued. Messages that are put simultaneously travel in one batch,
                which is refused as a whole, so the tenant that is full, which the text names, may be that of another message.
            RecordTooLargeError, InvalidArgumentError, TypeError: the message is not allowed. Nothing was enqueued.
            BufferFullError: no buffer space within `max_block_ms`. Nothing was enqueued.
            DeliveryExpiredError: not enqueued within `delivery_timeout_ms`.
            DeliveryTimeoutError, ClosedInFlightError: it may be enqueued. With an `id` it can be put again safely.
            RaftMQError: another failure (see its `outcome`).

        If it is cancelled while waiting for the acknowledgement, the message may be enqueued.
        """
        self._check_usable()
        return await self._putter.put(
            NewMessage(value, key, tenant, priority, delay_ms, not_before, id, expires_ms, headers, replace)
        )

    async def put_many(self, messages: Iterable[QueueValueT | NewMessage[QueueValueT]]) -> list[PutResult]:
        """Enqueue many messages, in batches of up to 1,000. This is the fast way.

        Args:
            messages: values, or `NewMessage`s for those with a key, a tenant and so on. The iterable is read as buffer space allows.

        Returns:
            The outcome of each message, in the order of the argument.

        Raises:
            RaftMQError: an error of `put`, after every outcome is known: the first one, with a note about the others. Messages that another
                error or a cancellation does not concern are enqueued.
        """
        self._check_usable()
        return await self._putter.put_many(
            message if isinstance(message, NewMessage) else NewMessage(message) for message in messages
        )

    # ----------------------------------------------------------------------------------------------------------- getting

    async def get(
        self,
        *,
        wait_ms: float | None = None,
        lease_ms: float | None = None,
        tenants: Iterable[str] = (),
        key: str | bytes | None = None,
        auto_accept: bool = False,
    ) -> Message[QueueValueT] | None:
        """Lease the next message.

        Args:
            wait_ms: the time to wait for a message. 0: do not wait, except for up to 1 s on a topic with `single.active.consumer`, where only
                the stream of the active program is asked. None: wait until there is one.
            lease_ms: the length of the lease, from 1 s to 12 h, which the client renews. None: the topic's. A short one lets others take over
                sooner after a crash.
            tenants: lease only messages of these subtrees of tenants, at most 16. Empty: of all.
            key: lease only the next message of this key, which is leased only when the one before it is finished. The topic must be ordered by
                key. A key belongs to a tenant: name exactly that one in `tenants`, or none for messages without a tenant.
            auto_accept: deliver it at most once: it is done as soon as it is leased, and lost if the program fails.

        Returns:
            The message, or None if there was none in time.

        Raises:
            UnknownTopicError: the topic was deleted. A call that waits notices it within seconds.
            InvalidArgumentError: an argument is out of its range, or there is a `key` and the topic is not ordered by key.
            RaftMQError: another failure (see its `outcome`).

        If it is cancelled, a message that arrives for it goes to the next consumer (one with `auto_accept` may be lost).
        """
        found = await self.get_many(
            max_messages=1, wait_ms=wait_ms, lease_ms=lease_ms, tenants=tenants, key=key, auto_accept=auto_accept
        )
        return found[0] if found else None

    async def get_many(
        self,
        *,
        max_messages: int = 100,
        wait_ms: float | None = None,
        lease_ms: float | None = None,
        tenants: Iterable[str] = (),
        key: str | bytes | None = None,
        auto_accept: bool = False,
    ) -> list[Message[QueueValueT]]:
        """Lease up to `max_messages` messages, as soon as there is one. Empty: there was none in time. See `get`. Of a `key` there is one."""
        self._check_usable()
        check_positive(max_messages=max_messages)
        check_whole(max_messages=max_messages)
        if wait_ms is not None:
            check_not_negative(wait_ms=wait_ms)
        seconds = None if wait_ms is None else wait_ms / 1000
        options = _lease_options(lease_ms, tenants)
        name = b"" if key is None else check_key(key)
        if name:
            options = options._replace(tenants=check_key_tenant(options.tenants))
        began_ns = 0 if self._tracing is None else time.time_ns()
        found = await self._receiver.get_many(options, max_messages, seconds, auto_accept=auto_accept, key=name)
        if self._tracing is not None and found:
            self._tracing.received(found[0].topic, found, began_ns)
        return found

    async def messages(
        self, *, lease_ms: float | None = None, tenants: Iterable[str] = ()
    ) -> AsyncIterator[Message[QueueValueT]]:
        """Iterate over messages without an end, each leased for the body of the loop. The next one is fetched in the meantime.

        ::

            async for message in queue.messages(lease_ms=60_000):
                ...
                await message.ack()
        """
        self._check_usable()
        async with aclosing(self._receiver.messages(_lease_options(lease_ms, tenants))) as found:
            async for message in found:
                if self._tracing is not None and message.headers:
                    self._tracing.received_one(message.topic, message)
                passed_on = [message]
                del message  # no reference stays here, as in the receiver
                yield passed_on.pop()

    def __aiter__(self) -> AsyncIterator[Message[QueueValueT]]:
        return self.messages()

    async def ack_many(self, messages: Iterable[Message[QueueValueT]]) -> None:
        """Settle many messages as done. This is the fast way.

        Args:
            messages: messages that this queue has returned, of any partitions.

        Raises:
            RaftMQError: an error of `Message.ack`, after every outcome is known: the first one, with a note about the others. Messages that
                another error does not concern are done.
            InvalidArgumentError: a message is of another queue (nothing was settled), or is settled already.
        """
        self._check_usable()
        await accept_all(self._desk, leases_of(messages, self._desk))

    async def settle(
        self,
        token: str,
        settlement: SettlementName = "ack",
        *,
        delay_ms: float | None = 0,
        priority: int | None = None,
        error: str | None = None,
        lease_ms: float | None = None,
        progress: str | None = None,
    ) -> bool:
        """Settle a message by its token (`Message.token`), such as in another process than the one that got it.

        Args:
            token: the token of a lease that has not ended.
            settlement: ``"ack"``, ``"release"``, ``"reject"`` or ``"renew"``, as the methods of `Message`.
            delay_ms: for a release, as for `Message.release`. So is `priority`.
            priority: the new priority of a released message.
            error: for a release or a reject, the reason.
            lease_ms: for a renewal, the length of the lease from now on, from 1 s to 12 h. None: the topic's.
            progress: for a renewal, a text that `browse` shows.

        Returns:
            False if the message is dead now: it was rejected, or released after its last attempt.

        Raises the errors of the methods of `Message`, and `InvalidArgumentError` for a token of another topic. Nobody renews the lease
        after this call.
        """
        self._check_usable()
        lease = await find_lease(parse_token(token), self._queue_topic, self._desk)
        return await settle_lease(
            lease, settlement, delay_ms=delay_ms, priority=priority, error=error, lease_ms=lease_ms, progress=progress
        )

    # ------------------------------------------------------------------------------------------------- looking, changing

    async def browse(
        self,
        state: MessageStateName | None = None,
        *,
        tenant: str = "",
        id: str | None = None,  # noqa: A002 - the name of the field
        enqueued_before: datetime | None = None,
        limit: int | None = None,
        with_values: bool = False,
    ) -> AsyncIterator[BrowsedMessage]:
        """Iterate over messages without leasing them, a page at a time, partition by partition.

        Args:
            state: only those in this state. None: all.
            tenant: only those of this subtree of tenants. Empty: all.
            id: only the one with this id.
            enqueued_before: only those enqueued before this point in time.
            limit: the maximum number of messages. None: all.
            with_values: also read the values, as bytes, and the headers. They are None and empty without it.

        Messages that change while they are listed may be missing or appear in their earlier state.
        """
        self._check_usable()
        if limit is not None:
            check_positive(limit=limit)
            check_whole(limit=limit)
        wanted = MessageFilter(
            state_number(state),
            check_tenant(tenant),
            "" if id is None else check_id(id),
            moment_ms("enqueued_before", enqueued_before),
        )
        async for message in self._calls.browse(wanted, limit, with_values=with_values):
            yield message

    async def move(
        self,
        message: MessageReference,
        *,
        delay_ms: float | None = None,
        not_before: datetime | None = None,
        priority: int | None = None,
        version: int | None = None,
    ) -> int:
        """Change the due time or the priority of a waiting message. Its body is not written again.

        Args:
            message: its id, or the `BrowsedMessage` or `PutResult` that describes it.
            delay_ms: the time until it may be delivered. 0: now.
            not_before: the point in time from which it may be delivered, with a time zone.
            priority: its new priority.
            version: change it only in this version, as `browse` showed it. None: in any.

        Returns:
            The message's version afterwards.

        Raises:
            NoSuchMessageError: it is done, or was never put.
            MessageLeasedError: a consumer works on it.
            WrongMessageStateError: it is dead.
            VersionConflictError: it has changed since.
            RaftMQError: another failure (see its `outcome`).
        """
        self._check_usable()
        change, partition = change_of(pb.MOVE, message, version)
        set_move(change, delay_ms, not_before, priority)
        return await self._calls.change(change, partition)

    async def cancel(self, message: MessageReference, *, version: int | None = None) -> None:
        """Delete a waiting or dead message. Arguments and errors are those of `move`."""
        self._check_usable()
        change, partition = change_of(pb.CANCEL, message, version)
        await self._calls.change(change, partition)

    async def redrive(
        self,
        message: MessageReference | None = None,
        *,
        version: int | None = None,
        tenants: Iterable[str] = (),
        died_before: datetime | None = None,
        messages_per_second: int = 0,
    ) -> int:
        """Make dead messages ready again, with their attempts counted from 0.

        Args:
            message: one dead message. None: all of them, in the order of their deaths.
            version: of that message, as for `move`.
            tenants: without a message: only those of these subtrees.
            died_before: without a message: only those that died before this point in time.
            messages_per_second: without a message: the rate, so that consumers are not overrun. 0: no limit.

        Returns:
            The number of messages that were seen to be redriven. It waits until all are. Cancelling it does not stop the
            job: see `cancel_job`.
        """
        if message is not None:
            self._check_usable()
            change, partition = change_of(pb.REDRIVE, message, version)
            await self._calls.change(change, partition)
            return 1
        self._check_usable()
        check_not_negative(messages_per_second=messages_per_second)
        check_whole(messages_per_second=messages_per_second)
        return await self._calls.run_job(
            JobOrder(
                pb.REDRIVE_JOB,
                tenants=check_tenants(tenants),
                before_ms=moment_ms("died_before", died_before),
                messages_per_second=messages_per_second,
            )
        )

    async def purge(
        self,
        *states: MessageStateName,
        tenants: Iterable[str] = (),
        enqueued_before: datetime | None = None,
        messages_per_second: int = 0,
    ) -> int:
        """Delete messages for good.

        Args:
            states: only those in these states. None given, and no other filter either: everything, with all ids, immediately.
            tenants: only those of these subtrees.
            enqueued_before: only those enqueued before this point in time.
            messages_per_second: the rate of each partition. 0: no limit. It needs a filter: everything is deleted in one step.

        Returns:
            The number of messages that were seen to be deleted. It waits until all are. Cancelling it does not stop the
            job: see `cancel_job`.
        """
        self._check_usable()
        check_not_negative(messages_per_second=messages_per_second)
        check_whole(messages_per_second=messages_per_second)
        numbers, subtrees = [state_number(state) for state in states], check_tenants(tenants)
        before_ms = moment_ms("enqueued_before", enqueued_before)
        if messages_per_second and not (numbers or subtrees or before_ms):
            raise InvalidArgumentError(
                "a purge without a filter deletes everything in one step: name states, tenants or enqueued_before to give it a rate"
            )
        return await self._calls.run_job(JobOrder(pb.PURGE_JOB, numbers, subtrees, before_ms, messages_per_second))

    async def jobs(self) -> list[QueueJob]:
        """Return the purges and redrives of this topic that are under way, by partition, and those that ended recently."""
        self._check_usable()
        return await self._calls.jobs()

    async def cancel_job(self, job: QueueJob | str) -> int:
        """Stop a purge or a redrive in one partition. Messages that it has taken stay deleted or ready.

        Args:
            job: a job of `jobs`, or its id. A topic with several partitions has a job in each.

        Returns:
            The number of messages that it has taken. The call that started it returns as well.

        Raises:
            UnknownJobError: it is finished, or was cancelled.
            UnknownPartitionError, InvalidArgumentError: its id names no job of this topic.
            RaftMQError: another failure (see its `outcome`).
        """
        self._check_usable()
        return await self._calls.cancel_job(*parse_job(job))

    async def wait(self, id: str, timeout_ms: float | None = None) -> bool:  # noqa: A002 - the name of the field
        """Wait until no unfinished message has this id. Return False if one still has it when the time is over.

        There is no store of results: a message that is done and one that never existed look the same. A dead message is not finished.
        """
        self._check_usable()
        name = check_id(id)
        if timeout_ms is not None:
            check_not_negative(timeout_ms=timeout_ms)
        return await self._calls.wait_finished(name, None if timeout_ms is None else timeout_ms / 1000)

    async def pause(self, tenant: str = "", *, duration_ms: float | None = None) -> None:
        """Stop delivering messages of a subtree of tenants (empty: of the whole topic). Leases that are held stay valid.

        Args:
            tenant: such as the customer whose service asks for a break.
            duration_ms: the time after which delivery continues by itself. None: until `resume`.
        """
        self._check_usable()
        left = -1 if duration_ms is None else max(1, check_duration("duration_ms", duration_ms))
        await self._calls.pause(check_tenant(tenant), left)

    async def resume(self, tenant: str = "") -> None:
        """Deliver messages of a paused subtree of tenants (empty: of the whole topic) again."""
        self._check_usable()
        await self._calls.pause(check_tenant(tenant), 0)

    async def stats(self, *, tenants_max: int = 10) -> QueueStats:
        """Return the counts by state, ages and totals, and those of the tenants with the most messages."""
        self._check_usable()
        check_not_negative(tenants_max=tenants_max)
        check_whole(tenants_max=tenants_max)
        return await self._calls.stats(tenants_max)

    async def clocks(self) -> dict[int, float]:
        """Return how many seconds the queue clock of each partition is ahead of its leader's clock (negative: behind)."""
        self._check_usable()
        return await self._calls.clocks()

    async def step_clocks(self) -> dict[int, float]:
        """Step the queue clocks of all partitions forward to the brokers' time, for clocks that fell behind by hours.

        A clock never goes back. Delayed messages become due, and leases and messages expire, as the new time says.

        Returns:
            The seconds by which the clock of each partition was stepped.
        """
        self._check_usable()
        return await self._calls.step_clocks()

    # ------------------------------------------------------------------------------------------------------------ common

    def _check_usable(self) -> None:
        self._affinity.check()
        if self._state != "open":
            raise ClosedClientError(
                "the queue is not started: use async with, or await start()"
                if self._state in ("new", "starting")
                else "the queue is closed: create a new one"
            )
        self._resolver.check()

    def _on_crash(self, error: BaseException) -> None:
        log.error("queue_stopped error_code=%s", name_of(error))
        self._desk.fail(error)


def _lease_options(lease_ms: float | None, tenants: Iterable[str]) -> LeaseOptions:
    length = 0 if lease_ms is None else check_lease(lease_ms)
    return LeaseOptions(length, check_tenants(tenants))
