"""A leased message, as `Queue.get` returns it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Generic

import msgspec
from raftmq.client.codec.batch import Headers
from raftmq.client.queue.chain import ChainChecks
from raftmq.client.queue.lease import Lease, LeaseOffice
from raftmq.client.queue.lease_token import token_of
from raftmq.client.queue.new_message import NewMessage
from raftmq.errors import InvalidArgumentError
from raftmq.types import QueueValueT


class Message(msgspec.Struct, Generic[QueueValueT], eq=False, weakref=True):
    """A message that this program has leased: nobody else works on it until it is settled or the lease ends.

    The client renews the lease on its own while the program refers to the message, even if its event loop is blocked. Settle each message
    once, with `ack`, `release` or `reject`. Each of them waits until the settlement is on disk on a majority, and raises:

    - `LeaseLostError`: the lease has ended before. Nothing was changed, and the message is delivered again.
    - `LeaseUnknownError`: the message is gone. An earlier attempt of this settlement, whose answer was lost, probably did it.
    - `RequestTimedOutError`, `BrokenConnectionError`: no answer in time. It may be settled, and otherwise its lease ends.
    - `QueueFullError`, `TenantFullError`: no room for the messages to put. It is not settled, and still leased.
    - `InvalidArgumentError`: it is settled already.
    - `WrongEventLoopError`, `ForkedClientError`: it was got elsewhere. Nothing was changed.

    Cancelling one of them only stops the wait. All run on the event loop of the queue.
    """

    topic: str
    partition: int
    value: QueueValueT
    key: bytes | None
    tenant: str
    """Empty: the root."""
    priority: int
    id: str | None
    """The producer's name for it, or None."""
    sequence: int
    """Its number in the partition, which rises in the order of enqueuing."""
    attempt: int
    """The number of this attempt, from 1."""
    enqueued_ms: int
    """The time at which it was enqueued, in milliseconds since 1970."""
    headers: Headers
    _lease: Lease | None
    _chain_checks: ChainChecks

    @property
    def token(self) -> str:
        """The token with which another process may settle the message (`Queue.settle`) before the lease ends.

        Raises `InvalidArgumentError` for a message that was got with `auto_accept`.
        """
        return str(token_of(self._held()))

    @property
    def is_lost(self) -> bool:
        """Return whether a broker has said that the lease ended. May be read from any thread."""
        return self._lease is not None and self._lease.is_lost

    def on_lost(self, callback: Callable[[], object]) -> None:
        """Call `callback` on the event loop, once, if the lease is lost or was lost already. It must not block."""
        lease = self._held()
        lease.on_lost = callback
        if lease.is_lost:
            asyncio.get_running_loop().call_soon(lease.tell_lost)

    async def ack(self, *, put: Iterable[QueueValueT | NewMessage[QueueValueT]] = ()) -> None:
        """Settle the message as done: it is deleted. A message that was got with `auto_accept` is done already.

        Args:
            put: messages to put into the same partition in the same step, such as the next jobs of a chain: values of the queue's type, or
                `NewMessage`s. They are put if and only if the message is accepted, exactly once. At most 499 messages, of `max_batch_size`
                bytes together. A message whose key or id belongs to another partition is refused with `InvalidArgumentError`.
        """
        if self._lease is not None:
            self._lease.check_held()
        puts = await self._chain_checks.check(put, self.partition) if put else ()
        if self._lease is not None:
            await self._lease.accept(puts)
        elif puts:
            raise InvalidArgumentError(
                "a message that was got with auto_accept is done: put the other messages with Queue.put"
            )

    async def release(
        self, delay_ms: float | None = 0, *, priority: int | None = None, error: str | None = None
    ) -> bool:
        """Give the message back, to be delivered again.

        Args:
            delay_ms: the time until it may be delivered; at most ten years. 0: it is due now, after the messages of its priority that are due
                already. None: the topic's back-off for this attempt, and without a back-off it keeps its place.
            priority: its new priority. None: unchanged.
            error: the reason, which is kept with the message; at most 1 KiB.

        Returns:
            Whether it is delivered again. After its last attempt it is dead instead.
        """
        return await self._held().release(delay_ms, priority, error)

    async def reject(self, error: str | None = None) -> None:
        """Give the message up: it is dead, is kept with the reason, and can be redriven."""
        await self._held().reject(error)

    async def renew(self, lease_ms: float | None = None, *, progress: str | None = None) -> None:
        """Extend the lease now, and report progress that `Queue.browse` shows. Automatic renewals follow.

        Args:
            lease_ms: the length of the lease from now on, from 1 s to 12 h. A topic grants at most its `lease.max.ms`. None: as before.
            progress: a text of at most 1 KiB.
        """
        await self._held().renew(lease_ms, progress)

    def _held(self) -> Lease:
        if self._lease is None:
            raise InvalidArgumentError("a message that was got with auto_accept is done, and cannot be settled")
        return self._lease

    def __repr__(self) -> str:
        return f"<Message {self.topic}/{self.partition} sequence {self.sequence} attempt {self.attempt}>"


def give_back(message: Message[QueueValueT]) -> None:
    """Release a message that the program never had, uncounted and without waiting."""
    if message._lease is not None:
        message._lease.give_back()


def leases_of(messages: Iterable[Message[QueueValueT]], office: LeaseOffice) -> list[Lease]:
    """Return the leases of messages, without those that are done because they were got with `auto_accept`.

    Raises:
        InvalidArgumentError: a message was got from another queue than that of `office`.
    """
    leases = [lease for message in messages if (lease := message._lease) is not None]
    for lease in leases:
        if lease.office is not office:
            raise InvalidArgumentError(f"message {lease.sequence} was got from another Queue: settle it there")
    return leases
