"""Random lives of a partition's transforms: crashes, zombies, lost answers, forgotten producers, changed topics, resets.

An output is written once in every life. Without any of the rules of `output_state.py`, some lives would write it twice or lose it.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from raftmq.client.base import settings
from raftmq.client.transformer import partition_transform
from raftmq.client.transformer.output_state import OutputState
from raftmq.client.transformer.partition_transform import PartitionTransform
from raftmq.client.transformer.routing import MadeOutput
from raftmq.errors import OffsetOutOfRangeError
from raftmq.types import Record

from tests.support.client.transform_world import DAY_S, Owner, World, made, settled

LIVES = 150
STEPS = 40


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use short pauses and small limits, so that limits are reached."""
    monkeypatch.setattr(settings, "RETRY_BACKOFF_MIN_SECONDS", 0.0)
    monkeypatch.setattr(settings, "RETRY_BACKOFF_MAX_SECONDS", 0.0)
    monkeypatch.setattr(settings, "TRANSFORM_CHUNK_RECORDS_MAX", 6)
    monkeypatch.setattr(settings, "TRANSFORM_AHEAD_RECORDS", 12)


def outputs_of(record: Record) -> list[MadeOutput]:
    """Return zero to three outputs for two topics, with keys, without keys, and with a partition."""
    number = record.offset
    outputs = []
    for nth in range(number * 7 % 4):
        topic = "rare" if (number + nth) % 9 == 0 else "often"
        name = f"{number}.{nth}"
        outputs.append(made(topic, name, None if nth == 1 else record.key, 0 if nth == 2 else None))
    return outputs


class Life:
    """One random life, and its checks."""

    def __init__(self, seed: int, *, resets: bool) -> None:
        self.chance = random.Random(seed)
        self.world = World(self.chance, handler=outputs_of)
        self.world.create("often", 3)
        self.world.create("rare", 2)
        self.owners: list[Owner] = []
        self._resets = resets
        self._began_at = 0

    @property
    def owner(self) -> Owner:
        return self.owners[-1]

    async def live(self) -> None:
        self.owners.append(self.world.assign())
        for _ in range(STEPS):
            await self._step()
            for _ in range(self.chance.randrange(30)):
                await asyncio.sleep(0)
        await self._finish()

    async def _step(self) -> None:
        world, chance = self.world, self.chance
        match chance.randrange(16):
            case 0 | 1 | 2 | 3:
                world.write(chance.randrange(12))
            case 4 | 5 | 6 | 7:
                chance.choice(self.owners[-2:]).read(chance.randrange(20))
            case 8:
                self.owner.crash()
                self.owners.append(world.assign())
            case 9:
                await self.owner.release()
                self.owners.append(world.assign())
            case 10:  # the previous owner continues, unaware of its successor
                self.owners.append(world.assign())
            case 11:
                await self._let_days_pass()
            case 12:
                name = chance.choice(["often", "rare"])
                world.grow(name, min(9, len(world.topics[name].partitions) + 1))
            case 13 if chance.random() < 0.3:
                world.create(chance.choice(["often", "rare"]), chance.randint(1, 4))
            case 14 if self._resets and chance.random() < 0.5:
                self._began_at = chance.randrange(len(world.records) + 1)
                world.reset(self._began_at)
                self.owners.append(world.assign())
            case _:
                pass

    async def _let_days_pass(self) -> None:
        """Let time pass, but not until outputs become unverifiable. No member outlives its session by days."""
        for zombie in self.owners[:-1]:
            zombie.crash()
        while self.world.tasks:
            await asyncio.wait(list(self.world.tasks))
        state = OutputState.decode(self.world.committed[1]) if self.world.committed is not None else None
        if state is None or self.world.now_s - state.since_s < 7 * DAY_S:
            self.world.now_s += self.chance.randrange(5 * DAY_S)

    async def _finish(self) -> None:
        """Let everything end, including zombies."""
        world = self.world
        self.owners.append(world.assign())
        for owner in self.owners:
            owner.read(len(world.records))
        await settled(world, lambda: world.committed is not None and world.committed[0] == len(world.records))
        for owner in self.owners:
            owner.transform.end()
        await asyncio.wait([owner.task for owner in self.owners])
        while world.tasks:
            await asyncio.wait(list(world.tasks))

    def faults(self) -> list[str]:
        """Return the faults in the written outputs."""
        faults = [repr(owner.failure) for owner in self.owners if owner.failure is not None]
        world = self.world
        for topic in world.incarnations:
            per_generation = Counter(
                (name, generation) for part in topic.partitions for name, _, generation in part.records
            )
            faults += [f"{name} is written {count} times" for name, count in per_generation.items() if count > 1]
            for part in topic.partitions:
                faults += self._misordered(part.records)
        assert world.committed is not None
        state = OutputState.decode(world.committed[1])
        last = state.generation if state is not None else 0
        ever = {
            name
            for topic in world.incarnations
            for part in topic.partitions
            for name, _, generation in part.records
            if generation == last or not self._resets
        }
        expected = {
            one.cells.value.decode()
            for record in world.records[self._began_at :]
            for one in outputs_of(record)
            if one.cells.value is not None
        }
        return faults + [f"{name} is lost" for name in expected - ever]

    def _misordered(self, records: list[tuple[str, bytes | None, int]]) -> list[str]:
        faults = []
        highest: dict[tuple[bytes | None, int], int] = {}
        for name, key, generation in records:
            number = int(name.partition(".")[0])
            if number < highest.get((key, generation), -1):
                faults.append(f"{name} is behind a later one")
            highest[key, generation] = number
        return faults


async def lives(count: int, monkeypatch: pytest.MonkeyPatch, *, resets: bool = False) -> list[str]:
    """Run that many lives. Return the faults of the first life that has any."""
    for seed in range(count):
        life = Life(seed, resets=resets)
        monkeypatch.setattr(partition_transform, "_now_s", lambda life=life: life.world.now_s)
        await life.live()
        if faults := life.faults():
            return [f"life {seed}: {fault}" for fault in faults]
    return []


@pytest.mark.parametrize("resets", [False, True])
async def test_an_output_is_written_once_in_any_life(resets: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await lives(LIVES, monkeypatch, resets=resets) == []


def without_counts(patch: pytest.MonkeyPatch) -> None:
    """Let a new owner count from 0."""
    real = OutputState.decode

    def decode(note: str) -> OutputState | None:
        state = real(note)
        if state is None:
            return None
        return replace(state, topics={id_: replace(topic, partitions={}) for id_, topic in state.topics.items()})

    patch.setattr(OutputState, "decode", staticmethod(decode))


def without_the_bound_of_predecessors(patch: pytest.MonkeyPatch) -> None:
    real = OutputState.declared
    patch.setattr(OutputState, "declared", lambda self, topics, is_alone: real(self, topics, is_alone=True))


def without_committing_first(patch: pytest.MonkeyPatch) -> None:
    """Use topics and numbers of partitions before they are committed."""

    async def declare(self: PartitionTransform, topics) -> None:
        is_alone = self._offset >= max(self._inherited_until, self._sent_until)
        self._state = self._started().declared(list(topics), is_alone=is_alone)

    patch.setattr(PartitionTransform, "_declare", declare)


@pytest.mark.parametrize("spoil", [without_counts, without_the_bound_of_predecessors, without_committing_first])
async def test_without_a_rule_an_output_is_lost_or_doubled(
    spoil: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch)
    assert await lives(LIVES, monkeypatch)


class RecoveredLife(Life):
    """A life in which the input is recovered once, from a replica that lacks the latest records and commits."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, resets=False)
        self.world.handler = lambda record: [made("often", f"{(record.value or b'').decode()}", record.key)]
        self._kept: list[tuple[int, tuple[int, str]]] = []
        """The ends of the log and the commits after the steps. All of them belong to one state."""

    async def _step(self) -> None:
        world, chance = self.world, self.chance
        match chance.randrange(12):
            case 0 | 1 | 2 | 3:
                world.write(chance.randrange(12))
            case 4 | 5 | 6 | 7:
                chance.choice(self.owners[-2:]).read(chance.randrange(20))
            case 8:
                self.owner.crash()
                self.owners.append(world.assign())
            case 9:
                await self.owner.release()
                self.owners.append(world.assign())
            case 10:
                self.owners.append(world.assign())
            case _ if len(self._kept) > 5 and world.group_id == 1:
                world.recover(*chance.choice(self._kept[-12:]))
        if world.committed is not None and world.group_id == 1 and "often" in world.topics:
            self._kept.append((len(world.records), world.committed))

    def lost_faults(self) -> list[str]:
        """Return the faults in the outputs of the records that were not lost, and unexpected failures."""
        faults = [
            repr(owner.failure)
            for owner in self.owners
            if owner.failure is not None and not isinstance(owner.failure, OffsetOutOfRangeError)
        ]
        written = Counter(name for name, _, _ in self.world.written())
        for record in self.world.records:
            name = (record.value or b"").decode()
            if written[name] != 1:
                faults.append(f"{name} is written {written[name]} times")
        return faults


async def test_a_recovery_of_the_input_duplicates_and_drops_no_output_of_a_record_that_is_left() -> None:
    for seed in range(LIVES):
        life = RecoveredLife(seed)
        await life.live()
        assert life.lost_faults() == [], seed
