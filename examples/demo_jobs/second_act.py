"""Put the jobs, let workers do them, and kill a broker and a worker on the way."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field

from raftmq import Admin, NewMessage, Queue
from raftmq.testing import LocalCluster

from examples.demo_flights.progress import Reporter, Stage
from examples.demo_jobs.jobs import Job, JobPlan
from examples.demo_jobs.journal import Journal, Remains
from examples.demo_jobs.worker import HANDLERS, Event
from examples.demo_jobs.worker_process import WorkerProcess, start_workers

TOPIC = "passengers"
WORKERS = 3
ATTEMPTS_MAX = 5
LEASE_MS = 2_000
"""Short, because the jobs of the killed worker are delivered again when their leases end."""
TOPIC_CONFIG: dict[str, str | int] = {
    "attempts.max": ATTEMPTS_MAX,
    "backoff.base.ms": 50,
    "lease.ms": LEASE_MS,
    "fairness": "quiet_first",
    "partition.tenant.max.leased": WORKERS * HANDLERS // 2,  # handlers stay free for the other carriers
}
QUIET_BATCH = 10
QUIET_INTERVAL_SECONDS = 0.05
"""The quiet carriers' jobs come evenly, whatever the workers and brokers do. So their waits contain the failover."""
KILL_BROKER_AT = 0.3
KILL_WORKER_AT = 0.6
"""Shares of the jobs that have ended when the queue's leader and a worker are killed."""
SILENCE_SECONDS = 20.0
"""The longest time without an event of a worker. It is longer than a failover and the leases of killed processes."""
LAST_SILENCE_SECONDS = LEASE_MS / 1000 + 2
"""After this time at the end, the brokers are asked whether messages are left."""
LAST_SILENCES_MAX = 5


@dataclass
class ActReport:
    """Report the run of the jobs."""

    seconds: float = 0.0
    killed_broker: int = 0
    failover_seconds: float = 0.0
    """Time from the SIGKILL until a job that was begun after it was done."""
    killed_worker: int = 0
    put_at: dict[int, float] = field(default_factory=dict)
    """Row → the wall-clock time at which the job was handed to the SDK."""
    remains: Remains = field(default_factory=lambda: Remains({}))
    """The messages that the queue holds at the end."""


async def look_at_remains(queue: Queue[bytes]) -> Remains:
    """Ask the brokers for the messages that they still hold."""
    stats = await queue.stats()
    dead_reasons = {message.id or "": message.dead_reason async for message in queue.browse("dead")}
    return Remains(dead_reasons, stats.ready + stats.delayed + stats.leased + stats.blocked)


class SecondAct:
    """Runs all jobs once. One task follows the plan, another puts the quiet carriers' jobs, and the workers' events come between them."""

    def __init__(self, cluster: LocalCluster, plan: JobPlan, reporter: Reporter) -> None:
        self.report = ActReport()
        self.journal = Journal(plan.jobs)
        self._cluster = cluster
        self._plan = plan
        self._total = plan.total
        self._reporter = reporter
        self._stage: Stage | None = None
        self._changed = asyncio.Event()
        """Set by every event of a worker."""
        self._killed_at = 0.0

    async def run(self) -> ActReport:
        """Create the topic, and return when every job has ended. Raises `TimeoutError` if the workers stop too early."""
        servers = self._cluster.bootstrap_servers
        async with Admin(bootstrap_servers=servers) as admin:
            await admin.create_topic(TOPIC, kind="queue", replication_factor=3, config=TOPIC_CONFIG)
        async with AsyncExitStack() as stack:
            queue = await stack.enter_async_context(Queue(TOPIC, bootstrap_servers=servers))
            workers = await start_workers(stack, WORKERS, servers, TOPIC, self._on_event)
            backlog = self._plan.backlog
            self._reporter.say(
                f"  {self._plan.noisy_carrier} puts {len(backlog):,} jobs, and then {WORKERS} workers begin"
            )
            await self._put(queue, backlog)
            started = time.perf_counter()
            with self._reporter.stage("ended", self._total) as self._stage:
                for worker in workers:
                    worker.begin()
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._put_quiet(queue))
                    await self._kill_on_the_way(workers)
                await self._wait_ended(queue)
            self.report.seconds = time.perf_counter() - started
            for worker in workers[1:]:
                await worker.stop()
            self.report.remains = await look_at_remains(queue)
        return self.report

    async def _kill_on_the_way(self, workers: Sequence[WorkerProcess]) -> None:
        """Kill the broker and a worker, each after its share of the jobs."""
        await self._until(lambda: self.journal.ended >= KILL_BROKER_AT * self._total)
        self._kill_broker()
        await self._until(lambda: self.journal.ended >= KILL_WORKER_AT * self._total)
        await self._kill_worker(workers[0])

    async def _wait_ended(self, queue: Queue[bytes]) -> None:
        """Wait for the end of every job. A message whose last attempt a killed process had dies without a worker that could report it."""
        for _ in range(LAST_SILENCES_MAX):
            with suppress(TimeoutError):
                await self._until(lambda: self.journal.ended == self._total, LAST_SILENCE_SECONDS)
                return
            if not (await look_at_remains(queue)).unfinished:
                return
        # the verification finds the messages that are left

    def _kill_broker(self) -> None:
        leader = self._cluster.wait_leaders(TOPIC)[0]
        self._reporter.say(f"  kill -9 of broker {leader}, leader of the queue, after {self.journal.ended:,} jobs")
        self._killed_at = time.time()
        self._cluster.kill(leader)
        self.report.killed_broker = leader

    async def _kill_worker(self, worker: WorkerProcess) -> None:
        """Kill a worker while all its handlers are busy. Nothing is being settled then, so each of the jobs must be delivered again."""
        worker.hang()
        await self._until(lambda: len(self.journal.held) == HANDLERS)
        self._reporter.say(f"  kill -9 of worker {worker.number} with {len(self.journal.held)} jobs in work")
        await worker.kill()
        self.report.killed_worker = worker.number

    async def _put_quiet(self, queue: Queue[bytes]) -> None:
        """Put the quiet carriers' jobs at their times. A put that waits for a failover delays no other."""
        async with asyncio.TaskGroup() as puts:
            for first in range(0, len(self._plan.quiet), QUIET_BATCH):
                puts.create_task(self._put(queue, self._plan.quiet[first : first + QUIET_BATCH]))
                await asyncio.sleep(QUIET_INTERVAL_SECONDS)

    async def _put(self, queue: Queue[bytes], jobs: Sequence[Job]) -> None:
        now = time.time()
        self.report.put_at |= {job.row: now for job in jobs}
        await queue.put_many(
            NewMessage(job.value, id=str(job.row), tenant=job.carrier, priority=-job.delay_minutes) for job in jobs
        )

    def _on_event(self, event: Event) -> None:
        ended = self.journal.ended
        self.journal.add(event)
        if self._stage is not None and self.journal.ended > ended:
            self._stage.advance(1)
        if event.kind == "done" and self._killed_at and not self.report.failover_seconds:
            self._end_failover(event.row)
        self._changed.set()

    def _end_failover(self, row: int) -> None:
        """Measure the failover with the first job that was both begun and done after the kill."""
        if self.journal.histories[row].first_begun > self._killed_at:
            self.report.failover_seconds = time.time() - self._killed_at
            self._reporter.say(f"  jobs are done again after {self.report.failover_seconds:.2f} s")

    async def _until(self, is_true: Callable[[], bool], silence_seconds: float = SILENCE_SECONDS) -> None:
        """Wait until the workers' events have made something true. Raises `TimeoutError` after a time without an event."""
        while not is_true():
            self._changed.clear()
            try:
                async with asyncio.timeout(silence_seconds):
                    await self._changed.wait()
            except TimeoutError:
                raise TimeoutError(
                    f"{self.journal.ended:,} of {self._total:,} jobs ended, and then nothing happened"
                ) from None
