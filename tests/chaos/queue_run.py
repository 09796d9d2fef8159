"""Carry out one run on a queue topic: clients and a nemesis, then healing, a recount, draining, and the judgement of the history.

In the end every acknowledged message was worked on or is still there: everything that is there is counted twice, and then worked on.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from raftmq import Admin, Queue
from raftmq.errors import RaftMQError

from sim.history.queues.checker import judge_queues
from sim.history.queues.operations import LeaseTaken, Operation, Outcome, Put, Settlement, Verb
from tests.chaos.cluster import ChaosCluster
from tests.chaos.condition import wait_until, what_is_not_whole
from tests.chaos.nemesis import Nemesis, schedule
from tests.chaos.queue_journal import history_of
from tests.chaos.queue_worker import LEASE_MS, settle
from tests.chaos.queue_workload import QueueWorkload

PARTITIONS = 2
CONFIG: Mapping[str, str] = {
    "ordered.by.key": "true",
    "fairness": "round_robin",
    "attempts.max": "0",
    "dedupe.window.ms": "3600000",
    "backoff.base.ms": "0",
}
"""Nothing dies by itself, and an id is known for the whole run. So the expectations of the checker are exact."""
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
            f" {self.finished} finished, {self.repeats} repeats, {self.redriven} redriven, {self.killed_workers} workers killed,"
            f" {self.renewed_leases} leases again, failures {self.failed}"
        )
        if not self.findings:
            return f"{head}: clean"
        again = f"again: make chaos SEED={self.seed} ARGS='{self.circumstances}'"
        return "\n".join([head, *self.findings, f"journals: {self.directory}", again])


async def queue_run(
    cluster: ChaosCluster, seed: int, families: Sequence[str], seconds: float, directory: Path
) -> QueueReport:
    """Carry out one run on a running cluster, which is whole afterwards unless something is found. Write journals to `directory`."""
    report, began_at = QueueReport(seed, directory), time.monotonic()
    topic = f"queue-{uuid.uuid4().hex[:8]}"
    async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        await admin.create_topic(topic, PARTITIONS, min(3, len(cluster.broker_ids)), CONFIG, kind="queue")
    workload = QueueWorkload(cluster.bootstrap_servers, topic, directory, seed)
    async with workload:
        assert await workload.wait_progress(FIRST_MESSAGES, PROGRESS_SECONDS), "the clients do not get going"
        await _torment(cluster, topic, seed, families, seconds, report)
        await _finish(cluster, topic, workload, report)
    if not report.findings:
        _judge(history_of(workload.journals), report)
    report.findings += [f"a worker process ended by itself: {words}" for words in workload.died]
    report.killed_workers, report.failed = workload.lives, workload.journal.failed
    report.seconds = time.monotonic() - began_at
    if not report.findings:
        async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            await admin.delete_topic(topic)
    return report


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


async def _finish(cluster: ChaosCluster, topic: str, workload: QueueWorkload, report: QueueReport) -> None:
    """Check that the cluster becomes whole and the clients get on, then end them, recount and drain."""
    if not await asyncio.to_thread(wait_until, lambda: not what_is_not_whole(cluster, topic), HEALED_SECONDS):
        report.findings.append(f"{HEALED_SECONDS:.0f} s after healing: {what_is_not_whole(cluster, topic)}")
    if not await workload.wait_progress(FIRST_MESSAGES, PROGRESS_SECONDS):
        report.findings.append(f"workers do not get on {PROGRESS_SECONDS:.0f} s after healing")
    try:
        await workload.stop(FINISH_SECONDS)
    except TimeoutError:
        report.findings.append(f"not every answer came within {FINISH_SECONDS:.0f} s after healing")
        return
    async with Queue[bytes](
        topic, bootstrap_servers=cluster.bootstrap_servers, request_timeout_ms=CALL_SECONDS * 1000
    ) as queue:
        await _recount(queue, report)
        await _drain(queue, workload, report)
    report.acknowledged, report.finished = len(workload.journal.acknowledged), len(workload.journal.finished)


async def _recount(queue: Queue[bytes], report: QueueReport) -> None:
    """Compare the counts by state with the messages that are there. Leases end and delays pass meanwhile, so several attempts are allowed."""
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


async def _drain(queue: Queue[bytes], workload: QueueWorkload, report: QueueReport) -> None:
    """Redrive the dead, and lease and accept everything, until nothing is left or nothing comes any more."""
    moved_at = time.monotonic()
    while True:
        try:
            found = await queue.get_many(max_messages=DRAIN_BATCH, wait_ms=300, lease_ms=10 * LEASE_MS)
        except RaftMQError as error:
            report.findings.append(f"draining failed: {error!r}")
            return
        for message in found:
            workload.journal.leased("drain", 10 * LEASE_MS, message)
        await asyncio.gather(*(settle(message, workload.journal, "drain", Verb.ACCEPT) for message in found))
        report.redriven += await _redrive(queue, workload)
        counts = await _counts(queue)
        if found:
            moved_at = time.monotonic()
        elif not any(counts.values()) or time.monotonic() > moved_at + STUCK_SECONDS:
            break
    await _record_rest(queue, workload)


async def _redrive(queue: Queue[bytes], workload: QueueWorkload) -> int:
    """Redrive dead messages one by one, so that the history names them."""
    dead = [one async for one in queue.browse("dead")]
    for one in dead:
        workload.journal.redriven("drain", one.partition, one.sequence)
        await queue.redrive(one)
    return len(dead)


async def _record_rest(queue: Queue[bytes], workload: QueueWorkload) -> None:
    left = Counter([(one.partition, one.state) async for one in queue.browse()])
    for partition in range(PARTITIONS):
        rest = {state: count for (where, state), count in left.items() if where == partition}
        workload.journal.drained("drain", partition, rest)


def _judge(history: Sequence[Operation], report: QueueReport) -> None:
    found = judge_queues(history, range(PARTITIONS))
    report.findings += [f"{one.anomaly}: {one.text}" for one in found]
    report.findings += ids_enqueued_twice(history)
    report.repeats = sum(1 for one in history if isinstance(one, Put) and one.repeated)
    settled = [one.messages[0] for one in history if isinstance(one, Settlement)]
    report.verbs = Counter(one.verb for one in settled)
    report.renewed_leases = sum(
        1 for one in history if isinstance(one, LeaseTaken) and one.messages[0].lease_number > 1
    )


def ids_enqueued_twice(history: Iterable[Operation]) -> list[str]:
    """Return a finding for each id under which several messages were enqueued, although it was never forgotten."""
    sequences: dict[str, set[tuple[int, int]]] = {}
    for one in history:
        if not isinstance(one, Put) or one.outcome is not Outcome.OK or one.repeated or one.first_sequence < 0:
            continue
        if one.messages[0].id:
            sequences.setdefault(one.messages[0].id, set()).add((one.partition, one.first_sequence))
    return [f"id {name} was enqueued at {sorted(found)}" for name, found in sequences.items() if len(found) > 1]
