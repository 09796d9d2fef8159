"""Workers in real processes on real brokers: killed at random, stopped by SIGTERM, given poison records, judged by their histories."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import msgspec
import pytest
from raftmq import Admin, Consumer, Producer, Record, Worker
from raftmq.client.dead_letters.letter import HEADER_PREFIX
from raftmq.errors import DrainTimeoutError, PoisonRecordError, UnknownTopicError
from raftmq.testing import LocalCluster

from sim.history.checker import Verdict, judge_files
from sim.history.events import HistoryWriter, read_events
from sim.history.recorder import Recorder
from sim.history.recording_producer import RecordingProducer
from tests.support.e2e.group_progress import progress
from tests.support.e2e.worker_member import POISON, Order

pytestmark = [pytest.mark.e2e]

ROOT = Path(__file__).resolve().parents[2]
PARTITIONS = 12
WAIT_SECONDS = 120.0
SESSION_MS = 4000
LOOK_SECONDS = 0.1


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3) as running:
        yield running


async def create(cluster: LocalCluster, *topics: str, partitions: int) -> None:
    async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        for topic in topics:
            await admin.create_topic(topic, partitions=partitions, replication_factor=3)


# ------------------------------------------------------------------------------------------------------------ one worker


async def test_a_poison_record_is_dead_lettered_with_its_context_and_its_key_continues(cluster: LocalCluster) -> None:
    """The worker creates the dead-letter topic. The letter's headers describe the failure."""
    await create(cluster, "letters", partitions=3)
    handled: list[bytes | None] = []
    done = asyncio.Event()

    async def handle(record: Record) -> None:
        if record.value == b"poison":
            raise KeyError("nobody knows")
        handled.append(record.value)
        if len(handled) == 2:
            done.set()

    async with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        headers = [("trace", b"7")]
        written = await producer.send_and_wait("letters", b"poison", b"key", timestamp_ms=1234, headers=headers)
        for value in (b"one", b"two"):
            await producer.send_and_wait("letters", value, b"key")
    worker = Worker(
        "letters",
        "readers",
        handle,
        bootstrap_servers=cluster.bootstrap_servers,
        retries=2,
        retry_backoff_ms=1,
        dead_letter_topic="letters.dead",
        create_dead_letter_topic=True,
    )
    before_ms = time.time_ns() // 1_000_000
    serving = asyncio.create_task(worker.serve())
    async with asyncio.timeout(WAIT_SECONDS):
        await done.wait()
        worker.stop()
        await serving
    assert handled == [b"one", b"two"]
    counted = worker.metrics()
    assert counted is not None
    assert (counted.records_total, counted.failures_total, counted.retries_total) == (2, 3, 2)
    assert counted.dead_letters_total == 1

    async with Consumer(
        "letters.dead", bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest"
    ) as consumer:
        assert len(consumer.assignment()) == 3
        async with asyncio.timeout(WAIT_SECONDS):
            letter = await anext(consumer)
    assert (letter.key, letter.value, letter.timestamp, letter.partition) == (
        b"key",
        b"poison",
        1234,
        written.partition,
    )
    said = {name.removeprefix(HEADER_PREFIX): text for name, text in letter.headers}
    assert before_ms <= int(said.pop("time")) <= time.time_ns() // 1_000_000
    assert said == {
        "trace": b"7",
        "group": b"readers",
        "topic": b"letters",
        "partition": b"%d" % written.partition,
        "offset": b"%d" % written.offset,
        "timestamp": b"1234",
        "attempts": b"3",
        "error": b"KeyError",
        "message": b"'nobody knows'",
    }
    assert await progress(cluster, "letters", "readers") == {written.partition: 3}


@pytest.mark.parametrize("size", [1 << 20, 3 << 20])
async def test_the_largest_records_keep_their_values_in_a_dead_letter_topic_that_the_worker_creates(
    cluster: LocalCluster, size: int
) -> None:
    """Otherwise a redrive would be impossible after retention has deleted the original record."""
    topic = f"large-{size}"
    value = os.urandom(size - 16)
    async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        config = {"max.batch.bytes": "3670016"} if size > 1 << 20 else {}
        await admin.create_topic(topic, partitions=1, config=config)
    async with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        await producer.send_and_wait(topic, value)

    async def handle(record: Record) -> None:
        raise ValueError("no good " * 200)

    worker = Worker(
        topic,
        topic,
        handle,
        retries=0,
        dead_letter_topic=f"{topic}.dead",
        create_dead_letter_topic=True,
        bootstrap_servers=cluster.bootstrap_servers,
    )
    serving = asyncio.create_task(worker.serve())
    async with asyncio.timeout(WAIT_SECONDS):
        while (metrics := worker.metrics()) is None or not metrics.dead_letters_total:
            assert not serving.done()
            await asyncio.sleep(LOOK_SECONDS)
        worker.stop()
        await serving
        async with Consumer(
            f"{topic}.dead", bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest"
        ) as consumer:
            letter = await anext(consumer)
    assert letter.value == value


@pytest.mark.parametrize("is_graceful", [True, False])
async def test_records_finished_after_a_hanging_record_are_not_repeated(
    cluster: LocalCluster, *, is_graceful: bool
) -> None:
    """The worker is either stopped, or cancelled after its progress was committed."""
    topic = f"hangs-{is_graceful}"
    await create(cluster, topic, partitions=1)
    async with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for number in range(300):
            await producer.send(topic, b"v", b"slow" if number % 100 == 0 else b"%d" % number)
        await producer.flush()
    ran: Counter[int] = Counter()
    are_others_done, is_all_done = asyncio.Event(), asyncio.Event()
    is_slow = True

    async def handle(record: Record) -> None:
        if record.key == b"slow" and is_slow:
            await asyncio.Event().wait()
        ran[record.offset] += 1
        if len(ran) == 297:
            are_others_done.set()
        if len(ran) == 300:
            is_all_done.set()

    def worker() -> Worker:
        servers = cluster.bootstrap_servers
        return Worker(
            topic, f"g-{topic}", handle, bootstrap_servers=servers, drain_timeout_ms=100, commit_interval_ms=50
        )

    async with asyncio.timeout(WAIT_SECONDS):
        first = worker()
        serving = asyncio.create_task(first.serve())
        await are_others_done.wait()
        if is_graceful:
            first.stop()
            with pytest.raises(DrainTimeoutError):
                await serving
        else:
            async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
                while not any(
                    (one.partition.topic, one.finished_records) == (topic, 297)
                    for one in (await admin.describe_group(f"g-{topic}")).offsets
                ):
                    await asyncio.sleep(LOOK_SECONDS)
            serving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await serving
        assert ran[0] == ran[100] == ran[200] == 0
        is_slow = False
        second = worker()
        serving = asyncio.create_task(second.serve())
        await is_all_done.wait()
        second.stop()
        await serving
    assert set(ran.values()) == {1}
    counted = second.metrics()
    assert counted is not None
    assert (counted.records_total, counted.skipped_total) == (3, 297)
    assert await progress(cluster, topic, f"g-{topic}") == {0: 300}


async def test_without_a_dead_letter_topic_poison_stops_the_worker_before_it(cluster: LocalCluster) -> None:
    """The next worker begins at the poison record."""
    await create(cluster, "stops", partitions=1)
    async with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for value in (b"good", b"poison", b"good"):
            await producer.send_and_wait("stops", value, b"key")
    handled: list[int] = []

    def handle(record: Record) -> None:
        if record.value == b"poison":
            raise ValueError
        handled.append(record.offset)

    def worker(handler: object = handle) -> Worker:
        assert callable(handler)
        return Worker("stops", "g", handler, bootstrap_servers=cluster.bootstrap_servers, retries=1, retry_backoff_ms=1)

    async with asyncio.timeout(WAIT_SECONDS):
        with pytest.raises(PoisonRecordError) as told:
            await worker().serve()
    assert (told.value.offset, told.value.attempts) == (1, 2)
    assert handled == [0]
    assert await progress(cluster, "stops", "g") == {0: 1}

    again: list[int] = []
    repaired = worker(lambda record: again.append(record.offset))
    serving = asyncio.create_task(repaired.serve())
    async with asyncio.timeout(WAIT_SECONDS):
        while len(again) < 2:
            await asyncio.sleep(LOOK_SECONDS)
        repaired.stop()
        await serving
    assert again == [1, 2]


async def test_a_missing_dead_letter_topic_is_reported_at_the_start(cluster: LocalCluster) -> None:
    await create(cluster, "early", partitions=1)
    worker = Worker("early", "g", print, bootstrap_servers=cluster.bootstrap_servers, dead_letter_topic="no.such.topic")
    with pytest.raises(UnknownTopicError, match=r"no\.such\.topic"):
        await worker.serve()


async def test_two_workers_share_partitions_and_the_second_takes_over_when_the_first_stops(
    cluster: LocalCluster,
) -> None:
    """A revoked partition drains before its release, so without failures no record is processed twice."""
    await create(cluster, "shared", partitions=PARTITIONS)
    handled: dict[str, list[tuple[int, int]]] = {"a": [], "b": []}

    def worker(name: str) -> Worker:
        async def handle(record: Record) -> None:
            await asyncio.sleep(0.002)
            handled[name].append((record.partition, record.offset))

        return Worker(
            "shared",
            "g",
            handle,
            bootstrap_servers=cluster.bootstrap_servers,
            commit_interval_ms=60_000,
            ordering="none",
        )

    total = 0
    async with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer, asyncio.timeout(WAIT_SECONDS):

        async def write(count: int) -> None:
            nonlocal total
            await (await producer.send_many("shared", ((b"%d" % number, b"v") for number in range(count))))
            total += count

        async def all_handled() -> None:
            while sum(map(len, handled.values())) < total:
                await asyncio.sleep(LOOK_SECONDS)

        first, second = worker("a"), worker("b")
        serving = [asyncio.create_task(first.serve())]
        await write(500)
        await all_handled()
        serving.append(asyncio.create_task(second.serve()))
        while len(handled["b"]) == 0:
            await write(200)
            await all_handled()
        await write(500)
        first.stop()
        await serving[0]
        await write(500)
        await all_handled()
        second.stop()
        await serving[1]
    both = handled["a"] + handled["b"]
    assert len(both) == len(set(both)) == total


# -------------------------------------------------------------------------------------------------------- in processes


class Member:
    """A process with workers that the test controls."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self._errors = Path(order.history + ".err")

    async def start(self) -> None:
        with self._errors.open("wb") as errors:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.support.e2e.worker_member", msgspec.json.encode(self.order).decode()),
                cwd=ROOT,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
            )
        assert self.process.stdout is not None
        assert await self.process.stdout.readline() == b"ready\n", self._errors.read_text()

    def is_at_work(self) -> bool:
        """Return whether a handler runs according to the process's history. For a frozen process the answer stays valid."""
        running: set[tuple[str, int]] = set()
        for event in read_events(self.order.history):
            if event.operation == "process":
                (running.add if event.kind == "invoke" else running.discard)((event.process, event.id))
        return bool(running)

    def stand_still(self) -> None:
        """Freeze the process and return when it has stopped."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    async def kill(self) -> None:
        assert self.process.returncode is None, self._errors.read_text()
        self.process.kill()
        assert await self.process.wait() == -signal.SIGKILL

    async def stop(self) -> None:
        """Stop the process cleanly by SIGTERM."""
        assert self.process.returncode is None, self._errors.read_text()
        self.process.terminate()
        assert await self.process.wait() == 0, self._errors.read_text()

    def end(self) -> None:
        if self.process.returncode is None:
            self.process.kill()


class Fleet:
    """Worker processes that start and end while records are written, and the histories of all of them."""

    def __init__(self, cluster: LocalCluster, directory: Path, topic: str, seed: int, per_process: int) -> None:
        self.group = f"{topic}-group"
        self._cluster = cluster
        self._directory = directory
        self._topic = topic
        self._chance = random.Random(seed)
        self._seed = seed
        self._per_process = per_process
        self._members: list[Member] = []
        self._histories: list[Path] = []
        self._sent = 0
        self.killed = 0

    async def __aenter__(self) -> Self:
        await create(self._cluster, self._topic, f"{self._topic}.dead", partitions=PARTITIONS)
        return self

    async def __aexit__(self, *_: object) -> None:
        for member in self._members:
            member.end()

    def _history(self, name: str) -> str:
        self._histories.append(self._directory / f"{name}.jsonl")
        return str(self._histories[-1])

    async def add(self) -> None:
        name = f"p{len(self._histories)}"
        order = Order(
            name=name,
            bootstrap_servers=self._cluster.bootstrap_servers,
            topic=self._topic,
            group_id=self.group,
            dead_letter_topic=f"{self._topic}.dead",
            history=self._history(name),
            workers=self._per_process,
            concurrency=8,
            seed=self._seed,
            session_timeout_ms=SESSION_MS,
        )
        member = Member(order)
        await member.start()
        self._members.append(member)

    async def kill_one(self) -> None:
        """Kill a process with at least one running handler: its unfinished records must be processed again elsewhere."""
        while True:
            member = self._chance.choice(self._members)
            member.stand_still()
            if member.is_at_work():
                break
            member.process.send_signal(signal.SIGCONT)
            await asyncio.sleep(0.05)
        self._members.remove(member)
        await member.kill()
        self.killed += 1

    async def freeze_one(self, seconds: float) -> None:
        """Freeze a process for longer than its session: others take over, and it wakes up believing that it owns partitions."""
        assert seconds > SESSION_MS / 1000
        member = self._members.pop(self._chance.randrange(len(self._members)))
        member.process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            member.process.send_signal(signal.SIGCONT)
            self._members.append(member)

    async def stop_one(self) -> None:
        await self._members.pop(self._chance.randrange(len(self._members))).stop()

    async def write(self, until: asyncio.Event, keys: int, pause_seconds: float) -> None:
        """Write records with keys until the event is set. About one record in a hundred is poison."""
        with HistoryWriter(self._history("writer")) as writer:
            recorder = Recorder(writer.write, time.monotonic_ns)
            plain = Producer(bootstrap_servers=self._cluster.bootstrap_servers)
            async with RecordingProducer(plain, recorder, "writer") as producer:
                while not until.is_set():
                    for _ in range(20):
                        value = b"w-%d%s" % (self._sent, POISON if self._chance.randrange(100) == 0 else b"")
                        await producer.send(self._topic, value, b"k%d" % self._chance.randrange(keys))
                        self._sent += 1
                    await asyncio.sleep(pause_seconds)
                await producer.settled()

    async def finish(self) -> Verdict:
        """Wait until the group has processed all records, stop it cleanly, and judge the run."""
        async with Consumer(self._topic, bootstrap_servers=self._cluster.bootstrap_servers) as consumer:
            ends = await consumer.end_offsets(consumer.assignment())
        wanted = {name.partition: end for name, end in ends.items()}
        assert sum(wanted.values()) == self._sent
        while await progress(self._cluster, self._topic, self.group) != wanted:
            await asyncio.sleep(5 * LOOK_SECONDS)
        while self._members:
            await self.stop_one()
        with HistoryWriter(self._history("test")) as writer:
            recorder = Recorder(writer.write, time.monotonic_ns)
            for number, offset in (await progress(self._cluster, self._topic, self.group)).items():
                place = {"group": self.group, "topic": self._topic, "partition": number}
                recorder.invoke("test", "committed", **place).ok(offset=offset)
        verdict = judge_files(self._histories)
        outcomes = verdict.outcomes
        assert outcomes["send"].get("ok") == self._sent
        assert outcomes["committed"]["ok"] == PARTITIONS
        assert outcomes["process"]["ok"] + outcomes["dead_letter"]["ok"] >= self._sent
        assert outcomes["commit"]["ok"] > 0
        return verdict


@pytest.mark.slow
async def test_a_fleet_under_random_kills_processes_every_record_and_keys_in_order(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Sixteen workers run in four processes over twelve partitions. One process is frozen past its session, two are killed, two are added."""
    async with Fleet(cluster, tmp_path, "fleet", seed=1, per_process=4) as fleet, asyncio.timeout(WAIT_SECONDS):
        await asyncio.gather(*(fleet.add() for _ in range(4)))
        enough = asyncio.Event()
        writing = asyncio.create_task(fleet.write(enough, keys=100, pause_seconds=0.05))
        freezing = asyncio.create_task(fleet.freeze_one(SESSION_MS / 1000 + 3.0))
        for _ in range(2):
            await asyncio.sleep(2.0)
            await fleet.kill_one()
            await fleet.add()
        await freezing
        enough.set()
        await writing
        verdict = await fleet.finish()
    verdict.demand_clean()
    assert fleet.killed == 2
    assert verdict.outcomes["process"].get("open", 0) >= 2, "each was killed at work"


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_a_hundred_workers_under_minutes_of_kills_process_every_record_and_keys_in_order(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """The workers run in ten processes. Every few seconds a process is frozen, or it is killed or stopped and replaced."""
    chance = random.Random(2)
    async with Fleet(cluster, tmp_path, "hundred", seed=2, per_process=10) as fleet, asyncio.timeout(800):
        for _ in range(10):
            await fleet.add()
        enough = asyncio.Event()
        writing = asyncio.create_task(fleet.write(enough, keys=500, pause_seconds=0.2))
        freezing: list[asyncio.Task[None]] = []
        for step in chance.sample(["kill"] * 8 + ["stop"] * 4 + ["freeze"] * 3, k=15):
            await asyncio.sleep(chance.uniform(0.5, 4.0))
            if step == "freeze":
                freezing.append(asyncio.create_task(fleet.freeze_one(SESSION_MS / 1000 + 3.0)))
            else:
                await (fleet.kill_one() if step == "kill" else fleet.stop_one())
                await fleet.add()
        await asyncio.gather(*freezing)
        enough.set()
        await writing
        verdict = await fleet.finish()
    verdict.demand_clean()
    assert fleet.killed == 8
    assert verdict.outcomes["process"].get("open", 0) >= 8, "each was killed at work"
