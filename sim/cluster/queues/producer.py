"""A producer of queue messages. It repeats a batch after a lost answer under the same producer id and sequence."""

from __future__ import annotations

import asyncio
from functools import partial

from raftmq.broker.partitions.queue.partition import PartitionQueue
from raftmq.message_checks import TIME_AFTER, TIME_AT, TIME_NONE, Times
from raftmq.queue_batch import MessageColumns, encode, seal_queue_batch

from sim.cluster.queues import services
from sim.cluster.queues.ledger import Ledger
from sim.cluster.queues.port import CallFailedError, QueuePort
from sim.history.queues.operations import Outcome, Put, SentMessage

TENANTS = ("", "", "a", "b", "a.x", "c")
KEYS = ("", "k1", "k2", "k3")
IDS = ("i1", "i2", "i3", "i4", "i5", "i6")
DELAY_MS_MAX = 1_500
_ATTEMPTS_MAX = 10
_RETRY_SECONDS = 0.05


class QueueProducer:
    """One producer of a queue partition, until an outcome stays unknown."""

    def __init__(self, process: str, ledger: Ledger, port: QueuePort, group_id: int) -> None:
        self._process = process
        self._ledger = ledger
        self._port = port
        self._group_id = group_id
        self._producer_id = ledger.new_producer_id()
        self._next_sequence = 0
        self.is_over = False
        """Whether a batch has failed, or its outcome is unknown, so that its sequence cannot be used again."""

    async def put(self, count: int) -> Put:
        """Send a batch of new messages."""
        messages = tuple(self._new_message() for _ in range(count))
        priorities = [self._ledger.rng.choice((-3, 0, 0, 0, 5)) for _ in messages]
        batch = seal_queue_batch(
            encode(_columns(messages, priorities)), message_count=count, producer_id=self._producer_id,
            producer_epoch=0, first_sequence=self._next_sequence,
        )  # fmt: skip
        put = await self._send(messages, batch)
        if put.outcome is Outcome.OK:
            self._next_sequence += count
        else:
            self.is_over = True
        self._ledger.record(put)
        return put

    def _new_message(self) -> SentMessage:
        ledger, rng = self._ledger, self._ledger.rng
        is_ordered = self._group_id in ledger.ordered
        id_ = rng.choice(IDS) if rng.random() < 0.15 else ""
        delay_ms = rng.randrange(1, DELAY_MS_MAX) if rng.random() < 0.2 else 0
        seen_ms = ledger.seen_ms.get(self._group_id, 0)
        is_absolute = bool(delay_ms and seen_ms and rng.random() < 0.4)
        return SentMessage(
            ledger.new_value(),
            rng.choice(TENANTS[:3] if is_ordered else TENANTS),
            rng.choice(KEYS) if is_ordered else "",
            id_,
            bool(id_) and rng.random() < 0.4,
            0 if is_absolute else delay_ms,
            seen_ms + delay_ms if is_absolute else 0,
            not is_ordered and (bool(ledger.queue_options.message_ttl_ms) or rng.random() < 0.05),
        )

    async def _send(self, messages: tuple[SentMessage, ...], batch: bytes) -> Put:
        ledger, began = self._ledger, self._ledger.now
        is_certain = True
        for _ in range(_ATTEMPTS_MAX):
            try:
                answered = await self._port.call(self._group_id, partial(_put, batch))
            except CallFailedError as error:
                is_certain &= error.is_definite
                if error.is_final:
                    break
                await asyncio.sleep(ledger.rng.expovariate(1 / _RETRY_SECONDS))
                continue
            answer: services.PutAnswer = answered.result
            ledger.see(self._group_id, max(answered.before_ms, answer.append_ms))
            enqueued = answer.enqueued
            repeated = () if enqueued is None else tuple(position for position, _ in enqueued.repeated)
            for position in range(len(messages)):
                if enqueued is not None and position not in repeated:
                    ledger.know(self._group_id, answer.first_sequence + position)
            return Put(
                self._process, self._group_id, began, ledger.now, Outcome.OK, 0, messages, answer.first_sequence,
                answer.append_ms, repeated,
                () if enqueued is None else tuple(sequence for _, sequence in enqueued.replaced), enqueued is not None,
            )  # fmt: skip
        outcome = Outcome.FAILED if is_certain else Outcome.UNKNOWN
        return Put(self._process, self._group_id, began, ledger.ended(is_answered=is_certain), outcome, 0, messages)


async def _put(batch: bytes, partition: PartitionQueue, deadline: float) -> services.PutAnswer:
    return await services.put(partition, batch, deadline)


def _columns(messages: tuple[SentMessage, ...], priorities: list[int]) -> MessageColumns:
    kinds = [TIME_AT if m.due_ms else TIME_AFTER if m.delay_ms else TIME_NONE for m in messages]
    return MessageColumns(
        [m.value for m in messages],
        priorities=priorities if any(priorities) else None,
        due=Times(kinds, [m.due_ms or m.delay_ms for m in messages]) if any(kinds) else None,
        expiry=_expiry(messages),
        replaces=[int(m.replaces) for m in messages] if any(m.replaces for m in messages) else None,
        tenants=[m.tenant.encode() for m in messages] if any(m.tenant for m in messages) else None,
        ids=[m.id.encode() or None for m in messages] if any(m.id for m in messages) else None,
        keys=[m.key.encode() or None for m in messages] if any(m.key for m in messages) else None,
    )


def _expiry(messages: tuple[SentMessage, ...]) -> Times | None:
    """Return times of expiry: some soon, some not within the run."""
    if not any(m.may_expire for m in messages):
        return None
    kinds = [TIME_AFTER if m.may_expire else TIME_NONE for m in messages]
    return Times(kinds, [700 + 40 * len(m.value) if m.may_expire else 0 for m in messages])
