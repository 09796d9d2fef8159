"""The examples, the tutorial, the page about backups, and our programs on the pages about Kafka and other queues run and print the promised output."""

import ast
import asyncio
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
import raftmq
from raftmq.sync import Admin, Consumer, Producer, Queue
from raftmq.testing import LocalCluster
from raftmq.types import TopicPartition

from tests.support.e2e.guide_programs import read_page

pytestmark = [pytest.mark.e2e]

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = sorted(
    path
    for folder in ("examples/producers", "examples/queues")
    for path in (ROOT / folder).glob("*.py")
    if path.name != "__init__.py"
)
KAFKA_PAGE = ROOT / "docs/guides/coming-from-kafka.md"
QUEUES_PAGE = ROOT / "docs/guides/coming-from-queues.md"
TUTORIAL = read_page(ROOT / "docs/guides/tutorial.md")
BACKUPS = read_page(ROOT / "docs/guides/backups.md")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1) as running:
        yield running


def run(arguments: list[str], cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        arguments,
        cwd=cwd,
        env=os.environ | {"PYTHONWARNINGS": "error"} | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def promised_output(program: Path) -> str:
    docstring = inspect.cleandoc(ast.get_docstring(ast.parse(program.read_text())) or "")
    _, _, promised = docstring.partition("Prints::\n\n")
    assert promised, f"{program.name} does not say what it prints"
    return dedent(promised).strip() + "\n"


@pytest.mark.parametrize("program", PROGRAMS, ids=[path.stem for path in PROGRAMS])
def test_an_example_prints_the_output_in_its_docstring(cluster: LocalCluster, tmp_path: Path, program: Path) -> None:
    assert run([sys.executable, str(program), cluster.bootstrap_servers], tmp_path) == promised_output(program)


def test_the_commands_of_the_tutorial_print_the_shown_output(cluster: LocalCluster, tmp_path: Path) -> None:
    servers = cluster.bootstrap_servers
    for name, text in TUTORIAL.files.items():
        (tmp_path / name).write_text(text.replace("localhost:9400", servers))
    assert TUTORIAL.commands[0].line == "raftmq dev", "this cluster replaces it, and tests/e2e/test_cli_dev.py runs it"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    checked = 0
    for command in TUTORIAL.commands[1:]:
        said = run(["sh", "-c", command.line], tmp_path, RAFTMQ_BOOTSTRAP_SERVERS=servers, PATH=path)
        if command.output is not None:
            assert said == command.output, command.line
            checked += 1
    assert checked >= 5
    programs = {
        line.split()[1] for line in (command.line for command in TUTORIAL.commands) if line.startswith("python ")
    }
    imported = {
        f"{name}.py"
        for text in TUTORIAL.files.values()
        for name in re.findall(r"^from (\w+) import", text, re.MULTILINE)
    }
    assert set(TUTORIAL.files) <= programs | imported, "a program that nobody runs"


def our_programs() -> list[str]:
    blocks = re.findall(r"```python\n(.*?)```", KAFKA_PAGE.read_text(), re.DOTALL)
    return [block for block in blocks if block.startswith("# RaftMQ")]


@pytest.mark.parametrize("program", our_programs(), ids=["asyncio", "blocking"])
def test_our_programs_on_the_page_about_kafka_run(cluster: LocalCluster, program: str) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topic("flights", partitions=1, if_not_exists=True)
        end = sum(partition.partition + 1 for partition in admin.describe_topic("flights").partitions)
    assert end == 1
    reported: list[int] = []
    names: dict[str, object] = {
        "Producer": raftmq.Producer,
        "raftmq": raftmq,
        "report": lambda delivery: reported.append(delivery.result().offset),
    }
    code = compile(
        program.replace("localhost:9400", cluster.bootstrap_servers),
        str(KAFKA_PAGE),
        "exec",
        ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
    )
    result = eval(code, names)
    if inspect.iscoroutine(result):
        asyncio.run(result)
        reported.append(names["metadata"].offset)  # type: ignore[attr-defined]
    assert len(reported) == 1
    assert reported[0] >= 0


def queue_programs() -> list[tuple[str, str]]:
    """Return our programs on the page about other queues, each with the output that follows it."""
    found: list[tuple[str, str]] = re.findall(
        r"```python\n(# RaftMQ\n.*?)```\n\n```text\n(.*?)```", QUEUES_PAGE.read_text(), re.DOTALL
    )
    return found


@pytest.mark.parametrize(("program", "output"), queue_programs(), ids=["rabbitmq", "celery", "sqs"])
def test_our_programs_on_the_page_about_other_queues_print_the_shown_output(
    cluster: LocalCluster, tmp_path: Path, program: str, output: str
) -> None:
    file = tmp_path / "program.py"
    file.write_text(program.replace("localhost:9400", cluster.bootstrap_servers))
    assert run([sys.executable, str(file)], tmp_path) == output


def test_the_programs_of_other_queues_compile() -> None:
    blocks = re.findall(r"```python\n(.*?)```", QUEUES_PAGE.read_text(), re.DOTALL)
    assert [block.split("\n", 1)[0] for block in blocks] == [
        "# pika",
        "# RaftMQ",
        "# Celery",
        "# RaftMQ",
        "# boto3",
        "# RaftMQ",
    ]
    for block in blocks:
        compile(block, str(QUEUES_PAGE), "exec")


def test_the_commands_of_the_page_about_backups_copy_topics(tmp_path: Path) -> None:
    with LocalCluster(brokers=1) as cluster:  # the page and the tutorial use the same names of topics
        _copy_topics(cluster.bootstrap_servers, tmp_path)


def _copy_topics(servers: str, directory: Path) -> None:
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topic("orders", partitions=6, if_not_exists=True)
        admin.create_topic("jobs", kind="queue", if_not_exists=True)
        admin.put_schedule("jobs", "report", b"report", cron="0 9 * * *")
    with Producer(bootstrap_servers=servers) as producer, Queue("jobs", bootstrap_servers=servers) as queue:
        producer.send_and_wait("orders", b"tea", key=b"backed-up")
        queue.put(b"resize 17", id="resize-17", tenant="acme")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    commands = [command.line for command in BACKUPS.commands if command.line.startswith("raftmq ")]
    assert len(commands) >= 10
    for command in commands:
        run(["sh", "-c", command], directory, RAFTMQ_BOOTSTRAP_SERVERS=servers, PATH=path)
    assert {path.name for path in directory.iterdir()} >= {"orders.jsonl", "jobs.jsonl", "schedules.jsonl"}
    assert all(path.stat().st_size for path in directory.iterdir())
    with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("orders-again", number) for number in range(6)])
        keys: list[bytes | None] = []
        while b"backed-up" not in keys:
            keys += [record.key for records in consumer.getmany(timeout_ms=1000).values() for record in records]
    with Queue("jobs-again", bootstrap_servers=servers) as queue:
        copied = queue.get(wait_ms=10_000)
        assert copied is not None
        assert (copied.value, copied.id, copied.tenant) == (b"resize 17", "resize-17", "acme")
