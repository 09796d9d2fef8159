"""Keep a job from running twice: the newest producer of a name writes, and the one before is fenced and stops.

Usage: python examples/producers/one_at_a_time.py [SERVERS]

Prints::

    the first writes
    the second writes
    the first is fenced, nothing was written: NOT_APPLIED
    the topic has: first, second
"""

import asyncio
import sys

from raftmq import Admin, Consumer, Producer, TopicPartition
from raftmq.errors import ProducerFencedError

SERVERS = sys.argv[1] if len(sys.argv) > 1 else "localhost:9400"
TOPIC = "nightly"


async def main() -> None:
    """Run one job twice, as when the first run was wrongly believed to be dead."""
    async with Admin(bootstrap_servers=SERVERS) as admin:
        await admin.create_topic(TOPIC, partitions=1, if_not_exists=True)
    async with Producer(bootstrap_servers=SERVERS, producer_name="nightly-job") as first:
        await first.send_and_wait(TOPIC, value=b"first")
        print("the first writes")
        async with Producer(bootstrap_servers=SERVERS, producer_name="nightly-job") as second:
            await second.send_and_wait(TOPIC, value=b"second")
            print("the second writes")
            try:
                await first.send_and_wait(TOPIC, value=b"first again")
            except ProducerFencedError as error:
                print(f"the first is fenced, nothing was written: {error.outcome.name}")

    partition = TopicPartition(TOPIC, 0)
    async with Consumer(bootstrap_servers=SERVERS, auto_offset_reset="earliest") as consumer:
        consumer.assign([partition])
        end = (await consumer.end_offsets([partition]))[partition]
        found = [await anext(consumer) for _ in range(end)]
        print("the topic has:", ", ".join((record.value or b"").decode() for record in found))


asyncio.run(main())
