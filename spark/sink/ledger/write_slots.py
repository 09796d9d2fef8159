"""Lend names to batch writes that have none, and take them back, so that their number does not grow with the number of writes.

A cluster keeps the name of a producer for 14 days, and every task of a write needs one. So a write without the option ``writerName`` takes a
**slot**: the tasks of all writes that had the slot one after another use the same names, each write under a higher epoch. The slots in use
are one stamp in the cluster, changed by compare and swap. The first task of a write takes the lowest free slot, and the driver gives it back
when the write has ended. A task that comes later, because Spark has not killed it yet, finds that its write has ended.

A slot that nobody gave back, because the driver died, is lent again when there are no others. The higher epoch fences a writer that is alive, and
its later tasks find that the write has ended: under another slot they would write rows again.

Pure: `SlotTable` is a value. Must not call the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from struct import Struct
from typing import Final, NamedTuple

from raftmq.spark.errors import SupersededError, TooManyWritesError
from raftmq.spark.sink.ledger.batch_ledger import WriteIdentity

SLOTS_NAME: Final = "spark-slots"
"""The name whose stamp is the table. It is always at epoch 0."""
WRITE_ID_BYTES: Final = 8
SLOTS_MAX: Final = 120
"""Batch writes without a name at the same time."""
ENDED_MAX: Final = 120
"""The latest ended writes. Spark kills the late tasks of a write some seconds after its end."""
ABANDONED_MS: Final = 60 * 60 * 1000
"""Age after which a slot may be taken from a write if no other one is free."""
_VERSION: Final = b"\x01"
_HEAD: Final = Struct("<BB")
_LENT: Final = Struct(f"<{WRITE_ID_BYTES}sBQ")


class Slot(NamedTuple):
    """Identify the names that a write was lent."""

    number: int
    epoch: int
    """The later of the time in milliseconds since 1970 and the epoch after the last one that was given, so it always rises."""


@dataclass(frozen=True, slots=True)
class SlotTable:
    """Hold the slots in use."""

    lent: Mapping[bytes, Slot] = field(default_factory=dict)
    """By the id of the write."""
    ended: tuple[bytes, ...] = ()
    """Ids of the latest writes that have ended or lost their slot, oldest first."""
    last_epoch: int = 0

    def taken(self, write_id: bytes, now_ms: int) -> SlotTable:
        """Return the table in which the write has a slot.

        Raises:
            SupersededError: the write has ended, or lost its slot to another one.
            TooManyWritesError: all slots are in use.
        """
        if write_id in self.lent:
            return self
        if write_id in self.ended:
            raise SupersededError(
                "the write has ended, and this task came too late, or it took longer than an hour and lost its names to another write"
            )
        lent, ended = dict(self.lent), self.ended
        if len(lent) == SLOTS_MAX:
            oldest = min(lent, key=lambda known: lent[known].epoch)
            if now_ms - lent[oldest].epoch < ABANDONED_MS:
                raise TooManyWritesError(f"{SLOTS_MAX} batch writes without a writerName are under way")
            del lent[oldest]
            ended = (*ended, oldest)[-ENDED_MAX:]
        used = {slot.number for slot in lent.values()}
        number = next(number for number in range(SLOTS_MAX) if number not in used)
        epoch = max(now_ms, self.last_epoch + 1)
        return replace(self, lent={**lent, write_id: Slot(number, epoch)}, ended=ended, last_epoch=epoch)

    def given_back(self, write_id: bytes) -> SlotTable:
        """Return the table in which the write has ended."""
        if write_id not in self.lent:
            return self
        lent = {known: slot for known, slot in self.lent.items() if known != write_id}
        return replace(self, lent=lent, ended=(*self.ended, write_id)[-ENDED_MAX:])

    def identity(self, write_id: bytes, attempt: int) -> WriteIdentity:
        """Return the identity of the rows of a write that has a slot."""
        slot = self.lent[write_id]
        return WriteIdentity(f"spark-slot-{slot.number}", slot.epoch, attempt)

    def encode(self) -> bytes:
        """Return the table as a stamp."""
        return b"".join(
            [
                _VERSION,
                _HEAD.pack(len(self.lent), len(self.ended)),
                self.last_epoch.to_bytes(8, "little"),
                *(_LENT.pack(write_id, slot.number, slot.epoch) for write_id, slot in self.lent.items()),
                *self.ended,
            ]
        )

    @staticmethod
    def decode(stamp: bytes) -> SlotTable:
        """Return the table in a stamp. An empty stamp is an empty table. Raises `SupersededError` for one of another version."""
        if not stamp:
            return SlotTable()
        if stamp[:1] != _VERSION:
            raise SupersededError(f"a sink of another version has changed the names of batch writes: {stamp[:16]!r}")
        lent_count, ended_count = _HEAD.unpack_from(stamp, 1)
        at = 1 + _HEAD.size
        last_epoch = int.from_bytes(stamp[at : at + 8], "little")
        at += 8
        lent = {}
        for _ in range(lent_count):
            write_id, number, epoch = _LENT.unpack_from(stamp, at)
            lent[write_id] = Slot(number, epoch)
            at += _LENT.size
        ends = range(at, at + ended_count * WRITE_ID_BYTES, WRITE_ID_BYTES)
        return SlotTable(lent, tuple(stamp[start : start + WRITE_ID_BYTES] for start in ends), last_epoch)
