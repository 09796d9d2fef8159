"""Remind people at a time that can still change: reminders are moved, reworded and cancelled while they wait.

Usage: python examples/queues/reminders.py [SERVERS]

Prints::

    4 reminders wait
    the tea is reworded, the dentist comes today instead of tomorrow, the call is cancelled
    reminder: the tea is ready, and there is cake
    reminder: dentist
    reminder dentist cannot be moved any more: NoSuchMessageError
    1 reminder waits until 2050
"""

import asyncio
import sys
from datetime import UTC, datetime, timedelta

from raftmq import Admin, Queue
from raftmq.errors import NoSuchMessageError

SERVERS = sys.argv[1] if len(sys.argv) > 1 else "localhost:9400"
TOPIC = "reminders"
DAY = timedelta(days=1)


async def main() -> None:
    """Put reminders with ids, change them by these ids, and deliver those that are due."""
    async with Admin(bootstrap_servers=SERVERS) as admin:
        await admin.create_topic(TOPIC, kind="queue")
    async with Queue(TOPIC, bootstrap_servers=SERVERS) as queue:
        # The cluster holds the reminders until they are due: nobody waits for them, and any number costs no memory.
        await queue.put(b"dentist", id="dentist", not_before=datetime.now(UTC) + DAY)
        await queue.put(b"call Bob", id="call", delay_ms=60_000)
        await queue.put(b"the tea is ready", id="tea", delay_ms=60_000)
        await queue.put(b"open the time capsule", id="capsule", not_before=datetime(2050, 1, 1, tzinfo=UTC))
        print(f"{(await queue.stats()).delayed} reminders wait")

        await queue.put(b"the tea is ready, and there is cake", id="tea", delay_ms=200, replace=True)
        await queue.move("dentist", delay_ms=400)
        await queue.cancel("call")
        print("the tea is reworded, the dentist comes today instead of tomorrow, the call is cancelled")

        for _ in range(2):
            reminder = await queue.get()
            assert reminder is not None, "it waits until one is due"
            print("reminder:", reminder.value.decode())
            await reminder.ack()

        try:
            await queue.move("dentist", delay_ms=60_000)
        except NoSuchMessageError as error:
            print(f"reminder dentist cannot be moved any more: {type(error).__name__}")
        async for message in queue.browse("delayed"):
            due = datetime.now(UTC) + timedelta(milliseconds=message.due_in_ms)
            print(f"1 reminder waits until {due + DAY:%Y}")  # a day later, because clocks differ


asyncio.run(main())
