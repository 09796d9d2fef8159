"""Run a transformer, or its equivalent of consumer and producer, as a process that `test_transformer.py` starts and kills.

    python -m tests.support.e2e.transform_member '{"bootstrap_servers": …}'

The value of an input record is its number. The values of its outputs are `number.0`, `number.1` and so on, followed by the writer's name.
`outputs_of` determines their count and topics. SIGTERM ends the process like any program with a transformer.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Iterator
from typing import Literal

import msgspec
from raftmq import Consumer, Output, Producer, Record, Transformer

OUTPUTS_MAX = 3


class Order(msgspec.Struct):
    """The arguments of the process."""

    bootstrap_servers: str
    topic: str
    output_topics: list[str]
    group_id: str
    name: str
    kind: Literal["plain", "async", "at_least_once"] = "plain"
    session_timeout_ms: int = 4000


def outputs_of(number: int, output_topics: list[str]) -> list[tuple[str, str]]:
    """Return topic and name of each output of an input record: none to three."""
    return [
        (output_topics[(number + nth) % len(output_topics)], f"{number}.{nth}")
        for nth in range(number * 7 % (OUTPUTS_MAX + 1))
    ]


def made(record: Record, order: Order) -> Iterator[Output]:
    """Yield the outputs of a record. Outputs without its key may name their partition."""
    for topic, name in outputs_of(int(record.value or b""), order.output_topics):
        value = f"{name} {order.name}".encode()
        if name.endswith("1"):
            yield Output(topic, value, partition=record.partition % 2 if len(name) % 2 else None)
        else:
            yield Output(topic, value, record.key)


def run(order: Order) -> None:
    """Transform until SIGTERM."""

    def handle(record: Record) -> Iterator[Output]:
        time.sleep(0.0005)
        return made(record, order)

    async def handle_on_loop(record: Record) -> list[Output]:
        await asyncio.sleep(0.002)
        return list(made(record, order))

    Transformer(
        order.topic,
        order.group_id,
        handle_on_loop if order.kind == "async" else handle,
        bootstrap_servers=order.bootstrap_servers,
        session_timeout_ms=order.session_timeout_ms,
    ).run()


async def run_at_least_once(order: Order) -> None:
    """Do the same with a consumer and a producer, which the test kills before a commit."""
    servers = order.bootstrap_servers
    consumer = Consumer(
        order.topic,
        bootstrap_servers=servers,
        group_id=order.group_id,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        heartbeat_interval_ms=1000,
        session_timeout_ms=order.session_timeout_ms,
    )
    async with consumer, Producer(bootstrap_servers=servers) as producer:
        async for record in consumer:
            for output in made(record, order):
                assert isinstance(output.value, bytes)
                await producer.send(output.topic, output.value, record.key, partition=output.partition)
            if record.offset % 500 == 499:
                await producer.flush()
                await consumer.commit()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    ordered = msgspec.json.decode(sys.argv[1], type=Order)
    if ordered.kind == "at_least_once":
        asyncio.run(run_at_least_once(ordered))
    else:
        run(ordered)
