"""Run the clients of a queue topic through faults: producers, workers, and a worker process that is frozen and killed again and again.

A producer puts plain messages, delayed ones, ones whose id was put before, and ones with a key. The impatient one gives up after a moment,
so there are unknown outcomes to judge. Some messages are moved or cancelled after they were put. Where a `Load` says so, some have a time to
live, and those of one tenant are purged again and again.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from raftmq import NewMessage, PutResult, Queue
from raftmq.errors import RaftMQError

from sim.history.queues.operations import Verb
from tests.chaos.queue_journal import Journal
from tests.chaos.queue_worker import LEASE_MS, work

Fate = tuple[Verb, int] | None

ROOT = Path(__file__).resolve().parents[2]
KEYS = ("k1", "k2", "k3")
TENANTS = ("", "acme", "acme.eu", "zeta")
DELAYS_MS = (400, 900, 1_500)
IN_FLIGHT_MAX = 40
PAUSE_SECONDS = 0.01
PATIENT_MS = 120_000.0
IMPATIENT_MS = 1_500.0
WORKERS = 4
EXPIRY_MS = (700, 2_500)
DOOMED = "doomed"
"""The tenant whose waiting messages are purged."""
PURGE_SECONDS = 1.5
FATES = (
    *(None,) * 14,
    (Verb.CANCEL, 0),
    (Verb.MOVE, 0),
    (Verb.MOVE, 700),
)
"""Changes of a message after it was put, with the new delay of a move."""
LIFE_SECONDS = (1.0, 3.0)
"""The time that a worker process lives after its start."""
FROZEN_SECONDS = LEASE_MS / 1000 * 1.5
"""Longer than a lease: somebody else has its messages when it goes on."""


@dataclass(frozen=True)
class Load:
    """The kinds of clients and messages of one topic."""

    partitions: int = 2
    workers: int = WORKERS
    has_mortals: bool = True
    """Whether worker processes are frozen and killed."""
    may_die: bool = False
    """Whether some messages have a time to live, and those of `DOOMED` are purged."""


class QueueWorkload:
    """An async context manager that runs the clients.

    Args:
        servers: Addresses of the cluster.
        topic: Existing queue topic.
        directory: Folder for the journals. It is created.
        seed: Seed of the clients' choices.
        load: The clients and messages.
    """

    def __init__(self, servers: str, topic: str, directory: Path, seed: int, load: Load) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._servers = servers
        self._topic = topic
        self._directory = directory
        self._seed = seed
        self._load = load
        self._chance = random.Random(seed)
        self._is_over = False
        self._producers: list[asyncio.Task[None]] = []
        self._workers: list[asyncio.Task[None]] = []
        self.lives = 0
        """Number of worker processes that were killed."""
        self.purged = 0
        """Number of messages that were purged, as far as is known."""
        self.died: list[str] = []
        """The last words of worker processes that ended by themselves."""
        self.journal = Journal(directory / "clients.jsonl")

    @property
    def journals(self) -> Sequence[Path]:
        """Return the files of all processes."""
        return sorted(self._directory.glob("*.jsonl"))

    async def __aenter__(self) -> Self:
        self._queue = Queue[bytes](self._topic, bootstrap_servers=self._servers, delivery_timeout_ms=PATIENT_MS)
        await self._queue.start()
        self._producers = [
            self._spawn(self._produce("patient", PATIENT_MS)),
            self._spawn(self._produce("impatient", IMPATIENT_MS)),
        ]
        self._workers = [self._spawn(self._kill_workers())] if self._load.has_mortals else []
        if self._load.may_die:
            self._producers.append(self._spawn(self._purge()))
        for number in range(self._load.workers):
            name = f"worker-{number}"
            chance = random.Random(f"{self._seed} {name}")
            self._workers.append(self._spawn(work(self._queue, self.journal, name, chance, self._are_workers_over)))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_over = True
        tasks = [*self._producers, *self._workers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._queue.close()
        self.journal.close()

    async def stop(self, seconds: float) -> None:
        """Let the producers get their answers, then end the workers. Raises TimeoutError, or the defect of a client."""
        self._is_over = True
        async with asyncio.timeout(seconds):
            await asyncio.gather(*self._producers)
            await asyncio.gather(*self._workers)

    async def wait_progress(self, count: int, seconds: float) -> bool:
        """Wait until so many more messages are accepted. Return whether that was in time."""
        finished, deadline = len(self.journal.finished) + count, time.monotonic() + seconds
        while len(self.journal.finished) < finished:
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.05)
        return True

    def _spawn(self, job: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.create_task(job)

    def _are_workers_over(self) -> bool:
        return self._is_over and all(task.done() for task in self._producers)

    # ------------------------------------------------------------------------------------------------ producers

    async def _produce(self, name: str, delivery_ms: float) -> None:
        chance, number = random.Random(f"{self._seed} {name}"), 0
        room, puts = asyncio.Semaphore(IN_FLIGHT_MAX), set[asyncio.Task[None]]()
        async with Queue[bytes](self._topic, bootstrap_servers=self._servers, delivery_timeout_ms=delivery_ms) as queue:
            while not self._is_over:
                await room.acquire()
                message, fate = _message(name, number, chance, may_die=self._load.may_die), chance.choice(FATES)
                put = self._spawn(self._put(queue, name, message, fate, room.release))
                puts.add(put)
                put.add_done_callback(puts.discard)
                number += 1
                await asyncio.sleep(PAUSE_SECONDS)
            await asyncio.gather(*puts)

    async def _put(
        self, queue: Queue[bytes], name: str, message: NewMessage[bytes], fate: Fate, on_end: Callable[[], None]
    ) -> None:
        call = self.journal.put_begins(name, message)
        try:
            result = await queue.put(
                message.value, key=message.key, tenant=message.tenant, delay_ms=message.delay_ms, id=message.id,
                expires_ms=message.expires_ms,
            )  # fmt: skip
        except RaftMQError as error:
            self.journal.put_ends(call, message.value, error)
        else:
            self.journal.put_ends(call, message.value, result)
            if fate is not None and result.sequence is not None and not result.is_deduplicated:
                await self._change(queue, name, message.value, result, *fate)
        finally:
            on_end()

    async def _change(
        self, queue: Queue[bytes], name: str, value: bytes, put: PutResult, verb: Verb, delay_ms: int
    ) -> None:
        assert put.sequence is not None
        call = self.journal.change_begins(name, verb, put.partition, put.sequence, delay_ms)
        try:
            if verb is Verb.CANCEL:
                await queue.cancel(put)
            else:
                await queue.move(put, delay_ms=delay_ms)
        except RaftMQError as error:
            self.journal.change_ends(call, verb, value, error)
        else:
            self.journal.change_ends(call, verb, value, None)

    async def _purge(self) -> None:
        """Purge the doomed tenant's waiting messages again and again."""
        async with Queue[bytes](self._topic, bootstrap_servers=self._servers) as queue:
            while not self._is_over:
                calls = self.journal.purge_begins("purger", self._load.partitions, DOOMED)
                try:
                    self.purged += await queue.purge("ready", "delayed", tenants=[DOOMED])
                except RaftMQError as error:
                    self.journal.purge_ends(calls, error)
                else:
                    self.journal.purge_ends(calls, None)
                await self._live(PURGE_SECONDS)

    # ------------------------------------------------------------------------------------------------ worker processes

    async def _kill_workers(self) -> None:
        while not self._is_over:
            path = self._directory / f"mortal-{self.lives}.jsonl"
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.chaos.queue_worker", self._servers, self._topic, str(path),
                f"{self._seed} {self.lives}", cwd=ROOT, stdout=DEVNULL, stderr=PIPE,
            )  # fmt: skip
            try:
                await self._torment(process, path)
            finally:
                if process.returncode is None:
                    process.kill()
                _, said = await process.communicate()
            if process.returncode != -signal.SIGKILL:
                self.died.append(said.decode(errors="replace")[-500:])
            self.lives += 1

    async def _torment(self, process: Process, path: Path) -> None:
        """Freeze a worker process in the middle of its work. It is killed afterwards."""
        while process.returncode is None and not self._is_over and not _has_begun(path):
            await asyncio.sleep(0.05)
        await self._live(self._chance.uniform(*LIFE_SECONDS))
        if self._chance.random() < 0.5 and process.returncode is None:
            process.send_signal(signal.SIGSTOP)
            await self._live(FROZEN_SECONDS)
            process.send_signal(signal.SIGCONT)
            await self._live(0.5)

    async def _live(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self._is_over:
            await asyncio.sleep(0.05)


def _has_begun(journal: Path) -> bool:
    return journal.exists() and journal.stat().st_size > 0


def _message(name: str, number: int, chance: random.Random, *, may_die: bool) -> NewMessage[bytes]:
    tenants = (*TENANTS, DOOMED) if may_die else TENANTS
    value, tenant = f"{name}-{number}".encode(), chance.choice(tenants)
    kind = chance.randrange(6 if may_die else 5)
    if kind == 0:
        return NewMessage(value, tenant=tenant, delay_ms=chance.choice(DELAYS_MS))
    if kind == 1:
        return NewMessage(value, tenant=tenant, key=chance.choice(KEYS))
    if kind == 2:
        return NewMessage(value, tenant=tenant, id=f"{name}-id-{number // 20}")
    if kind == 5:
        return NewMessage(value, tenant=tenant, expires_ms=chance.randint(*EXPIRY_MS))
    return NewMessage(value, tenant=tenant)
