"""`RedriveLedgers`: stores the ledgers of a dead-letter topic in the cluster, as stamps of producer names.

The cluster forgets a name that was not used for 14 days. Names contain the topic's id, so a topic that is deleted and created again begins
with empty ledgers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from raftmq.client.dead_letters.redrive_ledger import RedriveLedger
from raftmq.client.producer.sequenced_append import SequencedAppender
from raftmq.errors import FencedError


class StoredLedger(NamedTuple):
    """A ledger as the cluster has it."""

    name: str
    producer_id: int
    """The producer id under which the letters of its chunks are appended."""
    ledger: RedriveLedger


class RedriveLedgers:
    """Reads and replaces the ledgers of one topic."""

    def __init__(self, appender: SequencedAppender, topic_id: int, group_of: Callable[[int], int]) -> None:
        """Take `group_of`, which returns the Raft group of a partition."""
        self._appender = appender
        self._topic_id = topic_id
        self._group_of = group_of

    async def open(self, partition: int, first: int) -> StoredLedger:
        """Return the ledger of the stretch that begins at offset `first`, or a new empty one.

        After a recovery of the partition all its letters wait again: those that were sent back and are still there may be sent twice, and none
        that got the offset of a lost one is dropped.
        """
        name, group_id = f"raftmq.redrive/{self._topic_id}/{partition}/{first}", self._group_of(partition)
        found = await self._appender.claim(name, 0, RedriveLedger(first, group_id=group_id).encode())
        stored = StoredLedger(name, found.producer_id, RedriveLedger.decode(found.stamp, first))
        if not stored.ledger.group_id:
            return await self.replace(stored, replace(stored.ledger, group_id=group_id))
        if stored.ledger.group_id < group_id:
            return await self.replace(stored, RedriveLedger(first, stored.ledger.number, group_id=group_id))
        return stored

    async def replace(self, stored: StoredLedger, ledger: RedriveLedger) -> StoredLedger:
        """Replace a ledger that was read. Raises `FencedError` when another process has changed it since."""
        stamp = ledger.encode()
        found = await self._appender.claim(stored.name, 0, stamp, replaces=stored.ledger.encode())
        if found.stamp != stamp:
            raise taken_over()
        return stored._replace(ledger=ledger)


def taken_over() -> FencedError:
    """Return the error of a redrive that meets another one."""
    return FencedError("another redrive or purge of this topic is running: wait until it ends, then run this one again")
