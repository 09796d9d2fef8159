"""A lease: the right to settle a message, and the functions that do it. `Message` and the worker hold one for each message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
from raftmq.client.base import settings
from raftmq.client.base.error_details import fresh_copy
from raftmq.client.queue.new_message import CheckedMessage, check_duration, check_lease, check_priority
from raftmq.client.queue.topic import QueuePartition
from raftmq.errors import (
    AttemptsExhaustedError,
    InvalidArgumentError,
    LeaseLostError,
    QueueFullError,
    RaftMQError,
    TenantFullError,
)
from raftmq.proto import queue_pb2 as pb

Verdict = RaftMQError | None
"""The outcome of a settlement. None: it was applied."""


class LeaseOffice(Protocol):
    """Settles leases, and renews those that are held."""

    def check_caller(self) -> None:
        """Raise `WrongEventLoopError` or `ForkedClientError` if leases cannot be settled from here."""
        ...

    def settle(
        self,
        leases: Sequence[Lease],
        operation: pb.AckOperation,
        detail: pb.AckDetail | None,
        puts: tuple[CheckedMessage, ...] = (),
    ) -> asyncio.Future[list[Verdict]]:
        """Begin settlements, which go on even if nobody waits for them. The future has a verdict for each lease and belongs to the caller.

        `puts` are put together with the acceptance of a single lease.
        """
        ...

    def hold(self, leases: Sequence[Lease]) -> None:
        """Renew leases from now on, until they are settled, lost, or nobody refers to them."""
        ...

    def drop(self, leases: Sequence[Lease]) -> None:
        """Renew leases no longer."""
        ...


class Lease(msgspec.Struct, eq=False, weakref=True):
    """The token of one message, from its delivery to its settlement. It is settled once."""

    office: LeaseOffice
    partition: QueuePartition
    sequence: int
    lease_number: int
    lease_seconds: float
    """The length of the lease that the broker granted last. A third of it passes between two renewals. Written by both threads."""
    renewal_ms: int
    """The length that a renewal requests. 0: the topic's."""
    is_lost: bool = False
    """Whether a broker said that the lease has ended. Written by the thread that renews leases."""
    on_lost: Callable[[], object] | None = None
    """Called once on the event loop when the lease is lost."""
    is_settled: bool = False
    """Whether a settlement was begun that cannot be repeated. Written here."""

    def tell_lost(self) -> None:
        """Call `on_lost`, once. Raises what it raises: it is the program's own code."""
        callback, self.on_lost = self.on_lost, None
        if callback is not None:
            callback()

    async def accept(self, puts: tuple[CheckedMessage, ...] = ()) -> None:
        """Settle the message as done, and put others with it."""
        await self._settle(pb.ACCEPT, None, puts)

    async def release(
        self,
        delay_ms: float | None,
        priority: int | None = None,
        error: str | None = None,
        *,
        is_uncounted: bool = False,
    ) -> bool:
        """Give the message back. Return whether it is delivered again: after its last attempt it is dead.

        Args:
            delay_ms: the time until it may be leased again. None: the topic's back-off.
            priority: its new priority. None: unchanged.
            error: the reason, which is kept with the message.
            is_uncounted: its work was not begun, so this attempt does not count.
        """
        detail = pb.AckDetail(is_uncounted=is_uncounted)
        if delay_ms is not None:
            detail.delay_ms = check_duration("delay_ms", delay_ms)
        if priority is not None:
            detail.priority = check_priority(priority)
        if error:
            detail.error = cut_error(error)
        try:
            await self._settle(pb.RELEASE, detail)
        except AttemptsExhaustedError:
            return False
        return True

    async def reject(self, error: str | None) -> None:
        """Give the message up: it is dead, and kept with the reason."""
        await self._settle(pb.REJECT, pb.AckDetail(error=cut_error(error)) if error else None)

    async def renew(self, lease_ms: float | None, progress: str | None) -> None:
        """Extend the lease. Its later automatic renewals request the same length."""
        self.check_held()
        if lease_ms is not None:
            self.renewal_ms = check_lease(lease_ms)
            self.lease_seconds = min(self.lease_seconds, self.renewal_ms / 1000)  # longer only if the broker says so
        detail = pb.AckDetail(lease_ms=self.renewal_ms, progress=cut_error(progress) if progress else "")
        try:
            (verdict,) = await self.office.settle((self,), pb.RENEW, detail)
            _raise(verdict)
        finally:
            if not self.is_settled:
                self.office.hold((self,))

    def give_back(self, *, is_uncounted: bool = True) -> None:
        """Release the message immediately and without waiting. It is uncounted, and keeps its place, unless its work was begun."""
        if not self.is_settled:
            self.is_settled = True
            self.office.drop((self,))
            # without a delay an uncounted release keeps the due time, and a counted one waits for the topic's back-off
            detail = pb.AckDetail(is_uncounted=True) if is_uncounted else pb.AckDetail(delay_ms=0)
            self.office.settle((self,), pb.RELEASE, detail)

    async def _settle(
        self, operation: pb.AckOperation, detail: pb.AckDetail | None, puts: tuple[CheckedMessage, ...] = ()
    ) -> None:
        self.check_held()
        self.is_settled = True
        try:  # it is renewed until the answer, which may come late, and a blocked loop has not even sent the settlement
            (verdict,) = await self.office.settle((self,), operation, detail, puts)
        finally:
            self.office.drop((self,))
        self.end(verdict)
        if isinstance(verdict, QueueFullError | TenantFullError):
            self.office.hold((self,))  # the program still has the message, and can settle it in another way
        _raise(verdict)

    def on_granted(self, granted_ms: int) -> None:
        """Take the time that the lease has left, as the answer to a renewal says. 0: it does not say."""
        if granted_ms:
            self.lease_seconds = granted_ms / 1000

    def end(self, verdict: Verdict) -> None:
        """Take the verdict on its settlement, which may be repeated after some failures."""
        self.is_settled = verdict is None or not verdict.retriable

    def check_held(self) -> None:
        """Raise `InvalidArgumentError` or `LeaseLostError` if it cannot be settled any more, and the errors of a call from elsewhere.

        An answer would never reach another event loop, and the message would then count as settled here.
        """
        self.office.check_caller()
        if self.is_settled:
            raise InvalidArgumentError(
                f"message {self.sequence} of partition {self.partition.partition} is settled already"
            )
        if self.is_lost:
            raise LeaseLostError(f"the lease of message {self.sequence} of partition {self.partition.partition} ended")


async def accept_all(office: LeaseOffice, leases: Sequence[Lease]) -> None:
    """Settle messages as done, together. Raise the first failure when all outcomes are known, with a note about the others."""
    held: list[Lease] = []
    failures: list[RaftMQError] = []
    office.check_caller()
    for lease in leases:
        try:
            lease.check_held()
        except RaftMQError as error:
            failures.append(error)
        else:
            lease.is_settled = True
            held.append(lease)
    try:
        verdicts = await office.settle(held, pb.ACCEPT, None)
    finally:
        office.drop(held)
    for lease, verdict in zip(held, verdicts, strict=True):
        if verdict is not None:
            lease.end(verdict)
            failures.append(verdict)
    if failures:
        first = fresh_copy(failures[0])
        first.add_note(f"{len(failures)} of {len(leases)} settlements failed; the other messages are done")
        raise first from failures[0].__cause__


def _raise(verdict: Verdict) -> None:
    if verdict is not None:
        raise fresh_copy(verdict) from verdict.__cause__


def cut_error(text: str) -> str:
    """Return a text of at most `MESSAGE_ERROR_BYTES_MAX` bytes, without the rest of a character that was cut."""
    encoded = text.encode(errors="backslashreplace")
    return encoded[: settings.MESSAGE_ERROR_BYTES_MAX].decode(errors="ignore")
