"""Fill volumes so that only the deletion of records or topics frees space, as on a disk with no other writer."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from raftmq import Admin, Producer
from raftmq.errors import RaftMQError, UnknownTopicError
from raftmq.types import TopicPartition

from tests.chaos.condition import metrics, wait_until
from tests.chaos.fault import FaultError, Target, fault

BALLAST_RECORDS = 160
BALLAST_RECORD_BYTES = 512 * 1024
"""80 MiB in all: much more than `SHORT_BYTES`, but written within seconds."""
SHORT_BYTES = 8 << 20
"""The free space falls short of the reserve by this much: a tenth of the space that deletion frees."""
REFUSED_SECONDS = 30.0
FREED_SECONDS = 90.0
"""The time within which deleted bytes are free again: a minute, and a margin for a busy machine."""
ADMIN_MS = 60_000


def _is_refusing(target: Target, victim: int) -> bool:
    return metrics(target.cluster, victim).get("raftmq_writes_refused") == 1.0


async def _write_ballast(bootstrap_servers: str, topic: str) -> None:
    value = os.urandom(BALLAST_RECORD_BYTES)
    async with Admin(bootstrap_servers=bootstrap_servers, request_timeout_ms=ADMIN_MS) as admin:
        await admin.create_topic(topic, 1, 3)
    async with Producer(bootstrap_servers=bootstrap_servers, delivery_timeout_ms=ADMIN_MS) as producer:
        for _ in range(BALLAST_RECORDS):
            await producer.send(topic, value)


async def _delete_records(bootstrap_servers: str, topic: str) -> None:
    async with Admin(bootstrap_servers=bootstrap_servers, request_timeout_ms=ADMIN_MS) as admin:
        await admin.delete_records({TopicPartition(topic, 0): -1})


async def _delete_topic(bootstrap_servers: str, topic: str) -> None:
    async with Admin(bootstrap_servers=bootstrap_servers, request_timeout_ms=ADMIN_MS) as admin:
        try:
            await admin.delete_topic(topic)
        except UnknownTopicError:
            return


def _fill(target: Target, victim: int) -> Path:
    """Create a file that leaves slightly less free space than the reserve."""
    seen = metrics(target.cluster, victim)
    filler = target.cluster.volume(victim).path / "filler"
    free_bytes, reserve_bytes = (int(seen[f"raftmq_disk_{name}_bytes"]) for name in ("free", "reserve"))
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, free_bytes - reserve_bytes + SHORT_BYTES))
    return filler


def _full(target: Target, *, whole_topic: bool) -> Iterator[str]:
    cluster, servers = target.cluster, target.cluster.bootstrap_servers
    ballast = f"ballast-{uuid.uuid4().hex[:8]}"
    victims = list(cluster.broker_ids) if target.chance.random() < 0.5 else [target.leader_or_any()]
    what = "the topic" if whole_topic else "its records"
    fillers: list[Path] = []
    try:
        try:
            asyncio.run(_write_ballast(servers, ballast))
            fillers += [_fill(target, victim) for victim in victims]
        except (RaftMQError, KeyError) as error:
            raise FaultError(f"the ballast could not be written: {error!r}") from error
        if not wait_until(lambda: all(_is_refusing(target, v) for v in victims), REFUSED_SECONDS, target.stop):
            raise FaultError(
                f"not all of {victims} refuse appends {REFUSED_SECONDS:.0f} s after their volumes were full"
            )
        asyncio.run((_delete_topic if whole_topic else _delete_records)(servers, ballast))
        if not wait_until(lambda: not any(_is_refusing(target, v) for v in victims), FREED_SECONDS, target.stop):
            refusing = [victim for victim in victims if _is_refusing(target, victim)]
            raise FaultError(
                f"{FREED_SECONDS:.0f} s after {what} of {BALLAST_RECORDS * BALLAST_RECORD_BYTES >> 20} MiB was deleted "
                f"{refusing} still refuse appends for want of {SHORT_BYTES >> 20} MiB"
            )
        yield f"the volumes of {victims} were full, and {what} was deleted"
    finally:
        for filler in fillers:
            filler.unlink(missing_ok=True)
        asyncio.run(_delete_topic(servers, ballast))


@fault("full", (0.0, 1.0), needs_whole=True)
def full_until_records_are_deleted(target: Target) -> Iterator[str]:
    yield from _full(target, whole_topic=False)


@fault("full", (0.0, 1.0), needs_whole=True)
def full_until_a_topic_is_deleted(target: Target) -> Iterator[str]:
    yield from _full(target, whole_topic=True)
