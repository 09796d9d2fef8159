"""Fixtures: one Spark session and one cluster for all tests of Spark. Each test creates its own topics."""

import contextlib
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from raftmq import sync
from raftmq.testing import LocalCluster
from raftmq.types import TopicPartition

from scripts.find_java import ADVICE, find_java

HAS_ADMISSION_CONTROL = find_spec("pyspark.sql.streaming.datasource") is not None
"""Whether Spark is 4.2 or later, in which a source can limit its batches."""
TIMEOUT_SECONDS = 900
"""Time limit of one test. On a busy machine the start of a JVM alone takes minutes."""
STARTS_MAX = 10
MASTER = "local[2]"
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A JVM that runs for a minute does not gain by optimized compilation: without these options the tests take 1.8 times the processor time."""
SETTINGS = {
    "spark.driver.memory": "2g",  # one JVM runs hundreds of queries, and keeps what it shows of them
    "spark.sql.ui.retainedExecutions": "10",
    "spark.ui.retainedJobs": "10",
    "spark.ui.retainedStages": "10",
    "spark.driver.extraJavaOptions": QUICK_JAVA,
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.authenticate.socketTimeout": "300s",  # a new Python worker starts slowly on a busy machine
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_SECONDS))


def prepare_environment() -> None:
    """Set the environment of Spark's processes: Java, and the interpreter of the tests for Python workers."""
    home = find_java()
    if home is None:
        pytest.fail(ADVICE, pytrace=False)
    os.environ["JAVA_HOME"] = str(home)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Spark starts dozens of Python processes. Without compiled modules each of them compiles pyspark, pandas and pyarrow for seconds.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ.setdefault("PYTHONPYCACHEPREFIX", str(Path(__file__).parents[2] / ".venv/pycache"))


def begin(start: Callable[[], Any]) -> Any:
    """Start a query and return it when it has planned its first batch, or ended.

    Spark gives the Python process of a streaming source ten seconds to start. The limit cannot be changed and is too short on a busy
    machine, so a query that failed for that reason before it did anything is started again.
    """
    for _ in range(STARTS_MAX):
        query = start()
        # for the next trigger or, if a plan has found no data, for data: the former message then stands for microseconds
        while query.isActive and not query.status["message"].startswith("Waiting for "):
            query.awaitTermination(0.1)
        if "worker failed to connect back" not in str(query.exception()):
            return query
    pytest.fail("Spark never got its Python process started")


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2) as running:
        yield running


@pytest.fixture(scope="session")
def servers(cluster: LocalCluster) -> str:
    return cluster.bootstrap_servers


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    prepare_environment()
    from pyspark.sql import SparkSession

    folder = tmp_path_factory.mktemp("spark")
    builder = SparkSession.builder.master(MASTER).appName("raftmq tests")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    session = (
        builder.config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.driver.extraJavaOptions", f"{QUICK_JAVA} -Dderby.system.home={folder}")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def admin(servers: str) -> Iterator[sync.Admin]:
    with sync.Admin(bootstrap_servers=servers) as opened:
        yield opened


@pytest.fixture(scope="session")
def producer(servers: str) -> Iterator[sync.Producer]:
    with sync.Producer(bootstrap_servers=servers) as opened:
        yield opened


@pytest.fixture
def topic(admin: sync.Admin) -> Iterator[Callable[..., str]]:
    """Yield a function that creates topics with unique names, such as `topic(partitions=3)`, and delete them after the test."""
    made: list[str] = []

    def make(partitions: int = 1, **config: str | int) -> str:
        name = f"t-{uuid.uuid4().hex[:12]}"
        admin.create_topic(name, partitions=partitions, replication_factor=1, config=config)
        made.append(name)
        return name

    yield make
    for name in made:
        with contextlib.suppress(Exception):  # a test may have deleted it
            admin.delete_topic(name)


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")


@pytest.fixture(scope="session")
def appended_at(servers: str) -> Iterator[Callable[[str, int], int]]:
    """Yield a function that returns the time in milliseconds at which the leader appended a record of partition 0.

    It finds the time by bisection, because no client shows it.
    """
    with sync.Consumer(bootstrap_servers=servers) as consumer:

        def find(topic: str, offset: int) -> int:
            partition = TopicPartition(topic, 0)
            least, most = 0, 1 << 48
            while least < most:  # the last time at or after which the record is still the first one
                middle = (least + most + 1) // 2
                found = consumer.offsets_for_times({partition: middle}, by_append_time=True)[partition]
                if found is not None and found.offset <= offset:
                    least = middle
                else:
                    most = middle - 1
            return least

        yield find
