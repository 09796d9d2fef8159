"""`raftmq worker run` as a process: its work, its drain on SIGTERM and Ctrl-C, its exit codes, and the guide's examples."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from raftmq.cli.exit_codes import ExitCode
from raftmq.sync import Admin, Producer
from raftmq.testing import LocalCluster

from tests.house.test_house import strip_docstrings
from tests.support.e2e.group_progress import progress
from tests.support.e2e.raftmq_command import RAFTMQ, environment_of

pytestmark = [pytest.mark.e2e]

ROOT = Path(__file__).resolve().parents[2]
WAIT_SECONDS = 60.0
HANDLERS = '''
import asyncio, os, sys, time
from pathlib import Path

HERE = Path(__file__).parent

def handle(record):
    """Print the record and the process id."""
    print(record.offset, record.value.decode(), os.getpid(), flush=True)

def wait(record):
    """Wait until the test creates the file `go`."""
    print("begun", record.offset, flush=True)
    while not (HERE / "go").exists():
        time.sleep(0.01)
    print("ended", record.offset, flush=True)

async def never(record):
    print("begun", record.offset, flush=True)
    await asyncio.Event().wait()

async def block(record):
    """Block the event loop, as a forgotten time.sleep or a driver that is not asynchronous does."""
    print("begun", record.offset, flush=True)
    time.sleep(3600)

def fail(record):
    raise ValueError("no good")
'''


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1) as running:
        yield running


@pytest.fixture
def handlers(tmp_path: Path) -> Path:
    (tmp_path / "handlers.py").write_text(HANDLERS)
    return tmp_path


def write(cluster: LocalCluster, topic: str, *values: bytes, key: bytes = b"k", partitions: int = 1) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topic(topic, partitions=partitions, if_not_exists=True)
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for value in values:
            producer.send_and_wait(topic, value, key)


def committed(cluster: LocalCluster, topic: str) -> int | None:
    return asyncio.run(progress(cluster, topic, "g")).get(0)


class Running:
    """A process of `raftmq worker run`."""

    def __init__(self, cluster: LocalCluster, directory: Path, handler: str, topic: str, *options: str) -> None:
        self.process = subprocess.Popen(
            [*RAFTMQ, "worker", "run", handler, "--topic", topic, "--group", "g", *options],
            cwd=directory,
            env=environment_of(cluster),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def line(self) -> str:
        """Return the next line of its output."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        return line.rstrip("\n")

    def send(self, number: signal.Signals, *, to_group: bool = False) -> None:
        if to_group:
            os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)

    def wait_draining(self) -> None:
        """Return when its log says that it drains and starts no more records."""
        assert self.process.stderr is not None
        while "worker_draining" not in (line := self.process.stderr.readline()):
            assert line, "it ended"

    def end(self) -> tuple[int, str, str]:
        """Wait for its end, and return its exit code, the rest of its output, and its errors."""
        output, errors = self.process.communicate(timeout=WAIT_SECONDS)
        return self.process.returncode, output, errors


@contextmanager
def worker(cluster: LocalCluster, directory: Path, handler: str, topic: str, *options: str) -> Iterator[Running]:
    running = Running(cluster, directory, handler, topic, *options)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.kill()
        running.process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_on_a_signal_the_worker_finishes_running_handlers_commits_and_exits_with_0(
    cluster: LocalCluster, handlers: Path, number: signal.Signals
) -> None:
    """The second record of the key is not started."""
    topic = f"drains-{number.name}"
    write(cluster, topic, b"one", b"two")
    with worker(cluster, handlers, "handlers:wait", topic) as running:
        assert running.line() == "begun 0"
        running.send(number)
        running.wait_draining()
        (handlers / "go").touch()
        code, output, errors = running.end()
    assert (code, output) == (ExitCode.OK, "ended 0\n"), errors
    assert committed(cluster, topic) == 1


def test_handlers_that_exceed_the_drain_timeout_are_abandoned_and_the_outcome_is_unknown(
    cluster: LocalCluster, handlers: Path
) -> None:
    write(cluster, "late", b"one")
    with worker(cluster, handlers, "handlers:never", "late", "--drain-timeout", "0.1s") as running:
        assert running.line() == "begun 0"
        running.send(signal.SIGTERM)
        code, _, errors = running.end()
    assert code == ExitCode.UNKNOWN_OUTCOME
    assert re.search(r"^raftmq: 1 handlers were still running when the worker stopped", errors, re.MULTILINE)
    assert committed(cluster, "late") is None


def test_an_async_handler_that_blocks_its_loop_does_not_keep_the_worker_from_ending(
    cluster: LocalCluster, handlers: Path
) -> None:
    write(cluster, "blocked", b"one")
    with worker(cluster, handlers, "handlers:block", "blocked", "--drain-timeout", "100ms") as running:
        assert running.line() == "begun 0"
        running.send(signal.SIGTERM)
        code, _, errors = running.end()
    assert code == ExitCode.UNKNOWN_OUTCOME
    assert re.search(r"^raftmq: 1 handlers were still running when the worker stopped", errors, re.MULTILINE)
    assert committed(cluster, "blocked") is None


def test_a_second_signal_ends_the_worker_immediately(cluster: LocalCluster, handlers: Path) -> None:
    """Not even a thread that never returns keeps the process from ending."""
    write(cluster, "hurry", b"one")
    with worker(
        cluster, handlers, "handlers:wait", "hurry", "--drain-timeout", "3600s", "--log-level", "info"
    ) as running:
        assert running.line() == "begun 0"
        running.send(signal.SIGINT)
        running.wait_draining()
        running.send(signal.SIGINT)
        code, _, errors = running.end()
    assert code == ExitCode.UNKNOWN_OUTCOME
    assert "Traceback" not in errors


@pytest.mark.slow
def test_a_worker_with_processes_exits_cleanly_on_ctrl_c_to_all_of_them(cluster: LocalCluster, handlers: Path) -> None:
    """A terminal sends Ctrl-C to the whole process group."""
    write(cluster, "parallel", b"one", b"two", partitions=1)
    options = ("--executor", "process", "--concurrency", "2", "--handler-timeout", "60s")
    with worker(cluster, handlers, "handlers:handle", "parallel", *options) as running:
        words = [running.line().split() for _ in range(2)]
        assert [word[:2] for word in words] == [["0", "one"], ["1", "two"]]
        assert running.process.pid not in {int(word[2]) for word in words}
        running.send(signal.SIGINT, to_group=True)
        code, _, errors = running.end()
    assert code == ExitCode.OK, errors
    assert committed(cluster, "parallel") == 2


def test_poison_without_a_dead_letter_topic_exits_with_6(cluster: LocalCluster, handlers: Path) -> None:
    write(cluster, "poisoned", b"one")
    with worker(cluster, handlers, "handlers:fail", "poisoned", "--retries", "0") as running:
        code, _, errors = running.end()
    assert code == ExitCode.BAD_DATA
    complaint = [line for line in errors.splitlines() if line.startswith("raftmq: ")]
    assert len(complaint) == 1
    assert "poisoned/0 offset 0 failed 1 times, last with ValueError: no good" in complaint[0]


def test_a_topic_that_does_not_exist_exits_with_4(cluster: LocalCluster, handlers: Path) -> None:
    with worker(cluster, handlers, "handlers:handle", "no-such-topic", "--timeout", "5s") as running:
        code, _, errors = running.end()
    assert code == ExitCode.REJECTED
    assert "no-such-topic" in errors


# ------------------------------------------------------------------------------------------------------------ the guide


def guide() -> str:
    return (ROOT / "docs/guides/workers.md").read_text()


def without_blank(text: str) -> str:
    return re.sub(r"\n\s*\n", "\n", text)


def test_the_programs_of_the_guide_are_the_examples() -> None:
    shown = re.findall(r"```python\n(.*?)```", guide(), re.DOTALL)
    assert len(shown) == 6
    examples = [without_blank(strip_docstrings(path.read_text())) for path in (ROOT / "examples").glob("worker_*.py")]
    for block in shown:
        assert any(without_blank(block).rstrip() in example for example in examples), block


def lines_of_example(name: str) -> list[str]:
    """Run an example, which must succeed, and return the lines of its output."""
    done = subprocess.run(
        [sys.executable, "-m", f"examples.{name}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=2 * WAIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_the_first_program_of_the_guide_runs() -> None:
    expected = [f"customer-{customer} {list(range(customer, 20, 4))}" for customer in range(4)]
    assert lines_of_example("worker_first") == expected


@pytest.mark.slow
def test_the_program_of_the_guide_with_retry_reject_and_hooks_runs() -> None:
    expected = ["payments: nobody pays -5 (given up)", "11 bookings, balance 48, closed"]
    assert lines_of_example("worker_payments") == expected


def test_lines_printed_by_handlers_in_many_threads_stay_separate() -> None:
    """`print` writes the line end separately. With it, one in some hundreds of lines would be blank."""
    program = """
import threading
from examples.worker_tasks import handle
from raftmq import Record

def work(partition):
    for offset in range(5000):
        handle(Record("tasks", partition, offset, 0, b"ann", b'{"do": "wash"}'))

threads = [threading.Thread(target=work, args=(partition,)) for partition in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    expected = {f"{partition}/{offset} ann wash" for partition in range(4) for offset in range(5000)}
    lines = done.stdout.splitlines()
    assert len(lines) == len(expected)
    assert set(lines) == expected


async def test_the_commands_of_the_guide_run_and_print_the_described_output(cluster: LocalCluster) -> None:
    """The commands run in their order. The worker receives SIGTERM after it has processed all records."""
    blocks = re.findall(r"```sh\n(.*?)```", guide(), re.DOTALL)
    assert len(blocks) == 3
    prepare, run, show = blocks
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = environment_of(cluster) | {"PATH": path}

    async def shell(command: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_shell(
            f"exec {command.strip()}" if "\n" not in command.strip() else command,
            cwd=ROOT,
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async with asyncio.timeout(WAIT_SECONDS):
        preparing = await shell(prepare)
        _, errors = await preparing.communicate()
        assert preparing.returncode == 0, errors
        working = await shell(run)
        assert working.stdout is not None
        assert working.stderr is not None
        said = [(await working.stdout.readline()).decode() for _ in range(4)]
        while b"record_dead_lettered" not in (line := await working.stderr.readline()):
            assert line, (said, "it ended")
        working.terminate()
        _, errors = await working.communicate()
        assert working.returncode == 0, errors
        showing = await shell(show)
        output, errors = await showing.communicate()
    assert all(re.fullmatch(r"\d/\d (ann|bob) \w+\n", line) for line in said), said
    lines = [line.split(" ", 1)[1].strip() for line in said]
    assert [line for line in lines if line.startswith("ann")] == ["ann wash", "ann dry"]
    assert [line for line in lines if line.startswith("bob")] == ["bob cook", "bob eat"]
    assert showing.returncode == 0, errors
    listed, shown, sent = output.decode().split("topic ")[1], output.decode().split("partition ")[1], output.decode()
    assert re.search(r"^tasks\.dead +1 .* tasks +json\.decoder\.JSONDecodeError$", listed, re.MULTILINE), output
    assert re.search(r" tasks/\d \d+ +chores +3 +bob +json\.decoder\.JSONDecodeError: ", shown), output
    assert sent.endswith("1 record of tasks.dead sent back\n")
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        assert len(admin.describe_topic("tasks.dead").partitions) == 6
