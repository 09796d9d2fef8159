"""Clients that enter shared sets by adding bits to a stamp, as the tasks of a batch of Spark's exactly-once sink enter its ledger.

Each confirms a name of its own, and in the same step adds a bit to the stamp of the set. It names the stamp that it has seen, too, for brokers that
cannot add bits. Others only read. A bit is never taken back, so the sets in the history of the run must only grow. They have a random stream of
their own, so that other runs do not depend on them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from functools import partial
from typing import Final

from raftmq.client.producer.sequenced_append import SequencedAppender, StampClaim

from sim.cluster.appender_clients import AppenderClients, Step
from sim.cluster.cluster import Cluster
from sim.cluster.options import Options
from sim.cluster.workload import Workload

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
        self._workload = workload
        self._clients = AppenderClients("entrant", cluster, workload, options, rng)
        self._rng = rng
        self._is_united = is_united
        """Whether the cluster's feature level lets brokers add bits. If not, they only replace stamps, and an entry may come too late."""
        self._writers = rng.choice((2, 4, 6))
        self._readers = rng.choice((1, 2))
        self._sets = SETS[: rng.choice((1, 1, 2))]
        self._entry_count = 0

    def start(self) -> None:
        """Start the clients."""
        for number in range(self._writers):
            self._start(f"ew{number}", _READ_SHARE, _WRITER_PAUSES)
        for number in range(self._readers):
            self._start(f"er{number}", 1.0, _READER_PAUSES)

    def _start(self, client: str, read_share: float, pauses: Sequence[float]) -> None:
        def step_of(appender: SequencedAppender, process: str) -> Step:
            return partial(self._step, appender, process, read_share, {})

        self._clients.start(client, step_of, pauses, "entry")

    async def _step(self, appender: SequencedAppender, process: str, read_share: float, seen: dict[str, bytes]) -> None:
        """Read or enter a set. `seen` has the last stamp of each set that this client has seen."""
        name = self._rng.choice(self._sets)
        if name not in seen or self._rng.random() < read_share:
            seen[name] = await self._read(appender, process, name)
        else:
            seen[name] = await self._enter(appender, process, name, seen[name])

    async def _read(self, appender: SequencedAppender, process: str, name: str) -> bytes:
        operation = self._clients.recorder.invoke(process, "enter", name=name, stamp="")
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
        operation = self._clients.recorder.invoke(process, "enter", name=name, stamp=str(member))
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

    # ------------------------------------------------------------------------------------------------ after healing

    def verify(self) -> asyncio.Task[None]:
        """Read all sets."""
        return self._clients.verify("ev", lambda appender, process: partial(self._read_all, appender, process))

    async def _read_all(self, appender: SequencedAppender, process: str) -> None:
        for name in self._sets:
            await self._read(appender, process, name)


def _text(stamp: bytes) -> str:
    return ",".join(map(str, sorted(members_of(stamp))))
