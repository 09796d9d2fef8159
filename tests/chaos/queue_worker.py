"""Work on the messages of a queue topic in many ways, and keep a journal: in a task, or as a process of its own that may be killed and frozen.

``python -m tests.chaos.queue_worker SERVERS TOPIC JOURNAL SEED`` works until it is killed.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable
from pathlib import Path

from raftmq import Message, Queue
from raftmq.errors import RaftMQError

from sim.history.queues.operations import Verb
from tests.chaos.queue_journal import Journal

LEASE_MS = 1_500
"""Short enough to end while its worker is frozen, and long enough for a slow machine."""
WAIT_MS = 200
BATCH = 4
WORK_SECONDS = (0.0, 0.03)
RELEASE_DELAYS_MS = (0, 400)
IN_PROCESS = 4
"""The tasks of a worker process."""
_WAYS = (
    *(Verb.ACCEPT,) * 14,
    *(Verb.RELEASE,) * 3,
    Verb.REJECT,
    None,  # it forgets the message
)


async def work(
    queue: Queue[bytes], journal: Journal, process: str, chance: random.Random, is_over: Callable[[], bool]
) -> None:
    """Lease messages and settle each in a random way, until `is_over`."""
    while not is_over():
        try:
            found = await queue.get_many(max_messages=chance.randint(1, BATCH), wait_ms=WAIT_MS, lease_ms=LEASE_MS)
        except RaftMQError:
            await asyncio.sleep(0.1)  # nobody leads, or the client has lost its connections
            continue
        for message in found:
            journal.leased(process, LEASE_MS, message)
        while found:
            await asyncio.sleep(chance.uniform(*WORK_SECONDS))
            await _settle(found.pop(0), journal, process, chance)


async def _settle(message: Message[bytes], journal: Journal, process: str, chance: random.Random) -> None:
    verb = chance.choice(_WAYS)
    if verb is not None:
        await settle(message, journal, process, verb, chance.choice(RELEASE_DELAYS_MS))


async def settle(message: Message[bytes], journal: Journal, process: str, verb: Verb, delay_ms: int = 0) -> None:
    """Settle a message, and record how that ended."""
    delay_ms = delay_ms if verb is Verb.RELEASE else 0
    call = journal.settlement_begins(process, verb, message, delay_ms)
    try:
        if verb is Verb.ACCEPT:
            await message.ack()
        elif verb is Verb.REJECT:
            await message.reject("refused by a random worker")
        else:
            journal.release_ends(call, is_kept=await message.release(delay_ms))
            return
    except RaftMQError as error:
        journal.settlement_ends(call, verb, message.value, error)
    else:
        journal.settlement_ends(call, verb, message.value, None)


async def main(servers: str, topic: str, path: Path, seed: str) -> None:
    """Work until the process is killed."""
    journal = Journal(path)
    async with Queue[bytes](topic, bootstrap_servers=servers) as queue:
        await asyncio.gather(
            *(
                work(queue, journal, f"{path.stem}.{number}", random.Random(f"{seed} {number}"), lambda: False)
                for number in range(IN_PROCESS)
            )
        )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4]))
