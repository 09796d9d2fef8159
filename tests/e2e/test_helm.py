"""The pods of the rendered chart form one cluster in any order, and survive kills, a lost volume, one broker more and one less."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.helm.pods import Pods, ended, wait_until

pytestmark = [pytest.mark.long, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]
RECORDS = [f"order {number}" for number in range(200)]


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    running = Pods(tmp_path, "defaults")
    yield running
    running.close()


def consumed(pods: Pods) -> list[str]:
    code, output = pods.command("consume", "orders", "--from-beginning", "--exit-at-end")
    assert code == 0, output
    return sorted(re.findall(r"order \d+", output))


def replicas_of(pods: Pods, number: int) -> int:
    _, output = pods.command("cluster", "status", "-o", "json")
    brokers = {one["id"]: one["replicas"] for one in json.loads(output)["brokers"]}
    return int(brokers.get(number, 0))


def wait_healthy(pods: Pods) -> None:
    wait_until(lambda: pods.command("cluster", "status")[0] == 0, lambda: pods.command("cluster", "status")[1])


def form(pods: Pods) -> str:
    """Start the first three pods in an order of no meaning, beside the job. Return the id of the cluster."""
    pods.start(3)
    init = pods.begin_job("init")
    pods.start(1)
    pods.wait_logged(3, "seed_unavailable")
    assert pods.succeeds(3, "startupProbe")
    assert pods.succeeds(3, "livenessProbe"), "a broker that waits for its cluster must not be restarted"
    assert not pods.succeeds(3, "readinessProbe")
    pods.start(2)
    code, output = ended(init)
    assert code == 0, output
    (cluster_id,) = re.findall(r"cluster (\S+) was formed", output)
    pods.wait_ready(1, 2, 3)
    return str(cluster_id)


def test_the_pods_form_one_cluster_that_survives_a_kill_and_a_lost_volume(pods: Pods) -> None:
    cluster_id = form(pods)
    assert pods.run_job("init") == (0, f"cluster {cluster_id} exists already\n")
    code, output = pods.command("topic", "create", "orders", "--partitions", "6")
    assert code == 0, output
    assert "3" in re.findall(r"replica\D*(\d)", output), "each pod counts as a host of its own"
    assert pods.command("produce", "orders", given="\n".join(RECORDS) + "\n")[0] == 0

    pods.kill(2)
    pods.start(2)
    pods.wait_ready(2)
    wait_healthy(pods)
    assert consumed(pods) == sorted(RECORDS)

    assert pods.stop(3) == 0, pods.log(3)
    assert (pods.volume(3) / "node.mdb").exists()
    shutil.rmtree(pods.volume(3))
    pods.start(3)
    pods.wait_ready(3)
    wait_healthy(pods)
    assert pods.run_job("init") == (0, f"cluster {cluster_id} exists already\n")
    assert consumed(pods) == sorted(RECORDS)
    assert replicas_of(pods, 3) == 6

    for number in (1, 2, 3):
        assert pods.stop(number) == 0, pods.log(number)


def test_one_broker_more_gets_replicas_and_one_less_is_refused_until_it_is_removed(pods: Pods) -> None:
    cluster_id = form(pods)
    assert pods.command("topic", "create", "orders", "--partitions", "8")[0] == 0
    assert pods.command("produce", "orders", given="\n".join(RECORDS) + "\n")[0] == 0

    pods.name = "grown"
    assert pods.run_job("scale-down") == (0, "")
    pods.start(4)
    assert pods.run_job("init") == (0, f"cluster {cluster_id} exists already\n")
    pods.wait_ready(4)
    wait_until(lambda: replicas_of(pods, 4) == 6, lambda: pods.command("cluster", "moves")[1])
    wait_healthy(pods)

    pods.name = "defaults"
    code, output = pods.run_job("scale-down")
    assert code == 1
    assert output == (
        "replicas=3 would stop broker 4 of the cluster. First run: raftmq cluster drain 4; raftmq cluster remove 4\n"
    )
    for command in ("drain", "remove"):
        code, output = pods.command("cluster", command, "4", *(["--yes"] if command == "remove" else []))
        assert code == 0, output
    assert pods.run_job("scale-down") == (0, "")
    assert pods.stop(4) == 0, pods.log(4)
    wait_healthy(pods)
    assert consumed(pods) == sorted(RECORDS)


def test_an_upgrade_of_a_cluster_that_does_not_answer_is_permitted_but_not_with_fewer_pods(pods: Pods) -> None:
    pods.name = "grown"
    pods.start(4)  # it waits for the others, which do not exist
    assert pods.run_job("scale-down") == (0, "")
    pods.name = "defaults"
    code, output = pods.run_job("scale-down")
    assert code == 1
    assert output.startswith("raftmq-4.raftmq-brokers.queues.svc.cluster.local exists, and no remaining broker says")
