"""Make sure that the tasks of a batch write no row twice, however often the batch is run and however rows are divided then.

Spark tells a task neither the number of tasks nor whether the batch was run before. So tasks find that out in the cluster, by stamps
that are changed by compare and swap (`client/producer/sequenced_append.py`): a ledger for the batch and a claim for each task.

- The **ledger** has the latest attempts (each run of the batch by a driver is one, and has a random number) and two sets of tasks.
  `written` holds the tasks that may have written in any attempt. `proved` holds the members of `written` that have shown in this attempt
  that they have the same rows as before.
- A task's **claim** is the digest of its rows and the attempt that claimed it.
- A task's **round** is 0, and rises each time the task comes back with the same rows in another order.

In these rules `t` is the task and `a` its attempt:

1. A task works on the ledger of attempt `a` only. If the ledger does not know `a`, the attempt is new: the task makes the ledger one of
   `a`, with an empty `proved`. If `a` was followed by another attempt, the task belongs to a driver that died, and stops.
2. If `t` is in `written`, its digest must equal the claimed one. Then it is proved, and writes. Brokers drop the rows that they have.
3. Otherwise it waits until all of `written` are proved. Then it claims its digest under `a` (replacing a claim of an earlier attempt,
   but never another claim of `a`), enters `written` and `proved` in one step, and writes. It asks for both in one request, and the cluster
   changes the ledger only if the claim is the task's. Entering adds two bits to the ledger as the task knows it. Other tasks may
   have entered since, but nothing else may have changed.
4. A digest with the same rows in another order is no refusal: the task begins its next round in the ledger and claims its digest there.
   The round is part of the producer's epoch, so the task then fences every writer of its earlier rounds, reads back the rows that they have
   written, and writes the other rows. A task in round 0 need not: equal rows in equal order have equal sequences.
5. An attempt with ``delivery=finish``, one that follows an attempt in which a task waited in vain, and one whose digests are of another
   version than the claimed ones, begins a **generation**: the tasks in `written` move to `old`, so any task may write any rows. The
   generation is part of the epochs, too. The first task fences all of `old`. Each task reads back the rows that they have written and leaves
   them out (`written_rows`). Within a generation rules 1 to 4 hold.

Why it holds: every task that writes is in `written`, and while `t` is in `written` its claim does not change. The claim is replaced only
by a task that saw a ledger of its own attempt without `t`, when no task of an earlier attempt could enter any more (1), and two tasks of
the same attempt do not replace each other's claims (3). So if all of `written` are proved, every written row belongs to a task that has
the very same rows now. An old copy of the ledger does no harm, because
it is compared whenever the ledger is changed, so a task may begin with the copy of another task in its process. Only a task in `written`
changes nothing, and its claim and its epoch bind it. A task that enters has none of these rows, because each row is in one task. If rows are divided in another way, a
member of `written` has another digest, or no rows, or does not exist. Then no new task ever enters.

Why a digest for each task does not suffice: with 2 tasks, task 1 wrote rows 50 to 99 and the driver died. The batch comes back with 4
tasks. Task 1 has rows 25 to 49 now and is refused. But tasks 2 and 3, which are unknown so far, would by then have written 50 to 99 again.

Pure: generators that yield requests to the cluster and are sent the answers. `tests/spark/sink/ledger/test_batch_ledger.py` runs them in arbitrary
order.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Final, NamedTuple

from raftmq.spark.errors import ReplayMismatchError, SupersededError

ROW_DIGESTS: Final = 2
"""Version of a ledger whose tasks claim digests of `row_sorter`. Queue topics have them, and log topics had them until 2026-11-27."""
CRC_DIGESTS: Final = 3
"""Version of a ledger whose tasks claim digests of `log_sorter`, and have spread rows without a key by their CRC (until 2026-11-27)."""
LOG_DIGESTS: Final = 4
"""Version of a ledger whose tasks claim digests of `log_sorter`, and spread rows without a key by their hash."""
DIGEST_BYTES: Final = 16
COUNT_BYTES: Final = 8
ROWS_DIGEST_BYTES: Final = COUNT_BYTES + DIGEST_BYTES
"""The part of a digest that does not depend on the order: the number of rows and a hash of them."""
TASKS_MAX: Final = 8192
"""Two bitmaps of so many tasks fit a stamp. A third one fits if it is compressed, because tasks write in blocks of numbers."""
LAST_TASK: Final = TASKS_MAX
"""The number under which the driver writes rows at the end of a batch."""
LEDGER_BYTES_MAX: Final = 4096
TASKS_BYTES: Final = 1536
"""Bytes of a stamp that numbers of partitions leave to tasks and attempts. Compressed, the rest has those of 200 topics, whatever their ids."""
ATTEMPTS_MAX: Final = 16
"""Attempts that are remembered. A task of an earlier one, whose driver died so many attempts ago, would be taken for a new attempt."""
ROUND_BITS: Final = 8
ROUNDS_PER_GENERATION: Final = 16
"""A task begins a round only after a failure, and Spark gives up after a few."""
GENERATIONS_MAX: Final = (1 << ROUND_BITS) // ROUNDS_PER_GENERATION - 1
BATCH_EPOCH_MAX: Final = (1 << (64 - ROUND_BITS)) - 1
_ATTEMPT_BYTES: Final = 8
_TARGET_BYTES: Final = 8
_END: Final = b"\n"
"""Ends the part of a stamp that is JSON."""


@dataclass(frozen=True, slots=True)
class WriteIdentity:
    """Identify the rows to write. Rows of the same name and epoch are written once."""

    name: str
    """Name of the query, or of one batch write."""
    epoch: int
    """Number of the batch within the query."""
    attempt: int
    """A random number of this run of the batch by a driver, below 2 to the power of 63."""
    finishes: bool = False
    """Whether this run reads back the rows of earlier runs, instead of demanding the same rows in the same tasks."""
    version: int = ROW_DIGESTS
    """The kind of the digests that the tasks claim."""

    @staticmethod
    def of(name: str, topic: str | None, epoch: int, attempt: int, *, finishes: bool = False) -> WriteIdentity:
        """Identify a batch of a query, or of a writer, for one topic. None: the topics are in a column.

        A query whose checkpoint was copied for another topic, and two sinks of one `foreachBatch`, write independently.
        """
        target = blake2b((topic or "").encode(), digest_size=_TARGET_BYTES).hexdigest()
        return WriteIdentity(f"{name}/{target}", epoch, attempt, finishes)

    @property
    def ledger_name(self) -> str:
        """Return the name of the batch's ledger."""
        return f"spark-ledger/{self.name}"

    def name_epoch(self, round_: int = 0) -> int:
        """Return the epoch of a name in the cluster: the batch and, for a task, its round."""
        return self.epoch << ROUND_BITS | round_

    def task_name(self, task: int) -> str:
        """Return the name of one task's producer, which is also the name of its claim."""
        return f"spark-task/{task}/{self.name}"

    def writers_name(self, part: int) -> str:
        """Return the name whose stamp has a part of the producer ids of `old`."""
        return f"spark-writers/{part}/{self.name}"


class Claim(NamedTuple):
    """Ask the cluster to write a name's stamp in an epoch if there is none, or if it equals `replaces`.

    The answer has the stamp that the name then has.
    """

    name: str
    stamp: bytes
    replaces: bytes | None = None
    round_: int = 0
    """The round of the task, which is part of the epoch."""
    then: Entry | None = None
    """A change of the ledger that the cluster makes in the same step, but only if the answer's stamp is this claim's."""


class Entry(NamedTuple):
    """Ask the cluster to replace the ledger's stamp by another one."""

    name: str
    stamp: bytes
    replaces: bytes
    shared_bytes: int = 0
    """If the ledger's stamp has the same first bytes, so many, the cluster adds the bits of the rest of `stamp` to it. 0: it only replaces."""


class Peek(NamedTuple):
    """Ask for a name's stamp in an epoch. The answer's is empty if the name is in a later one."""

    name: str
    round_: int


class Pause(NamedTuple):
    """Ask to wait for a moment. The answer is empty, and the caller may raise any error when its time is over."""

    waiting_for: int
    """A task that has not come back."""
    left: int
    """The number of such tasks."""


Ask = Claim | Peek | Pause


class Answer(NamedTuple):
    """Answer a request."""

    stamp: bytes = b""
    time_ms: int = 0
    """Time on a broker's clock when it answered. 0: not known."""
    then: bytes | None = None
    """The ledger's stamp after `Claim.then`. None if it was not executed: the claim is another one's, or a broker is an older one."""


@dataclass(frozen=True, slots=True)
class BatchLedger:
    """Hold the ledger of one batch of one query."""

    attempts: tuple[int, ...]
    """The latest attempts, the present one last."""
    runs: int = 1
    """The number of all attempts."""
    written: int = 0
    """Bit p: task p may have written in this generation."""
    proved: int = 0
    """Bit p: task p has shown in the latest attempt that it has the same rows as before. A subset of `written`."""
    partition_counts: Mapping[int, int] = field(default_factory=dict)
    """Partitions per topic id when the batch first wrote to it. Rows keep their partitions even if the topic gets more."""
    rounds: Mapping[int, int] = field(default_factory=dict)
    """The rounds of the tasks that are not in the generation's first one."""
    since_ms: int = 0
    """Time on a broker's clock before the first row of the batch was written. 0: not known."""
    generation: int = 0
    old: int = 0
    """Bit p: task p may have written in an earlier generation."""
    is_fenced: bool = False
    """Whether the writers of the earlier generations are fenced, and their producer ids are stored."""
    is_stalled: bool = False
    """Whether a task of the latest attempt waited in vain for others, so the next attempt begins a generation."""
    version: int = ROW_DIGESTS
    """The kind of the digests that are claimed in this generation."""
    has_bits_apart: bool = True
    """Whether its stamp ends with its bits. False: a version before 2026-11-28 began the batch."""

    @property
    def attempt(self) -> int:
        """Return the latest attempt."""
        return self.attempts[-1]

    def has(self, task: int) -> bool:
        """Return whether the task may have written, in any attempt."""
        return bool(self.written >> task & 1)

    def missing(self, attempt: int) -> list[int]:
        """Return the tasks that may have written and are not proved in `attempt`."""
        bits = self.written & ~self.proved if attempt == self.attempt else self.written
        bits &= ~(1 << LAST_TASK)  # it is no task of Spark, which would come back
        return [task for task in range(bits.bit_length()) if bits >> task & 1]

    def advanced(self, identity: WriteIdentity) -> BatchLedger:
        """Return the ledger moved to the attempt. Raises `SupersededError` if a later one has begun."""
        attempt = identity.attempt
        if attempt == self.attempt:
            return self
        if attempt in self.attempts:
            raise SupersededError("this run of the batch was followed by another one, of another driver")
        attempts = (*self.attempts, attempt)[-ATTEMPTS_MAX:]
        version = identity.version
        if version == LOG_DIGESTS and self.spreads_by_crc:
            version = CRC_DIGESTS  # rows that were written are looked for in their partitions only
        moved = replace(self, attempts=attempts, runs=self.runs + 1, proved=0, version=version)
        is_comparable = self.version == version
        if not (identity.finishes or self.is_stalled or not is_comparable) or not (self.written or self.old):
            return moved
        if self.generation == GENERATIONS_MAX:
            raise ReplayMismatchError(f"the batch was finished {GENERATIONS_MAX} times, and failed each time")
        return replace(
            moved,
            old=self.old | self.written,
            written=0,
            rounds={},
            generation=self.generation + 1,
            is_fenced=False,
            is_stalled=False,
        )

    @property
    def spreads_by_crc(self) -> bool:
        """Return whether an earlier version began the batch, which spread rows without a key by their CRC."""
        return self.version < LOG_DIGESTS

    @property
    def first_round(self) -> int:
        """Return the first round of the generation."""
        return self.generation * ROUNDS_PER_GENERATION

    @property
    def old_tasks(self) -> list[int]:
        """Return the tasks that may have written in an earlier generation."""
        return [task for task in range(self.old.bit_length()) if self.old >> task & 1]

    def round_of(self, task: int) -> int:
        """Return the task's round."""
        return self.rounds.get(task, self.first_round)

    def began_by(self, time_ms: int) -> BatchLedger:
        """Return the ledger with a `since_ms` that has passed at a time on a broker's clock (0: not known), unless a task has entered."""
        if not time_ms or self.written or self.old or 0 < self.since_ms <= time_ms:
            return self
        return replace(self, since_ms=time_ms)

    def with_count(self, topic_id: int, count: int) -> BatchLedger:
        """Return the ledger with a topic's number of partitions, or the same one if it has one or has no room for it."""
        wanted = replace(self, partition_counts={topic_id: count, **self.partition_counts})
        return wanted if len(zlib.compress(wanted._text(), 9)) <= LEDGER_BYTES_MAX - TASKS_BYTES else self

    def with_proved(self, task: int, since_ms: int = 0) -> BatchLedger:
        """Return the ledger with the task in `written` and `proved`: its rows are the same as before, or it had none.

        `since_ms` is a time before the task writes. It counts if none is known, and no task has entered before.
        """
        is_first = not (self.since_ms or self.written or self.old)
        return replace(
            self,
            written=self.written | 1 << task,
            proved=self.proved | 1 << task,
            since_ms=since_ms if is_first else self.since_ms,
        )

    def with_next_round(self, task: int) -> BatchLedger:
        """Return the ledger in which the task begins its next round. Raises `ReplayMismatchError` after too many."""
        if self.round_of(task) == self.first_round + ROUNDS_PER_GENERATION - 1:
            raise ReplayMismatchError(
                f"task {task} came back with its rows in another order {ROUNDS_PER_GENERATION - 1} times"
            )
        return replace(self, rounds={**self.rounds, task: self.round_of(task) + 1})

    def includes(self, other: BatchLedger) -> bool:
        """Return whether this is the other ledger, or that ledger after more tasks have entered."""
        rest = replace(self, written=other.written, proved=other.proved)
        return rest == other and not (other.written & ~self.written or other.proved & ~self.proved)

    def encode(self) -> bytes:
        """Return the ledger as a stamp.

        It ends with the bits of `written` and `proved`, in turns, so that the cluster can add those of a task that enters.
        """
        text = self._text()
        return text if len(text) <= LEDGER_BYTES_MAX else zlib.compress(text, 9)

    def _text(self) -> bytes:
        """Return the stamp before it is compressed."""
        fields = {
            "v": self.version,
            "attempts": self.attempts,
            "runs": self.runs,
            "partitions": {str(topic_id): count for topic_id, count in self.partition_counts.items()},
            "rounds": {str(task): number for task, number in self.rounds.items()},
            "since": self.since_ms,
            "generation": self.generation,
            "old": _bits_to_text(self.old),
            "fenced": self.is_fenced,
            "stalled": self.is_stalled,
        }
        bits = b""
        if self.has_bits_apart:
            bits = _END + _bits_in_turns(self.written, self.proved)
        else:
            fields |= {"written": _bits_to_text(self.written), "proved": _bits_to_text(self.proved)}
        return json.dumps(fields, separators=(",", ":"), sort_keys=True).encode() + bits

    @staticmethod
    def decode(stamp: bytes) -> BatchLedger:
        """Return the ledger in a stamp. Raises `ReplayMismatchError` for a stamp of another kind or version."""
        try:
            text, end, bits = (stamp if stamp[:1] == b"{" else zlib.decompress(stamp)).partition(_END)
            fields = json.loads(text)
            if fields["v"] not in (ROW_DIGESTS, CRC_DIGESTS, LOG_DIGESTS):
                raise ReplayMismatchError(f"the batch was begun by a sink of another version ({fields['v']})")
            if end:
                written, proved = _bits_from_turns(bits)
            else:
                written, proved = _bits_of_text(fields["written"]), _bits_of_text(fields["proved"])
            return BatchLedger(
                attempts=tuple(fields["attempts"]),
                runs=fields["runs"],
                written=written,
                proved=proved,
                partition_counts={int(topic_id): count for topic_id, count in fields["partitions"].items()},
                rounds={int(task): number for task, number in fields["rounds"].items()},
                since_ms=fields["since"],
                generation=fields["generation"],
                old=_bits_of_text(fields["old"]),
                is_fenced=fields["fenced"],
                is_stalled=fields["stalled"],
                version=fields["v"],
                has_bits_apart=bool(end),
            )
        except (ValueError, KeyError, TypeError, AttributeError, zlib.error) as error:
            raise ReplayMismatchError(f"the batch's stamp is not the sink's: {stamp[:80]!r}") from error


def open_batch(
    identity: WriteIdentity, partition_counts: Mapping[int, int], since_ms: int = 0
) -> Generator[Ask, Answer, BatchLedger]:
    """Begin the batch, or find that it has begun (rule 1).

    `partition_counts` and `since_ms`, the supposed time on a broker's clock (0: not known), are used only if this task begins it. No task
    enters a ledger that begins after the answer to its opening, as after brokers' clocks were set back.

    Raises:
        SupersededError: a later run of the batch has begun.
        ReplayMismatchError: the stamp is not a ledger, or the ledger has no room for another run.
    """
    begun = BatchLedger(
        (identity.attempt,), partition_counts=partition_counts, since_ms=since_ms, version=identity.version
    )
    answer = yield Claim(identity.ledger_name, begun.encode())
    while True:
        ledger = BatchLedger.decode(answer.stamp)
        wanted = ledger.advanced(identity).began_by(answer.time_ms)
        if wanted == ledger:
            return ledger
        answer = yield Claim(identity.ledger_name, _stamp_of(wanted), answer.stamp)


def enter_batch(
    identity: WriteIdentity, task: int, digest: bytes, ledger: BatchLedger, since_ms: int = 0, about: str = ""
) -> Generator[Ask, Answer, BatchLedger]:
    """Prove the task's rows and get permission to write them in the round that the returned ledger has (rules 2 to 4).

    Args:
        identity: The batch.
        task: The task's number.
        digest: The number of rows (8 bytes, little-endian), a hash of the rows (16) and a hash of their order.
        ledger: The latest known ledger.
        since_ms: A time on a broker's clock that has passed.
        about: Where the rows go, for the message of an error.

    Raises:
        ReplayMismatchError: the task has other rows than before.
        SupersededError: a later run of the batch has begun.
    """
    if task >= TASKS_MAX and task != LAST_TASK:
        raise ReplayMismatchError(
            f"task {task}: exactly once is kept for batches of {TASKS_MAX} tasks; coalesce to fewer"
        )
    claimed, claimed_in = b"", None
    while True:
        _require_current(ledger, identity)
        missing = ledger.missing(identity.attempt)
        if not ledger.has(task) and missing:
            if ledger.is_stalled:
                raise ReplayMismatchError("another task has waited in vain; the next run of the batch will not wait")
            yield Pause(missing[0], len(missing))
            ledger = yield from _read_ledger(identity)
            continue
        # Another task that enters at the same moment changes the ledger, but nothing that this claim depends on: while this attempt is
        # the latest one, only copies of this task claim its rows, and they replace no claim.
        wanted = ledger.with_proved(task, since_ms)
        if claimed_in != (ledger.round_of(task), ledger.has(task)):
            entry = None if ledger.has(task) else _entry(identity, ledger, wanted)
            claimed, entered = yield from _claim_rows(identity, task, digest, ledger, entry)
            claimed_in = (ledger.round_of(task), ledger.has(task))
            if entered is not None:
                ledger = BatchLedger.decode(entered)
                if ledger.includes(wanted):
                    return ledger
                continue
        if claimed != digest:
            if claimed[:ROWS_DIGEST_BYTES] != digest[:ROWS_DIGEST_BYTES]:
                raise ReplayMismatchError(
                    f"task {task} of batch {identity.epoch} runs again, and its {_count_of(digest)} rows are not the"
                    f" {_count_of(claimed)} it had; nothing was written this time{about}"
                )
            wanted = wanted.with_next_round(task)
        if wanted == ledger:
            return ledger
        ledger = yield from _changed(identity, ledger, wanted)
        if ledger == wanted and claimed == digest:
            return ledger


def fix_count(
    identity: WriteIdentity, topic_id: int, count: int, ledger: BatchLedger
) -> Generator[Ask, Answer, BatchLedger]:
    """Agree with the other tasks on a topic's number of partitions. `count` is the present one, `ledger` the latest known.

    Raises `SupersededError` if a later run of the batch has begun.
    """
    while (wanted := ledger.with_count(topic_id, count)) != ledger:
        ledger = yield from _changed(identity, ledger, wanted)
        _require_current(ledger, identity)
    return ledger


def mark_fenced(identity: WriteIdentity, ledger: BatchLedger) -> Generator[Ask, Answer, BatchLedger]:
    """Record that the writers of earlier generations are fenced. Raises `SupersededError` if a later run of the batch has begun."""
    while not ledger.is_fenced:
        ledger = yield from _changed(identity, ledger, replace(ledger, is_fenced=True))
        _require_current(ledger, identity)
    return ledger


def mark_stalled(identity: WriteIdentity, ledger: BatchLedger) -> Generator[Ask, Answer, BatchLedger]:
    """Record that a task waits in vain. Raises `SupersededError` if a later run of the batch has begun."""
    while not ledger.is_stalled:
        ledger = yield from _changed(identity, ledger, replace(ledger, is_stalled=True))
        _require_current(ledger, identity)
    return ledger


def _changed(identity: WriteIdentity, ledger: BatchLedger, wanted: BatchLedger) -> Generator[Ask, Answer, BatchLedger]:
    entry = _entry(identity, ledger, wanted)
    answer = yield Claim(entry.name, entry.stamp, entry.replaces)
    found = BatchLedger.decode(answer.stamp)
    if found == ledger and answer.stamp != entry.replaces:  # another version of zlib has compressed it to other bytes
        answer = yield Claim(entry.name, entry.stamp, answer.stamp)
        found = BatchLedger.decode(answer.stamp)
    return found


def _entry(identity: WriteIdentity, ledger: BatchLedger, wanted: BatchLedger) -> Entry:
    stamp, replaces = _stamp_of(wanted), ledger.encode()
    shared = stamp.find(_END) + 1 if stamp[:1] == b"{" else 0
    return Entry(identity.ledger_name, stamp, replaces, shared if stamp[:shared] == replaces[:shared] else 0)


def _stamp_of(ledger: BatchLedger) -> bytes:
    stamp = ledger.encode()
    if len(stamp) > LEDGER_BYTES_MAX:
        raise ReplayMismatchError(
            f"the batch's ledger is full: it has {(ledger.written | ledger.old).bit_count()} tasks, {len(ledger.rounds)} of which came back"
            f" with their rows in another order, and {len(ledger.partition_counts)} topics"
        )
    return stamp


def _read_ledger(identity: WriteIdentity) -> Generator[Ask, Answer, BatchLedger]:
    answer = yield Claim(identity.ledger_name, b"")  # an empty stamp replaces nothing
    return BatchLedger.decode(answer.stamp)


def _require_current(ledger: BatchLedger, identity: WriteIdentity) -> None:
    if ledger.advanced(identity) != ledger:
        raise ReplayMismatchError("the batch's ledger has forgotten this attempt")


def _claim_rows(
    identity: WriteIdentity, task: int, digest: bytes, ledger: BatchLedger, entry: Entry | None
) -> Generator[Ask, Answer, tuple[bytes, bytes | None]]:
    """Claim the digest in the task's round, and make the entry if the claim succeeds.

    Return the digest that is claimed there, maybe by another run of the task, and the ledger's stamp if the cluster tried to make the entry.
    """
    name, round_ = identity.task_name(task), ledger.round_of(task)
    mine = identity.attempt.to_bytes(_ATTEMPT_BYTES, "little") + digest
    if round_ > ledger.first_round:
        # The task that began this round may have died before it claimed its rows here. Then they are those of the round before.
        before = (yield Peek(name, round_ - 1)).stamp[_ATTEMPT_BYTES:]
        if before and before[:ROWS_DIGEST_BYTES] != digest[:ROWS_DIGEST_BYTES]:
            return before, None
    claimed = yield Claim(name, mine, None, round_, entry)
    while not claimed.stamp:  # a fence began the epoch
        claimed = yield Claim(name, mine, b"", round_, entry)
    while not ledger.has(task) and claimed.stamp[:_ATTEMPT_BYTES] != mine[:_ATTEMPT_BYTES]:
        # While the ledger is of this attempt, only earlier attempts can have claimed before. A later one replaces the ledger first.
        ledger = yield from _read_ledger(identity)
        _require_current(ledger, identity)
        # or a copy of this task has entered in the meantime, whose claim counts
        claimed = yield Claim(name, mine, None if ledger.has(task) else claimed.stamp, round_)
    return claimed.stamp[_ATTEMPT_BYTES:], claimed.then


def _count_of(digest: bytes) -> int:
    return int.from_bytes(digest[:COUNT_BYTES], "little")


def _bits_to_text(bits: int) -> str:
    return b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()


def _bits_of_text(text: str) -> int:
    return int.from_bytes(b64decode(text), "little")


def _bits_in_turns(even: int, odd: int) -> bytes:
    """Return two sets of bits in turns, without zeros at the end: bit p of the first one is bit 2p."""
    bits = int(f"{even:b}", 4) | int(f"{odd:b}", 4) << 1  # a digit of base 4 has two bits
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def _bits_from_turns(bits: bytes) -> tuple[int, int]:
    digits = f"{int.from_bytes(bits, 'little'):0{8 * len(bits) or 2}b}"
    return int(digits[1::2], 2), int(digits[::2], 2)
