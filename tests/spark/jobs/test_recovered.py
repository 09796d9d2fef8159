"""An audit of a partition that was revived from a replica without the last acknowledged records, on a real cluster."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from raftmq import sync
from raftmq.spark.jobs.audit import AuditSettings, audit
from raftmq.spark.jobs.running import EXIT_OK, EXIT_VIOLATION, Stop
from raftmq.testing import LocalCluster

Spark = Any  # a SparkSession; pyspark is imported once Java is there

TOPIC = "lost"
KEPT, LOST, LATER = 20, 10, 7
WAIT_SECONDS = 90.0


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def write(servers: str, first: int, count: int) -> None:
    with sync.Producer(bootstrap_servers=servers) as producer:
        producer.send_many(TOPIC, [(None, b"%d" % number) for number in range(first, first + count)]).result(60)


def recover_without_the_last_records(cluster: LocalCluster, admin: sync.Admin, audited: Callable[[], None]) -> None:
    """Let one replica miss the last records, call `audited`, and recover the partition from that replica."""
    voters = {one.broker_id for one in admin.describe_cluster().brokers if one.is_metadata_voter}
    kept = min(voters)
    others = sorted(set(cluster.broker_ids) - voters)
    wanted = [*others, kept]
    admin.move_partition(TOPIC, 0, wanted)

    def in_sync() -> list[int]:
        state = admin.describe_topic(TOPIC, ask_leaders=True).partitions[0].state
        return sorted(state.in_sync_brokers) if state is not None else []

    write(cluster.bootstrap_servers, 0, KEPT)
    until(lambda: in_sync() == sorted(wanted))
    cluster.stop(kept)
    write(cluster.bootstrap_servers, KEPT, LOST)
    audited()
    for broker_id in others:
        cluster.kill(broker_id)
    cluster.restart(kept)

    def is_served() -> bool:
        lost = admin.list_lost_partitions(TOPIC).partitions
        return any(one.broker_id == kept and one.condition == "served" for each in lost for one in each.replicas)

    until(is_served)
    admin.recover_partition(TOPIC, 0, kept, unsafe=True)


@pytest.mark.long
def test_an_audit_reports_the_records_that_a_recovery_has_lost_until_that_is_accepted(
    spark: Spark, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with LocalCluster(brokers=5) as cluster, sync.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.set_balancing(auto_balance=False)
        admin.create_topic(TOPIC, partitions=1, replication_factor=3)
        servers = cluster.bootstrap_servers
        settings = AuditSettings(servers, (TOPIC,), {}, None, None, str(tmp_path / "audit"))

        def run(settings: AuditSettings = settings) -> tuple[int, dict[str, int], list[int]]:
            capsys.readouterr()
            code = audit(spark, settings, Stop())
            events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
            (found,) = [event for event in events if event["event"] == "audited"]
            recovered = [event["lost_records"] for event in events if event["event"] == "recovered"]
            return code, {"records": found["records"], **found["violations"]}, recovered

        def audited() -> None:
            assert run() == (EXIT_OK, {"records": KEPT + LOST}, [])

        recover_without_the_last_records(cluster, admin, audited)
        write(servers, 1000, LATER)  # others get the offsets of lost records
        lost = (EXIT_VIOLATION, {"records": LATER, "lost_records": LOST}, [LOST])
        assert run() == lost
        assert run() == lost, "a finding stays until it is accepted"
        assert run(replace(settings, accepts_recoveries=True)) == (EXIT_OK, {"records": LATER}, [LOST])
        write(servers, 2000, 1)
        assert run() == (EXIT_OK, {"records": 1}, [])
        admin.create_topic("unconcerned", partitions=1, replication_factor=3)
        assert run(AuditSettings(servers, ("unconcerned",), {}, None, None, None)) == (EXIT_OK, {"records": 0}, [])
