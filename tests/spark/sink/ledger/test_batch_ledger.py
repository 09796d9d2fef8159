"""The rules for repeated runs of a batch: each rule by itself, and all of them under arbitrary runs of tasks and drivers."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Generator
from dataclasses import replace
from hashlib import blake2b
from itertools import zip_longest
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raftmq.spark.errors import ReplayMismatchError, SupersededError
from raftmq.spark.sink.ledger.batch_ledger import (
    ATTEMPTS_MAX,
    CRC_DIGESTS,
    GENERATIONS_MAX,
    LOG_DIGESTS,
    ROUNDS_PER_GENERATION,
    ROW_DIGESTS,
    TASKS_MAX,
    Answer,
    Ask,
    BatchLedger,
    Claim,
    Pause,
    Peek,
    WriteIdentity,
    enter_batch,
    fix_count,
    mark_fenced,
    mark_stalled,
    open_batch,
)

T = TypeVar("T")


class Stamps:
    """The part of the cluster: a stamp per name, changed by compare and swap.

    `makes_entries`, `adds_bits`: it is no older version that does not.
    """

    def __init__(
        self, makes_entries: Callable[[], bool] = lambda: True, adds_bits: Callable[[], bool] = lambda: True
    ) -> None:
        self.by_name: dict[str, bytes] = {}
        self.rounds: dict[str, int] = {}
        self._makes_entries = makes_entries
        self._adds_bits = adds_bits
        self.time_ms = 0

    def answer(self, ask: Ask) -> Answer:
        if isinstance(ask, Pause):
            return Answer()
        if isinstance(ask, Peek):
            return Answer(self.by_name.get(ask.name, b"") if ask.round_ == self.rounds.get(ask.name, 0) else b"")
        if ask.round_ > self.rounds.get(ask.name, 0):
            self.rounds[ask.name] = ask.round_
            self.by_name.pop(ask.name, None)
        elif ask.round_ < self.rounds.get(ask.name, 0):
            raise SupersededError("the name is in a later round")
        stamp = self._changed(ask.name, ask.stamp, ask.replaces)
        if ask.then is None or not self._makes_entries() or not self.permits_entry(stamp, ask):
            return Answer(stamp, self.time_ms)
        return Answer(stamp, self.time_ms, self._changed(*ask.then))

    def permits_entry(self, stamp: bytes, ask: Claim) -> bool:
        return stamp == ask.stamp

    def _changed(self, name: str, stamp: bytes, replaces: bytes | None, shared: int = 0) -> bytes:
        if name not in self.by_name or replaces == self.by_name[name]:
            self.by_name[name] = stamp
        elif shared and self._adds_bits() and stamp[:shared] == self.by_name[name][:shared]:
            rests = zip_longest(stamp[shared:], self.by_name[name][shared:], fillvalue=0)
            self.by_name[name] = stamp[:shared] + bytes(one | other for one, other in rests)
        return self.by_name[name]

    def run(self, steps: Generator[Ask, Answer, T]) -> T:
        try:
            ask = next(steps)
            while True:
                if isinstance(ask, Pause):
                    raise TimeoutError(ask.waiting_for)
                ask = steps.send(self.answer(ask))
        except StopIteration as end:
            value: T = end.value
            return value


def digest(rows: object) -> bytes:
    assert isinstance(rows, list | tuple | range)
    hashes = (blake2b(str(row).encode(), digest_size=16).digest() for row in rows)
    total = sum(int.from_bytes(each) for each in hashes) % 2**128  # sums of Python's own hashes collide
    return len(rows).to_bytes(8, "little") + total.to_bytes(16, "little") + repr(list(rows)).encode()


def enter(stamps: Stamps, attempt: int, task: int, rows: object) -> BatchLedger:
    identity = WriteIdentity("q", 0, attempt)
    return stamps.run(enter_batch(identity, task, digest(rows), stamps.run(open_batch(identity, {}))))


def test_the_names_of_a_writer_for_two_topics_differ_and_are_short_enough():
    longest = "w" * 200
    one, other = (WriteIdentity.of(longest, topic, 2**56 - 1, 1) for topic in ("t" * 249, None))
    assert one.name != other.name
    assert len(one.task_name(TASKS_MAX - 1)) <= 249
    assert one.name_epoch(255) == 2**64 - 1


def test_in_the_first_run_no_task_waits():
    stamps = Stamps()
    for task in (3, 0, 3):
        ledger = enter(stamps, 10, task, range(task))
    assert ledger == BatchLedger((10,), written=0b1001, proved=0b1001)
    assert ledger.missing(10) == []


@pytest.mark.parametrize(
    ("is_changed", "makes_entries", "adds_bits", "calls"),
    [
        (False, True, True, 1),
        (True, True, True, 1),
        (True, True, False, 2),
        (False, False, True, 2),
        (True, False, True, 3),
    ],
)
def test_a_task_claims_its_rows_once_and_enters_at_once_even_if_another_task_has_entered(
    is_changed, makes_entries, adds_bits, calls
):
    stamps, asked = Stamps(lambda: makes_entries, lambda: adds_bits), []
    identity = WriteIdentity("q", 0, 10)
    opened = stamps.run(open_batch(identity, {}))
    if is_changed:
        enter(stamps, 10, 3, [3])
    steps = enter_batch(identity, 5, digest([5]), opened)
    with pytest.raises(StopIteration) as end:
        ask = next(steps)
        while True:
            assert isinstance(ask, Claim)
            asked.append(ask.name)
            ask = steps.send(stamps.answer(ask))
    tasks = 0b101000 if is_changed else 0b100000
    assert end.value.value == BatchLedger((10,), written=tasks, proved=tasks)
    assert asked == [identity.task_name(5), identity.ledger_name, identity.ledger_name][:calls]


def test_the_first_opener_of_a_batch_fixes_its_partition_counts():
    stamps = Stamps()
    for attempt, counts in ((1, {7: 3}), (1, {7: 4}), (2, {})):
        ledger = stamps.run(open_batch(WriteIdentity("q", 0, attempt), counts))
        assert ledger.partition_counts == {7: 3}
        assert stamps.run(fix_count(WriteIdentity("q", 0, attempt), 7, 5, ledger)).partition_counts == {7: 3}


def test_the_count_of_a_topic_in_a_column_is_fixed_by_the_first_task_that_meets_it():
    stamps = Stamps()
    identity = WriteIdentity("q", 0, 1)
    one, other = (stamps.run(open_batch(identity, {})) for _ in range(2))
    assert stamps.run(fix_count(identity, 7, 3, one)).partition_counts == {7: 3}
    assert stamps.run(fix_count(identity, 7, 5, other)).partition_counts == {7: 3}
    assert stamps.run(fix_count(identity, 8, 5, other)).partition_counts == {7: 3, 8: 5}


def test_a_ledger_without_room_for_another_topic_stays_as_it_is():
    ledger = BatchLedger((1,))
    rng = random.Random(1)
    while (wanted := ledger.with_count(rng.getrandbits(60), 3)) != ledger:
        ledger = wanted
    assert len(ledger.encode()) <= 4096
    assert len(ledger.partition_counts) > 200
    assert BatchLedger.decode(ledger.encode()) == ledger


@pytest.mark.parametrize("id_bits", [12, 60])
def test_the_topics_of_a_ledger_leave_room_for_its_tasks_and_for_later_runs(id_bits):
    stamps, rng, count = Stamps(), random.Random(1), 0
    identity = WriteIdentity("q", 0, rng.getrandbits(63))
    ledger = stamps.run(open_batch(identity, {}))
    for topic_id in rng.sample(range(1 << id_bits), 1 << 12):
        count = len(ledger.partition_counts)
        ledger = stamps.run(fix_count(identity, topic_id, rng.randint(1, 99), ledger))
        if len(ledger.partition_counts) == count:
            break
    assert count > 200
    tasks = rng.sample(range(4000), 4000)
    for task in tasks[:2000]:
        ledger = ledger.with_proved(task)
    stamps.by_name[identity.ledger_name] = ledger.encode()
    for attempt in (rng.getrandbits(63) for _ in range(ATTEMPTS_MAX)):
        enter(stamps, attempt, tasks[0], [1])
    assert len(stamps.by_name[identity.ledger_name]) <= 4096


def test_a_full_ledger_is_told():
    stamps, identity = Stamps(), WriteIdentity("q", 0, 1)
    rounds = {task: 16 + task % 7 for task in random.Random(1).sample(range(TASKS_MAX), 2500)}
    full = BatchLedger((2,), written=2**TASKS_MAX - 1, rounds=rounds, generation=1)
    stamps.by_name[identity.ledger_name] = full.encode()
    with pytest.raises(ReplayMismatchError, match="full: it has 8192 tasks, 2500 of which"):
        stamps.run(open_batch(identity, {}))


def test_a_ledger_that_another_version_of_zlib_has_compressed_is_changed(monkeypatch):
    stamps, identity, compress = Stamps(), WriteIdentity("q", 0, 1), zlib.compress
    ledger = replace(BatchLedger((1,)), partition_counts=dict.fromkeys(range(1000), 1))
    monkeypatch.setattr(zlib, "compress", lambda text, level: compress(text, 1))
    stamps.by_name[identity.ledger_name] = ledger.encode()
    monkeypatch.undo()
    assert ledger.encode() != stamps.by_name[identity.ledger_name]
    assert enter(stamps, 1, 3, [1]).has(3)


def test_a_new_task_waits_until_all_earlier_writers_have_entered_again():
    stamps = Stamps()
    enter(stamps, 1, 0, [1])
    enter(stamps, 1, 2, [2])
    with pytest.raises(TimeoutError):
        enter(stamps, 2, 5, [3])
    assert enter(stamps, 2, 2, [2]).missing(2) == [0]
    with pytest.raises(TimeoutError):
        enter(stamps, 2, 5, [3])
    assert enter(stamps, 2, 0, [1]).missing(2) == []
    assert enter(stamps, 2, 5, [3]).has(5)


def test_other_rows_are_refused_once_a_task_may_have_written():
    stamps = Stamps()
    enter(stamps, 1, 0, [1])
    for attempt in (1, 2):
        with pytest.raises(ReplayMismatchError):
            enter(stamps, attempt, 0, [2])
    enter(stamps, 3, 0, [1])


def test_the_same_rows_in_another_order_begin_the_tasks_next_round():
    stamps = Stamps()
    enter(stamps, 1, 0, [1, 2])
    for attempt in (1, 2):
        assert enter(stamps, attempt, 0, [1, 2]).round_of(0) == 0
    assert enter(stamps, 2, 0, [2, 1]).round_of(0) == 1
    assert enter(stamps, 3, 0, [2, 1]).round_of(0) == 1
    assert enter(stamps, 3, 0, [1, 2]).round_of(0) == 2
    with pytest.raises(ReplayMismatchError):
        enter(stamps, 3, 0, [1, 3])


def finish(stamps: Stamps, attempt: int) -> BatchLedger:
    return stamps.run(open_batch(WriteIdentity("q", 0, attempt, finishes=True), {}))


def test_an_attempt_that_finishes_the_batch_waits_for_no_task_and_takes_any_rows():
    stamps = Stamps()
    enter(stamps, 1, 0, [1])
    enter(stamps, 1, 1, [2])
    ledger = finish(stamps, 2)
    assert (ledger.generation, ledger.old_tasks, ledger.written) == (1, [0, 1], 0)
    identity = WriteIdentity("q", 0, 2, finishes=True)
    for task, found in ((5, [1]), (0, [2, 3])):
        ledger = stamps.run(enter_batch(identity, task, digest(found), stamps.run(open_batch(identity, {}))))
        assert ledger.round_of(task) == 16
    assert finish(stamps, 2) == ledger
    with pytest.raises(ReplayMismatchError):
        enter(stamps, 3, 0, [2])
    assert finish(stamps, 4).old_tasks == [0, 1, 5]
    with pytest.raises(SupersededError):
        finish(stamps, 2)


def test_after_an_attempt_in_which_a_task_waited_in_vain_no_task_waits():
    stamps = Stamps()
    enter(stamps, 1, 0, [1])
    identity = WriteIdentity("q", 0, 2)
    with pytest.raises(TimeoutError):
        enter(stamps, 2, 1, [2])
    stamps.run(mark_stalled(identity, stamps.run(open_batch(identity, {}))))
    with pytest.raises(ReplayMismatchError, match="next run"):
        enter(stamps, 2, 1, [2])
    assert enter(stamps, 2, 0, [1]).generation == 0
    ledger = enter(stamps, 3, 1, [2])
    assert (ledger.generation, ledger.old_tasks, ledger.is_stalled) == (1, [0], False)


def test_an_attempt_that_finishes_a_batch_without_rows_is_a_usual_one():
    assert finish(Stamps(), 1).generation == 0


def test_generations_are_bounded():
    stamps = Stamps()
    enter(stamps, 100, 0, [1])
    for attempt in range(GENERATIONS_MAX):
        finish(stamps, attempt)
    with pytest.raises(ReplayMismatchError):
        finish(stamps, 99)


def test_rounds_are_bounded():
    ledger = BatchLedger((1,), rounds={0: ROUNDS_PER_GENERATION - 1})
    with pytest.raises(ReplayMismatchError, match="another order"):
        ledger.with_next_round(0)


def test_the_first_task_that_enters_says_since_when_there_may_be_rows():
    ledger = BatchLedger((1,)).with_proved(0, 500).with_proved(1, 900)
    assert BatchLedger.decode(ledger.encode()).since_ms == 500


def test_a_ledger_begins_with_a_time_that_has_passed_before_a_task_enters():
    stamps, identity = Stamps(), WriteIdentity("q", 0, 1)
    stamps.time_ms = 5000
    assert stamps.run(open_batch(identity, {}, 4990)).since_ms == 4990
    stamps.time_ms = 3000  # the brokers' clocks were set back
    opened = stamps.run(open_batch(identity, {}, 7000))
    assert opened.since_ms == 3000
    entered = stamps.run(enter_batch(identity, 0, digest([1]), opened, 2000))
    stamps.time_ms = 1000
    assert entered.since_ms == stamps.run(open_batch(identity, {})).since_ms == 3000, "rows have been given this time"
    later = WriteIdentity("q", 1, 1)
    stamps.by_name.pop(identity.ledger_name)
    assert stamps.run(open_batch(later, {})).since_ms == 1000


def test_in_a_batch_whose_first_task_knew_no_time_the_others_do_not_say_one():
    stamps = Stamps()
    identity = WriteIdentity("q", 0, 1)
    stamps.run(enter_batch(identity, 0, digest([1]), stamps.run(open_batch(identity, {}))))
    opened = stamps.run(open_batch(identity, {}))
    assert stamps.run(enter_batch(identity, 1, digest([2]), opened, 9000)).since_ms == 0


def test_a_claim_of_a_task_that_never_entered_does_not_bind_later_attempts():
    """Its process died between the two steps. Copies within one attempt are bound, because the other copy may be about to enter."""
    stamps = Stamps(makes_entries=lambda: False)
    identity = WriteIdentity("q", 0, 1)
    steps = enter_batch(identity, 0, digest([1]), stamps.run(open_batch(identity, {})))
    ask = next(steps)
    assert isinstance(ask, Claim)
    steps.send(stamps.answer(ask))  # the task claims, and dies
    with pytest.raises(ReplayMismatchError):
        enter(stamps, 1, 0, [2])
    enter(stamps, 2, 0, [2])


def test_a_run_that_was_replaced_stops():
    stamps = Stamps()
    identity = WriteIdentity("q", 0, 1)
    opened = stamps.run(open_batch(identity, {}))
    enter(stamps, 2, 0, [1])
    for steps in (open_batch(identity, {}), enter_batch(identity, 1, digest([2]), opened)):
        with pytest.raises(SupersededError):
            stamps.run(steps)


def test_the_largest_ledger_fits_a_stamp_and_decodes_to_an_equal_one():
    tasks = random.Random(1).sample(range(TASKS_MAX - 300, TASKS_MAX), 200)
    full = BatchLedger(tuple(2**63 - n for n in range(ATTEMPTS_MAX)), partition_counts={2**40: 10_000})
    for task in tasks:
        full = full.with_proved(task)
    full = replace(full, old=2**TASKS_MAX - 1, rounds=dict.fromkeys(tasks, 17), generation=GENERATIONS_MAX)
    assert len(full.encode()) <= 4096
    assert BatchLedger.decode(full.encode()) == full
    with pytest.raises(ReplayMismatchError):
        next(enter_batch(WriteIdentity("q", 0, 1), TASKS_MAX, digest([]), full))


def test_a_ledger_that_an_earlier_version_began_stays_in_its_form():
    old = replace(BatchLedger((1,)), has_bits_apart=False).with_proved(3)
    assert BatchLedger.decode(old.encode()) == old
    stamps = Stamps()
    stamps.by_name[WriteIdentity("q", 0, 1).ledger_name] = old.encode()
    entered = enter(stamps, 1, 4, [1])
    assert (entered.written, entered.has_bits_apart) == (0b11000, False)


@given(written=st.integers(0, 2**40), proved=st.integers(0, 2**40))
def test_a_ledger_decodes_to_an_equal_one(written, proved):
    for has_bits_apart in (True, False):
        ledger = BatchLedger((1,), written=written, proved=proved, has_bits_apart=has_bits_apart)
        assert BatchLedger.decode(ledger.encode()) == ledger


@pytest.mark.parametrize("stamp", [b"", b"{}", b"[]", b'{"v":3}', b"\xff", b'{"v":2,"attempts":[1]}'])
def test_a_foreign_stamp_is_refused(stamp):
    with pytest.raises(ReplayMismatchError):
        BatchLedger.decode(stamp)


class Log:
    """The rows that brokers have, by task, round and sequence. Each sequence is accepted once."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, int, int], int] = {}

    def written(self, task: int, before_round: int) -> list[int]:
        return [row for (number, round_, _), row in self.rows.items() if number == task and round_ < before_round]

    def of_generations_before(self, first_round: int) -> list[int]:
        return [row for (_, round_, _), row in self.rows.items() if round_ < first_round]


class Task:
    """One run of one task in single steps: it enters the ledger, reads back earlier rounds, then writes its rows one by one.

    `latest` is the ledger as the tasks of its process know it, or empty.
    """

    def __init__(self, attempt: int, task: int, rows: list[int], latest: list[BatchLedger], *, finishes: bool) -> None:
        self.task = task
        self.rows = rows
        self.is_done = False
        self.is_refused = False
        self._identity = WriteIdentity("q", 0, attempt, finishes)
        self._steps = self._enter(self._identity)
        self._ask: Ask | None = None
        self._round = self._first_round = 0
        self._left: list[tuple[int, int]] | None = None
        self._latest = latest

    def _enter(self, identity: WriteIdentity) -> Generator[Ask, Answer, None]:
        ledger = self._latest[0] if self._latest else (yield from open_batch(identity, {}))
        if ledger.old and not ledger.is_fenced:
            for task in ledger.old_tasks:
                yield Claim(identity.task_name(task), b"", round_=ledger.first_round)
            ledger = yield from mark_fenced(identity, ledger)
        self._first_round = ledger.first_round
        ledger = yield from enter_batch(identity, self.task, digest(self.rows), ledger)
        self._latest[:] = [ledger]
        self._round = ledger.round_of(self.task)

    def step(self, stamps: Stamps, log: Log) -> None:
        try:
            if self._left is not None:
                self._write(stamps, log)
            elif self._ask is None:
                self._ask = next(self._steps)
            else:
                self._ask = self._steps.send(stamps.answer(self._ask))
        except StopIteration:  # entered
            written = log.written(self.task, self._round) + log.of_generations_before(self._first_round)
            self._left = list(enumerate(row for row in self.rows if row not in written))
            self.is_done = not self._left
        except (ReplayMismatchError, SupersededError):
            self.is_refused = True

    def _write(self, stamps: Stamps, log: Log) -> None:
        if stamps.rounds.get(self._identity.task_name(self.task), 0) > self._round:
            raise SupersededError("fenced")
        assert self._left
        sequence, row = self._left.pop(0)
        log.rows.setdefault((self.task, self._round, sequence), row)
        self.is_done = not self._left


def run_series(stamps: Stamps, row_count: int, runs: list[tuple[int, bool, bool]], rng: random.Random) -> None:
    """Run a batch several times. Each run divides the same rows among tasks and copies of tasks in two processes.

    A run's driver dies after some steps, and its tasks may live on.
    """
    log = Log()
    alive: list[Task] = []
    for attempt, (count, is_striped, finishes) in enumerate(runs, 1):
        rows = [
            [row for row in range(row_count) if (row % count if is_striped else row * count // row_count) == task]
            for task in range(count)
        ]
        for of_task in rows:
            if rng.random() < 0.3:
                rng.shuffle(of_task)
        processes: list[list[BatchLedger]] = [[], []]
        tasks = [
            Task(attempt, task, rows[task], rng.choice(processes), finishes=finishes)
            for task in range(count)
            if rows[task]
        ]
        copies = [
            Task(attempt, task.task, task.rows[:: rng.choice((1, -1))], rng.choice(processes), finishes=finishes)
            for task in tasks
            if rng.random() < 0.3
        ]
        alive = [task for task in alive if rng.random() < 0.3] + tasks + copies
        for _ in range(rng.choice([5, 20, 60, 400])):
            if not alive:
                break
            task = rng.choice(alive)
            task.step(stamps, log)
            if task.is_done or task.is_refused:
                alive.remove(task)
        found = list(log.rows.values())
        assert len(found) == len(set(found))
        if all(any(t.is_done for t in [*tasks, *copies] if t.task == task.task) for task in tasks):
            assert set(found) == set(range(row_count))


RUNS = st.lists(st.tuples(st.integers(1, 5), st.booleans(), st.booleans()), min_size=1, max_size=5)


@given(row_count=st.integers(1, 12), runs=RUNS, seed=st.integers(0, 2**32))
@settings(max_examples=300)
def test_no_row_is_written_twice_in_any_series_of_runs_of_a_batch(row_count, runs, seed):
    rng = random.Random(seed)
    run_series(Stamps(lambda: rng.random() < 0.8, lambda: rng.random() < 0.8), row_count, runs, rng)


def test_a_cluster_that_enters_tasks_whose_claims_failed_is_found():
    class Careless(Stamps):
        def permits_entry(self, stamp: bytes, ask: Claim) -> bool:
            return True

    with pytest.raises(AssertionError):
        for seed in range(2000):
            run_series(Careless(), 6, [(2, False, False), (3, True, False), (2, False, False)], random.Random(seed))


def test_a_cluster_that_adds_tasks_to_another_ledger_is_found():
    class Careless(Stamps):
        def _changed(self, name: str, stamp: bytes, replaces: bytes | None, shared: int = 0) -> bytes:
            if shared and name in self.by_name:
                now, added = (BatchLedger.decode(each) for each in (self.by_name[name], stamp))
                stamp = replace(now, written=now.written | added.written, proved=now.proved | added.proved).encode()
                replaces = self.by_name[name]
            return super()._changed(name, stamp, replaces)

    with pytest.raises(AssertionError):
        for seed in range(2000):
            run_series(Careless(), 6, [(2, False, False), (3, True, False), (2, False, False)], random.Random(seed))


def test_a_batch_whose_tasks_claimed_digests_of_another_version_begins_a_generation():
    """The digests cannot be compared, so the new tasks read back the rows of the old ones."""
    stamps = Stamps()
    old, new = WriteIdentity("q", 0, 1), WriteIdentity("q", 0, 2, version=LOG_DIGESTS)
    digest = bytes(40)
    stamps.run(enter_batch(old, 3, digest, stamps.run(open_batch(old, {}))))
    found = stamps.run(open_batch(new, {}))
    assert (found.version, found.generation, found.old_tasks, found.written) == (CRC_DIGESTS, 1, [3], 0)
    entered = stamps.run(enter_batch(new, 0, digest, found))
    assert stamps.run(open_batch(replace(new, attempt=3), {})) == replace(entered, attempts=(1, 2, 3), runs=3, proved=0)


def test_a_batch_in_which_nothing_was_written_continues_with_the_digests_of_the_new_version():
    stamps = Stamps()
    begun = stamps.run(open_batch(WriteIdentity("q", 0, 1), {}))
    found = stamps.run(open_batch(WriteIdentity("q", 0, 2, version=LOG_DIGESTS), {}))
    assert (begun.version, found.version, found.generation) == (ROW_DIGESTS, CRC_DIGESTS, 0)


def test_a_batch_that_spreads_rows_by_their_crc_is_finished_so():
    """Rows of an earlier run are looked for in their partitions. So a row must not change its partition within a batch."""
    stamps = Stamps()
    old = WriteIdentity("q", 0, 1, version=CRC_DIGESTS)
    digest = bytes(40)
    stamps.run(enter_batch(old, 3, digest, stamps.run(open_batch(old, {}))))
    found = stamps.run(open_batch(WriteIdentity("q", 0, 2, version=LOG_DIGESTS), {}))
    assert (found.version, found.generation, found.missing(2)) == (CRC_DIGESTS, 0, [3])
    assert found.spreads_by_crc
    last = WriteIdentity("q", 0, 3, finishes=True, version=LOG_DIGESTS)
    found = stamps.run(open_batch(last, {}))
    assert (found.version, found.generation) == (CRC_DIGESTS, 1)
    begun = stamps.run(open_batch(WriteIdentity("r", 0, 1, version=LOG_DIGESTS), {}))
    assert (begun.version, begun.spreads_by_crc) == (LOG_DIGESTS, False)
