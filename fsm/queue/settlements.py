"""Settle leased messages: accept, release, reject, renew.

A settlement counts only with the token of the present lease, (sequence, lease number). With any other it changes nothing, and says
whether the message still exists.
"""

from __future__ import annotations

from heapq import heappush
from itertools import chain as chained

from raftmq.fsm.queue import key_lines
from raftmq.fsm.queue.commands import Chain, Operation, Settle, SettleDetail, clamped_priority
from raftmq.fsm.queue.housekeeping import end_attempt, return_message
from raftmq.fsm.queue.message import LEASED, DeadReason, Message
from raftmq.fsm.queue.results import Code, Settled
from raftmq.fsm.queue.state import QueueState
from raftmq.fsm.queue.store import Reading

_NO_DETAIL = SettleDetail()


class CodeRuns:
    """Gather codes as runs of equal ones."""

    __slots__ = ("codes", "counts")

    def __init__(self) -> None:
        self.codes: list[int] = []
        self.counts: list[int] = []

    def add(self, code: int, count: int = 1) -> None:
        """Add the code of the next messages."""
        if self.codes and self.codes[-1] == code:
            self.counts[-1] += count
        elif count:
            self.codes.append(code)
            self.counts.append(count)

    def result(self) -> Settled:
        """Return the result of the command."""
        return Settled(tuple(self.codes), tuple(self.counts))


def settle(state: QueueState, command: Settle, work_max: int) -> Reading[tuple[Settled, int]]:
    """Settle runs of messages, at most `work_max` of them, and return the result and the number of messages named."""
    runs, left = CodeRuns(), work_max
    for place, (operation, first, named, lease_number) in enumerate(
        zip(command.operations, command.first_sequences, command.counts, command.lease_numbers, strict=False)
    ):
        count = min(max(named, 0), left)
        left -= count
        sequences = range(first, first + count)
        yield from _read_for_run(state, sequences)
        _settle_run(state, operation, sequences, lease_number, _detail(command, place), runs)
        runs.add(Code.OVER_LIMIT, max(named - count, 0))
        if state.freed_lines:
            yield from key_lines.advance(state)
    return runs.result(), work_max - left


def accept_chain(state: QueueState, chain: Chain, work_max: int) -> Reading[tuple[Settled, frozenset[int]]]:
    """Accept the messages of a chain. Return the result, and the positions in the batch that belong to messages that were not accepted."""
    count = len(chain.sequences)
    ones = (1,) * count
    command = Settle(0, 0, (Operation.ACCEPT,) * count, chain.sequences, ones, chain.lease_numbers)
    result, _ = yield from settle(state, command, work_max)
    codes = chained.from_iterable((code,) * run for code, run in zip(result.codes, result.counts, strict=True))
    omitted: list[int] = []
    first = 0
    for code, put_count in zip(codes, chain.put_counts, strict=True):
        if code != Code.OK:
            omitted += range(first, first + put_count)
        first += put_count
    return result, frozenset(omitted)


def _detail(command: Settle, place: int) -> SettleDetail:
    """Return the arguments of a run."""
    number = command.detail_numbers[place] if place < len(command.detail_numbers) else 0
    return command.details[number - 1] if 0 < number <= len(command.details) else _NO_DETAIL


def _read_for_run(state: QueueState, sequences: range) -> Reading[None]:
    """Read the rows that a run may need: the lines of its messages, and the locations of unknown messages."""
    messages = state.store.messages
    found = [messages.get(sequence) for sequence in sequences]
    if None in found:
        # All leased messages are in memory, so these tokens are old. Their answer depends on whether the message exists.
        yield from state.store.fetch(
            one for one, m in zip(sequences, found, strict=True) if m is None and 0 <= one < state.scalars.next_sequence
        )
    lined = [m for m in found if m is not None and m.line]
    if lined:
        yield from key_lines.prepare(state, lined)


def _settle_run(
    state: QueueState, operation: int, sequences: range, lease_number: int, detail: SettleDetail, runs: CodeRuns
) -> None:
    if operation == Operation.ACCEPT:
        accept_run(state, sequences, lease_number, runs)
        return
    if operation not in (Operation.RELEASE, Operation.REJECT, Operation.RENEW):
        runs.add(Code.INVALID, len(sequences))
        return
    find = state.store.messages.get
    for sequence in sequences:
        m = find(sequence)
        if m is None:
            runs.add(Code.LEASE_UNKNOWN)
        elif m.state != LEASED or m.lease_number != lease_number:
            runs.add(Code.LEASE_LOST)
        else:
            runs.add(_settle_one(state, operation, m, detail))


def accept_run(state: QueueState, sequences: range, lease_number: int, runs: CodeRuns) -> None:
    """Accept messages. This is the way of nearly every message, so it counts for a tenant once per run."""
    store, scalars = state.store, state.scalars
    messages, gone, dirty, absent = store.messages, store.gone, store.dirty, store.absent
    leased: dict[int, int] = {}
    sizes: dict[int, int] = {}
    accepted = 0
    for sequence in sequences:
        m = messages.get(sequence)
        if m is None or m.state != LEASED or m.lease_number != lease_number:
            runs.add(Code.OK, accepted)
            accepted = 0
            runs.add(Code.LEASE_UNKNOWN if m is None else Code.LEASE_LOST)
            continue
        accepted += 1
        tenant = m.tenant
        leased[tenant] = leased.get(tenant, 0) + 1
        sizes[tenant] = sizes.get(tenant, 0) + m.body_bytes
        if m.line:
            key_lines.let_go(state, m)
        if m.expires_at:
            scalars.expiring_count -= 1
        if m.id:
            state.ids.release(m.id, sequence, m.id_until, scalars.now)
        del messages[sequence]
        dirty.discard(sequence)
        if m.stored_key:
            gone[sequence] = m
        else:
            absent.add(sequence)
    runs.add(Code.OK, accepted)
    for number, count in leased.items():
        state.tallies.accepted += count
        tenant_counts = state.tenants.by_number[number]
        tenant_counts.leased -= count
        tenant_counts.bytes -= sizes[number]
        store.leased_count -= count
        state.tenants.tree.free(number, count)
        state.tenants.count(tenant_counts)


def _settle_one(state: QueueState, operation: int, m: Message, detail: SettleDetail) -> Code:
    m.version += 1
    if operation == Operation.RELEASE:
        return _release(state, m, detail)
    if operation == Operation.REJECT:
        m.error = detail.error
        state.bury(m, DeadReason.REJECTED)
        return Code.OK
    m.deadline = state.later(min(detail.lease_ms, state.settings.lease_ms_max))
    m.leased_at = state.scalars.now
    m.progress = detail.progress or m.progress
    state.store.dirty.add(m.sequence)
    heappush(state.store.leases, (m.deadline, m.sequence))
    return Code.OK


def _release(state: QueueState, m: Message, detail: SettleDetail) -> Code:
    state.tallies.released += 1
    if detail.error:
        m.error = detail.error
    if detail.priority is not None:
        m.priority = clamped_priority(detail.priority)
    if not detail.is_counted:
        m.attempts -= 1
        if detail.delay_ms >= 0:
            m.due = state.later(detail.delay_ms)
        return_message(state, m)
        return Code.OK
    if detail.delay_ms < 0 or state.is_exhausted(m):
        return Code.DIED if end_attempt(state, m) else Code.OK
    m.due = state.later(detail.delay_ms)
    return_message(state, m)
    return Code.OK
