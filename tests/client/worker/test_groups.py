"""Groups of work loops in one event loop: partitions move and are lost at random, and handlers fail. The history checker decides.

There are no brokers, so thousands of rebalances take seconds and each seed repeats the same run. Some members freeze: the next owner begins
before the old one notices.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import TypedDict

import pytest
from raftmq.client.base import settings
from raftmq.client.worker.back_pressure import WorkLimits
from raftmq.client.worker.contiguous_offsets import ContiguousOffsets, Progress
from raftmq.client.worker.dead_letters import DeadLetters
from raftmq.client.worker.handlers import Handlers
from raftmq.client.worker.loop_executor import LoopExecutor
from raftmq.client.worker.outcome import Failure, RetryPolicy
from raftmq.client.worker.partition_work import RecordJob
from raftmq.client.worker.schedule import LaneSchedule, Ordering
from raftmq.client.worker.work_loop import WorkLoop
from raftmq.errors import FencedError
from raftmq.types import Record, TopicPartition

from sim.history.checker import Verdict, judge
from sim.history.events import Event
from sim.history.recorder import Recorder
from tests.support.client.fake_group import TOPIC, FakeConsumer, FakeStore, partition

PARTITIONS = 4
RECORDS = 60
KEYS = 5
MEMBERS = 3
STEPS = 60
POLL_RECORDS = 3
GROUP = "g"
LIMITS = WorkLimits(
    concurrency=5,
    records_max=40,
    partition_records_max=16,
    bytes_max=10_000,
    drain_seconds=60.0,
    revocation_seconds=60.0,
    commit_interval_seconds=0.001,
)


class Place(TypedDict):
    """The partition of an operation in the history."""

    group: str
    topic: str
    partition: int


class Letters(DeadLetters):
    def __init__(self, recorder: Recorder, process: str) -> None:
        self._recorder = recorder
        self._process = process

    async def put(self, record: Record, attempts: int, failure: Failure) -> None:
        where = {"group": GROUP, "topic": TOPIC, "partition": record.partition, "offset": record.offset}
        operation = self._recorder.invoke(self._process, "dead_letter", **where)
        await asyncio.sleep(0)
        operation.ok()


class Member(FakeConsumer):
    """A work loop and its consumer."""

    def __init__(
        self, store: FakeStore, name: str, recorder: Recorder, chance: random.Random, ordering: Ordering
    ) -> None:
        super().__init__(store)
        self.name = name
        self._recorder = recorder
        self._chance = chance
        self._ordering: Ordering = ordering
        retries = RetryPolicy(2, 0.0001, 0.001)
        letters = Letters(recorder, name)
        executor = LoopExecutor(Handlers(self.handle), None)
        self.listener = WorkLoop(lambda _: self, executor, ordering, retries, LIMITS, letters, chance)
        self.running = asyncio.ensure_future(self.listener.run())

    async def handle(self, record: Record) -> None:
        key = (record.key or b"").decode()
        operation = self._recorder.invoke(
            self.name,
            "process",
            group=GROUP,
            topic=TOPIC,
            partition=record.partition,
            offset=record.offset,
            key={"key": key or None, "partition": "all", "none": None}[self._ordering],
        )
        for _ in range(self._chance.randrange(6)):
            await asyncio.sleep(0)
        if self._chance.randrange(4) == 0:
            operation.fail(error="ValueError")
            raise ValueError
        operation.ok()

    async def commit_progress(
        self, progress: Mapping[TopicPartition, Progress], on_committed: Callable[[TopicPartition], None]
    ) -> None:
        operations = [
            self._recorder.invoke(
                self.name, "commit", group=GROUP, topic=TOPIC, partition=name.partition, offset=made.offset
            )
            for name, made in progress.items()
        ]
        try:
            await super().commit_progress(progress, on_committed)
        except FencedError:
            for operation in operations:
                operation.info()
            raise
        for operation in operations:
            operation.ok()

    def _collect(self, room: int) -> dict[TopicPartition, list[Record]]:
        """Return only a few records, so that partitions move before their next owner has read up to where the previous one was."""
        return super()._collect(min(room, POLL_RECORDS))

    async def assign(self, *numbers: int) -> None:
        operations = [self._recorder.invoke(self.name, "open", **self.place(number)) for number in numbers]
        await super().assign(*numbers)
        for operation in operations:
            operation.ok()

    async def revoke(self, *numbers: int) -> None:
        operations = [self._recorder.invoke(self.name, "release", **self.place(number)) for number in numbers]
        await super().revoke(*numbers)
        for operation in operations:
            operation.ok()

    async def leave(self) -> None:
        """Stop, and release everything in order."""
        operations = [self._recorder.invoke(self.name, "release", **self.place(number)) for number in self.held()]
        assert self.listener is not None
        self.listener.stop()
        await self.running
        for operation in operations:
            operation.ok()

    def place(self, number: int) -> Place:
        return {"group": GROUP, "topic": TOPIC, "partition": number}

    def held(self) -> list[int]:
        return sorted(name.partition for name in self.assignment())


async def run_group(seed: int, ordering: Ordering) -> tuple[Verdict, list[Event]]:
    """Let members join, leave, crash and freeze. At the end one of them finishes everything."""
    chance = random.Random(seed)
    events: list[Event] = []
    places = iter(range(10**9))
    recorder = Recorder(events.append, lambda: next(places))
    store = FakeStore()
    names = iter(range(10**9))

    def join() -> Member:
        return Member(store, f"m{next(names)}", recorder, chance, ordering)

    members = [join() for _ in range(MEMBERS)]
    for number in range(PARTITIONS):
        members[0].write(
            number, *(chance.choice([None, *[b"k%d" % key for key in range(KEYS)]]) for _ in range(RECORDS))
        )
    await members[0].assign(*range(PARTITIONS))
    for _ in range(STEPS):
        for _ in range(chance.randrange(30)):
            await asyncio.sleep(0)
        number = chance.randrange(PARTITIONS)
        owner = next(member for member in members if store.owners[partition(number)] is member)
        others = [member for member in members if member is not owner]
        step = chance.choice(["move", "move", "freeze", "lose", "crash", "leave"])
        if step == "move":
            await owner.revoke(number)
            await chance.choice(others).assign(number)
        elif step == "freeze":  # the next owner already works, and the old one does not know
            await chance.choice(others).assign(number)
            for _ in range(chance.randrange(30)):
                await asyncio.sleep(0)
            await owner.lose(number)
        elif step == "lose":  # and gets it back, for example after a reset of its offset
            await owner.lose(number)
            await owner.assign(number)
        else:
            held = owner.held()
            members.remove(owner)
            if step == "crash":
                owner.running.cancel()
                await asyncio.wait((owner.running,))
            else:
                await owner.leave()
            members.append(join())
            for one in held:
                await chance.choice(members).assign(one)
    for number in range(PARTITIONS):
        owner = next(member for member in members if store.owners[partition(number)] is member)
        while store.committed.get(partition(number), 0) < RECORDS:
            owner.has_committed.clear()
            await owner.has_committed.wait()
    for member in members:
        assert member.listener is not None
        member.listener.stop()
        await member.running
        counted = member.listener.metrics()
        assert counted.handlers_running == counted.records_queued == counted.records_waiting == 0
        assert counted.records_in_work == counted.bytes_in_work == 0
    for number in range(PARTITIONS):
        seen = recorder.invoke("test", "committed", group=GROUP, topic=TOPIC, partition=number)
        seen.ok(offset=store.committed[partition(number)])
    return judge(events), events


@pytest.mark.parametrize(
    ("seed", "ordering"),
    [
        *((seed, "key") for seed in range(6)),
        *((seed, ordering) for ordering in ("partition", "none") for seed in range(2)),
        *(pytest.param(seed, "key", marks=pytest.mark.long) for seed in range(6, 150)),
        *(
            pytest.param(seed, ordering, marks=pytest.mark.long)
            for ordering in ("partition", "none")
            for seed in range(2, 50)
        ),
    ],
)
async def test_every_record_is_processed_in_order_while_partitions_move(
    seed: int, ordering: Ordering, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 2:  # records that fail while their partition is released are left to the next owner
        monkeypatch.setattr(settings, "WORKER_DRAIN_RETRY_SECONDS", -1.0)
    async with asyncio.timeout(60):
        verdict, _ = await run_group(seed, ordering)
    verdict.demand_clean()
    assert verdict.outcomes["process"]["ok"] >= PARTITIONS * RECORDS // 2
    assert verdict.outcomes["process"]["fail"] > 0
    assert verdict.outcomes["committed"]["ok"] == PARTITIONS


# These mistakes test the checks: each is one that a worker could have, and must be detected.


def commits_the_highest(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ContiguousOffsets, "_compute", lambda self: Progress(self.highest_finished + 1))


def commits_what_failed(patch: pytest.MonkeyPatch) -> None:
    settle = WorkLoop._settle

    def wrong(self: WorkLoop, job: RecordJob, failure: Failure) -> None:
        settle(self, job)

    patch.setattr(WorkLoop, "_on_failure", wrong)


def retries_let_the_key_go_on(patch: pytest.MonkeyPatch) -> None:
    def wrong(self: LaneSchedule[RecordJob], job: RecordJob, due: float) -> None:
        self.finish(job)
        self.add(job)

    patch.setattr(LaneSchedule, "retry", wrong)


def commits_the_prefix_only(patch: pytest.MonkeyPatch) -> None:
    """Commit as before the ranges existed: records finished after a slow one are repeated after every stop."""
    compute = ContiguousOffsets._compute
    patch.setattr(ContiguousOffsets, "_compute", lambda self: compute(self)._replace(finished=b""))


def forgets_what_it_was_told(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Member, "finished", lambda self, partition: ())


def goes_on_with_a_key_that_it_leaves(patch: pytest.MonkeyPatch) -> None:
    def wrong(self: LaneSchedule[RecordJob], job: RecordJob) -> list[RecordJob]:
        self.finish(job)
        return []

    patch.setattr(settings, "WORKER_DRAIN_RETRY_SECONDS", -1.0)  # so that it leaves some
    patch.setattr(LaneSchedule, "abandon", wrong)


@pytest.mark.parametrize(
    ("mistake", "anomaly"),
    [
        (commits_the_highest, "unprocessed"),
        (commits_what_failed, "unprocessed"),
        (retries_let_the_key_go_on, "misordered_processing"),
        (commits_the_prefix_only, "repeated_processing"),
        (forgets_what_it_was_told, "repeated_processing"),
        (goes_on_with_a_key_that_it_leaves, "misordered_processing"),
    ],
)
async def test_the_checker_detects_each_planted_mistake(
    monkeypatch: pytest.MonkeyPatch, mistake: object, anomaly: str
) -> None:
    assert callable(mistake)
    mistake(monkeypatch)
    found: set[str] = set()
    for seed in range(25):  # usually the first is enough: on a busy machine a mistake may go unnoticed
        async with asyncio.timeout(60):
            verdict, _ = await run_group(seed, "key")
        found |= verdict.counts.keys()
        if anomaly in found:
            break
    assert anomaly in found
