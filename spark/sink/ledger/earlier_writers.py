"""Fence the producers of a batch's earlier runs, and tell which batches of records are theirs.

The first task of a generation claims the name of each task that may have written before, under the generation's epoch, tells every broker,
and stores the producers' ids in the cluster for the other tasks. All tasks do that before they enter the ledger, so no task of a generation
writes before its predecessors are fenced.

Must not read records, which `written_rows` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping
from struct import Struct
from typing import TYPE_CHECKING, Final

from raftmq.client.producer.identity import ProducerName
from raftmq.errors import ProducerFencedError
from raftmq.spark.sink.ledger.batch_ledger import Ask, BatchLedger, mark_fenced, open_batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.client.producer.sequenced_append import NamedEpoch, SequencedAppender
    from raftmq.spark.cluster.cluster import Cluster
    from raftmq.spark.sink.ledger.batch_ledger import Answer, WriteIdentity

FENCES_MAX: Final = 32
"""Names that are fenced simultaneously."""
IDS_PER_STAMP: Final = 500
"""Ids of 8 bytes in a stamp of 4 KiB."""
REQUEST_TIMEOUT_SECONDS: Final = 10.0
"""Time limit of one request about a name."""
_ID: Final = Struct("<Q")


class EarlierWriters:
    """Fence and name the producers of one batch."""

    def __init__(
        self,
        cluster: Cluster,
        appender: SequencedAppender,
        identity: WriteIdentity,
        agree: Callable[[Generator[Ask, Answer, BatchLedger]], BatchLedger],
        timeout_seconds: float,
    ) -> None:
        """Create it for a batch.

        Args:
            cluster: The cluster.
            appender: An appender of the cluster.
            identity: The batch and its attempt.
            agree: Executes steps on the ledger and returns it.
            timeout_seconds: Time limit of fencing one name.
        """
        self._cluster = cluster
        self._appender = appender
        self._identity = identity
        self._agree = agree
        self._timeout_seconds = timeout_seconds

    def fence_old(self, ledger: BatchLedger) -> BatchLedger:
        """Fence the writers of earlier generations, unless another task has done it. Return the latest ledger.

        Raises `SupersededError` if a later run of the batch has begun.
        """
        while not ledger.is_fenced and ledger.old:
            try:
                ids = self._fence(ledger.old_tasks, ledger.first_round)
            except ProducerFencedError:  # another task has fenced them, and one of them has begun its next round
                known, ledger = ledger, self._agree(open_batch(self._identity, {}))
                if ledger == known:
                    raise
                continue
            for part, start in enumerate(range(0, len(ids), IDS_PER_STAMP)):
                stamp = b"".join(map(_ID.pack, ids[start : start + IDS_PER_STAMP]))
                self._claim(self._identity.writers_name(part), ledger.first_round, stamp)
            ledger = self._agree(mark_fenced(self._identity, ledger))
        return ledger

    def fence_own(self, ledger: BatchLedger, task: int) -> Mapping[int, range]:
        """Fence the task's earlier rounds in this generation. Return their epochs, by producer id."""
        round_ = ledger.round_of(task)
        if round_ == ledger.first_round:
            return {}
        (producer_id,) = self._fence([task], round_)
        return {producer_id: range(self._identity.name_epoch(ledger.first_round), self._identity.name_epoch(round_))}

    def old(self, ledger: BatchLedger) -> Mapping[int, range]:
        """Return the epochs of the earlier generations, by producer id. They must be fenced."""
        epochs = range(self._identity.name_epoch(), self._identity.name_epoch(ledger.first_round))
        ids: list[int] = []
        for part in range(-(-len(ledger.old_tasks) // IDS_PER_STAMP)):
            stamp = self._claim(self._identity.writers_name(part), ledger.first_round, b"").stamp
            ids += [producer_id for (producer_id,) in _ID.iter_unpack(stamp)]
        return dict.fromkeys(ids, epochs)

    def _claim(self, name: str, round_: int, stamp: bytes) -> NamedEpoch:
        return self._cluster.run(lambda: self._appender.claim(name, self._identity.name_epoch(round_), stamp))

    def _fence(self, tasks: list[int], round_: int) -> list[int]:
        """Begin a round of tasks, so that nothing of their earlier rounds is written any more. Return their producer ids."""
        identity, gate = self._identity, asyncio.Semaphore(FENCES_MAX)

        async def fence(task: int) -> int:
            async with gate:
                name = ProducerName(self._cluster.resolver, identity.task_name(task), REQUEST_TIMEOUT_SECONDS)
                return await name.claim(identity.name_epoch(round_), self._timeout_seconds)

        async def fence_all() -> list[int]:
            return await asyncio.gather(*map(fence, tasks))

        return self._cluster.run(fence_all)
