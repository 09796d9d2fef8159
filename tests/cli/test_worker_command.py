"""`raftmq worker run` without a cluster: errors of handlers that cannot be loaded, and of wrong options."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from raftmq.cli.exit_codes import CommandError, ExitCode
from raftmq.cli.worker import load_handler

from tests.support.cli.queue_commands import QueueCommands, assert_refused
from tests.support.cli.runner import invoke

MODULES = {
    "good.py": "class Group:\n    @staticmethod\n    def handle(record): pass\ndef handle(record): pass\nasync def later(record): pass\nNUMBER = 3\n",
    "broken.py": "\n\nraise ValueError('no\\nluck')\n",
    "typo.py": "def handle(:\n",
    "leaves.py": "import sys\nsys.exit(3)\n",
    "needs.py": "import a_library_that_is_not_there\n",
    "package/__init__.py": "",
    "package/tasks.py": "def handle(record): pass\n",
}


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in MODULES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in list(MODULES):
        monkeypatch.delitem(sys.modules, name.removesuffix(".py").replace("/", ".").removesuffix(".__init__"), False)
    return tmp_path


@pytest.mark.parametrize("name", ["good:handle", "good:later", "good:Group.handle", "package.tasks:handle"])
def test_a_handler_is_found_by_its_name(modules: Path, name: str) -> None:
    assert callable(load_handler(name, modules))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("good", "is not MODULE:HANDLER"),
        (":handle", "is not MODULE:HANDLER"),
        ("good:", "is not MODULE:HANDLER"),
        (".good:handle", "is not MODULE:HANDLER"),
        ("good.py:handle", "there is no module 'good.py'"),
        ("nowhere:handle", "there is no module 'nowhere'"),
        ("package.nowhere:handle", "there is no module 'package.nowhere'"),
        ("good:missing", "module 'good' has no 'missing'"),
        ("good:Group.missing", "module 'good' has no 'Group.missing'"),
        ("good:NUMBER", "good:NUMBER is not a function but of type int"),
        ("broken:handle", "module 'broken' cannot be imported: ValueError: no"),
        ("typo:handle", "module 'typo' cannot be imported: SyntaxError"),
        ("leaves:handle", "module 'leaves' cannot be imported: SystemExit: 3"),
        ("needs:handle", "module 'needs' cannot be imported: ModuleNotFoundError: No module named 'a_library"),
    ],
)
def test_a_handler_that_cannot_be_loaded_is_a_usage_error(modules: Path, name: str, words: str) -> None:
    with pytest.raises(CommandError) as told:
        load_handler(name, modules)
    assert words in str(told.value)
    assert told.value.code is ExitCode.USAGE


@pytest.mark.parametrize(("name", "place"), [("broken", "broken.py, line 3"), ("needs", "needs.py, line 1")])
def test_the_error_names_the_line_in_which_a_module_is_broken(modules: Path, name: str, place: str) -> None:
    with pytest.raises(CommandError) as told:
        load_handler(f"{name}:handle", modules)
    assert place in str(told.value)


OPTIONS = ("--topic", "t", "--group", "g")


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("good:handle",),
        ("good:handle", "--topic", "t", "--topic", "u"),
        ("good:handle", "--topic", "t", "--dead-letter-topic", "d"),
        ("good:handle", "--topic", "t", "--instance", "one"),
        ("good:handle", "--topic", "t", "--ordering", "none"),
        ("good:handle", "--topic", "t", "--retries", "3"),
        ("good:handle", "--topic", "t", "--retry-backoff", "1s"),
        ("good:handle", "--topic", "t", "--auto-offset-reset", "latest"),
        ("good:handle", "--topic", "t", "--lease", "500ms"),
        ("good:handle", "--topic", "t", "--prefetch", "-1"),
        ("good:handle", *OPTIONS, "--lease", "5m"),
        ("good:handle", *OPTIONS, "--prefetch", "0"),
        ("good:handle", *OPTIONS, "--concurrency", "0"),
        ("good:handle", *OPTIONS, "--ordering", "chaos"),
        ("good:handle", *OPTIONS, "--executor", "moon"),
        ("good:handle", *OPTIONS, "--retries", "-2"),
        ("good:handle", *OPTIONS, "--handler-timeout", "0s"),
        ("good:handle", *OPTIONS, "--app-dir", "no-such-directory"),
        ("good:handle", *OPTIONS, "--log-level", "loud"),
        ("good:handle", *OPTIONS, "--retry-backoff", "10s", "--retry-backoff-max", "1s"),
        ("good:handle", *OPTIONS, "--dead-letter-topic", "t"),
        ("good:handle", *OPTIONS, "--create-dead-letter-topic"),
        ("good:later", *OPTIONS, "--executor", "process"),
    ],
)
def test_wrong_options_exit_with_2_without_a_connection(modules: Path, arguments: tuple[str, ...]) -> None:
    done = invoke("worker", "run", "--app-dir", str(modules), *arguments)
    assert done.exit_code == ExitCode.USAGE, done.output


def test_worker_without_a_subcommand_lists_its_subcommands() -> None:
    done = invoke("worker")
    assert "run" in done.output


@pytest.fixture
def nobody() -> Iterator[str]:
    """Yield an address at which no program listens or can start to listen."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{reserved.getsockname()[1]}"


def test_the_worker_without_a_broker_exits_with_3_and_one_sentence(modules: Path, nobody: str) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "raftmq",
            "worker",
            "run",
            "good:handle",
            *OPTIONS,
            "--bootstrap-servers",
            nobody,
            "--timeout",
            "1s",
        ],
        cwd=modules,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == ExitCode.UNAVAILABLE, done.stderr
    complaints = [line for line in done.stderr.splitlines() if line.startswith("raftmq: ")]
    assert len(complaints) == 1
    assert nobody in complaints[0]
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_without_a_group_a_worker_works_on_a_queue_topic_until_it_is_terminated(
    jobs: QueueCommands, tmp_path: Path
) -> None:
    (tmp_path / "handlers.py").write_text("def handle(record):\n    print(record.value.decode(), flush=True)\n")
    jobs.text("queue", "put", "jobs", "--value", "resize 17")
    options = ("--app-dir", str(tmp_path), "--topic", "jobs", "-c", "1", "--lease", "2m", "--prefetch", "0")
    with jobs.process("worker", "run", "handlers:handle", *options) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"resize 17\n"
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=60)
        assert worker.returncode == 0
    assert jobs.queues[0].settled == [("ACCEPT", 0)]
    _, opening = next(one for one in jobs.cluster.stream_requests if one[1].HasField("open"))
    assert (opening.open.lease_ms, opening.messages_limit) == (120_000, 1)


def test_a_log_topic_needs_a_group(jobs: QueueCommands, modules: Path) -> None:
    jobs.text("topic", "create", "events")
    done = jobs.fed("worker", "run", "good:handle", "--app-dir", str(modules), "--topic", "events", stdin=b"")
    assert_refused(done, 4, "'events' is a topic of kind 'log'")
