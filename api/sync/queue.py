"""Put, lease and settle messages of a queue topic from synchronous code: `Queue` and `Message`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Generic, Self, TypeVar

from raftmq.client.base import settings
from raftmq.client.base.loop_thread import LoopThread
from raftmq.client.connection.transport import Transport
from raftmq.client.producer.producer import CompressionType
from raftmq.client.queue.change_arguments import MessageReference
from raftmq.client.queue.job_view import QueueJob
from raftmq.client.queue.lease_token import SettlementName
from raftmq.client.queue.message import Message as AsyncMessage
from raftmq.client.queue.message import give_back
from raftmq.client.queue.new_message import NewMessage
from raftmq.client.queue.put_batch import PutResult
from raftmq.client.queue.queue import Queue as AsyncQueue
from raftmq.client.queue.views import BrowsedMessage, MessageStateName, QueueStats
from raftmq.errors import ForkedClientError
from raftmq.sync.client import SyncClient
from raftmq.types import QueueValueT

T = TypeVar("T")


class Message(Generic[QueueValueT]):
    """A leased message, like `raftmq.Message`, with blocking methods. Any thread may settle it."""

    __slots__ = (
        "_loop",
        "_message",
        "attempt",
        "enqueued_ms",
        "headers",
        "id",
        "key",
        "partition",
        "priority",
        "sequence",
        "tenant",
        "topic",
        "value",
    )

    def __init__(self, message: AsyncMessage[QueueValueT], loop: LoopThread) -> None:
        self._message = message
        self._loop = loop
        self.topic = message.topic
        self.partition = message.partition
        self.sequence = message.sequence
        self.value = message.value
        self.key = message.key
        self.tenant = message.tenant
        self.priority = message.priority
        self.id = message.id
        self.attempt = message.attempt
        self.enqueued_ms = message.enqueued_ms
        self.headers = message.headers

    @property
    def token(self) -> str:
        """The token with which another process may settle the message. See `raftmq.Message.token`."""
        return self._message.token

    @property
    def is_lost(self) -> bool:
        """Return whether a broker has said that the lease ended. A long computation can look at it between its steps."""
        return self._message.is_lost

    def ack(self, *, put: Iterable[QueueValueT | NewMessage[QueueValueT]] = ()) -> None:
        """Settle the message as done, and put others in the same step. See `raftmq.Message.ack`."""
        self._loop.run(self._message.ack(put=put))

    def release(self, delay_ms: float | None = 0, *, priority: int | None = None, error: str | None = None) -> bool:
        """Give the message back. Return whether it is delivered again. See `raftmq.Message.release`."""
        return self._loop.run(self._message.release(delay_ms, priority=priority, error=error))

    def reject(self, error: str | None = None) -> None:
        """Give the message up. See `raftmq.Message.reject`."""
        self._loop.run(self._message.reject(error))

    def renew(self, lease_ms: float | None = None, *, progress: str | None = None) -> None:
        """Extend the lease. See `raftmq.Message.renew`."""
        self._loop.run(self._message.renew(lease_ms, progress=progress))

    def __repr__(self) -> str:
        return repr(self._message)


class Queue(SyncClient, Generic[QueueValueT]):
    """`raftmq.Queue` for synchronous code. Any number of threads may share one.

    It has the same arguments, and connects when it is created. Leases are renewed in the background, so a thread may work on a message for
    as long as it needs.
    """

    _name = "queue"

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
        super().__init__()
        self._client = self._make(
            lambda: AsyncQueue(
                topic,
                bootstrap_servers=bootstrap_servers,
                cluster_id=cluster_id,
                client_id=client_id,
                compression_type=compression_type,
                linger_ms=linger_ms,
                max_batch_size=max_batch_size,
                buffer_memory=buffer_memory,
                max_block_ms=max_block_ms,
                delivery_timeout_ms=delivery_timeout_ms,
                request_timeout_ms=request_timeout_ms,
                value_serializer=value_serializer,
                value_deserializer=value_deserializer,
                transport=transport,
            )
        )
        self._run(self._client.start)
        self._record_open(self._client.close)

    def __enter__(self) -> Self:
        self._check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the queue. See `raftmq.Queue.close`."""
        self._record_closed()
        self._run(self._client.close)

    # ----------------------------------------------------------------------------------------------------------- putting

    def put(
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
        """Enqueue a message. See `raftmq.Queue.put`."""
        return self._run(
            lambda: self._client.put(
                value,
                key=key,
                tenant=tenant,
                priority=priority,
                delay_ms=delay_ms,
                not_before=not_before,
                id=id,
                expires_ms=expires_ms,
                headers=headers,
                replace=replace,
            )
        )

    def put_many(self, messages: Iterable[QueueValueT | NewMessage[QueueValueT]]) -> list[PutResult]:
        """Enqueue many messages. The iterable is read on the background thread. See `raftmq.Queue.put_many`."""
        return self._run(lambda: self._client.put_many(messages))

    # ----------------------------------------------------------------------------------------------------------- getting

    def get(
        self,
        *,
        wait_ms: float | None = None,
        lease_ms: float | None = None,
        tenants: Iterable[str] = (),
        key: str | bytes | None = None,
        auto_accept: bool = False,
    ) -> Message[QueueValueT] | None:
        """Lease the next message, or return None if there was none in time. See `raftmq.Queue.get`."""
        found = self.get_many(
            max_messages=1, wait_ms=wait_ms, lease_ms=lease_ms, tenants=tenants, key=key, auto_accept=auto_accept
        )
        return found[0] if found else None

    def get_many(
        self,
        *,
        max_messages: int = 100,
        wait_ms: float | None = None,
        lease_ms: float | None = None,
        tenants: Iterable[str] = (),
        key: str | bytes | None = None,
        auto_accept: bool = False,
    ) -> list[Message[QueueValueT]]:
        """Lease up to `max_messages` messages. Empty: there was none in time. See `raftmq.Queue.get_many`."""
        with self._leasing() as leased:

            async def get_many() -> None:
                leased.extend(
                    await self._client.get_many(
                        max_messages=max_messages,
                        wait_ms=wait_ms,
                        lease_ms=lease_ms,
                        tenants=tenants,
                        key=key,
                        auto_accept=auto_accept,
                    )
                )

            self._run(get_many)
            return [Message(message, self._loop) for message in leased]

    def messages(self, *, lease_ms: float | None = None, tenants: Iterable[str] = ()) -> Iterator[Message[QueueValueT]]:
        """Iterate over messages without an end. See `raftmq.Queue.messages`."""
        with self._leasing() as leased:
            make = partial(self._client.messages, lease_ms=lease_ms, tenants=tenants)
            for message in self._iterate(make, leased):
                passed_on = [Message(message, self._loop)]
                del message  # no reference stays here, which would hold the lease of a message that the program forgot
                yield passed_on.pop()

    def __iter__(self) -> Iterator[Message[QueueValueT]]:
        return self.messages()

    def ack_many(self, messages: Iterable[Message[QueueValueT]]) -> None:
        """Settle many messages as done. See `raftmq.Queue.ack_many`."""
        held = [message._message for message in messages]
        self._run(lambda: self._client.ack_many(held))

    def settle(
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
        """Settle a message by its token. See `raftmq.Queue.settle`."""
        return self._run(
            lambda: self._client.settle(
                token,
                settlement,
                delay_ms=delay_ms,
                priority=priority,
                error=error,
                lease_ms=lease_ms,
                progress=progress,
            )
        )

    # ------------------------------------------------------------------------------------------------- looking, changing

    def browse(
        self,
        state: MessageStateName | None = None,
        *,
        tenant: str = "",
        id: str | None = None,  # noqa: A002 - the name of the field
        enqueued_before: datetime | None = None,
        limit: int | None = None,
        with_values: bool = False,
    ) -> Iterator[BrowsedMessage]:
        """Iterate over messages without leasing them. See `raftmq.Queue.browse`."""
        return self._iterate(
            lambda: self._client.browse(
                state, tenant=tenant, id=id, enqueued_before=enqueued_before, limit=limit, with_values=with_values
            ),
            [],
        )

    def move(
        self,
        message: MessageReference,
        *,
        delay_ms: float | None = None,
        not_before: datetime | None = None,
        priority: int | None = None,
        version: int | None = None,
    ) -> int:
        """Change the due time or the priority of a waiting message. See `raftmq.Queue.move`."""
        return self._run(
            lambda: self._client.move(
                message, delay_ms=delay_ms, not_before=not_before, priority=priority, version=version
            )
        )

    def cancel(self, message: MessageReference, *, version: int | None = None) -> None:
        """Delete a waiting or dead message. See `raftmq.Queue.cancel`."""
        self._run(lambda: self._client.cancel(message, version=version))

    def redrive(
        self,
        message: MessageReference | None = None,
        *,
        version: int | None = None,
        tenants: Iterable[str] = (),
        died_before: datetime | None = None,
        messages_per_second: int = 0,
    ) -> int:
        """Make dead messages ready again. See `raftmq.Queue.redrive`."""
        return self._run(
            lambda: self._client.redrive(
                message,
                version=version,
                tenants=tenants,
                died_before=died_before,
                messages_per_second=messages_per_second,
            )
        )

    def purge(
        self,
        *states: MessageStateName,
        tenants: Iterable[str] = (),
        enqueued_before: datetime | None = None,
        messages_per_second: int = 0,
    ) -> int:
        """Delete messages for good. See `raftmq.Queue.purge`."""
        return self._run(
            lambda: self._client.purge(
                *states, tenants=tenants, enqueued_before=enqueued_before, messages_per_second=messages_per_second
            )
        )

    def jobs(self) -> list[QueueJob]:
        """Return the purges and redrives that are under way or ended recently. See `raftmq.Queue.jobs`."""
        return self._run(self._client.jobs)

    def cancel_job(self, job: QueueJob | str) -> int:
        """Stop a purge or a redrive in one partition. See `raftmq.Queue.cancel_job`."""
        return self._run(lambda: self._client.cancel_job(job))

    def wait(self, id: str, timeout_ms: float | None = None) -> bool:  # noqa: A002 - the name of the field
        """Wait until no unfinished message has this id. See `raftmq.Queue.wait`."""
        return self._run(lambda: self._client.wait(id, timeout_ms))

    def pause(self, tenant: str = "", *, duration_ms: float | None = None) -> None:
        """Stop delivering messages of a subtree of tenants. See `raftmq.Queue.pause`."""
        self._run(lambda: self._client.pause(tenant, duration_ms=duration_ms))

    def resume(self, tenant: str = "") -> None:
        """Deliver messages of a paused subtree of tenants again. See `raftmq.Queue.resume`."""
        self._run(lambda: self._client.resume(tenant))

    def stats(self, *, tenants_max: int = 10) -> QueueStats:
        """Return the counts by state, ages and totals. See `raftmq.Queue.stats`."""
        return self._run(lambda: self._client.stats(tenants_max=tenants_max))

    def clocks(self) -> dict[int, float]:
        """Return the seconds by which each partition's queue clock is ahead. See `raftmq.Queue.clocks`."""
        return self._run(self._client.clocks)

    def step_clocks(self) -> dict[int, float]:
        """Step the queue clocks forward. See `raftmq.Queue.step_clocks`."""
        return self._run(self._client.step_clocks)

    @contextmanager
    def _leasing(self) -> Iterator[list[AsyncMessage[QueueValueT]]]:
        """Yield a list for leased messages. They are given back if an interrupt keeps them from the program."""
        leased: list[AsyncMessage[QueueValueT]] = []
        try:
            yield leased
        except BaseException:
            with suppress(ForkedClientError, RuntimeError):
                self._loop.start(_give_back(leased))  # it runs after the cancellation of the call that leases them
            raise

    def _iterate(self, make: Callable[[], AsyncIterator[T]], found: list[T]) -> Iterator[T]:
        """Iterate over an asynchronous iterator of the client, one step at a time. `found` has the item that was not returned yet."""
        iterator = self._call(make)

        async def step() -> None:
            async for item in iterator:
                found.append(item)
                return

        async def end() -> None:
            close = getattr(iterator, "aclose", None)
            if close is not None:
                await close()

        try:
            while True:
                self._run(step)
                if not found:
                    return
                yield found.pop()
        finally:
            self._run(end)


async def _give_back(messages: Sequence[AsyncMessage[QueueValueT]]) -> None:
    for message in messages:
        give_back(message)
