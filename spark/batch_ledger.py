"""Make sure that the tasks of a batch write no row twice, however often the batch is run and however rows are divided then.

Spark tells a task neither the number of tasks nor whether the batch was run before. So tasks find that out in the cluster, by stamps
that are changed by compare and swap (`client/producer/sequenced_append.py`): a ledger for the batch and a claim for each task.

- The **ledger** has the number of the latest attempt (each run of the batch by a driver is one) and two sets of tasks. `written` holds
  the tasks that may have written in any attempt. `proved` holds the members of `written` that have shown in this attempt that they
  have the same rows as before.
- A task's **claim** is the digest of its rows and the attempt that claimed it.

In these rules `t` is the task and `a` its attempt:

1. A task works on the ledger of attempt `a` only. If the ledger is of an earlier attempt, the task makes it one of `a`, with an empty
   `proved`. If the ledger is of a later attempt, the task belongs to a driver that died, and stops.
2. If `t` is in `written`, its digest must equal the claimed one. Then it is proved, and writes. Brokers drop the rows that they have.
3. Otherwise it waits until all of `written` are proved. Then it claims its digest under `a` (replacing a claim of an earlier attempt,
   but never another claim of `a`), enters `written` and `proved` in one step, and writes.

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
from typing import Final, NamedTuple

from raftmq.spark.sink_errors import ReplayMismatchError, SupersededError

LEDGER_VERSION: Final = 1
TASKS_MAX: Final = 8192
"""Two bitmaps of so many tasks fit a stamp, which has at most 4 KiB."""
_ATTEMPT_BYTES: Final = 8
_COUNT_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class WriteIdentity:
    """Identify the rows to write. Rows of the same name and epoch are written once."""

    name: str
    """Name of the query, or of one batch write."""
    epoch: int
    """Number of the batch within the query."""
    attempt: int
    """Microseconds since 1970 by the clock of the driver that began this run of the batch. A later run has a larger number."""

    @property
    def ledger_name(self) -> str:
        """Return the name of the batch's ledger."""
        return f"spark-ledger/{self.name}"

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


class Pause(NamedTuple):
    """Ask to wait for a moment. The answer does not matter, and the caller may raise any error when its time is over."""

    waiting_for: int
    """A task that has not come back."""


Ask = Claim | Pause


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

    def with_proved(self, task: int) -> BatchLedger:
        """Return the ledger with the task in `written` and `proved`: its rows are the same as before, or it had none."""
        return replace(self, written=self.written | 1 << task, proved=self.proved | 1 << task)

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
            )
        except (ValueError, KeyError, TypeError) as error:
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
    identity: WriteIdentity, task: int, digest: bytes, ledger: BatchLedger
) -> Generator[Ask, bytes, BatchLedger]:
    """Prove the task's rows and get permission to write them (rules 2 and 3). `ledger` is the latest known.

    `digest` begins with the number of rows, 8 bytes little-endian.

    Raises:
        ReplayMismatchError: the task has other rows than before.
        SupersededError: a later run of the batch has begun.
    """
    if task >= TASKS_MAX:
        raise ReplayMismatchError(
            f"task {task}: exactly once is kept for batches of {TASKS_MAX} tasks; coalesce to fewer"
        )
    name = identity.task_name(task)
    mine = identity.attempt.to_bytes(_ATTEMPT_BYTES, "little") + digest
    while True:
        if ledger.advanced(identity.attempt) != ledger:
            raise ReplayMismatchError("the batch's ledger went back to an earlier attempt")
        missing = ledger.missing(identity.attempt)
        if not ledger.has(task) and missing:
            yield Pause(missing[0])
            # only reads the stamp: an empty one replaces nothing
            ledger = BatchLedger.decode((yield Claim(identity.ledger_name, b"")))
            continue
        claimed = yield Claim(name, mine)
        if not ledger.has(task):
            while (attempt := _attempt_of(claimed)) < identity.attempt:
                claimed = yield Claim(name, mine, claimed)
            if attempt > identity.attempt:
                raise SupersededError("a later run of the batch has begun")
        if claimed[_ATTEMPT_BYTES:] != digest:
            had, has = _count_of(claimed[_ATTEMPT_BYTES:]), _count_of(digest)
            raise ReplayMismatchError(
                f"task {task} of batch {identity.epoch} runs again, and its {has} rows are not the {had} it had;"
                " nothing was written this time"
            )
        stamp, wanted = ledger.encode(), ledger.with_proved(task)
        if wanted == ledger:
            return ledger
        ledger = BatchLedger.decode((yield Claim(identity.ledger_name, wanted.encode(), stamp)))
        if ledger == wanted:
            return ledger


def _attempt_of(claimed: bytes) -> int:
    return int.from_bytes(claimed[:_ATTEMPT_BYTES], "little")


def _count_of(digest: bytes) -> int:
    return int.from_bytes(digest[:_COUNT_BYTES], "little")


def _bits_to_text(bits: int) -> str:
    return b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()


def _bits_of_text(text: str) -> int:
    return int.from_bytes(b64decode(text), "little")
