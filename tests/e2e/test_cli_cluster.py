"""Commands that drain, balance and move, with real brokers."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from raftmq import sync
from raftmq.testing import LocalCluster

from tests.support.e2e.raftmq_command import answer, assert_one_sentence, raftmq, started

pytestmark = [pytest.mark.e2e]

TOPIC = "orders"
PARTITIONS = 6
BROKERS = 4
REPLICATION_FACTOR = 3
RECORDS = 60
WAIT_SECONDS = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=BROKERS) as running:
        with sync.Admin(bootstrap_servers=running.bootstrap_servers) as admin:
            admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=REPLICATION_FACTOR)
        with sync.Producer(bootstrap_servers=running.bootstrap_servers) as producer:
            producer.send_many(TOPIC, [(None, b"%d" % n) for n in range(RECORDS)]).result(30)
        yield running


@pytest.fixture
def even(cluster: LocalCluster) -> None:
    """Wait until automatic balancing has nothing to do: a new broker, and one that is used again, gets its share later."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        shares = [broker["replicas"] for broker in brokers(cluster).values()]
        is_even = max(shares) - min(shares) <= 1 and sum(shares) == PARTITIONS * REPLICATION_FACTOR
        if is_even and len(shares) == BROKERS:
            moves = document(cluster, "cluster", "moves")
            if not (moves["moves"] or moves["waiting_count"]):
                return
        assert time.monotonic() < deadline, shares
        time.sleep(0.1)


def document(cluster: LocalCluster, *arguments: str) -> Any:
    return answer(cluster, *arguments)


def brokers(cluster: LocalCluster) -> dict[int, dict[str, Any]]:
    """Return the brokers of `cluster status`, whatever its exit code."""
    done = raftmq(cluster, "cluster", "status", "--output", "json")
    return {broker["id"]: broker for broker in json.loads(done.stdout)["brokers"]}


def partitions(cluster: LocalCluster) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = document(cluster, "partition", "list", TOPIC)
    return found


def with_state(cluster: LocalCluster) -> dict[str, Any]:
    """Describe the first partition. Repeat it while there is no leader that answers: a move may end with an election."""
    for _ in range(100):
        described: dict[str, Any] = document(cluster, "partition", "describe", TOPIC, "0")
        if described["state"] is not None:
            return described
        time.sleep(0.1)
    raise AssertionError(described)


def count_records(cluster: LocalCluster) -> int:
    done = raftmq(cluster, "consume", TOPIC, "--from-beginning", "--exit-at-end")
    assert done.returncode == 0, done.stderr
    return len(done.stdout.splitlines())


@pytest.mark.usefixtures("even")
def test_a_broker_is_drained_removed_from_use_and_used_again(cluster: LocalCluster) -> None:
    victim = 4
    planned = document(cluster, "cluster", "drain", str(victim), "--dry-run")
    held = sum(victim in partition["replica_brokers"] for partition in partitions(cluster))
    assert planned["replicas"] == held
    assert brokers(cluster)[victim]["state"] == "active"
    done = raftmq(cluster, "cluster", "drain", str(victim))
    assert done.returncode == 0, done.stderr
    assert (
        done.stdout.decode()
        == f"broker {victim} is empty: raftmq cluster remove {victim} removes it from the cluster\n"
    )
    empty = brokers(cluster)[victim]
    assert (empty["state"], empty["replicas"], empty["leaders"]) == ("draining", 0, 0)
    assert not empty["is_metadata_voter"]
    assert all(victim not in partition["replica_brokers"] for partition in partitions(cluster))
    assert count_records(cluster) == RECORDS
    assert raftmq(cluster, "cluster", "undrain", str(victim)).returncode == 0
    assert brokers(cluster)[victim]["state"] == "active"


@pytest.mark.long
def test_a_rebalance_fills_an_empty_broker(cluster: LocalCluster) -> None:
    assert raftmq(cluster, "cluster", "balancing", "--no-auto").returncode == 0
    assert raftmq(cluster, "cluster", "drain", "4").returncode == 0
    assert raftmq(cluster, "cluster", "undrain", "4").returncode == 0
    planned = document(cluster, "cluster", "rebalance", "--dry-run")
    assert planned["replica_move_count"] > 0
    assert brokers(cluster)[4]["replicas"] == 0
    done = raftmq(cluster, "cluster", "rebalance")
    assert done.returncode == 0, done.stderr
    shares = [broker["replicas"] for broker in brokers(cluster).values()]
    assert max(shares) - min(shares) <= 1, shares
    assert count_records(cluster) == RECORDS
    assert raftmq(cluster, "cluster", "balancing", "--auto").returncode == 0


@pytest.mark.usefixtures("even")
def test_a_partition_and_its_leadership_are_moved(cluster: LocalCluster) -> None:
    assert raftmq(cluster, "cluster", "balancing", "--no-auto").returncode == 0
    now = partitions(cluster)[0]["replica_brokers"]
    outside = next(n for n in range(1, BROKERS + 1) if n not in now)
    wanted = [outside, *now[:2]]
    to = ",".join(map(str, wanted))
    done = raftmq(cluster, "partition", "move", TOPIC, "0", "--to", to)
    assert done.returncode == 0, done.stderr
    described = with_state(cluster)
    assert sorted(described["replica_brokers"]) == sorted(described["state"]["in_sync_brokers"]) == sorted(wanted)
    for leader in wanted:
        moved = document(cluster, "partition", "transfer-leader", TOPIC, "0", "--to", str(leader))
        assert moved["leader_broker_id"] == leader
    assert count_records(cluster) == RECORDS
    unknown = raftmq(cluster, "partition", "move", TOPIC, "0", "--to", f"{to[:-1]}9")
    assert_one_sentence(unknown, 4, "broker 9")
    assert raftmq(cluster, "cluster", "balancing", "--auto").returncode == 0


def test_a_move_to_fewer_brokers_is_refused_with_its_own_advice(cluster: LocalCluster) -> None:
    refused = raftmq(cluster, "partition", "move", TOPIC, "0", "--to", "1")
    assert_one_sentence(
        refused, 4, "number of named brokers is 1", f"raftmq topic alter {TOPIC} --replication-factor 1)"
    )
    assert b"start more brokers" not in refused.stderr


@pytest.mark.long
def test_the_replication_factor_is_lowered_and_raised(cluster: LocalCluster) -> None:
    for wanted in ("1", "3"):
        done = raftmq(cluster, "topic", "alter", TOPIC, "--replication-factor", wanted, "--yes")
        assert done.returncode == 0, done.stderr
        assert {len(partition["replica_brokers"]) for partition in partitions(cluster)} == {int(wanted)}
        assert count_records(cluster) == RECORDS
    refused = raftmq(cluster, "topic", "alter", TOPIC, "--replication-factor", "5", "--yes")
    assert_one_sentence(refused, 4, "replication factor 5")


def test_balancing_is_paused_limited_and_shown(cluster: LocalCluster) -> None:
    before = document(cluster, "cluster", "balancing")
    limited = document(cluster, "cluster", "balancing", "--no-auto", "--moves", "2", "--rate", "50MiB/s")
    assert limited == {"auto_balance": False, "moves_max": 2, "bytes_per_second": 50 << 20}
    assert document(cluster, "cluster", "balancing") == limited
    assert (
        document(cluster, "cluster", "balancing", "--auto", "--moves", str(before["moves_max"]), "--rate", "unlimited")
        == before
    )
    refused = raftmq(cluster, "cluster", "balancing", "--moves", "9999")
    assert refused.returncode == 2
    assert b"'9999' is not a whole number from 1 to 1000: to pause automatic balancing, give" in refused.stderr
    assert document(cluster, "cluster", "balancing") == before


def test_an_impossible_rate_is_refused(cluster: LocalCluster) -> None:
    refused = raftmq(cluster, "cluster", "balancing", "--rate", "1KiB/s")
    assert_one_sentence(refused, 2, "0 (unlimited)", "not 1024")


@pytest.mark.usefixtures("even")
@pytest.mark.long
def test_a_drain_continues_after_ctrl_c(cluster: LocalCluster) -> None:
    """One partition moves after the other, so the drain does not end before the signal."""
    before = document(cluster, "cluster", "balancing")
    assert raftmq(cluster, "cluster", "balancing", "--moves", "1").returncode == 0
    try:
        with started(cluster, "cluster", "drain", "4") as process:
            assert process.stderr is not None
            assert process.stderr.readline().startswith(b"draining broker 4: holds ")
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
            assert b"the cluster continues the work: raftmq cluster moves" in process.stderr.read()
        assert brokers(cluster)[4]["state"] == "draining"
    finally:
        assert document(cluster, "cluster", "balancing", "--moves", str(before["moves_max"])) == before
    assert raftmq(cluster, "cluster", "drain", "4").returncode == 0
    assert raftmq(cluster, "cluster", "undrain", "4").returncode == 0


@pytest.mark.long
def test_the_drained_metadata_voter_is_removed_and_the_other_broker_serves_everything() -> None:
    """With two brokers only one votes on metadata. Its vote and its replicas go to the other one."""
    with LocalCluster(brokers=2) as cluster:
        with sync.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.create_topic(TOPIC, partitions=4, replication_factor=1)
        with sync.Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            producer.send_many(TOPIC, [(None, b"%d" % n) for n in range(RECORDS)]).result(30)
        (voter,) = [broker_id for broker_id, broker in brokers(cluster).items() if broker["is_metadata_voter"]]
        held = raftmq(cluster, "cluster", "remove", str(voter), "--yes")
        assert_one_sentence(held, 4, f"broker {voter} is the only metadata voter")
        drained = raftmq(cluster, "cluster", "drain", str(voter))
        assert drained.returncode == 0, drained.stderr
        removed = raftmq(cluster, "cluster", "remove", str(voter), "--yes")
        assert removed.returncode == 0, removed.stderr
        assert [node["id"] for node in document(cluster, "cluster", "nodes")] == [3 - voter]
        cluster.kill(voter)
        assert count_records(cluster) == RECORDS


@pytest.mark.long
def test_a_further_replica_that_no_broker_can_take_is_shown_until_its_broker_returns() -> None:
    with LocalCluster(brokers=3) as cluster:
        with sync.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.create_topic(TOPIC, partitions=1, replication_factor=2)
        (held,) = partitions(cluster)
        (third,) = {1, 2, 3} - set(held["replica_brokers"])
        cluster.kill(third)
        altered = raftmq(cluster, "topic", "alter", TOPIC, "--replication-factor", "3", "--no-wait")
        assert altered.returncode == 0, altered.stderr
        reason = f"no other broker can take it: broker {third} is not connected"
        deadline = time.monotonic() + WAIT_SECONDS
        while not (shown := document(cluster, "cluster", "moves")["stuck"]):
            assert time.monotonic() < deadline, "the metadata leader has not noticed"
            time.sleep(0.1)
        assert [(one["topic"], one["partition"], one["broker_id"], one["reason"]) for one in shown] == [
            (TOPIC, 0, None, reason)
        ]
        assert f"raftmq topic alter {TOPIC} --replication-factor 2" in shown[0]["advice"]
        status = raftmq(cluster, "cluster", "status")
        assert (status.returncode, reason in status.stdout.decode()) == (6, True), status.stdout
        assert reason in raftmq(cluster, "cluster", "moves").stdout.decode()
        cluster.restart(third)
        cluster.wait_ready(third)
        waited = raftmq(cluster, "topic", "alter", TOPIC, "--replication-factor", "3")
        assert waited.returncode == 0, waited.stderr
        assert document(cluster, "cluster", "moves")["stuck"] == []
