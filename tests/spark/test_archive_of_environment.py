"""The guide's archive of an environment: a cluster whose machines have only Spark needs nothing else for RaftMQ."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from raftmq import sync

from tests.spark.conftest import QUICK_JAVA, SETTINGS, prepare_environment
from tests.spark.test_guide import section
from tests.support.spark.reading import value_counts
from tests.support.spark.standalone import Standalone, running

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
ROOT = Path(__file__).resolve().parents[2]
JOB = ROOT / "tests/support/spark/submitted_job.py"
FRUGAL = SETTINGS | {"spark.executor.memory": "512m", "spark.executor.extraJavaOptions": QUICK_JAVA}


@pytest.fixture
def spark_home() -> Path:
    import pyspark

    prepare_environment()
    return Path(pyspark.__file__).parent


@pytest.fixture
def standalone(tmp_path: Path, spark_home: Path) -> Iterator[Standalone]:
    """Yield a standalone cluster whose processes have nothing of RaftMQ in their environment."""
    (folder := tmp_path / "standalone").mkdir()
    bare = {
        "PATH": os.defpath,
        "HOME": str(folder),
        "JAVA_HOME": os.environ["JAVA_HOME"],
        "SPARK_HOME": str(spark_home),
    }
    with running(folder, bare) as cluster:
        yield cluster


@pytest.fixture
def submitting(tmp_path: Path, spark_home: Path) -> dict[str, str]:
    """Return the environment of a user who has Spark's programs in the path."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in FRUGAL.items()))
    ours = re.compile("PYTHON|PYSPARK|SPARK|VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if not ours.match(name)}
    path = f"{spark_home / 'bin'}{os.pathsep}{environment['PATH']}"
    return environment | {
        "PATH": path,
        "SPARK_HOME": str(spark_home),
        "SPARK_CONF_DIR": str(tmp_path / "conf"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def guide_commands(replaced: dict[str, str]) -> str:
    [commands] = re.findall(r"```sh\n(.*?)```", section("Installing it for Spark"), re.DOTALL)
    for old, new in replaced.items():
        assert commands.count(old) == 1
        commands = commands.replace(old, new)
    return str(commands)


def test_executors_need_only_the_archive(
    standalone: Standalone,
    submitting: dict[str, str],
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

    commands = guide_commands(
        {
            "python3.12": sys.executable,
            "install raftmq": "install ./raftmq",
            "spark://master:7077": standalone.url,
            "job.py": f"job.py {servers} {source} {target}",
        }
    )
    done = subprocess.run(
        ["sh", "-eu", "-c", commands], cwd=tmp_path, env=submitting, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr[-5000:]
    places = json.loads(done.stdout.splitlines()[-1])
    assert len(places) == 2  # one for each executor
    for folder, found in places:
        assert Path(folder).is_relative_to(standalone.folder)
        assert Path(found).is_relative_to(f"{folder}/environment")
    assert value_counts(servers, target) == value_counts(servers, source)
    assert sum(value_counts(servers, target).values()) == 100
