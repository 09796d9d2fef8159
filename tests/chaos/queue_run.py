"""Carry out one run on queue topics: clients and a nemesis, then healing, a recount, draining, and the judgement of the histories.

There are two topics with clients. In the exact one nothing dies by itself, and its keys are ordered. A schedule fires there. In the mortal
one messages die when their attempts or their time are over, and are copied to a dead letter topic without clients. In the end every
acknowledged message was worked on or is still there: everything that is there is counted twice, and then worked on.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from raftmq import Admin, Queue
from raftmq.errors import RaftMQError

from sim.history.queues.checker import judge_queues
from sim.history.queues.operations import LeaseTaken, Operation, Put, Settlement, Verb
from tests.chaos.cluster import ChaosCluster
from tests.chaos.condition import wait_until, what_is_not_whole
from tests.chaos.nemesis import Nemesis, schedule
from tests.chaos.queue_checks import Copies, Firings, ids_enqueued_twice
from tests.chaos.queue_journal import FIRING, Journal, history_of, is_firing
from tests.chaos.queue_worker import LEASE_MS, settle
from tests.chaos.queue_workload import Load, QueueWorkload

PARTITIONS = 2
EXACT_CONFIG: Mapping[str, str] = {
    "ordered.by.key": "true",
    "fairness": "round_robin",
    "attempts.max": "0",
    "dedupe.window.ms": str(3650 * 86_400_000),
    "dead.retention.ms": "-1",
    "backoff.base.ms": "0",
}
"""Nothing dies by itself, and an id is known for the whole run, also if clocks jump. So the expectations of the checker are exact."""
MORTAL_CONFIG: Mapping[str, str] = {
    **EXACT_CONFIG,
    "ordered.by.key": "false",
    "fairness": "quiet_first",
    "attempts.max": "2",
    "expired.keep": "true",
    "partition.tenant.max.leased": "8",
}
EVERY = timedelta(seconds=1)
STEPS_PER_SECOND = 1
FIRST_MESSAGES = 30
PROGRESS_SECONDS = 60.0
HEALED_SECONDS = 120.0
FINISH_SECONDS = 150.0
"""The time for all answers. It is longer than the longest delivery timeout of a producer."""
RECOUNT_SECONDS = 30.0
STUCK_SECONDS = 20.0
"""A drain that gets nothing for so long has come to its end. It is longer than a lease, the grace after a failover and any delay."""
DRAIN_BATCH = 200
CALL_SECONDS = 3.0
STATES = ("ready", "delayed", "leased", "dead", "blocked")


@dataclass
class QueueReport:
    """The result of a run."""

    seed: int
    directory: Path
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)
    acknowledged: int = 0
    finished: int = 0
    repeats: int = 0
    """Puts that were answered as repeats of an id."""
    redriven: int = 0
    changed: Counter[Verb] = field(default_factory=Counter)
    """Messages that were moved and cancelled."""
    purged: int = 0
    exhausted: int = 0
    """Messages that died when they were given back."""
    copies: int = 0
    """Messages in the dead letter topic."""
    firings: int = 0
    killed_workers: int = 0
    verbs: Counter[Verb] = field(default_factory=Counter)
    """Settlements, by their effect."""
    renewed_leases: int = 0
    """Leases of messages that had been leased before."""
    failed: dict[str, int] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    circumstances: str = ""
    """The arguments of the command that repeats the run."""

    def text(self) -> str:
        """Return the report for people."""
        head = (
            f"queues, seed {self.seed}: {len(self.faults)} faults in {self.seconds:.0f} s, {self.acknowledged} acknowledged,"
            f" {self.finished} finished, {self.repeats} repeats, {self.redriven} redriven, {self.changed[Verb.MOVE]} moved,"
            f" {self.changed[Verb.CANCEL]} cancelled, {self.purged} purged, {self.exhausted} exhausted, {self.copies} copies, {self.firings} firings,"
            f" {self.killed_workers} workers killed, {self.renewed_leases} leases again, failures {self.failed}"
        )
        if not self.findings:
            return f"{head}: clean"
        again = f"again: make chaos SEED={self.seed} ARGS='{self.circumstances}'"
        return "\n".join([head, *self.findings, f"journals: {self.directory}", again])


@dataclass
class _Topics:
    """The names of a run's topics."""

    exact: str
    mortal: str
    dead: str

    async def create(self, admin: Admin, replicas: int) -> Firings:
        """Create the topics and the schedule."""
        await admin.create_topic(self.exact, PARTITIONS, replicas, EXACT_CONFIG, kind="queue")
        await admin.create_topic(self.dead, 1, replicas, kind="queue")
        aimed = {**MORTAL_CONFIG, "dead.letter.topic": self.dead}
        await admin.create_topic(self.mortal, PARTITIONS, replicas, aimed, kind="queue")
        made = await admin.put_schedule(self.exact, FIRING, FIRING.encode(), every=EVERY, catch_up="all")
        return Firings(self.exact, made)

    async def delete(self, admin: Admin) -> None:
        """Delete the topics."""
        for name in (self.exact, self.mortal, self.dead):
            await admin.delete_topic(name)


async def queue_run(
    cluster: ChaosCluster, seed: int, families: Sequence[str], seconds: float, directory: Path
) -> QueueReport:
    """Carry out one run on a running cluster, which is whole afterwards unless something is found. Write journals to `directory`."""
    report, began_at = QueueReport(seed, directory), time.monotonic()
    unique, servers = uuid.uuid4().hex[:8], cluster.bootstrap_servers
    topics = _Topics(f"queue-{unique}", f"mortal-{unique}", f"dead-{unique}")
    async with Admin(bootstrap_servers=servers) as admin:
        firings = await topics.create(admin, min(3, len(cluster.broker_ids)))
    exact = QueueWorkload(servers, topics.exact, directory / "exact", seed, Load(PARTITIONS))
    mortal_load = Load(PARTITIONS, workers=2, has_mortals=False, may_die=True)
    mortal = QueueWorkload(servers, topics.mortal, directory / "mortal", seed, mortal_load)
    async with AsyncExitStack() as stack:
        for workload in (exact, mortal):
            await stack.enter_async_context(workload)
        for workload in (exact, mortal):
            assert await workload.wait_progress(FIRST_MESSAGES, PROGRESS_SECONDS), "the clients do not get going"
        await _torment(cluster, topics.exact, seed, families, seconds, report)
        if await _finish(cluster, topics.exact, (exact, mortal), report):
            await _empty(cluster, topics, (exact, mortal), firings, report)
    is_clock_steady = "clock" not in families
    for workload, ordered in ((exact, range(PARTITIONS)), (mortal, ())):
        if not report.findings:
            _judge(history_of(workload.journals, is_clock_steady=is_clock_steady), ordered, report)
        report.findings += [f"a worker process ended by itself: {words}" for words in workload.died]
        _add_counts(workload, report)
    report.seconds = time.monotonic() - began_at
    if not report.findings:
        async with Admin(bootstrap_servers=servers) as admin:
            await topics.delete(admin)
    return report


def _add_counts(workload: QueueWorkload, report: QueueReport) -> None:
    journal = workload.journal
    report.acknowledged += len(journal.acknowledged)
    report.finished += len(journal.finished)
    report.changed += journal.changed
    report.killed_workers += workload.lives
    report.purged += workload.purged
    report.exhausted += journal.exhausted
    report.failed = dict(Counter(report.failed) + Counter(journal.failed))


async def _torment(
    cluster: ChaosCluster, topic: str, seed: int, families: Sequence[str], seconds: float, report: QueueReport
) -> None:
    steps = schedule(seed, families, max(1, int(seconds * STEPS_PER_SECOND)))
    nemesis = Nemesis(cluster, topic, steps, seconds, report.directory / "schedule.log")
    running = asyncio.create_task(asyncio.to_thread(nemesis.run))
    try:
        await asyncio.shield(running)
    finally:  # Ctrl-C: the thread must end before the cluster does
        nemesis.stop()
        await asyncio.wait([running])
    report.faults = nemesis.done
    report.findings += nemesis.findings


async def _finish(cluster: ChaosCluster, topic: str, workloads: Sequence[QueueWorkload], report: QueueReport) -> bool:
    """Check that the cluster becomes whole and the clients get on, then end them. Return whether every call was answered."""
    if not await asyncio.to_thread(wait_until, lambda: not what_is_not_whole(cluster, topic), HEALED_SECONDS):
        report.findings.append(f"{HEALED_SECONDS:.0f} s after healing: {what_is_not_whole(cluster, topic)}")
    for workload in workloads:
        if not await workload.wait_progress(FIRST_MESSAGES, PROGRESS_SECONDS):
            report.findings.append(f"workers do not get on {PROGRESS_SECONDS:.0f} s after healing")
    try:
        await asyncio.gather(*(workload.stop(FINISH_SECONDS) for workload in workloads))
    except TimeoutError:
        report.findings.append(f"not every answer came within {FINISH_SECONDS:.0f} s after healing")
        return False
    return True


async def _empty(
    cluster: ChaosCluster, topics: _Topics, workloads: Sequence[QueueWorkload], firings: Firings, report: QueueReport
) -> None:
    """Recount, compare the copies of the dead, and drain."""
    servers, timeout_ms = cluster.bootstrap_servers, CALL_SECONDS * 1000
    exact, mortal = workloads
    async with Admin(bootstrap_servers=servers) as admin:
        firings.last = await firings.end(admin)
    async with (
        Queue[bytes](topics.exact, bootstrap_servers=servers, request_timeout_ms=timeout_ms) as exact_queue,
        Queue[bytes](topics.mortal, bootstrap_servers=servers, request_timeout_ms=timeout_ms) as mortal_queue,
        Queue[bytes](topics.dead, bootstrap_servers=servers, request_timeout_ms=timeout_ms) as dead_queue,
    ):
        for queue in (exact_queue, mortal_queue, dead_queue):
            await _recount(queue, report)
        await _drain(exact_queue, exact.journal, report)
        copies = Copies(mortal_queue, dead_queue)
        report.findings += await copies.compare()
        report.copies = copies.count
        await _drain(mortal_queue, mortal.journal, report)
    found = sum(1 for one in history_of(exact.journals) if isinstance(one, Put) and is_firing(one))
    report.findings += firings.compare(found)
    report.firings = found


async def _recount(queue: Queue[bytes], report: QueueReport) -> None:
    """Compare the counts by state with the messages that are there. Leases end and delays pass in that time, so several attempts are allowed."""
    deadline = time.monotonic() + RECOUNT_SECONDS
    while True:
        counted = await _counts(queue)
        listed = dict.fromkeys(STATES, 0) | Counter([one.state async for one in queue.browse()])
        if counted == listed:
            return
        if time.monotonic() > deadline:
            report.findings.append(f"the counts are {counted}, and a recount gives {listed}")
            return
        await asyncio.sleep(0.2)


async def _counts(queue: Queue[bytes]) -> dict[str, int]:
    stats = await queue.stats()
    return {state: getattr(stats, state) for state in STATES}


async def _drain(queue: Queue[bytes], journal: Journal, report: QueueReport) -> None:
    """Redrive the dead, and lease and accept everything, until nothing is left or nothing comes any more."""
    moved_at = time.monotonic()
    while True:
        try:
            found = await queue.get_many(max_messages=DRAIN_BATCH, wait_ms=300, lease_ms=10 * LEASE_MS)
        except RaftMQError as error:
            report.findings.append(f"draining failed: {error!r}")
            return
        for message in found:
            journal.leased("drain", 10 * LEASE_MS, message)
        await asyncio.gather(*(settle(message, journal, "drain", Verb.ACCEPT) for message in found))
        report.redriven += await _redrive(queue, journal)
        counts = await _counts(queue)
        if found:
            moved_at = time.monotonic()
        elif not any(counts.values()) or time.monotonic() > moved_at + STUCK_SECONDS:
            break
    await _record_rest(queue, journal)


async def _redrive(queue: Queue[bytes], journal: Journal) -> int:
    """Redrive dead messages one by one, so that the history names them."""
    dead = [one async for one in queue.browse("dead")]
    for one in dead:
        journal.redriven("drain", one.partition, one.sequence)
        await queue.redrive(one)
    return len(dead)


async def _record_rest(queue: Queue[bytes], journal: Journal) -> None:
    left = Counter([(one.partition, one.state) async for one in queue.browse()])
    for partition in range(PARTITIONS):
        rest = {state: count for (where, state), count in left.items() if where == partition}
        journal.drained("drain", partition, rest)


def _judge(history: Sequence[Operation], ordered: Sequence[int], report: QueueReport) -> None:
    found = judge_queues(history, ordered)
    report.findings += [f"{one.anomaly}: {one.text}" for one in found]
    report.findings += ids_enqueued_twice(history)
    report.repeats += sum(1 for one in history if isinstance(one, Put) and one.repeated)
    settled = [one.messages[0] for one in history if isinstance(one, Settlement)]
    report.verbs += Counter(one.verb for one in settled)
    report.renewed_leases += sum(
        1 for one in history if isinstance(one, LeaseTaken) and one.messages[0].lease_number > 1
    )
