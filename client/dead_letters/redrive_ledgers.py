"""`RedriveLedgers`: stores the ledgers of a dead-letter topic in the cluster, as stamps of producer names.

The cluster forgets a name that was not used for 14 days. Names contain the topic's id, so a topic that is deleted and created again begins
with empty ledgers.
"""

from __future__ import annotations

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

    def __init__(self, appender: SequencedAppender, topic_id: int) -> None:
        self._appender = appender
        self._topic_id = topic_id

    async def open(self, partition: int, first: int) -> StoredLedger:
        """Return the ledger of the stretch that begins at offset `first`, or a new empty one."""
        name = f"raftmq.redrive/{self._topic_id}/{partition}/{first}"
        found = await self._appender.claim(name, 0, RedriveLedger(first).encode())
        return StoredLedger(name, found.producer_id, RedriveLedger.decode(found.stamp, first))

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
