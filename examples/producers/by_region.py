"""Use a partitioner of your own, which gives each region its partition.

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
    """Return the partition of a key. It must always be the same for a key, because records keep their order per partition."""
    return REGIONS.index(key.split(b"-")[0]) % partition_count


async def main() -> None:
    """Send a few customers' records, and print their partitions."""
    async with Admin(bootstrap_servers=SERVERS) as admin:
        await admin.create_topic("by-region", partitions=3, if_not_exists=True)
    async with Producer(bootstrap_servers=SERVERS, partitioner=region_of) as producer:
        keys = [b"eu-ada", b"us-bob", b"asia-chen", b"eu-dora"]
        placed = [(key, await producer.send_and_wait("by-region", key=key, value=b"hello")) for key in keys]
    print(", ".join(f"{key.decode()} to {metadata.partition}" for key, metadata in placed))


asyncio.run(main())
