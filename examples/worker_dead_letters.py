"""Shows what is in a dead-letter topic and why; with `--redrive`, sends each record back to where it came from.

python -m examples.worker_dead_letters tasks.dead [--redrive]
"""

import asyncio
import os
import sys

from raftmq import Consumer, Producer, Record

SERVERS = os.environ.get("RAFTMQ_BOOTSTRAP_SERVERS", "127.0.0.1:9400")
PREFIX = "raftmq.dead_letter."


def about(record: Record) -> dict[str, str]:
    """What the worker wrote into the headers."""
    return {name.removeprefix(PREFIX): text.decode() for name, text in record.headers if name.startswith(PREFIX)}


async def main(topic: str, *, redrive: bool) -> None:
    """Read the topic to its present end."""
    async with (
        Consumer(topic, bootstrap_servers=SERVERS, auto_offset_reset="earliest") as consumer,
        Producer(bootstrap_servers=SERVERS) as producer,
    ):
        ends = await consumer.end_offsets(consumer.assignment())
        for partition, end in ends.items():
            while await consumer.position(partition) < end:
                for record in (await consumer.getmany(partition, timeout_ms=500)).get(partition, []):
                    why = about(record)
                    place = f"{why['topic']}/{why['partition']} offset {why['offset']}"
                    print(f"{place}: tried {why['attempts']} times, {why['error']}: {why['message']}")
                    if redrive:
                        headers = [pair for pair in record.headers if not pair[0].startswith(PREFIX)]
                        await producer.send(why["topic"], record.value, record.key, headers=headers)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], redrive="--redrive" in sys.argv[2:]))
