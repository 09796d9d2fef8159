"""The services of docker-compose.yml work as the file has them: the brokers form one cluster in any order, and survive restarts and a lost volume."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.compose import BROKERS, Compose

pytestmark = pytest.mark.long


@pytest.fixture
def compose(tmp_path: Path) -> Iterator[Compose]:
    running = Compose(tmp_path)
    yield running
    running.close()


def test_a_broker_can_write_only_to_its_volume(compose: Compose) -> None:
    words = ["sh", "-c", "touch /var/lib/raftmq/allowed && ! touch /etc/forbidden 2>/dev/null"]
    assert compose.popen("one", words, subprocess.DEVNULL).wait() == 0
    assert [file.name for file in compose.volume("one").iterdir()] == ["allowed"]
    assert list(compose.volume("two").iterdir()) == []


def test_the_services_form_one_cluster_work_and_survive_restarts_and_a_lost_volume(compose: Compose) -> None:
    compose.start("three", "init", "two")
    compose.wait_logged("three", "seed_unavailable")
    compose.start("one")
    compose.wait_logged("init", "was formed")
    compose.wait_healthy(*BROKERS)
    (cluster_id,) = re.findall(r"cluster (\S+) was formed", compose.log("init"))
    assert f"cluster {cluster_id} exists already" in compose.run("init")

    compose.start("producer")
    compose.wait_logged("producer", "wrote")  # a worker that finds no topic ends, and the engine restarts it
    compose.start("worker")
    compose.wait_logged("worker", "invoice for", times=3)

    for broker in BROKERS:
        assert compose.stop(broker) == 0, compose.log(broker)
        invoices = compose.log("worker").count("invoice for")
        compose.wait_logged("worker", "invoice for", times=invoices + 2)
        compose.start(broker)
        compose.wait_healthy(*BROKERS)

    assert compose.stop("one") == 0
    assert (compose.volume("one") / "node.mdb").exists()
    shutil.rmtree(compose.volume("one"))
    compose.start("one")
    compose.wait_healthy(*BROKERS)
    assert f"cluster {cluster_id} exists already" in compose.run("init")
    invoices = compose.log("worker").count("invoice for")
    compose.wait_logged("worker", "invoice for", times=invoices + 2)

    for service in ("producer", "worker", *BROKERS):
        assert compose.stop(service) == 0, compose.log(service)
