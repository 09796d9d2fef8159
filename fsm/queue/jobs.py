"""Jobs: purge, redrive and retention of many messages, in slices.

A job is about the messages that exist when it begins: its row has the last sequence, or the last dead number, that it will look at. The
leader proposes one slice after the other, at the job's pace, and its successor continues at the cursor. A slice looks at a bounded
number of messages, takes those that match, and moves the cursor behind the last one that it looked at.

Messages on disk and messages in memory are looked at in one order, so that slices are equal on every replica.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec
from raftmq.fsm.queue import key_lines
from raftmq.fsm.queue import rows as keys
from raftmq.fsm.queue.changes import redrive
from raftmq.fsm.queue.commands import CancelJob, ContinueJob, JobFilter, JobKind, StartJob
from raftmq.fsm.queue.limits import JOBS_MAX, SLICE_ROWS_MAX
from raftmq.fsm.queue.message import DEAD, Message
from raftmq.fsm.queue.results import Code, JobProgress, JobStarted, Refused
from raftmq.fsm.queue.state import QueueScalars, QueueState
from raftmq.fsm.queue.store import Reading
from raftmq.fsm.row_reads import RowRange, RowsNeeded
from raftmq.fsm.tables import Table

MESSAGE_READS_MAX: Final = 256
"""Messages that a slice reads together."""


class JobRow(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A job that is not finished."""

    kind: int
    filter: JobFilter
    through: int
    """The last sequence, or dead number, that the job looks at."""
    cursor: int
    """The next one."""
    done_count: int
    messages_per_second: int
    started_at: int


class _Found(NamedTuple):
    """Messages in the order of a job, and the place up to which there are no others."""

    messages: list[tuple[int, Message]]
    through: int


JobTable = Table[int, JobRow]


def start_job(state: QueueState, jobs: JobTable, command: StartJob) -> JobStarted | Refused:
    """Begin a job about the messages of this moment."""
    if len(jobs.by_key) >= JOBS_MAX:
        return Refused(Code.TOO_MANY_JOBS)
    if command.kind not in (JobKind.PURGE, JobKind.REDRIVE, JobKind.RETAIN):
        return Refused(Code.INVALID)
    number = state.scalars.next_job
    state.scalars.next_job += 1
    is_by_sequence = command.kind == JobKind.PURGE
    through = (state.scalars.next_sequence if is_by_sequence else state.scalars.next_dead) - 1
    jobs.put(
        number, JobRow(command.kind, command.filter, through, 0, 0, command.messages_per_second, state.scalars.now)
    )
    return JobStarted(number)


def cancel_job(jobs: JobTable, command: CancelJob) -> JobProgress | Refused:
    """End a job where it is."""
    row = jobs.get(command.job)
    if row is None:
        return Refused(Code.NO_SUCH_JOB)
    jobs.delete(command.job)
    return JobProgress(row.done_count, is_finished=True)


def continue_job(
    state: QueueState, jobs: JobTable, command: ContinueJob, work_max: int
) -> Reading[JobProgress | Refused]:
    """Execute a slice: look at messages from the cursor on, and take those that match."""
    row = jobs.get(command.job)
    if row is None:
        return Refused(Code.NO_SUCH_JOB)
    wanted = min(command.messages_max, work_max)
    cursor, looked, taken = row.cursor, 0, 0
    place = cursor
    while place <= row.through and looked < SLICE_ROWS_MAX and taken < wanted:
        found = yield from _next_messages(state, row, place, min(MESSAGE_READS_MAX, SLICE_ROWS_MAX - looked))
        place = found.through + 1
        for number, m in found.messages:
            if taken == wanted:
                break
            if _is_retention_done(state, row, m):
                place = row.through + 1
                break
            cursor, looked = number + 1, looked + 1
            if _matches(state, row, m):
                taken += 1
                yield from _take(state, row.kind, m)
    # A slice that reached a bound is not the last one: whether it reached the end, too, depends on the content of the memory.
    is_finished = looked < SLICE_ROWS_MAX and taken < wanted
    done_count = row.done_count + taken
    if is_finished:
        jobs.delete(command.job)
    else:
        jobs.put(command.job, msgspec.structs.replace(row, cursor=cursor, done_count=done_count))
    return JobProgress(done_count, is_finished)


# ---------------------------------------------------------------------------------------------------------------- matching


def _matches(state: QueueState, row: JobRow, m: Message) -> bool:
    chosen = row.filter
    if chosen.tenants and not is_in_subtrees(state.tenants.by_number[m.tenant].path, chosen.tenants):
        return False
    if row.kind == JobKind.PURGE:
        return bool(chosen.states >> m.state & 1) and (not chosen.before_ms or m.enqueued_at < chosen.before_ms)
    return row.kind == JobKind.RETAIN or not chosen.before_ms or m.dead_at < chosen.before_ms


def _is_retention_done(state: QueueState, row: JobRow, m: Message) -> bool:
    """Return whether this dead message and all later ones are kept: they are young, few, or not copied yet."""
    if row.kind != JobKind.RETAIN:
        return False
    if state.settings.has_dead_letter_topic and m.dead_number > state.scalars.copied_dead:
        return True
    is_old = m.dead_at < row.filter.before_ms
    return not is_old and not is_surplus(state.scalars, row.filter.keep_count, row.filter.keep_bytes)


def is_surplus(scalars: QueueScalars, keep_count: int, keep_bytes: int) -> bool:
    """Return whether the dead exceed a number or their bytes another one. 0 is no bound."""
    return 0 < keep_count < scalars.dead_count or 0 < keep_bytes < scalars.dead_bytes


def is_in_subtrees(path: str, subtrees: tuple[str, ...]) -> bool:
    """Return whether a tenant is one of these or below one of them."""
    return any(not top or path == top or path.startswith(f"{top}.") for top in subtrees)


def _take(state: QueueState, kind: int, m: Message) -> Reading[None]:
    yield from key_lines.prepare_joins(state, [m])
    if kind == JobKind.REDRIVE:
        m.version += 1
        redrive(state, m)
    else:
        state.tallies.removed_dead += kind == JobKind.RETAIN
        state.finish(m)
    yield from key_lines.advance(state)


# ----------------------------------------------------------------------------------------------------------------- finding


def _next_messages(state: QueueState, row: JobRow, first: int, count_max: int) -> Reading[_Found]:
    """Return existing messages from a place on, in the order of the job. There may be fewer than `count_max`, or none."""
    if row.kind == JobKind.PURGE:
        return (yield from _by_sequence(state, first, row.through, count_max))
    return (yield from _by_dead_number(state, first, row.through, count_max))


def _by_sequence(state: QueueState, first: int, last: int, count_max: int) -> Reading[_Found]:
    store = state.store
    range_ = RowRange(
        keys.location_key(store.generation, first), keys.location_key(store.generation, last + 1), count_max
    )
    (rows,) = yield RowsNeeded((range_,))
    written = [keys.sequence_of_location(key) for key, _ in rows]
    through = written[-1] if len(rows) >= count_max else last
    known = [sequence for sequence in store.messages if first <= sequence <= through]
    sequences = sorted({*known, *written})
    if len(sequences) > count_max:
        del sequences[count_max:]
        through = sequences[-1]
    yield from store.fetch(sequences)
    found = ((sequence, store.find(sequence)) for sequence in sequences)
    return _Found([(sequence, m) for sequence, m in found if m is not None], through)


def _by_dead_number(state: QueueState, first: int, last: int, count_max: int) -> Reading[_Found]:
    store = state.store
    range_ = RowRange(keys.dead_key(store.generation, first), keys.dead_key(store.generation, last + 1), count_max)
    rows = yield from store.visit(range_)
    through = keys.number_of_dead(rows[-1][0]) if len(rows) >= count_max else last
    found = sorted(
        (m.dead_number, m.sequence)
        for m in store.messages.values()
        if m.state == DEAD and first <= m.dead_number <= through
    )
    if len(found) > count_max:
        del found[count_max:]
        through = found[-1][0]
    return _Found([(number, store.messages[sequence]) for number, sequence in found], through)
