"""Transformers in real processes on real brokers: despite kills, each output exists once, in the order of the input."""

from __future__ import annotations

import asyncio
import random
import re
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from raftmq import Admin, Consumer, Output, Producer, Record, TopicPartition, Transformer
from raftmq.errors import ClosedClientError, PoisonRecordError, UnknownTopicError
from raftmq.testing import LocalCluster

from tests.support.e2e.group_progress import progress
from tests.support.e2e.transform_member import Order, outputs_of

pytestmark = [pytest.mark.e2e]

ROOT = Path(__file__).resolve().parents[2]
INPUT_PARTITIONS = 6
OUTPUT_PARTITIONS = (4, 3)
WAIT_SECONDS = 180.0
KEYS = 50


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3) as running:
        yield running


class Fleet:
    """Transformer processes of one group that start and end while records are written to their input."""

    def __init__(self, cluster: LocalCluster, directory: Path, name: str) -> None:
        self.cluster = cluster
        self.input = name
        self.outputs = [f"{name}.{number}" for number in range(len(OUTPUT_PARTITIONS))]
        self.chance = random.Random(1)
        self.sent = 0
        self.killed = 0
        self._directory = directory
        self._started = 0
        self._members: list[asyncio.subprocess.Process] = []

    @property
    def servers(self) -> str:
        return self.cluster.bootstrap_servers

    async def create_topics(self) -> None:
        async with Admin(bootstrap_servers=self.servers) as admin:
            await admin.create_topic(self.input, partitions=INPUT_PARTITIONS, replication_factor=3)
            for name, partitions in zip(self.outputs, OUTPUT_PARTITIONS, strict=True):
                await admin.create_topic(name, partitions=partitions, replication_factor=3)

    async def write(self, count: int) -> None:
        """Write records whose values are rising numbers, so that the numbers of each key rise."""
        async with Producer(bootstrap_servers=self.servers) as producer:
            for _ in range(count):
                await producer.send(self.input, b"%d" % self.sent, b"k%d" % self.chance.randrange(KEYS))
                self.sent += 1
            await producer.flush()

    async def add(self, kind: str) -> None:
        self._started += 1
        order = Order(self.servers, self.input, self.outputs, f"{self.input}-group", f"p{self._started}", kind)
        path = self._directory / f"{order.name}.log"
        with path.open("wb") as log:
            member = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tests.support.e2e.transform_member",
                msgspec.json.encode(order).decode(),
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )
        self._members.append(member)
        while "consumer_started" not in path.read_text():  # from now on it drains on SIGTERM
            assert member.returncode is None, self.logs()
            await asyncio.sleep(0.05)

    async def kill_one(self) -> None:
        member = self._members.pop(self.chance.randrange(len(self._members)))
        assert member.returncode is None, self.logs()
        member.kill()
        assert await member.wait() == -signal.SIGKILL
        self.killed += 1

    async def freeze_one(self, seconds: float) -> None:
        """Freeze a process until others own its partitions. It then continues with its unfinished records."""
        member = self._members.pop(self.chance.randrange(len(self._members)))
        member.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            member.send_signal(signal.SIGCONT)
            self._members.append(member)

    async def stop_one(self) -> None:
        member = self._members.pop(self.chance.randrange(len(self._members)))
        member.terminate()
        assert await member.wait() == 0, self.logs()

    async def wait_done(self) -> None:
        """Wait until all written records are transformed and committed."""
        async with Consumer(self.input, bootstrap_servers=self.servers) as consumer:
            ends = await consumer.end_offsets(consumer.assignment())
        wanted = {name.partition: end for name, end in ends.items() if end}
        while await self._progress() != wanted:
            assert all(member.returncode is None for member in self._members), self.logs()
            await asyncio.sleep(0.3)

    async def _progress(self) -> dict[int, int]:
        found = await progress(self.cluster, self.input, f"{self.input}-group")
        return {number: offset for number, offset in found.items() if offset}

    async def end(self) -> None:
        while self._members:
            await self.stop_one()

    async def kill_all(self) -> None:
        for member in self._members:
            if member.returncode is None:
                member.kill()
                await member.wait()

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self._directory.glob("*.log")))


@asynccontextmanager
async def fleet_of(cluster: LocalCluster, directory: Path, name: str) -> AsyncIterator[Fleet]:
    fleet = Fleet(cluster, directory, name)
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            await fleet.create_topics()
            yield fleet
    finally:
        await fleet.kill_all()


async def read_all(cluster: LocalCluster, topic: str) -> list[Record]:
    """Return all records, partition by partition."""
    async with Consumer(topic, bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        records: list[Record] = []
        ends = await consumer.end_offsets(consumer.assignment())
        while len(records) < sum(ends.values()):
            for found in (await consumer.getmany(timeout_ms=1000)).values():
                records += found
    return sorted(records, key=lambda record: (record.partition, record.offset))


def name_of(record: Record) -> str:
    return (record.value or b"").decode().partition(" ")[0]


async def judge(fleet: Fleet) -> tuple[Counter[str], int]:
    """Return the outputs not written exactly once, with their counts, and the number of outputs that follow a later one of their key."""
    expected = Counter(
        f"{topic}/{name}" for number in range(fleet.sent) for topic, name in outputs_of(number, fleet.outputs)
    )
    found: Counter[str] = Counter()
    misordered = 0
    last: defaultdict[tuple[str, int, bytes], int] = defaultdict(lambda: -1)
    for topic in fleet.outputs:
        for record in await read_all(fleet.cluster, topic):
            found[f"{topic}/{name_of(record)}"] += 1
            if record.key is not None:
                number = int(name_of(record).partition(".")[0])
                place = (topic, record.partition, record.key)
                misordered += number < last[place]
                last[place] = number
    wrong = Counter({name: found[name] for name in found.keys() | expected.keys() if found[name] != expected[name]})
    return wrong, misordered


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", pytest.param("async", marks=pytest.mark.long)])
async def test_outputs_exist_once_and_in_order_despite_kills(cluster: LocalCluster, tmp_path: Path, kind: str) -> None:
    """Transformers are killed, frozen past their session, stopped and added. A broker is killed and restarted."""
    async with fleet_of(cluster, tmp_path, kind) as fleet:
        for _ in range(3):
            await fleet.add(kind)
        for step in range(8):
            writing = asyncio.create_task(fleet.write(1500))
            await asyncio.sleep(fleet.chance.uniform(0.3, 2.0))
            match step:
                case 2:
                    freezing = asyncio.create_task(fleet.freeze_one(7.0))
                case 3:
                    await asyncio.to_thread(cluster.kill, 2)
                case 5:
                    await asyncio.to_thread(cluster.restart, 2)
                case 6:
                    await fleet.stop_one()
                    await fleet.add(kind)
                case _:
                    await fleet.kill_one()
                    await fleet.add(kind)
            await writing
        await freezing
        await fleet.wait_done()
        await fleet.end()
        wrong, misordered = await judge(fleet)
    assert fleet.killed == 4
    assert wrong == Counter()
    assert misordered == 0


@pytest.mark.long
async def test_a_consumer_with_a_producer_writes_uncommitted_outputs_twice_after_a_crash(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """The control experiment: `judge` finds these duplicates."""
    async with fleet_of(cluster, tmp_path, "control") as fleet:
        output = fleet.outputs[0]
        await fleet.write(400)  # fewer in each partition than the number after which the program commits
        await fleet.add("at_least_once")
        while not await read_all(cluster, output):
            await asyncio.sleep(0.1)
        await fleet.kill_one()
        before = Counter(map(name_of, await read_all(cluster, output)))
        await fleet.add("at_least_once")
        while not before <= Counter(map(name_of, await read_all(cluster, output))) - before:
            await asyncio.sleep(0.1)
        wrong, _ = await judge(fleet)
    assert max(wrong.values()) == 2


# ------------------------------------------------------------------------------------------------------------ the example


def test_the_program_of_the_guide_is_the_example() -> None:
    (shown,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/guides/transforming.md").read_text(), re.DOTALL)
    assert shown in (ROOT / "examples/transform_orders.py").read_text()


async def test_the_example_writes_invoices_and_dead_letters(cluster: LocalCluster) -> None:
    await create(cluster, "orders", "invoices", "orders.dead")
    await write(
        cluster,
        "orders",
        b'{"number": 1, "price": 5, "count": 3}',
        b"no order",
        b'{"number": 2, "price": 1, "count": 1}',
    )
    program = await asyncio.create_subprocess_exec(
        sys.executable, ROOT / "examples/transform_orders.py", cluster.bootstrap_servers, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            while await progress(cluster, "orders", "billing") != {0: 3}:
                assert program.returncode is None
                await asyncio.sleep(0.1)
            program.terminate()
            _, errors = await program.communicate()
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()
    assert (program.returncode, errors) == (0, b"")
    invoices = [record.value for record in await read_all(cluster, "invoices")]
    assert invoices == [b'{"order": 1, "total": 15}', b'{"order": 2, "total": 1}']
    (letter,) = await read_all(cluster, "orders.dead")
    assert (letter.value, letter.key, letter.headers[0][0]) == (b"no order", b"key", "error")


# ---------------------------------------------------------------------------------------------------- one, in this process


async def serve_until_committed(cluster: LocalCluster, transformer: Transformer, topic: str, wanted: int) -> None:
    """Run the transformer until its group has committed this offset in a topic of one partition."""
    async with asyncio.timeout(WAIT_SECONDS):
        serving = asyncio.create_task(transformer.serve())
        while (await progress(cluster, topic, transformer.group_id)).get(0) != wanted and not serving.done():
            await asyncio.sleep(0.05)
        transformer.stop()
        await serving


async def write(cluster: LocalCluster, topic: str, *values: bytes) -> None:
    async with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for value in values:
            await producer.send_and_wait(topic, value, b"key", headers=[("trace", b"7")], timestamp_ms=1234)


async def create(cluster: LocalCluster, *topics: str) -> None:
    async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        for topic in topics:
            await admin.create_topic(topic, partitions=1, replication_factor=3)


async def test_an_output_has_the_handlers_key_value_and_headers_and_the_records_timestamp(
    cluster: LocalCluster,
) -> None:
    await create(cluster, "made", "made.out")
    await write(cluster, "made", b"1", b"2", b"3")

    def handle(record: Record[str, int]) -> Output | None:
        assert record.key == "key"
        if record.value == 2:
            return None
        return Output("made.out", record.value, record.key, headers=record.headers if record.value == 1 else ())

    transformer = Transformer(
        "made",
        "made-group",
        handle,
        key_deserializer=bytes.decode,
        value_deserializer=int,
        key_serializer=str.encode,
        value_serializer=lambda number: b"%d" % (number * 10),
        compression_type="zstd",
        bootstrap_servers=cluster.bootstrap_servers,
    )
    await serve_until_committed(cluster, transformer, "made", 3)
    found = await read_all(cluster, "made.out")
    assert [(one.value, one.key, one.timestamp, one.headers) for one in found] == [
        (b"10", b"key", 1234, (("trace", b"7"),)),
        (b"30", b"key", 1234, ()),
    ]
    with pytest.raises(ClosedClientError):
        await transformer.serve()


async def test_records_after_a_reset_offset_are_transformed_again(cluster: LocalCluster) -> None:
    """Offsets that a plain consumer committed without the state count too: no record below them is transformed again."""
    await create(cluster, "again", "again.out")
    await write(cluster, "again", b"0", b"1", b"2")

    def new() -> Transformer:
        return Transformer(
            "again",
            "again-group",
            lambda record: Output("again.out", record.value),
            bootstrap_servers=cluster.bootstrap_servers,
        )

    await serve_until_committed(cluster, new(), "again", 3)
    await serve_until_committed(cluster, new(), "again", 3)
    assert [record.value for record in await read_all(cluster, "again.out")] == [b"0", b"1", b"2"]
    async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        await admin.reset_group_offsets("again-group", offsets={TopicPartition("again", 0): 1})
    await serve_until_committed(cluster, new(), "again", 3)
    written = [b"0", b"1", b"2", b"1", b"2"]
    assert [record.value for record in await read_all(cluster, "again.out")] == written
    await write(cluster, "again", b"3", b"4")
    async with Consumer("again", bootstrap_servers=cluster.bootstrap_servers, group_id="again-group") as consumer:
        async with asyncio.timeout(WAIT_SECONDS):
            assert (await anext(consumer)).value == b"3"
            await consumer.commit()
    await serve_until_committed(cluster, new(), "again", 5)
    assert [record.value for record in await read_all(cluster, "again.out")] == [*written, b"4"]


async def test_a_handler_that_raises_stops_the_transformer_before_its_record(cluster: LocalCluster) -> None:
    await create(cluster, "poison", "poison.out")
    await write(cluster, "poison", b"0", b"1", b"not a number", b"3")
    transformer = Transformer(
        "poison",
        "poison-group",
        lambda record: Output("poison.out", b"%d" % int(record.value or b"")),
        bootstrap_servers=cluster.bootstrap_servers,
    )
    with pytest.raises(PoisonRecordError, match=r"poison/0 offset 2 .*ValueError") as raised:
        await asyncio.wait_for(transformer.serve(), WAIT_SECONDS)
    assert isinstance(raised.value.__cause__, ValueError)
    assert [record.value for record in await read_all(cluster, "poison.out")] == [b"0", b"1"]
    assert await progress(cluster, "poison", "poison-group") == {0: 2}


async def test_a_missing_output_topic_is_named(cluster: LocalCluster) -> None:
    await create(cluster, "lonely")
    await write(cluster, "lonely", b"0")
    transformer = Transformer(
        "lonely", "g", lambda record: Output("nowhere", record.value), bootstrap_servers=cluster.bootstrap_servers
    )
    with pytest.raises(UnknownTopicError, match="nowhere"):
        await asyncio.wait_for(transformer.serve(), WAIT_SECONDS)
