"""Settle leased messages, and open the sessions under which settlements can be repeated."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, NamedTuple

from raftmq.broker.base.request_error import RequestError, timed_out
from raftmq.broker.partitions.queue.chains import ChainAnswer
from raftmq.broker.partitions.queue.partition import PartitionQueue
from raftmq.broker.services.call import Principal, Right
from raftmq.broker.services.locator import Locator
from raftmq.broker.services.queue.poll import requested_lease_ms
from raftmq.fsm.queue.commands import Chain, OpenSession, Settle, SettleDetail
from raftmq.fsm.queue.results import Code, Refused, SessionOpened, Settled
from raftmq.proto import queue_pb2 as pb

_CODES: Final[Mapping[int, pb.ErrorCode]] = {
    Code.OK: pb.OK,
    Code.DIED: pb.ATTEMPTS_EXHAUSTED,
    Code.LEASE_LOST: pb.LEASE_LOST,
    Code.LEASE_UNKNOWN: pb.LEASE_UNKNOWN,
}
"""The protocol's code for the result of a single settlement."""
SESSION_BITS: Final = 32
"""The bits of a session's number in the protocol that the state machine knows. Those above are the mark of its Raft group (`_mark_of_group`)."""
_MARKS: Final = (1 << 64 - SESSION_BITS) - 1
_REFUSALS: Final[Mapping[int, tuple[pb.ErrorCode, str]]] = {
    Code.UNKNOWN_SESSION: (
        pb.UNKNOWN_SESSION,
        "the session was idle for too long and is forgotten: open another, and send the settlements again",
    ),
    Code.STALE_REQUEST: (
        pb.UNKNOWN_SESSION,
        "the session does not remember such an old request: open another, and send the settlements again",
    ),
    Code.TOO_MANY_SESSIONS: (
        pb.TOO_MANY_SESSIONS,
        "the partition remembers the maximum number of sessions: settle without one, or try again in some minutes",
    ),
    Code.INVALID: (pb.INVALID_ARGUMENT, "the session remembers another request under this number: use the next one"),
    Code.OVER_LIMIT: (pb.INVALID_ARGUMENT, "the settlements name too many messages: use several requests"),
}


_NO_LEASE: Final = 0
"""A number that no lease has."""


class Tokens(NamedTuple):
    """The tokens of a request's settlements, as the state machine knows them."""

    session: int
    lease_numbers: tuple[int, ...]


def settle_command(ack: pb.PartitionAck, tokens: Tokens, lease_ms: int) -> Settle:
    """Return the command of settlements. The rest of it is checked when it is submitted.

    Args:
        ack: The settlements.
        tokens: Their tokens.
        lease_ms: The rest of a lease that is renewed without a time.

    Raises:
        RequestError: INVALID_ARGUMENT for a renewal that is too short.
    """
    details = [_detail(detail, lease_ms) for detail in ack.details]
    operations, numbers = tuple(ack.operations), list(ack.detail_numbers)
    if pb.RENEW in operations and (not numbers or 0 in numbers):
        details.append(SettleDetail(lease_ms=lease_ms))
        pairs = zip(operations, numbers or [0] * len(operations), strict=False)
        numbers = [len(details) if code == pb.RENEW and not number else number for code, number in pairs]
    return Settle(
        tokens.session,
        ack.request,
        operations,
        tuple(ack.first_sequences),
        tuple(ack.counts),
        tokens.lease_numbers,
        tuple(numbers),
        tuple(details),
    )


def settled_messages(ack: pb.PartitionAck) -> int:
    """Return how many messages this answered request settled, or no longer leases. Messages whose leases it renewed do not count."""
    return sum(count for operation, count in zip(ack.operations, ack.counts, strict=False) if operation != pb.RENEW)


def chain_command(ack: pb.PartitionAck, tokens: Tokens) -> Chain:
    """Return the acceptances with messages to put. The numbers of these messages are checked when it is submitted.

    Raises:
        RequestError: INVALID_ARGUMENT.
    """
    if any(operation != pb.ACCEPT for operation in ack.operations) or any(count != 1 for count in ack.counts):
        raise RequestError(
            pb.INVALID_ARGUMENT,
            "only accepted messages, each in a run of its own, can have messages to put: use several requests",
        )
    lengths = {len(column) for column in (ack.operations, ack.first_sequences, ack.counts)}
    if len(lengths) != 1 or any(ack.detail_numbers):
        raise RequestError(pb.INVALID_ARGUMENT, "the columns of the settlements do not fit together")
    return Chain(tokens.session, ack.request, tuple(ack.first_sequences), tokens.lease_numbers, tuple(ack.put_counts))


def _detail(detail: pb.AckDetail, lease_ms: int) -> SettleDetail:
    return SettleDetail(
        delay_ms=detail.delay_ms if detail.HasField("delay_ms") else -1,
        priority=detail.priority if detail.HasField("priority") else None,
        error=detail.error,
        is_counted=not detail.is_uncounted,
        lease_ms=requested_lease_ms(detail.lease_ms) or lease_ms,
        progress=detail.progress,
    )


class Settlements:
    """The settlements of one broker."""

    def __init__(self, locator: Locator[PartitionQueue]) -> None:
        self._locator = locator

    def begin(self, ack: pb.PartitionAck, principal: Principal) -> asyncio.Future[object] | RequestError:
        """Propose the settlements of one partition now. The future returns the result for `answer`. The messages to put are taken away."""
        try:
            queue = self._locator.locate(ack.topic_id, ack.partition)
            tokens = _tokens_of(ack, queue)
            if ack.put or ack.put_counts:
                return self._begin_chain(queue, ack, tokens, principal)
            return queue.commands.submit(settle_command(ack, tokens, queue.config().lease_ms))
        except RequestError as error:
            return error

    def _begin_chain(
        self, queue: PartitionQueue, ack: pb.PartitionAck, tokens: Tokens, principal: Principal
    ) -> asyncio.Future[object]:
        if Right.PRODUCE not in principal.rights:
            raise RequestError(
                pb.PERMISSION_DENIED,
                f"{principal.name} has no right to produce, so its settlements must not put messages",
            )
        batch = ack.put
        ack.ClearField("put")  # the request waits for its answer, and its messages are counted as uncommitted data
        return queue.chains.submit(chain_command(ack, tokens), batch)

    def answer(self, ack: pb.PartitionAck, begun: asyncio.Future[object] | RequestError) -> pb.PartitionAckResult:
        """Return the answer as of now. Undecided settlements have run out of time."""
        result = pb.PartitionAckResult(topic_id=ack.topic_id, partition=ack.partition)
        try:
            settled = _result_of(begun)
            if isinstance(settled, Refused):
                raise _refusal(settled)
        except RequestError as error:
            result.error.CopyFrom(error.detail)
            return result
        assert isinstance(settled, Settled)
        result.codes.extend(_CODES.get(code, pb.INTERNAL) for code in settled.codes)
        result.counts.extend(settled.counts)
        if pb.RENEW in ack.operations:
            result.granted_ms.extend(self._granted_ms(ack))
        return result

    def _granted_ms(self, ack: pb.PartitionAck) -> list[int]:
        """Return the shortest time left of the renewed leases of each run, or 0 for a run without any.

        It is read from the leases: a repeated request gets the first codes, and by then its renewals may be old.
        """
        try:
            queue = self._locator.locate(ack.topic_id, ack.partition)
        except RequestError:
            return []  # deleted since then
        runs = zip(ack.operations, ack.first_sequences, ack.counts, _lease_numbers(ack, queue), strict=True)
        return [
            _lease_left_ms(queue, range(first, first + count), number) if operation == pb.RENEW else 0
            for operation, first, count, number in runs
        ]

    async def settle(self, ack: pb.PartitionAck, principal: Principal, deadline: float) -> pb.PartitionAckResult:
        """Settle messages of one partition, and wait for the result until the deadline (loop time)."""
        try:
            await self._locator.locate_confirmed(ack.topic_id, ack.partition, deadline)
        except RequestError as error:
            return self.answer(ack, error)
        begun = self.begin(ack, principal)
        if isinstance(begun, asyncio.Future):
            timeout = deadline - asyncio.get_running_loop().time()
            await asyncio.wait((begun,), timeout=max(0.0, timeout))
        return self.answer(ack, begun)

    async def open_session(self, topic_id: int, partition: int, deadline: float) -> pb.PartitionSession:
        """Open a session in one partition."""
        try:
            queue = await self._locator.locate_confirmed(topic_id, partition, deadline)
            opened = await queue.commands.execute(OpenSession(), SessionOpened, deadline)
            if isinstance(opened, Refused):
                raise _refusal(opened)
        except RequestError as error:
            return pb.PartitionSession(partition=partition, error=error.detail)
        return pb.PartitionSession(partition=partition, session=_mark_of_group(queue) << SESSION_BITS | opened.session)


def _mark_of_group(queue: PartitionQueue) -> int:
    """Return the number that distinguishes a queue's Raft group from earlier ones of the partition. 0: no recovery created the group.

    It is the group's id, if that has 32 bits. After a recovery of the metadata new ids have more.
    """
    group_id = queue.recovered_group
    return (group_id - 1) % _MARKS + 1 if group_id else 0


def _tokens_of(ack: pb.PartitionAck, queue: PartitionQueue) -> Tokens:
    """Return the tokens of settlements as the partition's present group knows them. After a recovery it gives lost ones again.

    Raises:
        RequestError: UNKNOWN_SESSION for a session of another group. Its number may be that of another consumer's session here.
    """
    mark, session = divmod(ack.session, 1 << SESSION_BITS)
    if ack.session and mark != _mark_of_group(queue):
        raise _refusal(Refused(Code.UNKNOWN_SESSION))
    return Tokens(session, _lease_numbers(ack, queue))


def _lease_numbers(ack: pb.PartitionAck, queue: PartitionQueue) -> tuple[int, ...]:
    """Return the lease number of each run, `_NO_LEASE` for a run that ends after the messages which recoveries since the lease kept."""
    numbers, end = tuple(ack.lease_numbers), queue.kept_end(ack.group_id)
    if end is None:
        return numbers
    runs = zip(ack.first_sequences, ack.counts, numbers, strict=False)
    return tuple(number if first + count <= end else _NO_LEASE for first, count, number in runs)


def _lease_left_ms(queue: PartitionQueue, sequences: range, lease_number: int) -> int:
    """Return the shortest time left of the present leases with these tokens, at least 1. 0: there is none."""
    store = queue.replica.state_machine.state.store
    deadlines = [store.messages[one].deadline for one in sequences if store.is_leased(one, lease_number)]
    return max(1, min(deadlines) - queue.clock.read_ms()) if deadlines else 0


def _result_of(begun: asyncio.Future[object] | RequestError) -> object:
    """Return the result of a command. Raises RequestError if it was refused, or may have failed."""
    if isinstance(begun, RequestError):
        raise begun
    if not begun.done():
        raise timed_out()
    result = begun.result()
    return result.settled if isinstance(result, ChainAnswer) else result


def _refusal(refused: Refused) -> RequestError:
    code, text = _REFUSALS.get(
        refused.code, (pb.INTERNAL, f"the settlements were refused with {Code(refused.code).name}")
    )
    return RequestError(code, text)
