"""Append batches to one partition: validate each batch and propose it immediately, in the order of the calls.

Validating and proposing happen without an `await` in between. Only waiting is concurrent. Records are never looked into: a batch
is checked by its 64-byte header and its CRC, and proposed unchanged.

A named producer's batch is appended only if this node's metadata is recent enough to know of a successor (`producer_fence`).

Source: KIP-98 (idempotent producers).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from raftmq.batch_header import (
    BatchFormatError,
    BatchHeader,
    BatchKindError,
    BatchTooLargeError,
    UnsupportedBatchVersionError,
    UnsupportedCodecError,
)
from raftmq.broker.base.request_error import RequestError, expired
from raftmq.broker.partitions.append_gate import AppendGate
from raftmq.broker.partitions.pending_append import Applied, PendingAppend
from raftmq.broker.partitions.producer_fence import ProducerFence, fenced
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.sequence_validator import (
    Accept,
    AppliedState,
    Duplicate,
    Fenced,
    Gap,
    JoinPending,
    Overlap,
    SequenceValidator,
    TooManyProducers,
)
from raftmq.fsm.state_machine import StateMachine
from raftmq.proto import queue_pb2 as pb
from raftmq.raft.entry import EntryKind, Proposal
from raftmq.types import LogIndex


class SequencedMachine(StateMachine, AppliedState, Protocol):
    """A state machine that remembers producers and their sequences."""


class _InFlight(NamedTuple):
    first: LogIndex
    last: LogIndex
    applied: Applied


class _ProposalBatch:
    """Collect batches that were accepted and not yet proposed, so that one proposal holds all of them."""

    __slots__ = ("headers", "idempotent", "payloads")

    def __init__(self) -> None:
        self.headers: list[BatchHeader] = []
        self.payloads: list[bytes] = []
        self.idempotent: BatchHeader | None = None
        """The last header that has a producer."""

    def add(self, header: BatchHeader, payload: bytes) -> None:
        """Add an accepted batch."""
        self.headers.append(header)
        self.payloads.append(payload)
        if header.producer_id:
            self.idempotent = header

    def is_continued_by(self, header: BatchHeader) -> bool:
        """Return whether the validator would accept the batch if it knew this run: the batch follows the run's last sequence."""
        last = self.idempotent
        return last is not None and (
            header.producer_id == last.producer_id
            and header.producer_epoch == last.producer_epoch
            and header.first_sequence == last.last_sequence + 1
        )


class PartitionAppends:
    """Validates and proposes the batches of one partition.

    During a leadership it keeps the proposals that are not yet applied.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        replica: Replica[SequencedMachine],
        batch_bytes_max: Callable[[], int],
        fence: ProducerFence,
        gate: AppendGate,
    ) -> None:
        """Take `batch_bytes_max`, which returns the topic's setting. It raises RequestError while metadata is missing."""
        self._loop = loop
        self._replica = replica
        self._batch_bytes_max = batch_bytes_max
        self._gate = gate
        self._fence = fence
        self._validator = SequenceValidator(replica.state_machine)
        self._validated_term = replica.term
        self._in_flight: deque[_InFlight] = deque()
        """Proposals of this term whose results may still be requested, by ascending index."""

    def begin(self, batches: Sequence[bytes], deadline: float) -> PendingAppend:
        """Check, validate and propose the batches in this order, without waiting. The result is final only after `finish`."""
        ticket = PendingAppend(batches)
        if self._loop.time() >= deadline:
            ticket.refuse(expired())
            return ticket
        self._propose_from(ticket, 0, is_confirmed=False)
        return ticket

    def result(self, ticket: PendingAppend, log_start_offset: int) -> pb.PartitionAppendResult:
        """Return the answer to an append as of now."""
        result = ticket.result(log_start_offset)
        self._gate.describe(ticket, result)
        return result

    async def finish(self, ticket: PendingAppend, deadline: float) -> None:
        """Wait until every batch of the ticket has its outcome. Cancelling it undoes nothing."""
        while ticket.is_undecided:
            if ticket.uninformed_position is not None:
                await self._inform(ticket, deadline)
            else:
                await self._resolve_gap(ticket, deadline)
        waiting = ticket.pending()
        if waiting:
            await asyncio.wait(waiting, timeout=max(0.0, deadline - self._loop.time()))

    def _propose_from(self, ticket: PendingAppend, position: int, *, is_confirmed: bool) -> None:
        try:
            self._replica.require_leader()
            bytes_max = self._batch_bytes_max()
        except RequestError as error:
            ticket.refuse(error)
            return
        self.start_term()
        ticket.leader_epoch = self._replica.term
        run = _ProposalBatch()
        for number in range(position, len(ticket.batches)):
            batch = ticket.batches[number]
            try:
                header = self._gate.check(batch, bytes_max)
            except BatchFormatError as error:
                self._flush(ticket, run)
                if not ticket.has_failed:
                    ticket.refuse(format_error(error, number))
                return
            if header.producer_id and run.idempotent is not None and not run.is_continued_by(header):
                run = self._flush(ticket, run)
                if ticket.has_failed:
                    return
            if header.producer_id == 0 or run.idempotent is not None:
                if not self._admit(ticket, run, header, batch):
                    return
            elif not self._validate_one(ticket, run, header, number, is_confirmed=is_confirmed):
                return
        self._flush(ticket, run)

    def start_term(self) -> None:
        """Forget the batches that were validated in an earlier term: their entries may have been replaced."""
        if self._replica.term != self._validated_term:
            self._validator.clear()
            self._in_flight.clear()
            self._gate.start_term()
            self._validated_term = self._replica.term

    def _validate_one(
        self, ticket: PendingAppend, run: _ProposalBatch, header: BatchHeader, number: int, *, is_confirmed: bool
    ) -> bool:
        """Validate a batch whose producer has no batch in the run.

        Returns:
            Whether the batches after it may be tried.
        """
        result = self._validator.validate(header)
        refusal: RequestError | None = None
        is_informed = True
        # a duplicate needs no fence: a batch that was written before may be acknowledged to its producer
        if isinstance(result, Accept | Gap):
            is_informed = self._fence.is_informed(header)
            refusal = self._fence.check(header)
            if is_informed and refusal is None and isinstance(result, Accept):
                return self._admit(ticket, run, header, ticket.batches[number])
        self._flush(ticket, run)
        run.headers, run.payloads = [], []
        if ticket.has_failed:
            return False
        if refusal is not None:
            ticket.refuse(refusal)
            return False
        if not is_informed:
            ticket.uninformed_position = number
            return False
        match result:
            case Duplicate(base_offset):
                ticket.repeated.append(number)
                ticket.outcomes.append((base_offset, None))
                return True
            case JoinPending(index, base_offset):
                ticket.repeated.append(number)
                self._join(ticket, base_offset, index)
                return not ticket.has_failed
            case Overlap(last_sequence, pending_index):
                error = RequestError(
                    pb.SEQUENCE_OVERLAP,
                    f"records up to sequence {last_sequence} were written before; send only the records after them",
                    last_sequence=last_sequence,
                )
                if pending_index:
                    self._join(ticket, error, pending_index)
                else:
                    ticket.refuse(error)
            case Fenced(epoch):
                ticket.refuse(fenced(epoch))
            case TooManyProducers():
                ticket.refuse(
                    RequestError(
                        pb.TOO_MANY_PRODUCERS,
                        "the partition remembers the maximum number of producers, and none of them has been idle for long "
                        "enough; try again later, and let programs that write often keep one producer",
                        retry_after_ms=1000,
                    )
                )
            case Gap():
                if is_confirmed:
                    ticket.refuse(_out_of_order(header, result))
                else:
                    ticket.gap_position = number
        return False

    def _admit(self, ticket: PendingAppend, run: _ProposalBatch, header: BatchHeader, batch: bytes) -> bool:
        """Add a batch to the run, unless the partition does not accept it now. Return whether the batches after it may be tried."""
        refusal = self._gate.admit(header, batch)
        if refusal is None:
            run.add(header, batch)
            return True
        self._flush(ticket, run)
        if not ticket.has_failed:
            ticket.refuse(refusal)
        return False

    def _join(self, ticket: PendingAppend, outcome: int | RequestError, index: LogIndex) -> None:
        """Answer `outcome` after the entry at `index` is applied, and never before it is committed."""
        for held in reversed(self._in_flight):
            if held.first <= index <= held.last:
                ticket.outcomes.append((outcome, held.applied))
                return
        # cannot happen while the validator and `_in_flight` begin together; an unknown outcome is the safe answer
        ticket.refuse(RequestError(pb.LEADERSHIP_LOST, "the original of this batch is no longer known; retry"))

    def _flush(self, ticket: PendingAppend, run: _ProposalBatch) -> _ProposalBatch:
        """Propose the run as a whole and tell the validator. Return a new, empty run."""
        if not run.headers:
            return run
        proposals = [
            Proposal(EntryKind.DATA, payload, header.record_count)
            for header, payload in zip(run.headers, run.payloads, strict=True)
        ]
        try:
            appended, applied = self._replica.propose(proposals)
        except RequestError as error:
            self._gate.on_refused()
            ticket.refuse(error)
            return _ProposalBatch()
        self._gate.on_proposed(applied)
        entries = appended.entries
        ticket.runs.append((len(ticket.outcomes), applied))
        for header, entry in zip(run.headers, entries, strict=True):
            self._validator.appended(header, entry.index, entry.base_offset)
            ticket.outcomes.append((entry.base_offset, applied))
        ticket.append_time_ms = entries[-1].append_time_ms
        in_flight = self._in_flight
        while in_flight and in_flight[0].applied.done():
            in_flight.popleft()
        if run.idempotent is not None:
            in_flight.append(_InFlight(entries[0].index, entries[-1].index, applied))
        return _ProposalBatch()

    async def settle(self, producer_id: int, epoch_min: int, deadline: float) -> None:
        """Wait until every batch that was accepted from the producer under an epoch below `epoch_min` is settled.

        A batch is settled when it is applied, or when another leader decides about it.
        """
        self.start_term()
        index = self._validator.last_pending(producer_id, epoch_min)
        applied = next((held.applied for held in self._in_flight if held.first <= index <= held.last), None)
        if applied is not None and not applied.done():
            await asyncio.wait((applied,), timeout=max(0.0, deadline - self._loop.time()))
            if not applied.done():
                raise expired()

    async def _inform(self, ticket: PendingAppend, deadline: float) -> None:
        """Validate again after this node's metadata is recent enough to know the producer's successor."""
        position, ticket.uninformed_position = ticket.uninformed_position, None
        assert position is not None
        try:
            await self._fence.inform(deadline)
        except RequestError as error:
            ticket.refuse(error)
        else:
            self._propose_from(ticket, position, is_confirmed=False)

    async def _resolve_gap(self, ticket: PendingAppend, deadline: float) -> None:
        """Validate again after a quorum has confirmed that this leader knows the newest sequences.

        Without the confirmation a leader with an outdated log would report a gap that does not exist.
        """
        position, ticket.gap_position = ticket.gap_position, None
        assert position is not None
        try:
            async with asyncio.timeout_at(deadline):
                await self._replica.read_index()
        except RequestError as error:
            ticket.refuse(error)
        except TimeoutError:
            ticket.refuse(expired())
        else:
            self._propose_from(ticket, position, is_confirmed=True)


def format_error(error: BatchFormatError, number: int) -> RequestError:
    """Return the refusal of a batch that did not pass its checks. `number` is its place in the request."""
    code = pb.CORRUPT_BATCH
    match error:
        case BatchKindError():
            code = pb.TOPIC_KIND_MISMATCH
        case BatchTooLargeError():
            code = pb.RECORD_TOO_LARGE
        case UnsupportedBatchVersionError():
            code = pb.UNSUPPORTED_VERSION
        case UnsupportedCodecError():
            code = pb.UNSUPPORTED_COMPRESSION
    return RequestError(code, f"batch {number}: {error.reason}")


def _out_of_order(header: BatchHeader, gap: Gap) -> RequestError:
    known = (
        f"the last sequence known is {gap.last_sequence}"
        if gap.last_sequence >= 0
        else "no batch of this epoch is known"
    )
    if not gap.is_certain:
        known += ", because the producer was idle for too long and was forgotten"
    return RequestError(
        pb.OUT_OF_ORDER_SEQUENCE,
        f"batch begins at sequence {header.first_sequence}, {known}",
        last_sequence=max(gap.last_sequence, 0),
        is_certain=gap.is_certain,
    )
