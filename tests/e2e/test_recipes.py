"""The programs of the recipes run as processes that are stopped and killed."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from threading import Event, Thread

import pytest
from raftmq.cluster_addresses import Addresses, HeldPorts
from raftmq.sync import Admin, Consumer, Producer
from raftmq.testing import LocalCluster
from raftmq.types import TopicPartition

from tests.house.test_house import strip_docstrings
from tests.support.e2e.raftmq_command import environment_of

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]
WAIT_SECONDS = 60.0
ORDERS = 400
REPEATED = 40
"""Number of orders that are in the topic twice."""


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1) as running:
        with Admin(bootstrap_servers=running.bootstrap_servers) as admin:
            admin.create_topic("orders", partitions=4)
        yield running


@contextmanager
def running(cluster: LocalCluster, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", *command], cwd=ROOT, env=environment_of(cluster), stderr=subprocess.PIPE
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def keys_of(cluster: LocalCluster, topic: str) -> list[bytes]:
    """Return the keys of all records of the topic."""
    with Consumer(bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        partitions = [TopicPartition(topic, number) for number in range(4)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        keys: list[bytes] = []
        while len(keys) < sum(ends.values()):
            for records in consumer.getmany(timeout_ms=1000).values():
                keys += [record.key or b"" for record in records]
    return keys


def test_the_programs_of_the_guide_are_the_examples() -> None:
    shown = re.findall(r"```python\n(.*?)```", (ROOT / "docs/guides/recipes.md").read_text(), re.DOTALL)
    assert len(shown) == 3
    examples = [_without_blank(strip_docstrings(path.read_text())) for path in (ROOT / "examples").glob("*.py")]
    for block in shown:
        assert any(_without_blank(block).rstrip() in example for example in examples), block


def _without_blank(text: str) -> str:
    return re.sub(r"\n\s*\n", "\n", text)


class Customers:
    """Threads that send orders until they are stopped, and the answers to them."""

    def __init__(self, port: int) -> None:
        self.accepted: list[bytes] = []
        self.refused: list[tuple[int, bytes]] = []
        self._port = port
        self._is_over = Event()
        self._numbers = count()
        self._threads = [Thread(target=self._order) for _ in range(8)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(WAIT_SECONDS)
            assert not thread.is_alive()

    def _order(self) -> None:
        with closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=WAIT_SECONDS)) as connection:
            while not self._is_over.is_set():
                order = b"order-%d" % next(self._numbers)
                try:
                    connection.request("POST", "/orders", b"tea", {"Idempotency-Key": order.decode()})
                    answer = connection.getresponse()
                    body = answer.read()
                except (http.client.HTTPException, OSError):
                    return  # the service has ended
                if answer.status == 202:
                    self.accepted.append(order)
                else:
                    self.refused.append((answer.status, body))


@pytest.fixture
def port() -> Iterator[int]:
    """Yield a port that no other program gets."""
    with closing(HeldPorts()) as held:
        yield int(held.hold(Addresses()).client.rpartition(":")[2])


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_web_service_that_is_stopped_has_written_every_order_that_it_accepted(
    cluster: LocalCluster, port: int
) -> None:
    with running(
        cluster, "uvicorn", "examples.web_orders:app", "--port", str(port), "--log-level", "warning"
    ) as service:
        wait_until(lambda: is_open(port))
        customers = Customers(port)
        try:
            wait_until(lambda: len(customers.accepted) > 200)
            service.send_signal(signal.SIGTERM)
            code = service.wait(WAIT_SECONDS)
        finally:
            service.kill()
            customers.stop()
    assert code in (0, -signal.SIGTERM)  # uvicorn raises the signal again after its shutdown
    assert not customers.refused
    written = keys_of(cluster, "orders")
    assert set(customers.accepted) <= set(written)
    assert len(written) == len(set(written))


def test_a_web_service_tells_whether_an_order_may_have_been_written_when_no_broker_runs(
    cluster: LocalCluster, port: int
) -> None:
    with running(cluster, "uvicorn", "examples.web_orders:app", "--port", str(port), "--log-level", "warning"):
        wait_until(lambda: is_open(port))
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_SECONDS)) as connection:
            connection.request("POST", "/orders", b"tea")
            answer = connection.getresponse()
            assert (answer.status, b"Idempotency-Key" in answer.read()) == (400, True)
            connection.request("POST", "/orders", b"tea", {"Idempotency-Key": "one"})
            answer = connection.getresponse()
            assert (answer.status, b'"offset":0' in answer.read()) == (202, True)
            cluster.kill(1)
            connection.request("POST", "/orders", b"tea", {"Idempotency-Key": "two"})
            answer = connection.getresponse()
            assert answer.status == 503
            assert answer.headers["Retry-After"] == "1"
            assert json.loads(answer.read())["written"] in ("no", "maybe")


@pytest.mark.long
def test_an_idempotent_handler_counts_each_order_once_however_often_it_is_killed(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    path = tmp_path / "shop.db"
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for number in range(ORDERS):
            producer.send("orders", b"tea" if number % 4 else b"milk", key=b"order-%d" % (number % (ORDERS - REPEATED)))

    def sold() -> dict[bytes, int]:
        with closing(sqlite3.connect(path, timeout=WAIT_SECONDS)) as database:
            has_table = database.execute("SELECT 1 FROM sqlite_master WHERE name = 'sold'").fetchone()
            return dict(database.execute("SELECT article, count FROM sold")) if has_table else {}

    for kill_at in (ORDERS // 4, ORDERS // 2):
        with running(cluster, "examples.idempotent_orders", str(path)) as worker:
            wait_until(lambda: sum(sold().values()) >= kill_at)  # noqa: B023 - called in this round only
            worker.kill()
            worker.wait(WAIT_SECONDS)
    with running(cluster, "examples.idempotent_orders", str(path)) as worker:
        wait_until(lambda: sum(sold().values()) >= ORDERS - REPEATED)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(WAIT_SECONDS) == 0
    assert sold() == {b"milk": (ORDERS - REPEATED) // 4, b"tea": (ORDERS - REPEATED) * 3 // 4}
