"""A consumer of queue messages that follows the protocol: it leases, works, settles, and sometimes dies.

Requests of a session are repeated after a lost answer with the same number. Others are not repeated, unless their repeat is harmless.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from raftmq.broker.partitions.queue.chains import ChainAnswer
from raftmq.broker.partitions.queue.leases import Filter
from raftmq.broker.partitions.queue.partition import PartitionQueue
from raftmq.fsm.queue.commands import Chain, CloseSession, Lease, OpenSession, Operation, Settle, SettleDetail
from raftmq.fsm.queue.results import Refused, SessionOpened, Settled
from raftmq.queue_batch import MessageColumns, encode, seal_queue_batch

from sim.cluster.queues import services
from sim.cluster.queues.ledger import Ledger
from sim.cluster.queues.port import Answered, CallFailedError, QueuePort, Service
from sim.cluster.queues.producer import KEYS, TENANTS
from sim.cluster.queues.records import accepted_messages, codes_of, settled_messages
from sim.cluster.queues.requests import Requests
from sim.history.queues.operations import (
    Answer,
    LeasedMessage,
    LeaseTaken,
    Outcome,
    Put,
    SentMessage,
    SettledMessage,
    Settlement,
)

_ATTEMPTS_MAX = 8
_RETRY_SECONDS = 0.05
_CHAINED_MAX = 2
"""Messages of a chain. With an old token, and two messages for each, they are below the work of an entry where that is small."""
_WAIT_SECONDS = 0.4
_DETAILS = (
    SettleDetail(delay_ms=0),
    SettleDetail(delay_ms=300, error="later"),
    SettleDetail(is_counted=False),
    SettleDetail(lease_ms=800, progress="half"),
    SettleDetail(error="broken"),
)
_NOW, _LATER, _UNCOUNTED, _RENEWED, _GIVEN_UP = range(1, 6)
_CHOICES = (
    *((Operation.ACCEPT, 0),) * 12,
    *((Operation.RELEASE, 0), (Operation.RELEASE, _NOW), (Operation.RELEASE, _LATER), (Operation.RELEASE, _UNCOUNTED)),
    (Operation.REJECT, _GIVEN_UP),
    *((Operation.RENEW, _RENEWED),) * 2,
)


class _UnansweredError(Exception):
    """A request has no answer after all its attempts."""

    def __init__(self, *, is_certain: bool) -> None:
        super().__init__()
        self.is_certain = is_certain
        """Whether nothing was done."""


class Worker:
    """One consumer of one partition."""

    def __init__(self, process: str, ledger: Ledger, port: QueuePort, group_id: int) -> None:
        self._process = process
        self._ledger = ledger
        self._port = port
        self._group_id = group_id
        self._requests = Requests(process, ledger, port, group_id)
        self._session = 0
        self._request = 0
        self._old: list[tuple[int, int]] = []
        """Tokens that were settled, or whose leases have ended."""

    async def open(self) -> None:
        """Open a session, if the partition answers. Without one the worker's requests are not remembered."""
        answered = await self._requests.execute(OpenSession())
        if answered is not None and isinstance(answered.result, SessionOpened):
            self._session = answered.result.session

    async def close(self) -> None:
        """Close the session."""
        if self._session:
            await self._requests.execute(CloseSession(self._session))

    async def _repeat(self, service: Service[object], attempts: int) -> tuple[Answered, bool]:
        """Call until there is an answer. Return it, and whether it is the answer to the first attempt that may have arrived."""
        is_certain = True
        for _ in range(attempts):
            try:
                answered = await self._port.call(self._group_id, service)
            except CallFailedError as error:
                is_certain &= error.is_definite
                await asyncio.sleep(self._ledger.rng.expovariate(1 / _RETRY_SECONDS))
            else:
                self._ledger.see(self._group_id, answered.before_ms)
                return answered, is_certain
        raise _UnansweredError(is_certain=is_certain)

    # ------------------------------------------------------------------------------------------------ leasing

    async def lease(self, messages_max: int, lease_ms: int, *, is_choosy: bool = True) -> LeaseTaken | None:
        """Lease messages, sometimes only of some tenants if `is_choosy`. None: there were none, or nobody knows."""
        rng, began = self._ledger.rng, self._ledger.now
        wanted = self._wanted() if is_choosy else ((), b"")
        is_remembered = self._session > 0 and rng.random() < 0.5 and not self._ledger.queue_options.is_single_active
        if is_remembered:
            self._request += 1
            command = Lease(self._session, self._request, messages_max, lease_ms, *wanted)
            service: Service[object] = partial(_lease, command)
        else:
            service = partial(_wait, messages_max, lease_ms, Filter(*wanted))
        try:
            answered, is_first = await self._repeat(service, _ATTEMPTS_MAX if is_remembered else 1)
        except _UnansweredError:
            return None
        if isinstance(answered.result, Refused):
            self._session = 0
            return None
        answer: services.LeaseAnswer | None = answered.result
        if answer is None or not answer.messages:
            return None
        taken = LeaseTaken(
            self._process, self._group_id, began, self._ledger.now, Outcome.OK, answered.before_ms if is_first else 0,
            tuple(LeasedMessage(*message) for message in answer.messages), lease_ms, answer.leased.deadline,
        )  # fmt: skip
        self._ledger.record(taken)
        return taken

    def _wanted(self) -> tuple[tuple[str, ...], bytes]:
        rng = self._ledger.rng
        if rng.random() < 0.8:
            return (), b""
        if self._group_id in self._ledger.ordered and rng.random() < 0.3:
            return (rng.choice(TENANTS[:3]),), rng.choice(KEYS[1:]).encode()
        return tuple(dict.fromkeys(rng.choices(TENANTS[2:], k=2))), b""

    # ------------------------------------------------------------------------------------------------ settling

    async def settle(self, taken: LeaseTaken) -> None:
        """Settle leased messages, each in its own way."""
        rng = self._ledger.rng
        tokens = [(one.sequence, one.lease_number) for one in taken.messages]
        choices = [rng.choice(_CHOICES) for _ in tokens]
        if self._old and rng.random() < 0.15:
            old = rng.choice(self._old)
            if old not in tokens:
                tokens.append(old)
                choices.append(rng.choice(_CHOICES))
        await self.send(tokens, choices, taken.leased_ms)
        self._old = (self._old + tokens)[-20:]

    async def send(
        self, tokens: Sequence[tuple[int, int]], choices: Sequence[tuple[int, int]], before_ms: int
    ) -> Settlement:
        """Send settlements. `before_ms` is a queue time before them."""
        ledger, began = self._ledger, self._ledger.now
        self._request += 1
        command = Settle(
            self._session, self._request if self._session else 0, tuple(operation for operation, _ in choices),
            tuple(sequence for sequence, _ in tokens), (1,) * len(tokens), tuple(number for _, number in tokens),
            tuple(detail for _, detail in choices), _DETAILS,
        )  # fmt: skip
        codes: list[int] | None = None
        is_first = is_certain = False
        try:
            answered, is_first = await self._repeat(partial(_execute, command), _ATTEMPTS_MAX)
        except _UnansweredError as error:
            is_certain = error.is_certain
        else:
            if isinstance(answered.result, Settled):
                codes = codes_of(answered.result)
            else:
                # it has no session any more: an earlier attempt may have had one
                is_certain = is_first
                self._session = 0
            before_ms = max(before_ms, answered.before_ms) if is_first else before_ms
        outcome = Outcome.OK if codes is not None else Outcome.FAILED if is_certain else Outcome.UNKNOWN
        messages = settled_messages(command, codes)
        if not is_first and not command.session:
            messages = tuple(map(_forget_refusal, messages))
        settlement = Settlement(
            self._process, self._group_id, began, ledger.ended(is_answered=outcome is not Outcome.UNKNOWN), outcome,
            before_ms, messages,
        )  # fmt: skip
        ledger.record(settlement)
        return settlement

    # ------------------------------------------------------------------------------------------------ chaining

    async def chain(self, taken: LeaseTaken) -> None:
        """Accept the first leased messages, each with messages that are put in the same entry, and settle the others."""
        rest = replace(taken, messages=taken.messages[_CHAINED_MAX:])
        await self._chain(replace(taken, messages=taken.messages[:_CHAINED_MAX]))
        if rest.messages:
            await self.settle(rest)

    async def _chain(self, taken: LeaseTaken) -> None:
        ledger, began = self._ledger, self._ledger.now
        tokens = [(one.sequence, one.lease_number) for one in taken.messages]
        if self._old and ledger.rng.random() < 0.2:
            old = ledger.rng.choice(self._old)
            tokens += [old] if old not in tokens else []
        self._old = (self._old + tokens)[-20:]
        puts = [tuple(self._new_message() for _ in range(ledger.rng.choice((1, 1, 2)))) for _ in tokens]
        self._request += 1
        command = Chain(
            self._session, self._request if self._session else 0, tuple(sequence for sequence, _ in tokens),
            tuple(number for _, number in tokens), tuple(map(len, puts)),
        )  # fmt: skip
        values = [message.value for messages in puts for message in messages]
        batch = seal_queue_batch(encode(MessageColumns(values)), message_count=len(values))
        answer: ChainAnswer | None = None
        before_ms, is_first, is_certain = taken.leased_ms, False, False
        try:
            answered, is_first = await self._repeat(partial(_chain, command, batch), _ATTEMPTS_MAX)
        except _UnansweredError as error:
            is_certain = error.is_certain
        else:
            answer = answered.result
            before_ms = max(before_ms, answered.before_ms) if is_first else before_ms
        settled = answer.settled if answer is not None else None
        if isinstance(settled, Refused):
            is_certain, self._session = is_first, 0
        codes = codes_of(settled) if isinstance(settled, Settled) else None
        outcome = Outcome.OK if codes is not None else Outcome.FAILED if is_certain else Outcome.UNKNOWN
        ended = ledger.ended(is_answered=outcome is not Outcome.UNKNOWN)
        messages = accepted_messages(command, codes)
        if not is_first and not command.session:
            messages = tuple(map(_forget_refusal, messages))
        ledger.record(Settlement(self._process, self._group_id, began, ended, outcome, before_ms, messages))
        sequence = answer.first_sequence if answer is not None else -1
        for message, put in zip(messages, puts, strict=True):
            self._record_put(put, sequence, message.answer, outcome, began)
            sequence += len(put) if sequence >= 0 else 0

    def _new_message(self) -> SentMessage:
        ledger = self._ledger
        has_ttl = self._group_id not in ledger.ordered and bool(ledger.queue_options.message_ttl_ms)
        return SentMessage(ledger.new_value(), may_expire=has_ttl)

    def _record_put(
        self, messages: tuple[SentMessage, ...], sequence: int, answer: Answer | None, outcome: Outcome, began: float
    ) -> None:
        """Record the messages that belong to one accepted message: they are there if, and only if, it was accepted."""
        ledger = self._ledger
        if outcome is Outcome.OK and answer is not Answer.DONE:
            outcome = Outcome.UNKNOWN if answer is None else Outcome.FAILED
        is_known = outcome is Outcome.OK and sequence >= 0
        for position in range(len(messages) if is_known else 0):
            ledger.know(self._group_id, sequence + position)
        ended = ledger.ended(is_answered=outcome is not Outcome.UNKNOWN)
        ledger.record(
            Put(self._process, self._group_id, began, ended, outcome, 0, messages, sequence if is_known else -1)
        )


def _forget_refusal(message: SettledMessage) -> SettledMessage:
    """Return a settlement without its refusal: an earlier attempt, which nobody remembers, may have been the reason of it."""
    if message.answer in (Answer.DONE, Answer.DIED):
        return message
    return replace(message, answer=None)


async def _execute(item: object, partition: PartitionQueue, deadline: float) -> object:
    return await services.execute(partition, item, deadline)  # type: ignore[arg-type]  # one of the union's commands


async def _chain(command: Chain, batch: bytes, partition: PartitionQueue, deadline: float) -> object:
    return await services.chain(partition, command, batch, deadline)


async def _lease(command: Lease, partition: PartitionQueue, deadline: float) -> object:
    return await services.lease(partition, command, deadline)


async def _wait(
    messages_max: int, lease_ms: int, wanted: Filter, partition: PartitionQueue, _deadline: float
) -> object:
    return await services.wait_for_lease(partition, messages_max, lease_ms, wanted, _WAIT_SECONDS)
