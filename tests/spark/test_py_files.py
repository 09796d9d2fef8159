"""The guide to clusters: a program brings RaftMQ along as one zip file, to machines that have only the packages that it needs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from raftmq import sync
from raftmq.spark import register
from raftmq.spark.data_source import RaftMQDataSource

from tests.spark.test_archive_of_environment import JOB, ROOT, spark_home, standalone, submitting
from tests.support.spark.reading import value_counts
from tests.support.spark.standalone import Standalone

__all__ = ["spark_home", "standalone", "submitting"]  # fixtures

GUIDE = ROOT / "docs/guides/spark-clusters.md"


def test_register_gives_the_session_the_data_source() -> None:
    registered: list[object] = []
    session = SimpleNamespace(dataSource=SimpleNamespace(register=registered.append))
    register(session)
    assert registered == [RaftMQDataSource]


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """Return an interpreter that finds all packages of the tests' environment except RaftMQ, which a .pth file there links."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    [packages] = (tmp_path / "bare").glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = tmp_path / "bare/bin/python"
    found = subprocess.run([python, "-c", "import grpc, pyspark, raftmq"], capture_output=True, text=True, check=False)
    assert "No module named 'raftmq'" in found.stderr
    return python


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_program_brings_the_package_along(
    standalone: Standalone,
    submitting: dict[str, str],
    bare_python: Path,
    servers: str,
    producer: sync.Producer,
    topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    source, target = topic(partitions=2), topic(partitions=2)
    for partition in range(2):
        records = [(None, b"%d" % number) for number in range(partition, 100, 2)]
        producer.send_many(source, records, partition=partition).result()
    shutil.copytree(ROOT, tmp_path / "raftmq", ignore=shutil.ignore_patterns(".*"))
    shutil.copy(JOB, tmp_path / "job.py")
    [commands] = re.findall(r"```sh\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    for old, new in {
        "pip wheel": f"{sys.executable} -m pip wheel --no-build-isolation",
        "wheels raftmq": "wheels ./raftmq",
        "spark://master:7077": standalone.url,
        "job.py": f"job.py {servers} {source} {target} register",
    }.items():
        assert commands.count(old) == 1
        commands = commands.replace(old, new)
    environment = submitting | {"PYSPARK_PYTHON": str(bare_python)}

    done = subprocess.run(
        ["sh", "-eu", "-c", commands], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr[-5000:]
    places = json.loads(done.stdout.splitlines()[-1])
    assert len(places) == 2  # one for each executor
    for folder, found in places:
        assert Path(folder).is_relative_to(standalone.folder)
        assert Path(folder, found) == Path(folder, "raftmq.zip/raftmq/__init__.py")
    assert value_counts(servers, target) == value_counts(servers, source)
    assert sum(value_counts(servers, target).values()) == 100
