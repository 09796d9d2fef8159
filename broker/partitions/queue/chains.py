"""Propose the chains of one queue partition: messages that are accepted, with messages that are put in the same entry.

A chain is a DATA entry. It is admitted if the partition has room for its growth. The tokens make it idempotent: when it is repeated, its
leases have ended. With a session the repeat also gets the first answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from raftmq.batch_header import BatchFormatError, BatchHeader
from raftmq.broker.base.futures import fail
from raftmq.broker.base.request_error import RequestError, timed_out
from raftmq.broker.partitions.appends import PartitionAppends, format_error
from raftmq.broker.partitions.pending_append import Applied
from raftmq.broker.partitions.queue.gate import QueueGate
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.queue.commands import Chain, validate_chain
from raftmq.fsm.queue.enqueued import encode_chain
from raftmq.fsm.queue.message import Message
from raftmq.fsm.queue.partition import QueuePartition
from raftmq.fsm.queue.results import Chained, Refused, Settled
from raftmq.proto import queue_pb2 as pb
from raftmq.raft.entry import EntryKind, Proposal


class ChainAnswer(NamedTuple):
    """The answer to a chain."""

    settled: Settled | Refused
    first_sequence: int
    """The sequence of the first message of the batch, if its message was accepted. -1: it is a repeat, and nobody knows any more."""


class QueueChains:
    """The chains of one partition, on its leader."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        replica: Replica[QueuePartition],
        gate: QueueGate,
        appends: PartitionAppends,
        batch_bytes_max: Callable[[], int],
    ) -> None:
        self._loop = loop
        self._replica = replica
        self._gate = gate
        self._appends = appends
        self._batch_bytes_max = batch_bytes_max

    def submit(self, chain: Chain, batch: bytes) -> asyncio.Future[object]:
        """Propose a chain now. The future returns its `ChainAnswer`. Cancelling it undoes nothing.

        Raises:
            RequestError: INVALID_ARGUMENT, the refusals of appends, and those of `Replica.propose`. Nothing was proposed.
        """
        self._replica.require_leader()
        self._appends.start_term()
        header = self._check(batch)
        reason = validate_chain(chain, header.record_count)
        if reason is not None:
            raise RequestError(pb.INVALID_ARGUMENT, reason)
        answered: asyncio.Future[object] = self._loop.create_future()
        known = self._known_answer(chain)
        if known is not None:
            answered.set_result(ChainAnswer(known, -1))
            return answered
        first_sequence, applied = self._propose(chain, encode_chain(chain, batch), header.record_count)
        applied.add_done_callback(lambda done: _answer(answered, first_sequence, done))
        return answered

    def _check(self, batch: bytes) -> BatchHeader:
        """Return the header of a batch that is whole."""
        try:
            header = self._gate.check(batch, self._batch_bytes_max())
        except BatchFormatError as error:
            raise format_error(error, 0) from None
        if header.producer_id:
            raise RequestError(
                pb.INVALID_ARGUMENT,
                "the messages of a settlement are a batch without a producer: its lease identifies it",
            )
        return header

    def _known_answer(self, chain: Chain) -> Settled | None:
        """Return the remembered answer to a repeated chain. It must not be refused because the partition is full by now."""
        if not chain.session or self._replica.applier.is_suspended:
            return None
        return self._replica.state_machine.settled_before(chain.session, chain.request)

    def _accepted(self, chain: Chain) -> list[Message | None]:
        """Return the messages that are leased under the tokens of a chain. None: one is not, or nobody can know now."""
        if self._replica.applier.is_suspended:
            return [None] * len(chain.sequences)
        store = self._replica.state_machine.state.store
        return [
            store.find(sequence) if store.is_leased(sequence, number) else None
            for sequence, number in zip(chain.sequences, chain.lease_numbers, strict=True)
        ]

    def _propose(self, chain: Chain, payload: bytes, record_count: int) -> tuple[int, Applied]:
        refusal = self._gate.admit_chain(self._accepted(chain), chain.put_counts)
        if refusal is not None:
            raise refusal
        try:
            appended, applied = self._replica.propose([Proposal(EntryKind.DATA, payload, record_count)])
        except RequestError:
            self._gate.on_refused()
            raise
        self._gate.on_proposed(applied)
        return appended.entries[0].base_offset, applied


def _answer(answered: asyncio.Future[object], first_sequence: int, applied: Applied) -> None:
    if answered.done():
        return
    failure = timed_out() if applied.cancelled() else applied.exception()
    if failure is not None:
        fail(answered, failure)
        return
    (result,) = applied.result()
    assert isinstance(result, Chained)
    answered.set_result(ChainAnswer(result.settled, first_sequence if result.enqueued.count else -1))
