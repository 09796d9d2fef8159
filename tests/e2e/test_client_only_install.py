"""A wheel installed without extras: the SDK works with its five packages, and everything else names the extra it needs."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from raftmq.extras import MODULES
from raftmq.testing import LocalCluster

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BIN = Path(sys.executable).parent
CLIENT_PACKAGES = ["cramjam", "crc32c", "grpcio", "msgspec", "protobuf"]
TRANSITIVE_PACKAGES = ["typing_extensions"]
"""Dependencies of the five packages."""
LAYERED = ("api", "assignors", "broker", "cli", "client", "fsm", "pyspark_raftmq", "raft", "spark", "storage")
BUILD_FILES = ("pyproject.toml", "README.md", "LICENSE", "queue.proto")

pytestmark = pytest.mark.e2e


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "RAFTMQ_", "VIRTUAL_ENV", "PYTEST"))
    }
    return subprocess.run(
        [str(part) for part in command], check=False, capture_output=True, text=True, timeout=240, env=environment
    )


def succeeded(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr or done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy of the sources, because setuptools leaves files beside them."""
    source = tmp_path_factory.mktemp("source")
    for name in LAYERED:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in BUILD_FILES:
        shutil.copy(ROOT / name, source / name)
    arguments = ("--wheel", "--no-build-isolation", "--python", sys.executable, "--out-dir", source / "dist")
    succeeded(run(BIN / "uv", "build", *arguments, source))
    (found,) = (source / "dist").glob("raftmq-*.whl")
    return found


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel and its dependencies into a fresh environment, and return the folder of its programs."""
    folder = tmp_path_factory.mktemp("environment")
    succeeded(run(BIN / "uv", "venv", "--clear", "--python", sys.executable, folder))
    pins = folder / "pins.txt"
    pins.write_text("\n".join(re.findall(r"^[\w.-]+==\S+", (ROOT / "requirements.lock").read_text(), re.MULTILINE)))
    succeeded(run(BIN / "uv", "pip", "install", "--python", folder / "bin" / "python", "-c", pins, wheel))
    return folder / "bin"


def test_only_the_packages_of_the_sdk_are_installed(environment: Path) -> None:
    program = "import importlib.metadata as m; print(*sorted(d.name for d in m.distributions()))"
    installed = succeeded(run(environment / "python", "-c", program)).split()
    assert installed == sorted([*CLIENT_PACKAGES, *TRANSITIVE_PACKAGES, "raftmq"])


PROGRAM = """
import asyncio, sys, raftmq, raftmq.sync, raftmq.serializers, raftmq.testing
from raftmq import Admin, Consumer, Producer, TopicPartition, Worker

for name in raftmq.__all__:
    assert getattr(raftmq, name) is not None, name

async def main(servers):
    async with Admin(bootstrap_servers=servers) as admin:
        await admin.create_topic("greetings")
        try:
            await admin.delete_topic("nowhere")
        except raftmq.errors.UnknownTopicError:
            pass
    async with Producer(bootstrap_servers=servers, compression_type="lz4") as producer:
        written = await producer.send_and_wait("greetings", b"hello", b"world")
        assert written.offset == 0
    async with Consumer("greetings", group_id="g", bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        record = await anext(consumer)
        print(record.key, record.value)

asyncio.run(main(sys.argv[1]))
with raftmq.sync.Producer(bootstrap_servers=sys.argv[1]) as producer:
    assert producer.send_and_wait("greetings", b"again").offset == 1
"""


def test_the_sdk_without_extras_writes_and_reads(environment: Path) -> None:
    with LocalCluster(brokers=1) as cluster:
        done = run(environment / "python", "-c", PROGRAM, cluster.bootstrap_servers)
    assert succeeded(done) == "b'world' b'hello'\n"
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "name", "extra"),
    [
        (("broker", "start", "--bootstrap"), "raftmq broker start", "server"),
        (("config", "show"), "raftmq config", "server"),
        (("dev",), "raftmq dev", "server"),
        (("doctor", "somewhere"), "raftmq doctor", "server"),
        (("recover", "metadata", "somewhere"), "raftmq recover", "server"),
        (("config", "set", "log_level=info"), "raftmq config", "cli"),
        (("topic", "list"), "raftmq topic", "cli"),
        (("broker", "start", "--help"), "raftmq broker start", "cli"),
        ((), "raftmq", "cli"),
    ],
)
@pytest.mark.long
def test_a_command_names_the_extra_that_it_needs(
    environment: Path, arguments: tuple[str, ...], name: str, extra: str
) -> None:
    for command in ((environment / "raftmq",), (environment / "python", "-m", "raftmq")):
        done = run(*command, *arguments)
        assert done.returncode == 1
        assert re.fullmatch(
            rf"raftmq: {name} needs packages that are not installed \(.*typer.*\): pip install 'raftmq\[{extra}\]'\n",
            done.stderr,
        ), done.stderr


def test_local_cluster_names_the_extra_that_it_needs(environment: Path) -> None:
    program = "from raftmq.testing import LocalCluster\nLocalCluster().start()"
    done = run(environment / "python", "-c", program)
    assert "MissingExtraError: LocalCluster needs packages that are not installed (cronsim, " in done.stderr
    assert done.stderr.endswith("pip install 'raftmq[server]'\n")


def test_the_module_for_tracing_names_the_extra_that_it_needs(environment: Path) -> None:
    done = run(environment / "python", "-c", "import raftmq.tracing")
    assert done.stderr.endswith("MissingExtraError: raftmq.tracing needs opentelemetry: pip install 'raftmq[otel]'\n")


def test_the_project_depends_only_on_the_packages_of_a_client() -> None:
    assert [re.split(r"[<>=]", line)[0] for line in PROJECT["dependencies"]] == CLIENT_PACKAGES


@pytest.mark.parametrize("extra", MODULES)
def test_the_modules_of_an_extra_are_those_of_its_packages(extra: str) -> None:
    extras = PROJECT["optional-dependencies"]
    lines = [*extras[extra], *(extras["cli"] if "raftmq[cli]" in extras[extra] else ())]
    packages = {re.split(r"[<>=;]", line)[0] for line in lines if not line.startswith("raftmq[")}
    homes = importlib.metadata.packages_distributions()
    # A namespace such as google belongs to several packages.
    found = {home.replace("_", "-") for module in MODULES[extra] for home in homes[module.split(".")[0]]} & packages
    assert found == packages
    assert set(extras["all"]) == {f"raftmq[{','.join(sorted(MODULES))}]"}
