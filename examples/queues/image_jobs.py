"""Shrink images for customers, fairly: a customer with hundreds of images does not delay one with three.

Usage: python examples/queues/image_jobs.py [SERVERS]

Prints::

    globex puts 300 images, then acme and initech put 3 each
    acme: 3 thumbnails, the last of them among the first 30
    globex: 300 thumbnails, the last of them at the end
    initech: 3 thumbnails, the last of them among the first 30
"""

import asyncio
import sys
from collections import Counter

from raftmq import Admin, NewMessage, Queue

SERVERS = sys.argv[1] if len(sys.argv) > 1 else "localhost:9400"
TOPIC = "images"
SIDE = 64
FACTOR = 8
HANDLERS = 4


def image(number: int) -> bytes:
    """Return a square grayscale image, a byte per pixel."""
    return bytes((x * y + number) % 256 for y in range(SIDE) for x in range(SIDE))


def thumbnail(pixels: bytes) -> bytes:
    """Return the image at an eighth of its width and height."""
    return b"".join(pixels[SIDE * y : SIDE * (y + 1) : FACTOR] for y in range(0, SIDE, FACTOR))


async def shrink_images(queue: Queue[bytes], thumbnails: dict[str, bytes], count: int) -> None:
    """Make one thumbnail after the other, until there are `count`. A repeated one overwrites its thumbnail with an equal one."""
    while len(thumbnails) < count:
        message = await queue.get(wait_ms=500)
        if message is None:
            continue  # other handlers have those that may be in work now
        small = thumbnail(message.value)
        await asyncio.sleep(0.001)  # stores it
        thumbnails[message.id or ""] = small
        await message.ack()


def report(customers: list[str]) -> None:
    """Print the number of each customer's thumbnails, and when the last one was made."""
    for customer, count in sorted(Counter(customers).items()):
        position = len(customers) - customers[::-1].index(customer)
        when = "among the first 30" if position <= 30 else "at the end"
        print(f"{customer}: {count} thumbnails, the last of them {when}")


async def main() -> None:
    """Put the images of three customers, and shrink them with a few handlers."""
    # Turns go to the customers with the fewest images in work, and no customer occupies all handlers.
    fairness: dict[str, str | int] = {"fairness": "quiet_first", "partition.tenant.max.leased": HANDLERS // 2}
    async with Admin(bootstrap_servers=SERVERS) as admin:
        await admin.create_topic(TOPIC, kind="queue", config=fairness)

    customers = ["globex"] * 300 + ["acme"] * 3 + ["initech"] * 3
    thumbnails: dict[str, bytes] = {}
    async with Queue(TOPIC, bootstrap_servers=SERVERS) as queue:
        await queue.put_many(
            NewMessage(image(number), id=f"{customer}-{number}", tenant=customer)
            for number, customer in enumerate(customers)
        )
        print("globex puts 300 images, then acme and initech put 3 each")
        async with asyncio.TaskGroup() as handlers:
            for _ in range(HANDLERS):
                handlers.create_task(shrink_images(queue, thumbnails, len(customers)))
    report([name.partition("-")[0] for name in thumbnails])


asyncio.run(main())
