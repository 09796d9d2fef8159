"""Fill a cluster of one broker with everything that a data directory may hold, and describe it as a reader sees it.

Nothing in it depends on the time at which it is read: a delay is ten years, and nothing expires.
"""

from __future__ import annotations

from typing import Any

from raftmq import TopicPartition, sync
from raftmq.testing import LocalCluster

LOG, QUEUE, GROUP = "orders", "jobs", "billing"
CODECS = ("none", "gzip", "lz4", "zstd")
TEN_YEARS_MS = 10 * 365 * 24 * 60 * 60 * 1000


def fill(cluster: LocalCluster) -> None:
    """Write a log topic, a queue topic with its schedules, and a group's offsets."""
    servers = cluster.bootstrap_servers
    with sync.Admin(bootstrap_servers=servers) as admin:
        admin.create_topic(LOG, partitions=2, config={"retention.ms": "-1"})
        admin.create_topic(QUEUE, kind="queue", config={"attempts.max": "1", "dead.retention.ms": "-1"})
        for codec in CODECS:
            with sync.Producer(bootstrap_servers=servers, compression_type=codec) as producer:
                for number in range(20):
                    headers = [("codec", codec.encode())]
                    value = None if number == 7 else b"%d of " % number + codec.encode() * 10
                    partition = number % 2
                    producer.send(
                        LOG,
                        value,
                        key=b"%d" % number,
                        headers=headers,
                        partition=partition,
                        timestamp_ms=1_000 + number,
                    )
                producer.flush()
        with sync.Producer(bootstrap_servers=servers, producer_name="named") as producer:
            producer.send(LOG, b"by a named producer", partition=0).result(30)
        admin.delete_records({TopicPartition(LOG, 0): 5})
        with sync.Consumer(bootstrap_servers=servers, group_id=GROUP) as consumer:
            consumer.assign([TopicPartition(LOG, 0)])
            consumer.commit({TopicPartition(LOG, 0): 11})
        with sync.Queue(QUEUE, bootstrap_servers=servers) as queue:
            for name in ("rejected", "ready"):
                queue.put(
                    name.encode(), key="a key", tenant=f"tenant.{name}", priority=3, headers=[("h", b"v")], id=name
                )
                if name == "rejected":
                    message = queue.get(wait_ms=10_000)
                    assert message is not None
                    message.reject("it was wrong")
            queue.put(b"delayed", delay_ms=TEN_YEARS_MS)
            queue.pause("tenant")
        admin.put_schedule(QUEUE, "nightly", value=b"scheduled", cron="0 3 * * *", paused=True)


def describe(cluster: LocalCluster) -> dict[str, Any]:
    """Return the view of readers as JSON."""
    servers = cluster.bootstrap_servers
    with sync.Admin(bootstrap_servers=servers) as admin:
        topics = [(topic.name, topic.kind, len(topic.partitions)) for topic in admin.list_topics()]
        schedules = [(one.name, one.is_paused) for one in admin.list_schedules(QUEUE)]
        named = admin.describe_topic(LOG).config["retention.ms"]
    places = [TopicPartition(LOG, number) for number in range(2)]
    with sync.Consumer(bootstrap_servers=servers, group_id=None, auto_offset_reset="earliest") as consumer:
        consumer.assign(places)
        ends, records = consumer.end_offsets(places), []
        while any(consumer.position(place) < ends[place] for place in places):
            for found in consumer.getmany(timeout_ms=1_000).values():
                records += found
    with sync.Consumer(bootstrap_servers=servers, group_id=GROUP) as consumer:
        committed = consumer.committed(places[0])
    with sync.Queue(QUEUE, bootstrap_servers=servers) as queue:
        messages = list(queue.browse(with_values=True))
        stats = queue.stats()
    return {
        "topics": topics,
        "retention": named,
        "records": [
            [r.partition, r.offset, r.timestamp, _text(r.key), _text(r.value), [(n, _text(v)) for n, v in r.headers]]
            for r in sorted(records, key=lambda r: (r.partition, r.offset))
            if r.timestamp < 10_000  # not the one with its own time
        ],
        "ends": [ends[place] for place in places],
        "committed": list(committed.values()),
        "messages": sorted(
            [m.sequence, m.state, m.tenant, _text(m.key), m.priority, m.attempts, _text(m.value), m.error or ""]
            for m in messages
        ),
        "dead": stats.dead,
        "schedules": schedules,
    }


def _text(value: bytes | None) -> str | None:
    return None if value is None else bytes(value).decode()
