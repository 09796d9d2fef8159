"""Clients that enter shared sets by adding bits to a stamp, as the tasks of a batch of Spark's exactly-once sink enter its ledger.

Each confirms a name of its own, and in the same step adds a bit to the stamp of the set. It names the stamp that it has seen, too, for brokers that
cannot add bits. Others only read. A bit is never taken back, so the sets in the history of the run must only grow. They have a random stream of
their own, so that other runs do not depend on them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Final

from raftmq.client.producer.sequenced_append import SequencedAppender, StampClaim
from raftmq.errors import RaftMQError

from sim.cluster.claimers import connected_appender
from sim.cluster.cluster import Cluster
from sim.cluster.options import Options
from sim.cluster.workload import Workload
from sim.history.recorder import Recorder

FIRST_DRAWN_SEED = 16
"""Lower seeds have no entrants unless they are forced: the known bugs are found by them."""
DRAWN_EVERY = 5
"""One of so many seeds has entrants, and none of those has claimers."""
SETS: Final[Sequence[str]] = ("ledger/0", "ledger/1")
_HEAD: Final = b"ledger\n"
"""The shared bytes of each stamp. The bits follow."""
_EPOCH: Final = 1
_READ_SHARE = 0.3
"""Share of steps of a client that enters which only read."""
_WRITER_PAUSES = (0.05, 0.1, 0.3)
"""Average pause of a client that enters between two steps in seconds."""
_READER_PAUSES = (0.03, 0.06)
"""The same of a client that only reads."""


def has_entrants(seed: int) -> bool:
    """Return whether a run has entrants if nobody says otherwise."""
    return seed >= FIRST_DRAWN_SEED and seed % DRAWN_EVERY == 4


def stamp_of(members: frozenset[int]) -> bytes:
    """Return the stamp of a set."""
    bits = sum(1 << member for member in members)
    return _HEAD + bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def members_of(stamp: bytes) -> frozenset[int]:
    """Return the set of a stamp, which is empty before the first entry."""
    bits = int.from_bytes(stamp[len(_HEAD) :], "little")
    return frozenset(number for number in range(bits.bit_length()) if bits >> number & 1)


class Entrants:
    """All clients of a run that enter sets."""

    def __init__(
        self, cluster: Cluster, workload: Workload, options: Options, rng: random.Random, *, is_united: bool
    ) -> None:
        self._cluster = cluster
        self._workload = workload
        self._options = options
        self._rng = rng
        self._is_united = is_united
        """Whether the cluster's feature level lets brokers add bits. If not, they only replace stamps, and an entry may come too late."""
        self._writers = rng.choice((2, 4, 6))
        self._readers = rng.choice((1, 2))
        self._sets = SETS[: rng.choice((1, 1, 2))]
        self._entry_count = 0
        # Not the recorder of the others: a run is as long as they need to do enough.
        self._recorder = Recorder(workload.history.append, lambda: int(cluster.loop.now * 1e9))

    def start(self) -> None:
        """Start the clients."""
        for number in range(self._writers):
            self._workload.spawn(f"ew{number}", self._live(f"ew{number}", _READ_SHARE, _WRITER_PAUSES))
        for number in range(self._readers):
            self._workload.spawn(f"er{number}", self._live(f"er{number}", 1.0, _READER_PAUSES))

    async def _live(self, client: str, read_share: float, pauses: Sequence[float]) -> None:
        """Enter and read with one connected client after the other."""
        life = 0
        while not self._workload.is_stopping:
            life += 1
            process = f"{client}.{life}"
            try:
                async with connected_appender(self._cluster, self._options, self._rng) as appender:
                    await self._enter_for_a_while(appender, process, read_share, self._rng.choice(pauses))
            except RaftMQError as error:
                self._workload.count_error("entrant", error)
                await self._pause(0.2)

    async def _enter_for_a_while(
        self, appender: SequencedAppender, process: str, read_share: float, pause_seconds: float
    ) -> None:
        loop = self._cluster.loop
        until = loop.time() + self._rng.uniform(2.0, 8.0)
        seen: dict[str, bytes] = {}
        while not self._workload.is_stopping and loop.time() < until:
            name = self._rng.choice(self._sets)
            try:
                if name not in seen or self._rng.random() < read_share:
                    seen[name] = await self._read(appender, process, name)
                else:
                    seen[name] = await self._enter(appender, process, name, seen[name])
            except RaftMQError as error:
                self._workload.count_error("entry", error)
            await self._pause(pause_seconds)

    async def _read(self, appender: SequencedAppender, process: str, name: str) -> bytes:
        operation = self._recorder.invoke(process, "enter", name=name, stamp="")
        try:
            answer = await appender.claim(name, _EPOCH)
        except BaseException as error:
            operation.info(error=type(error).__name__, detail=str(error))
            raise
        operation.ok(stamp=_text(answer.stamp))
        self._workload.count("entry read")
        return answer.stamp

    async def _enter(self, appender: SequencedAppender, process: str, name: str, seen: bytes) -> bytes:
        """Enter a set with a new bit. Return the stamp that the client has seen last."""
        member, self._entry_count = self._entry_count, self._entry_count + 1
        then = StampClaim(name, _EPOCH, stamp_of(members_of(seen) | {member}), seen, len(_HEAD))
        operation = self._recorder.invoke(process, "enter", name=name, stamp=str(member))
        try:
            answer = await appender.claim(f"own/{process}", _EPOCH, b"mine", then=then)
        except BaseException as error:
            operation.info(error=type(error).__name__, detail=str(error))
            raise
        if answer.then is None or (not self._is_united and member not in members_of(answer.then)):
            operation.info()
            self._workload.count("entry too late")
        else:
            operation.ok(stamp=_text(answer.then))
            self._workload.count("entry made")
            if seen != answer.then and members_of(answer.then) - members_of(seen) != {member}:
                self._workload.count("entry beside others")
        return seen if answer.then is None else answer.then

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(self._rng.expovariate(1.0 / seconds))

    # ------------------------------------------------------------------------------------------------ after healing

    def verify(self) -> asyncio.Task[None]:
        """Read all sets."""
        return self._workload.spawn("ev", self._read_last())

    async def _read_last(self) -> None:
        life = 0
        while True:
            life += 1
            try:
                async with connected_appender(self._cluster, self._options, self._rng) as appender:
                    for name in self._sets:
                        await self._read(appender, f"ev.{life}", name)
                    return
            except RaftMQError as error:
                self._workload.count_error("verify", error)
                await asyncio.sleep(0.2)


def _text(stamp: bytes) -> str:
    return ",".join(map(str, sorted(members_of(stamp))))
