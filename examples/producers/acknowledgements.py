"""Wait for acknowledgements in four ways.

Usage: python examples/producers/acknowledgements.py [SERVERS]

Prints::

    waited: partition 0, offset 0
    gathered: 3 records, offsets 1 to 3
    callback: offset 4
    flushed: everything is written
"""

import asyncio
import sys

from raftmq import Admin, Delivery, Producer

SERVERS = sys.argv[1] if len(sys.argv) > 1 else "localhost:9400"


def report(delivery: Delivery) -> None:
    """Print the outcome. It runs on the event loop once the outcome is known. `result` raises the error of a failed record."""
    print(f"callback: offset {delivery.result().offset}")


async def main() -> None:
    """Send a few records, each in another way."""
    async with Admin(bootstrap_servers=SERVERS) as admin:
        await admin.create_topic("acknowledgements", partitions=1, if_not_exists=True)
    async with Producer(bootstrap_servers=SERVERS) as producer:
        # Send one record and wait for it. This is simple, and as slow as a disk and a network.
        written = await producer.send_and_wait("acknowledgements", value=b"one")
        print(f"waited: partition {written.partition}, offset {written.offset}")

        # Send several: `send` waits for buffer space only, and its deliveries can be awaited later, in any order.
        deliveries = [await producer.send("acknowledgements", value=b"%d" % number) for number in range(3)]
        offsets = [(await delivery).offset for delivery in deliveries]
        print(f"gathered: {len(offsets)} records, offsets {offsets[0]} to {offsets[-1]}")

        # Or register a callback for the outcome.
        delivery = await producer.send("acknowledgements", value=b"called back")
        delivery.add_done_callback(report)
        await delivery

        # Or ignore single outcomes: `flush` and the end of the block raise a failure that was not awaited.
        for number in range(100):
            await producer.send("acknowledgements", value=b"%d" % number)
        await producer.flush()
        print("flushed: everything is written")


asyncio.run(main())
