"""The rules that make batches visible as a whole: each by itself, and all of them under arbitrary runs of writers, readers and producers."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TypeVar

import pytest
from raftmq.spark.atomic.batch_marks import (
    CLOSED_MAX,
    GROUP_MAX,
    PARTITIONS_MAX,
    SHOWN_BYTES_MAX,
    Answer,
    Ask,
    Change,
    FindEnds,
    OpenBatch,
    TopicMarks,
    Wait,
    Writer,
    abandon_batch,
    close_batch,
    find_cut,
    open_batch,
    read_marks,
)
from raftmq.spark.errors import BatchStillOpenError, InvalidOptionError, SupersededError

T = TypeVar("T")
Row = tuple[str, int, int, int]
"""Writer, batch, task and number of a row."""
STAMP_BYTES_MAX = 4096
PATIENCE_MS = 1000
A, B, C = (Writer.of(name, name) for name in "abc")


@dataclass
class Topic:
    """A topic with its marks, and the rows of each partition. None is a record of a plain producer."""

    logs: list[list[Row | None]]
    stamp: bytes | None = None
    time_ms: int = 1
    written: set[Row] = field(default_factory=set)
    changes: int = 0
    rng: random.Random | None = None
    """Chooses whether a client knows the newest partitions. None: it does."""

    def ends(self, count: int) -> tuple[int, ...]:
        return tuple(len(log) for log in self.logs[:count])

    def append(self, partition: int, row: Row) -> None:
        """Append a row once, as brokers do by its sequence."""
        if row not in self.written:
            self.written.add(row)
            self.logs[partition].append(row)

    def answer(self, ask: Ask) -> Answer:
        if isinstance(ask, Change):
            self.changes += 1
            if self.stamp is None or ask.replaces == self.stamp:
                self.stamp = ask.stamp
            return Answer(self.stamp, self.time_ms)
        if isinstance(ask, FindEnds):
            most = len(self.logs)
            return Answer(ends=self.ends(most if self.rng is None else self.rng.randint(ask.partition_count, most)))
        return Answer()

    def run(self, steps: Generator[Ask, Answer, T]) -> T:
        try:
            ask = next(steps)
            while True:
                if isinstance(ask, Wait):
                    raise TimeoutError(ask.batch.writer.shown)
                ask = steps.send(self.answer(ask))
        except StopIteration as end:
            value: T = end.value
            return value

    def open(self, writer: Writer, epoch: int = 0) -> TopicMarks:
        return self.run(open_batch(writer, epoch, len(self.logs), PATIENCE_MS))

    def close(self, writer: Writer, epoch: int = 0) -> TopicMarks:
        return self.run(close_batch(writer, epoch))

    def cut(self, known: TopicMarks | None = None) -> tuple[int, ...]:
        return self.run(find_cut(known)).ends


def topic(*counts: int) -> Topic:
    return Topic([[None] * count for count in counts])


# ------------------------------------------------------------------------------------------------------- single rules


def test_a_batch_is_hidden_until_it_is_closed() -> None:
    t = topic(2, 3)
    t.open(A)
    t.logs[0] += [None, None]
    assert t.cut() == (2, 3)
    t.close(A)
    assert t.cut() == (4, 3)


def test_records_of_plain_producers_are_visible_without_any_batch() -> None:
    t = topic(2, 3)
    assert t.cut() == (2, 3)
    t.logs[1].append(None)
    assert t.cut() == (2, 4)


def test_a_look_without_new_records_changes_nothing_in_the_cluster() -> None:
    t = topic(2, 3)
    known = t.run(find_cut(None))
    before = t.changes
    assert t.run(find_cut(known)) == known
    assert t.changes == before


def test_marks_that_were_read_before_a_batch_began_do_not_show_its_rows() -> None:
    t = topic(2, 3)
    known = t.run(find_cut(None))
    t.open(A)
    t.logs[0].append(("a", 0, 0, 0))
    assert t.cut(known) == (2, 3)


def test_records_that_were_written_before_a_batch_began_are_visible_beside_it() -> None:
    t = topic(2, 3)
    t.cut()
    t.logs[0].append(None)
    t.open(A)
    assert t.cut() == (3, 3)


def test_a_closed_batch_stays_hidden_while_an_overlapping_one_is_open() -> None:
    t = topic(0, 0)
    t.open(A)
    t.open(B)
    t.close(A)
    assert t.cut() == (0, 0)
    t.logs[0].append(None)
    t.close(B)
    assert t.cut() == (1, 0)


def test_the_next_batch_of_a_writer_waits_for_the_end_of_the_group() -> None:
    t = topic(0)
    t.open(A, 0)
    t.open(B, 0)
    t.close(A, 0)
    with pytest.raises(TimeoutError, match="b"):
        t.open(A, 1)
    t.open(C, 0)  # another writer joins
    t.close(C, 0)
    t.close(B, 0)
    assert t.open(A, 1).is_open(A, 1)


def test_a_writer_does_not_wait_until_clocks_that_were_set_back_show_the_time_of_a_batch_again() -> None:
    t = topic(0)
    t.time_ms += 1000 * PATIENCE_MS
    t.open(A, 0)
    t.open(B, 0)
    t.close(A, 0)
    t.time_ms -= 900 * PATIENCE_MS
    assert t.open(A, 1).is_open(A, 1)


def test_a_writer_does_not_wait_for_a_batch_that_is_open_for_too_long() -> None:
    t = topic(0)
    t.open(A, 0)
    t.open(B, 0)
    t.close(A, 0)
    t.time_ms += PATIENCE_MS + 1
    marks = t.open(A, 1)
    assert [batch.writer for batch in marks.slow(A, PATIENCE_MS)] == [B]
    assert not marks.slow(B, PATIENCE_MS)
    t.close(A, 1)
    assert t.cut() == (0,)


def test_a_batch_is_opened_again_by_its_next_run_and_closed_once() -> None:
    t = topic(0)
    t.open(A, 3)
    assert t.open(A, 3).open == t.open(A, 3).open
    closed = t.close(A, 3)
    assert t.close(A, 3) == closed
    assert t.open(A, 3) == closed  # a late task, or a run after the mark
    assert t.open(A, 2) == closed


def test_a_later_batch_of_the_writer_takes_the_place_of_one_that_was_never_closed() -> None:
    t = topic(0)
    t.open(A, 3)
    assert [batch.epoch for batch in t.open(A, 4).open] == [4]


def test_a_late_task_does_not_replace_its_writers_next_batch() -> None:
    """It waited while its driver died, and while the batch failed for good: nobody would close the batch that it opens."""
    t = topic(0)
    t.open(A, 6)
    with pytest.raises(SupersededError):
        t.open(A, 5)
    t.close(A, 6)
    assert not t.run(read_marks()).open


def test_only_a_closed_batch_is_reported_as_closed() -> None:
    t = topic(0)
    assert not t.close(A, 3).is_closed(A, 3)
    t.open(A, 3)
    t.run(abandon_batch("a"))
    assert not t.close(A, 3).is_closed(A, 3)
    t.open(A, 3)
    assert t.close(A, 3).is_closed(A, 3)


def test_a_name_of_several_writers_abandons_no_batch_and_a_key_does() -> None:
    t = topic(0)
    one, two = (Writer.of(f"{'w' * SHOWN_BYTES_MAX}{n}", f"{'w' * SHOWN_BYTES_MAX}{n}") for n in range(2))
    t.open(one)
    t.open(two)
    with pytest.raises(InvalidOptionError, match=two.key.hex()):
        t.run(abandon_batch(one.shown))
    assert len(t.run(read_marks()).open) == 2
    abandoned = t.run(abandon_batch(two.key.hex()))
    assert abandoned is not None
    assert abandoned.writer == two
    assert [batch.writer for batch in t.run(read_marks()).open] == [one]


def test_an_abandoned_batch_is_visible_and_may_come_back() -> None:
    t = topic(0)
    t.open(A, 3)
    t.logs[0].append(None)
    assert t.run(abandon_batch("b")) is None
    batch = t.run(abandon_batch("a"))
    assert batch is not None
    assert batch.epoch == 3
    assert t.cut() == (1,)
    assert t.open(A, 3).is_open(A, 3)


def test_a_partition_that_is_added_while_a_batch_is_open_is_hidden_until_its_end() -> None:
    t = topic(2)
    t.open(A)
    t.logs.append([None, None])
    assert t.open(A).ends == (2, 0)  # a task that knows the new partition
    t.logs[1].append(None)
    assert t.cut() == (2, 0)
    t.close(A)
    assert t.cut() == (2, 3)


def test_a_reader_that_does_not_know_a_new_partition_asks_for_it() -> None:
    t = topic(2)
    known = t.run(find_cut(None))
    t.open(A)
    t.logs.append([None])
    t.open(A)
    t.close(A)
    assert len(t.cut(known)) == 2


def test_no_more_batches_are_open_than_there_is_room_for() -> None:
    t = topic(0)
    writers = [Writer.of(f"{n}", f"{n}") for n in range(GROUP_MAX + 1)]
    for writer in writers[:GROUP_MAX]:
        t.open(writer)
    with pytest.raises(TimeoutError):
        t.open(writers[GROUP_MAX])
    t.time_ms += PATIENCE_MS + 1
    with pytest.raises(BatchStillOpenError):
        t.open(writers[GROUP_MAX])
    t.close(writers[3])
    assert len(t.open(writers[GROUP_MAX]).open) == GROUP_MAX


def test_too_many_partitions_are_refused() -> None:
    t = topic(*[0] * (PARTITIONS_MAX + 1))
    with pytest.raises(InvalidOptionError):
        t.open(A)
    with pytest.raises(InvalidOptionError):
        t.run(find_cut(None))


def test_the_largest_marks_fit_a_stamp_and_come_back_as_they_were() -> None:
    most = (1 << 64) - 1
    shown = "é" * SHOWN_BYTES_MAX
    marks = TopicMarks(
        most,
        (most,) * PARTITIONS_MAX,
        tuple(OpenBatch(Writer.of(f"{n}", shown), most, most, n % 2 == 0) for n in range(GROUP_MAX)),
        {n.to_bytes(8, "little"): most for n in range(CLOSED_MAX)},
    )
    assert len(marks.encode()) <= STAMP_BYTES_MAX
    assert TopicMarks.decode(marks.encode()) == marks
    with pytest.raises(InvalidOptionError, match="later version"):
        TopicMarks.decode(b"\x02" + marks.encode()[1:])


def test_only_the_latest_writers_are_remembered() -> None:
    t = topic(0)
    for n in range(CLOSED_MAX + 5):
        writer = Writer.of(f"{n}", f"{n}")
        t.open(writer)
        t.close(writer)
    assert len(t.run(read_marks()).closed) == CLOSED_MAX


# --------------------------------------------------------------------------------------------------- arbitrary orders

Actor = Generator[None, None, None]


def performed(t: Topic, steps: Generator[Ask, Answer, T]) -> Generator[None, None, T]:
    """Execute the steps, with a chance for other actors before each request."""
    try:
        ask = next(steps)
        while True:
            yield
            ask = steps.send(t.answer(ask))
    except StopIteration as end:
        value: T = end.value
        return value


class World:
    """Writers whose tasks and drivers die, plain producers and readers, in an order that a seed chooses."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.topic = Topic([[] for _ in range(self.rng.randint(1, 3))], rng=self.rng)
        self.actors: list[Actor] = []
        self.cuts: list[tuple[int, ...]] = []
        self.working = 0
        self.given_up: set[tuple[str, int]] = set()
        """Batches of which only late tasks are left. Readers may see parts of them."""

    def task(self, writer: Writer, epoch: int, number: int, rows: list[int], done: list[int]) -> Actor:
        t = self.topic
        try:
            marks = yield from performed(t, open_batch(writer, epoch, len(t.logs), PATIENCE_MS))
        except SupersededError:
            return
        if (writer.shown, epoch) in self.given_up and not marks.is_open(writer, epoch):
            return
        for n, partition in enumerate(rows):
            yield
            t.append(partition, (writer.shown, epoch, number, n))
        done.append(number)

    def writer(self, name: str) -> Actor:
        """Run three batches, each as often as it takes. Tasks of earlier runs go on."""
        rng, t = self.rng, self.topic
        writer = Writer.of(name, name)
        for epoch in range(3):
            tasks = [[rng.randrange(len(t.logs)) for _ in range(rng.randint(1, 4))] for _ in range(rng.randint(1, 3))]
            for _ in range(rng.randint(0, 2)):  # runs whose driver dies
                for number, rows in enumerate(tasks):
                    self.actors.append(self.task(writer, epoch, number, rows, []))
                for _ in range(rng.randint(0, 20)):
                    yield
            if epoch < 2 and rng.random() < 0.1:  # the batch fails for good, and its writer begins the next one
                self.given_up.add((name, epoch))
                continue
            done: list[int] = []
            for number, rows in enumerate(tasks):
                self.actors.append(self.task(writer, epoch, number, rows, done))
            while len(done) < len(tasks):
                yield
            if rng.random() < 0.3:  # the driver dies in the middle of the mark
                steps = performed(t, close_batch(writer, epoch))
                for _ in range(rng.randint(1, 3)):
                    if next(steps, True):
                        break
                    yield
            yield from performed(t, close_batch(writer, epoch))
        self.working -= 1

    def producer(self) -> Actor:
        while self.working:
            yield
            if self.rng.random() < 0.2:
                self.rng.choice(self.topic.logs).append(None)

    def reader(self) -> Actor:
        known = None
        while self.working:
            for _ in range(self.rng.randint(0, 5)):
                yield
            known = yield from performed(self.topic, find_cut(known))
            self.cuts.append(known.ends)

    def operator(self) -> Actor:
        for _ in range(self.rng.randint(0, 400)):
            yield
        self.topic.logs.append([])

    def run(self) -> None:
        writers = [self.writer(name) for name in "abc"[: self.rng.randint(1, 3)]]
        self.working = len(writers)
        self.actors += [*writers, self.producer(), self.reader(), self.reader(), self.operator()]
        while self.actors:
            actor = self.rng.choice(self.actors)
            self.topic.time_ms += self.rng.randint(0, 3)
            if next(actor, "ended") == "ended":
                self.actors.remove(actor)


def divided(cut: tuple[int, ...], logs: list[list[Row | None]]) -> set[tuple[str, int]]:
    """Return the batches that have rows before the cut and after it, the slow and obvious way."""
    sides: dict[tuple[str, int], set[bool]] = defaultdict(set)
    for partition, log in enumerate(logs):
        for offset, row in enumerate(log):
            if row is not None:
                sides[row[0], row[1]].add(partition < len(cut) and offset < cut[partition])
    return {batch for batch, found in sides.items() if len(found) == 2}


@pytest.mark.parametrize(
    ("first", "count"), [(0, 40), *(pytest.param(n, 200, marks=pytest.mark.long) for n in range(200, 1000, 200))]
)
def test_no_reader_ever_sees_a_part_of_a_batch(first: int, count: int) -> None:
    moved = 0
    for seed in range(first, first + count):
        world = World(seed)
        world.run()
        for cut in world.cuts:
            assert not divided(cut, world.topic.logs) - world.given_up, seed
        moved += len(set(world.cuts)) > 1
        world.topic.rng = None
        marks = world.topic.run(find_cut(None))
        assert not marks.open, seed
        assert marks.ends == world.topic.ends(len(world.topic.logs)), seed
    assert moved > count // 2


def test_writers_whose_batches_always_overlap_become_visible() -> None:
    """A and B each begin their next batch when they can, and close it when the other one has begun, or waits."""
    t = topic(0)
    epochs = {A: 0, B: 0}
    t.open(A, 0)
    t.open(B, 0)
    seen = 0
    for turn in range(20):
        one = (A, B)[turn % 2]
        t.logs[0].append(None)
        t.close(one, epochs[one])
        for writer in (A, B):
            if not t.run(read_marks()).is_open(writer, epochs[writer]):
                try:
                    t.open(writer, epochs[writer] + 1)
                    epochs[writer] += 1
                except TimeoutError:
                    pass
        seen = max(seen, t.cut()[0])
    assert seen >= 18
