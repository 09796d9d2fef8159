"""Read the whole topic back with an ordinary consumer."""

import time
from dataclasses import dataclass, field

from raftmq import Consumer, Record, TopicPartition

from examples.demo_flights.progress import Reporter

POLL_MS = 1_000
POLL_RECORDS = 20_000
PATIENCE_SECONDS = 20.0
"""After this time without a new record, missing records count as lost."""


@dataclass
class ReadReport:
    """Hold the records read back."""

    partitions: dict[int, list[tuple[int, bytes | None, bytes | None]]] = field(default_factory=dict)
    """Partition → (offset, key, value), in the order of reading."""
    records: int = 0
    bytes: int = 0
    seconds: float = 0.0
    """Time until the last record came."""


async def read_all(servers: str, topic: str, partitions: int, expected: int, reporter: Reporter) -> ReadReport:
    """Read every partition from offset 0 until `expected` records have come and one more poll finds none."""
    report = ReadReport()
    async with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, number) for number in range(partitions)])
        started = last_new = time.perf_counter()
        with reporter.stage("read back", expected) as stage:
            while time.perf_counter() - last_new < PATIENCE_SECONDS:
                polled = await consumer.getmany(timeout_ms=POLL_MS, max_records=POLL_RECORDS)
                if not polled and report.records >= expected:
                    break
                for tp, records in polled.items():
                    take(report, tp.partition, records)
                if polled:
                    last_new = time.perf_counter()
                    stage.advance(sum(map(len, polled.values())))
    report.seconds = last_new - started
    return report


def take(report: ReadReport, partition: int, records: list[Record]) -> None:
    """Keep the parts of records that verification needs."""
    report.partitions.setdefault(partition, []).extend((record.offset, record.key, record.value) for record in records)
    report.records += len(records)
    report.bytes += sum(len(record.value or b"") + len(record.key or b"") for record in records)
