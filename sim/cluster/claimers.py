"""Clients that claim producer names, as the tasks of Spark's exactly-once sink do: they agree by compare-and-set on one stamp for each epoch.

Each reads the stamps of a few shared names and replaces them by stamps of its own, sometimes two in one step. Sometimes it raises an epoch.
Their claims go into the history of the run, whose checker demands that they are linearizable. They have a random stream of their own, so that
other runs do not depend on them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from functools import partial
from typing import Final

from raftmq.client.producer.sequenced_append import SequencedAppender, StampClaim
from raftmq.errors import ProducerFencedError

from sim.cluster.appender_clients import AppenderClients, Step
from sim.cluster.cluster import Cluster
from sim.cluster.options import Options
from sim.cluster.workload import Workload
from sim.history.recording_appender import RecordingAppender

FIRST_DRAWN_SEED = 16
"""Lower seeds have no claimers unless they are forced: the known bugs are found by them."""
DRAWN_EVERY = 5
"""One of so many seeds has claimers."""
NAMES: Final[Sequence[str]] = ("spark/0", "spark/1")
_READ_SHARE = 0.4
"""Share of steps of a writer that only read."""
_WRITER_PAUSES = (0.05, 0.1, 0.3)
"""Average pause of a writer between two steps in seconds."""
_READER_PAUSES = (0.03, 0.06)
"""The same of a client that only reads. It is seldom kept waiting, so it still asks an old leader when others have a new one."""
_RAISE_SHARE = 0.02
"""Share of steps that raise the epoch."""
_SECOND_SHARE = 0.3
"""Share of replacements with a second claim."""


def has_claimers(seed: int) -> bool:
    """Return whether a run has claimers if nobody says otherwise."""
    return seed >= FIRST_DRAWN_SEED and seed % DRAWN_EVERY == 3


class Claimers:
    """All claimers of a run."""

    def __init__(self, cluster: Cluster, workload: Workload, options: Options, rng: random.Random) -> None:
        self._workload = workload
        self._clients = AppenderClients("claimer", cluster, workload, options, rng)
        self.rng = rng
        """The random generator of all claimers."""
        self._writers = rng.choice((2, 3, 4))
        self._readers = rng.choice((2, 3))
        self.names = NAMES[: rng.choice((1, 1, 2))]
        """The names that all share."""
        self._stamp_count = 0

    def start(self) -> None:
        """Start the clients."""
        for number in range(self._writers):
            self._start(f"kw{number}", _READ_SHARE, _WRITER_PAUSES)
        for number in range(self._readers):
            self._start(f"kr{number}", 1.0, _READER_PAUSES)

    def _start(self, client: str, read_share: float, pauses: Sequence[float]) -> None:
        def step_of(appender: SequencedAppender, process: str) -> Step:
            return partial(self._claimer(appender, process).step, read_share)

        self._clients.start(client, step_of, pauses, "claim")

    def _claimer(self, appender: SequencedAppender, process: str) -> _Claimer:
        return _Claimer(RecordingAppender(appender, self._clients.recorder, process), self)

    def new_stamp(self, process: str) -> bytes:
        """Return a stamp that is written by this process only, and only once."""
        self._stamp_count += 1
        return f"{self._stamp_count}.{process}".encode()

    # ------------------------------------------------------------------------------------------------ after healing

    def verify(self) -> asyncio.Task[None]:
        """Read all stamps."""
        return self._clients.verify("kv", lambda appender, process: self._claimer(appender, process).read_all)

    def count(self, what: str) -> None:
        """Count an outcome."""
        self._workload.count(f"claim {what}")


class _Claimer:
    """A client and what it has seen of each name."""

    def __init__(self, appender: RecordingAppender, claimers: Claimers) -> None:
        self._appender = appender
        self._claimers = claimers
        self._epochs: dict[str, int] = dict.fromkeys(claimers.names, 1)
        self._seen: dict[str, bytes] = {}
        """The stamp of each name that it has seen in that epoch."""

    async def step(self, read_share: float) -> None:
        """Read or replace the stamp of a name, or raise its epoch. A replacement may be of a stamp that the client saw long ago."""
        rng = self._claimers.rng
        name = rng.choice(self._claimers.names)
        if name not in self._seen or rng.random() < read_share:
            await self.read(name)
        elif rng.random() < _RAISE_SHARE:
            await self._raise_epoch(name)
        else:
            await self._replace(name)

    async def read(self, name: str) -> bool:
        """Read the stamp of a name. Return False if the name has a later epoch."""
        return await self._claim(name, self._epochs[name], b"", None)

    async def read_all(self) -> None:
        """Read the stamps of all names in their last epochs."""
        for name in self._claimers.names:
            while not await self.read(name):
                pass

    async def _raise_epoch(self, name: str) -> None:
        stamp = self._claimers.rng.choice((b"", self._claimers.new_stamp(self._appender.process)))
        if await self._claim(name, self._epochs[name] + 1, stamp, None):
            self._claimers.count("raised")

    async def _replace(self, name: str) -> None:
        """Replace a stamp, sometimes with that of another name in the same step."""
        others = [other for other in self._seen if other != name]
        then = None
        if others and self._claimers.rng.random() < _SECOND_SHARE:
            other = self._claimers.rng.choice(others)
            stamp = self._claimers.new_stamp(self._appender.process)
            then = StampClaim(other, self._epochs[other], stamp, self._seen[other])
        stamp = self._claimers.new_stamp(self._appender.process)
        if await self._claim(name, self._epochs[name], stamp, self._seen[name], then):
            self._claimers.count("replaced" if self._seen[name] == stamp else "too late")

    async def _claim(
        self, name: str, epoch: int, stamp: bytes, replaces: bytes | None, then: StampClaim | None = None
    ) -> bool:
        try:
            answer = await self._appender.claim(name, epoch, stamp, replaces, then=then)
        except ProducerFencedError:
            self._claimers.count("fenced")
            for one in (name, then.name) if then is not None else (name,):  # the error does not say which name it is
                self._seen.pop(one, None)
            self._epochs[name] += then is None
            return False
        self._claimers.count("ok")
        self._epochs[name] = answer.epoch
        self._seen[name] = answer.stamp
        if then is not None and answer.then is not None:
            self._claimers.count("second ok")
            self._seen[then.name] = answer.then
        return True
