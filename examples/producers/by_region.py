"""A partitioner of your own: each region has its partition.

Usage: python examples/producers/by_region.py [SERVERS]

Prints::

    eu-ada to 0, us-bob to 1, asia-chen to 2, eu-dora to 0
"""

import asyncio
import sys

from raftmq import Admin, Producer

SERVERS = sys.argv[1] if len(sys.argv) > 1 else "localhost:9400"
REGIONS = [b"eu", b"us", b"asia"]


def region_of(key: bytes, partition_count: int) -> int:
    """Must give the same answer for the same key, always: it decides where a key's records keep their order."""
    return REGIONS.index(key.split(b"-")[0]) % partition_count


async def main() -> None:
    """Send a few customers' records, and show where they went."""
    async with Admin(bootstrap_servers=SERVERS) as admin:
        await admin.create_topic("by-region", partitions=3, if_not_exists=True)
    async with Producer(bootstrap_servers=SERVERS, partitioner=region_of) as producer:
        keys = [b"eu-ada", b"us-bob", b"asia-chen", b"eu-dora"]
        placed = [(key, await producer.send_and_wait("by-region", key=key, value=b"hello")) for key in keys]
    print(", ".join(f"{key.decode()} to {metadata.partition}" for key, metadata in placed))


asyncio.run(main())
