"""The ledgers of redrives in the cluster."""

from __future__ import annotations

from typing import cast

from raftmq.client.dead_letters.redrive_ledger import STRETCH_RECORDS, RedriveLedger
from raftmq.client.dead_letters.redrive_ledgers import RedriveLedgers
from raftmq.client.producer.sequenced_append import NamedEpoch, SequencedAppender


class Names:
    """The names and stamps of a cluster."""

    def __init__(self) -> None:
        self.stamps: dict[str, bytes] = {}

    async def claim(self, name: str, epoch: int, stamp: bytes = b"", replaces: bytes | None = None) -> NamedEpoch:
        known = self.stamps.setdefault(name, stamp)
        if replaces == known:
            self.stamps[name] = stamp
        return NamedEpoch(7, epoch, self.stamps[name])


def ledgers_of(names: Names, group_id: int) -> RedriveLedgers:
    return RedriveLedgers(cast("SequencedAppender", names), 5, lambda _partition: group_id)


async def test_letters_that_got_offsets_of_lost_ones_wait() -> None:
    """A recovery that lost records gives their offsets again. The new letters counted as sent back, and were deleted."""
    names = Names()
    ledgers = ledgers_of(names, 3)
    stored = await ledgers.replace(await ledgers.open(0, 0), RedriveLedger(0, 4, group_id=3).with_settled([10, 11]))
    assert (await ledgers_of(names, 3).open(0, 0)).ledger == stored.ledger
    found = (await ledgers_of(names, 8).open(0, 0)).ledger
    assert (found.is_settled(10), found.number, found.group_id) == (False, 4, 8)
    assert (await ledgers_of(names, 3).open(0, 0)).ledger == found, "a client that does not know of the recovery yet"


async def test_a_ledger_of_an_earlier_version_is_taken_over() -> None:
    names, earlier = Names(), RedriveLedger(STRETCH_RECORDS, 4).with_settled([STRETCH_RECORDS + 1])
    names.stamps[f"raftmq.redrive/5/0/{STRETCH_RECORDS}"] = earlier.encode()
    found = (await ledgers_of(names, 3).open(0, STRETCH_RECORDS)).ledger
    assert (found.is_settled(STRETCH_RECORDS + 1), found.number, found.group_id) == (True, 4, 3)
