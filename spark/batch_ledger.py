"""Make sure that the tasks of a batch write no row twice, however often the batch is run and however rows are divided then.

Spark tells a task neither the number of tasks nor whether the batch was run before. So tasks find that out in the cluster, by stamps
that are changed by compare and swap (`client/producer/sequenced_append.py`): a ledger for the batch and a claim for each task.

- The **ledger** has the number of the latest attempt (each run of the batch by a driver is one) and two sets of tasks. `written` holds
  the tasks that may have written in any attempt. `proved` holds the members of `written` that have shown in this attempt that they
  have the same rows as before.
- A task's **claim** is the digest of its rows and the attempt that claimed it.
- A task's **round** is 0, and rises each time the task comes back with the same rows in another order.

In these rules `t` is the task and `a` its attempt:

1. A task works on the ledger of attempt `a` only. If the ledger is of an earlier attempt, the task makes it one of `a`, with an empty
   `proved`. If the ledger is of a later attempt, the task belongs to a driver that died, and stops.
2. If `t` is in `written`, its digest must equal the claimed one. Then it is proved, and writes. Brokers drop the rows that they have.
3. Otherwise it waits until all of `written` are proved. Then it claims its digest under `a` (replacing a claim of an earlier attempt,
   but never another claim of `a`), enters `written` and `proved` in one step, and writes.
4. A digest with the same rows in another order is no refusal: the task begins its next round in the ledger and claims its digest there.
   The round is part of the producer's epoch, so the task then fences every writer of its earlier rounds, reads back the rows that they have
   written, and writes the other rows. A task in round 0 need not: equal rows in equal order have equal sequences.

Why it holds: every task that writes is in `written`, and while `t` is in `written` its claim does not change. The claim is replaced only
by a task that saw a ledger of its own attempt without `t`, when no task of an earlier attempt could enter any more (1), and two tasks of
the same attempt do not replace each other's claims (3). So if all of `written` are proved, every written row belongs to a task that has
the very same rows now. A task that enters has none of these rows, because each row is in one task. If rows are divided in another way, a
member of `written` has another digest, or no rows, or does not exist. Then no new task ever enters.

Why a digest for each task does not suffice: with 2 tasks, task 1 wrote rows 50 to 99 and the driver died. The batch comes back with 4
tasks. Task 1 has rows 25 to 49 now and is refused. But tasks 2 and 3, which are unknown so far, would by then have written 50 to 99 again.

Pure: generators that yield requests to the cluster and are sent the answers. `tests/spark/test_batch_ledger.py` runs them in arbitrary
order.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Final, NamedTuple

from raftmq.spark.row_sorter import COUNT_BYTES, ROWS_DIGEST_BYTES
from raftmq.spark.sink_errors import ReplayMismatchError, SupersededError

LEDGER_VERSION: Final = 2
TASKS_MAX: Final = 8192
"""Two bitmaps of so many tasks fit a stamp, which has at most 4 KiB."""
ROUND_BITS: Final = 8
ROUNDS_MAX: Final = (1 << ROUND_BITS) - 1
"""A task begins a round only after a failure, and Spark gives up after a few."""
BATCH_EPOCH_MAX: Final = (1 << (64 - ROUND_BITS)) - 1
_ATTEMPT_BYTES: Final = 8
_TARGET_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class WriteIdentity:
    """Identify the rows to write. Rows of the same name and epoch are written once."""

    name: str
    """Name of the query, or of one batch write."""
    epoch: int
    """Number of the batch within the query."""
    attempt: int
    """Microseconds since 1970 by the clock of the driver that began this run of the batch. A later run has a larger number."""

    @staticmethod
    def of(name: str, topic: str | None, epoch: int, attempt: int) -> WriteIdentity:
        """Identify a batch of a query, or of a writer, for one topic. None: the topics are in a column.

        A query whose checkpoint was copied for another topic, and two sinks of one `foreachBatch`, write independently.
        """
        target = blake2b((topic or "").encode(), digest_size=_TARGET_BYTES).hexdigest()
        return WriteIdentity(f"{name}/{target}", epoch, attempt)

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


class Claim(NamedTuple):
    """Ask the cluster to write a name's stamp in an epoch if there is none, or if it equals `replaces`.

    The answer is the stamp that the name then has.
    """

    name: str
    stamp: bytes
    replaces: bytes | None = None
    round_: int = 0
    """The round of the task, which is part of the epoch."""


class Peek(NamedTuple):
    """Ask for a name's stamp in an epoch. The answer is empty if the name is in a later one."""

    name: str
    round_: int


class Pause(NamedTuple):
    """Ask to wait for a moment. The answer does not matter, and the caller may raise any error when its time is over."""

    waiting_for: int
    """A task that has not come back."""


Ask = Claim | Peek | Pause


@dataclass(frozen=True, slots=True)
class BatchLedger:
    """Hold the ledger of one batch of one query."""

    first_attempt: int
    attempt: int
    """The latest attempt."""
    written: int = 0
    """Bit p: task p may have written."""
    proved: int = 0
    """Bit p: task p has shown in the latest attempt that it has the same rows as before. A subset of `written`."""
    partition_counts: Mapping[str, int] = field(default_factory=dict)
    """Partitions per topic at the batch's first run. Rows keep their partitions even if the topic gets more."""
    rounds: Mapping[int, int] = field(default_factory=dict)
    """The rounds of the tasks whose round is not 0."""
    since_ms: int = 0
    """Time on a broker's clock before the first row of the batch was written. 0 before a task has entered."""

    def has(self, task: int) -> bool:
        """Return whether the task may have written, in any attempt."""
        return bool(self.written >> task & 1)

    def missing(self, attempt: int) -> list[int]:
        """Return the tasks that may have written and are not proved in `attempt`."""
        bits = self.written & ~self.proved if attempt == self.attempt else self.written
        return [task for task in range(bits.bit_length()) if bits >> task & 1]

    def advanced(self, attempt: int) -> BatchLedger:
        """Return the ledger moved to `attempt`. Raises `SupersededError` when it is in a later attempt."""
        if attempt < self.attempt:
            raise SupersededError(
                f"this run of the batch began at {attempt}, a later one at {self.attempt} (microseconds since 1970 by the"
                " clocks of their drivers)"
            )
        return self if attempt == self.attempt else replace(self, attempt=attempt, proved=0)

    def round_of(self, task: int) -> int:
        """Return the task's round."""
        return self.rounds.get(task, 0)

    def with_proved(self, task: int, since_ms: int = 0) -> BatchLedger:
        """Return the ledger with the task in `written` and `proved`: its rows are the same as before, or it had none.

        `since_ms` is a time before the task writes. It counts if no task has entered before.
        """
        since_ms = self.since_ms if self.written else since_ms
        return replace(self, written=self.written | 1 << task, proved=self.proved | 1 << task, since_ms=since_ms)

    def with_next_round(self, task: int) -> BatchLedger:
        """Return the ledger in which the task begins its next round. Raises `ReplayMismatchError` after too many."""
        if self.round_of(task) == ROUNDS_MAX:
            raise ReplayMismatchError(f"task {task} came back with its rows in another order {ROUNDS_MAX} times")
        return replace(self, rounds={**self.rounds, task: self.round_of(task) + 1})

    def encode(self) -> bytes:
        """Return the ledger as a stamp."""
        return json.dumps(
            {
                "v": LEDGER_VERSION,
                "first": self.first_attempt,
                "attempt": self.attempt,
                "written": _bits_to_text(self.written),
                "proved": _bits_to_text(self.proved),
                "partitions": dict(self.partition_counts),
                "rounds": {str(task): number for task, number in self.rounds.items()},
                "since": self.since_ms,
            },
            separators=(",", ":"),
            sort_keys=True,
        ).encode()

    @staticmethod
    def decode(stamp: bytes) -> BatchLedger:
        """Return the ledger in a stamp. Raises `ReplayMismatchError` for a stamp of another kind or version."""
        try:
            fields = json.loads(stamp)
            if fields["v"] != LEDGER_VERSION:
                raise ReplayMismatchError(f"the batch was begun by a sink of another version ({fields['v']})")
            return BatchLedger(
                first_attempt=fields["first"],
                attempt=fields["attempt"],
                written=_bits_of_text(fields["written"]),
                proved=_bits_of_text(fields["proved"]),
                partition_counts=fields["partitions"],
                rounds={int(task): number for task, number in fields["rounds"].items()},
                since_ms=fields["since"],
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ReplayMismatchError(f"the batch's stamp is not the sink's: {stamp[:80]!r}") from error


def open_batch(identity: WriteIdentity, partition_counts: Mapping[str, int]) -> Generator[Ask, bytes, BatchLedger]:
    """Begin the batch, or find that it has begun (rule 1). `partition_counts` is used only if this task begins it.

    Raises:
        SupersededError: a later run of the batch has begun.
        ReplayMismatchError: the stamp is not a ledger.
    """
    begun = BatchLedger(identity.attempt, identity.attempt, partition_counts=partition_counts)
    stamp = yield Claim(identity.ledger_name, begun.encode())
    while True:
        ledger = BatchLedger.decode(stamp)
        wanted = ledger.advanced(identity.attempt)
        if wanted == ledger:
            return ledger
        stamp = yield Claim(identity.ledger_name, wanted.encode(), stamp)


def enter_batch(
    identity: WriteIdentity, task: int, digest: bytes, ledger: BatchLedger, since_ms: int = 0
) -> Generator[Ask, bytes, BatchLedger]:
    """Prove the task's rows and get permission to write them in the round that the returned ledger has (rules 2 to 4).

    Args:
        identity: The batch.
        task: The task's number.
        digest: The number of rows (8 bytes, little-endian), a hash of the rows (16) and a hash of their order.
        ledger: The latest known ledger.
        since_ms: A time on a broker's clock that has passed.

    Raises:
        ReplayMismatchError: the task has other rows than before.
        SupersededError: a later run of the batch has begun.
    """
    if task >= TASKS_MAX:
        raise ReplayMismatchError(
            f"task {task}: exactly once is kept for batches of {TASKS_MAX} tasks; coalesce to fewer"
        )
    while True:
        if ledger.advanced(identity.attempt) != ledger:
            raise ReplayMismatchError("the batch's ledger went back to an earlier attempt")
        missing = ledger.missing(identity.attempt)
        if not ledger.has(task) and missing:
            yield Pause(missing[0])
            # only reads the stamp: an empty one replaces nothing
            ledger = BatchLedger.decode((yield Claim(identity.ledger_name, b"")))
            continue
        claimed = yield from _claim_rows(identity, task, digest, ledger)
        wanted = ledger.with_proved(task, since_ms)
        if claimed != digest:
            if claimed[:ROWS_DIGEST_BYTES] != digest[:ROWS_DIGEST_BYTES]:
                raise ReplayMismatchError(
                    f"task {task} of batch {identity.epoch} runs again, and its {_count_of(digest)} rows are not the"
                    f" {_count_of(claimed)} it had; nothing was written this time"
                )
            wanted = wanted.with_next_round(task)
        if wanted == ledger:
            return ledger
        ledger = BatchLedger.decode((yield Claim(identity.ledger_name, wanted.encode(), ledger.encode())))
        if ledger == wanted and claimed == digest:
            return ledger


def _claim_rows(identity: WriteIdentity, task: int, digest: bytes, ledger: BatchLedger) -> Generator[Ask, bytes, bytes]:
    """Claim the digest in the task's round. Return the digest that is claimed there, maybe by another run of the task."""
    name, round_ = identity.task_name(task), ledger.round_of(task)
    mine = identity.attempt.to_bytes(_ATTEMPT_BYTES, "little") + digest
    if round_:
        # The task that began this round may have died before it claimed its rows here. Then they are those of the round before.
        before = (yield Peek(name, round_ - 1))[_ATTEMPT_BYTES:]
        if before and before[:ROWS_DIGEST_BYTES] != digest[:ROWS_DIGEST_BYTES]:
            return before
    claimed = yield Claim(name, mine, round_=round_)
    if not ledger.has(task):
        while (attempt := _attempt_of(claimed)) < identity.attempt:
            claimed = yield Claim(name, mine, claimed, round_)
        if attempt > identity.attempt:
            raise SupersededError("a later run of the batch has begun")
    return claimed[_ATTEMPT_BYTES:]


def _attempt_of(claimed: bytes) -> int:
    return int.from_bytes(claimed[:_ATTEMPT_BYTES], "little")


def _count_of(digest: bytes) -> int:
    return int.from_bytes(digest[:COUNT_BYTES], "little")


def _bits_to_text(bits: int) -> str:
    return b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()


def _bits_of_text(text: str) -> int:
    return int.from_bytes(b64decode(text), "little")
