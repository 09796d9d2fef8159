"""Run the clients of a queue topic through faults: producers, workers, and a worker process that is frozen and killed again and again.

A producer puts plain messages, delayed ones, ones whose id was put before, and ones with a key. The impatient one gives up after a moment,
so there are unknown outcomes to judge.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Self

from raftmq import NewMessage, Queue
from raftmq.errors import RaftMQError

from tests.chaos.queue_journal import Journal
from tests.chaos.queue_worker import LEASE_MS, work

ROOT = Path(__file__).resolve().parents[2]
KEYS = ("k1", "k2", "k3")
TENANTS = ("", "acme", "acme.eu", "zeta")
DELAYS_MS = (400, 900, 1_500)
IN_FLIGHT_MAX = 40
PAUSE_SECONDS = 0.01
PATIENT_MS = 120_000.0
IMPATIENT_MS = 1_500.0
WORKERS = 4
LIFE_SECONDS = (1.0, 3.0)
"""The time that a worker process lives after its start."""
FROZEN_SECONDS = LEASE_MS / 1000 * 1.5
"""Longer than a lease: somebody else has its messages when it goes on."""


class QueueWorkload:
    """An async context manager that runs the clients.

    Args:
        servers: Addresses of the cluster.
        topic: Existing queue topic, ordered by key.
        directory: Folder for the journals.
        seed: Seed of the clients' choices.
    """

    def __init__(self, servers: str, topic: str, directory: Path, seed: int) -> None:
        self._servers = servers
        self._topic = topic
        self._directory = directory
        self._seed = seed
        self._chance = random.Random(seed)
        self._is_over = False
        self._producers: list[asyncio.Task[None]] = []
        self._workers: list[asyncio.Task[None]] = []
        self.lives = 0
        """Number of worker processes that were killed."""
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
        self._workers = [self._spawn(self._kill_workers())]
        for number in range(WORKERS):
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
                put = self._spawn(self._put(queue, name, _message(name, number, chance), room.release))
                puts.add(put)
                put.add_done_callback(puts.discard)
                number += 1
                await asyncio.sleep(PAUSE_SECONDS)
            await asyncio.gather(*puts)

    async def _put(
        self, queue: Queue[bytes], name: str, message: NewMessage[bytes], on_end: Callable[[], None]
    ) -> None:
        call = self.journal.put_begins(name, message)
        try:
            result = await queue.put(
                message.value, key=message.key, tenant=message.tenant, delay_ms=message.delay_ms, id=message.id
            )
        except RaftMQError as error:
            self.journal.put_ends(call, message.value, error)
        else:
            self.journal.put_ends(call, message.value, result)
        finally:
            on_end()

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


def _message(name: str, number: int, chance: random.Random) -> NewMessage[bytes]:
    value, tenant = f"{name}-{number}".encode(), chance.choice(TENANTS)
    kind = chance.randrange(5)
    if kind == 0:
        return NewMessage(value, tenant=tenant, delay_ms=chance.choice(DELAYS_MS))
    if kind == 1:
        return NewMessage(value, tenant=tenant, key=chance.choice(KEYS))
    if kind == 2:
        return NewMessage(value, tenant=tenant, id=f"{name}-id-{number // 20}")
    return NewMessage(value, tenant=tenant)
