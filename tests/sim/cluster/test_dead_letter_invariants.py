"""The invariants of copies of dead messages can fail: each wrong copy, and each record without one, is refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from raftmq.fsm.queue import commands as qc
from raftmq.fsm.queue.state import QueueState
from raftmq.message_headers import DEAD_LETTER_PREFIX, encode_headers
from raftmq.queue_batch import MessageColumns, encode, seal_queue_batch
from raftmq.raft.entry import Entry, EntryKind

from sim.cluster.invariants.dead_letters import DeadLetters, watch_deaths
from tests.support.fsm.queue.host import Queue, messages
from tests.support.sim.broken import broken

SOURCE, TARGET = 7, 8


class Copies:
    """A partition with three dead messages, and its dead letter topic."""

    def __init__(self) -> None:
        self.source, self.target = Queue(), Queue()
        self.seen = DeadLetters()
        self._apply(SOURCE, self.source, self.source.log.put(messages(3)))
        self.do(qc.Lease(0, 0, 3, 1_000))
        self.do(qc.Settle(0, 0, (qc.Operation.REJECT,), (0,), (3,), (1,)))
        self.do(qc.AimCopies(2, 0, epoch=1))

    def do(self, item: qc.Item) -> None:
        self._apply(SOURCE, self.source, self.source.log.commands(item))

    def copy(self, number: int, *, sequence: int | None = None, body: bytes = b"body") -> None:
        """Append the copy of a death, by its number, under its own sequence or another one."""
        state = self.source.host.machine.state
        died_at = state.store.messages[number - 1].dead_at
        said = {"topic": "jobs", "partition": 0, "sequence": number - 1, "time": died_at}
        headers = encode_headers(
            tuple((DEAD_LETTER_PREFIX + name, str(value).encode()) for name, value in said.items())
        )
        batch = seal_queue_batch(
            encode(MessageColumns([body], headers=[headers])), message_count=1, producer_id=9,
            producer_epoch=state.scalars.copy_epoch, first_sequence=number - 1 if sequence is None else sequence,
        )  # fmt: skip
        self._apply(TARGET, self.target, self.target.log.append(EntryKind.DATA, batch, 1))

    def _apply(self, group_id: int, queue: Queue, entry: Entry) -> None:
        queue.host.apply(entry)
        self.seen.on_applied(group_id, entry, queue.host.machine, lambda _topic, _partition: SOURCE)


@pytest.fixture
def copies() -> Iterator[Copies]:
    undo = watch_deaths()
    yield Copies()
    undo()


def test_copies_in_the_order_of_deaths_break_nothing(copies: Copies) -> None:
    for number in (1, 2, 3):
        copies.copy(number)
        copies.do(qc.CopyDead(number, epoch=1))
    assert copies.seen.copies == 3


def test_copied_once(copies: Copies) -> None:
    copies.copy(1)
    copies.do(qc.AimCopies(2, 0, epoch=2))
    with broken("CopiedOnce"):
        copies.copy(1)


def test_a_copy_under_the_sequence_of_another_death(copies: Copies) -> None:
    with broken("CopiesAreDeaths"):
        copies.copy(2, sequence=0)


def test_a_copy_with_another_body(copies: Copies) -> None:
    with broken("CopiesAreDeaths"):
        copies.copy(1, body=b"another")


def test_recorded_after_copied(copies: Copies) -> None:
    copies.copy(1)
    with broken("RecordedAfterCopied"):
        copies.do(qc.CopyDead(2, epoch=1))


def test_a_message_that_is_not_dead_any_more_needs_no_copy(copies: Copies) -> None:
    copies.copy(1)
    copies.do(qc.Change((qc.ChangeItem(qc.ChangeOperation.REDRIVE, 1),)))
    copies.do(qc.CopyDead(2, epoch=1))
    copies.do(qc.PurgeAll())
    assert copies.seen.copies == 1


def test_the_watch_of_deaths_is_undone() -> None:
    before = QueueState.bury, QueueState.leave
    watch_deaths()()
    assert before == (QueueState.bury, QueueState.leave)
