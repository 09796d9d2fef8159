"""Write a report every night: the cluster fires the schedule, exactly once, whatever fails, and any worker writes the report.

Usage: python examples/queues/nightly_report.py [SERVERS]

Prints::

    the schedule nightly fires at 04:30 in Europe/Berlin, next within a day
    report on sales at attempt 2
    the schedule is paused: True
"""

import asyncio
import sys
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from raftmq import Admin, Attempt, Record, Worker

SERVERS = sys.argv[1] if len(sys.argv) > 1 else "localhost:9400"
TOPIC = "reports"
ZONE = ZoneInfo("Europe/Berlin")
written: asyncio.Queue[str] = asyncio.Queue()


async def write_report(record: Record, attempt: Attempt) -> None:
    """Write one report. The database is down at first, so that the attempt is repeated after the topic's back-off."""
    if attempt.number == 1:
        raise ConnectionError("the database is down")
    await written.put(f"report on {(record.value or b'').decode()} at attempt {attempt.number}")


async def main() -> None:
    """Create the schedule, fire it now instead of at night, and let a worker write the report."""
    async with Admin(bootstrap_servers=SERVERS) as admin:
        await admin.create_topic(TOPIC, kind="queue", config={"attempts.max": 5, "backoff.base.ms": 50})
        # If no broker could fire at night, one report is written as soon as one can.
        schedule = await admin.put_schedule(
            TOPIC, "nightly", b"sales", cron="30 4 * * *", timezone="Europe/Berlin", catch_up="one"
        )
        due = datetime.fromtimestamp((schedule.next_due_ms or 0) / 1000, ZONE)
        is_soon = due - datetime.now(ZONE) <= timedelta(days=1, hours=1)
        print(f"the schedule nightly fires at {due:%H:%M} in {ZONE}, next {'within a day' if is_soon else 'later'}")

        worker = Worker(TOPIC, handler=write_report, bootstrap_servers=SERVERS)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(worker.serve())
            await admin.run_schedule(TOPIC, "nightly")
            print(await written.get())
            worker.stop()

        await admin.pause_schedule(TOPIC, "nightly")
        (paused,) = await admin.list_schedules(TOPIC)
        print("the schedule is paused:", paused.is_paused)


asyncio.run(main())
