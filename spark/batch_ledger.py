"""What the tasks of one batch know of each other: which of them wrote in earlier runs of the batch, and in this one.

It lives in the cluster, as the stamp of the batch's epoch under the query's name (`client/exact_append.py`), and is changed by compare
and swap. Spark tells a task neither how many tasks there are nor whether the batch was run before, so that is found out here:

Each run of a batch has an attempt number of its driver's. Before a task writes, it claims its rows' digest under a name of its own,
where another digest is refused, and then enters itself here. A later attempt finds those who wrote before it in `prior`. Whoever is
in it has proved the same rows once it is in `current`, too; whoever is not must wait for all of them. For, if every task that wrote
before has the very rows it had, then what was written is theirs alone and nothing of anybody else's. Were the rows divided among
tasks in another way, some task of `prior` would have another digest, or be missing; then nobody who is not in `prior` ever writes.

Why a task's own digest does not suffice: with 2 tasks, task 1 wrote rows 50..99 and the driver died. It comes back with 4 tasks;
task 1 has rows 25..49 now and is refused; but tasks 2 and 3, which nobody has seen before, would by then have written 50..99 again.

Pure. Must not talk to the cluster.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from raftmq.spark.sink_errors import ReplayMismatchError, SupersededError

LEDGER_VERSION: Final = 1
TASKS_MAX: Final = 8192
"""Two bitmaps of as many tasks fit a stamp, which has at most 4 KiB."""


@dataclass(frozen=True, slots=True)
class BatchLedger:
    """The ledger of one batch of one query."""

    attempt: int
    """The latest attempt: microseconds since the epoch on the driver that began it, so that later ones are larger."""
    prior: int = 0
    """Bit p: task p may have written in an earlier attempt."""
    current: int = 0
    """Bit p: task p may have written in this attempt, and what it has is what it had."""
    partition_counts: Mapping[str, int] = field(default_factory=dict)
    """Partitions per topic when the batch was first run. Rows keep their partitions even if the topic gets more."""

    def joined(self, attempt: int, task: int) -> BatchLedger:
        """The ledger once `task` has joined `attempt`.

        Raises:
            SupersededError: a later attempt has begun.
            ReplayMismatchError: the task's number is beyond what a ledger holds.
        """
        if task >= TASKS_MAX:
            raise ReplayMismatchError(
                f"task {task}: exactly once is kept for {TASKS_MAX} tasks in a batch; use fewer partitions"
            )
        bit = 1 << task
        if attempt == self.attempt:
            return replace(self, current=self.current | bit)
        self.check_attempt(attempt)
        return replace(self, attempt=attempt, prior=self.prior | self.current, current=bit)

    def check_attempt(self, attempt: int) -> None:
        """Raise `SupersededError` when a later attempt than `attempt` has begun."""
        if attempt < self.attempt:
            raise SupersededError(
                f"this run of the batch began at {attempt}, a later one at {self.attempt} (microseconds since 1970, by the"
                " clocks of their drivers)"
            )

    def is_entered(self, task: int) -> bool:
        """Whether `task` may have written, in whatever attempt."""
        return bool((self.prior | self.current) >> task & 1)

    def is_prior(self, task: int) -> bool:
        """Whether `task` may have written in an attempt before the latest."""
        return bool(self.prior >> task & 1)

    def unproved(self, attempt: int) -> list[int]:
        """Tasks that wrote before `attempt` and have not joined it."""
        bits = self.prior & ~self.current if attempt == self.attempt else self.prior | self.current
        return [task for task in range(bits.bit_length()) if bits >> task & 1]

    def encode(self) -> bytes:
        """As a stamp."""
        return json.dumps(
            {
                "v": LEDGER_VERSION,
                "attempt": self.attempt,
                "prior": _bits_to_text(self.prior),
                "current": _bits_to_text(self.current),
                "partitions": dict(self.partition_counts),
            },
            separators=(",", ":"),
            sort_keys=True,
        ).encode()

    @staticmethod
    def decode(stamp: bytes) -> BatchLedger:
        """Read a stamp back. Raises `ReplayMismatchError` for one of another version."""
        try:
            fields = json.loads(stamp)
            if fields["v"] != LEDGER_VERSION:
                raise ReplayMismatchError(f"the batch was begun by a sink of another version ({fields['v']})")
            return BatchLedger(
                attempt=fields["attempt"],
                prior=_bits_of_text(fields["prior"]),
                current=_bits_of_text(fields["current"]),
                partition_counts=fields["partitions"],
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ReplayMismatchError(f"the batch's stamp is not the sink's: {stamp[:80]!r}") from error


def _bits_to_text(bits: int) -> str:
    return b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()


def _bits_of_text(text: str) -> int:
    return int.from_bytes(b64decode(text), "little")
