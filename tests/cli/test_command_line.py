"""The command line without a cluster: what it accepts, what it refuses, and how quickly it says so."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from raftmq.cli import consume, output, produce, topic
from raftmq.types import Record


def raftmq(
    *arguments: str, stdin: bytes = b"", environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "raftmq", *arguments],
        input=stdin,
        capture_output=True,
        check=False,
        timeout=60,
        env=os.environ | {"COLUMNS": "200"} | (environment or {}),
    )


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address where nobody listens, and nobody can begin to."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{reserved.getsockname()[1]}"


def test_the_version_comes_quickly_and_without_the_sdk() -> None:
    program = "import sys; from raftmq.cli.main import app; print([m for m in ('grpc', 'lmdb', 'uvloop', 'rich.table') if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"
    started = time.monotonic()
    done = raftmq("--version")
    assert done.stdout.startswith(b"raftmq ")
    assert done.returncode == 0
    assert time.monotonic() - started < 2.0  # 0.3 s alone; a busy machine gets room


@pytest.mark.parametrize(
    "arguments",
    [
        ("broker", "start"),
        ("broker", "start", "--data-dir", "d", "--bootstrap", "--join", "localhost:1"),
        ("broker", "start", "--data-dir", "d", "--join", "localhost"),
        ("broker", "start", "--data-dir", "d", "--join", ","),
        ("broker", "start", "--data-dir", "d", "--listen", "localhost:port"),
        ("broker", "start", "--data-dir", "d", "--listen", "localhost:65536"),
        ("broker", "start", "--data-dir", "d", "--node-id", "-1"),
        ("broker", "start", "--data-dir", "d", "--set", "no_such_key=1"),
        ("broker", "start", "--data-dir", "d", "--set", "nonsense"),
        ("broker", "start", "--data-dir", "d", "--config", "no-such-file"),
        ("config", "show", "--set", "metadata_voters=2"),
        ("topic", "create"),
        ("topic", "create", "t", "--partitions", "0"),
        ("topic", "create", "t", "--config", "retention"),
        ("produce",),
        ("produce", "t", "--file", "no-such-file"),
        ("consume", "t", "--from-beginning", "--offset", "3"),
        ("consume", "t", "--max-records", "0"),
        ("cluster", "status", "--output", "xml"),
        ("no-such-command",),
    ],
)
def test_a_wrong_command_line_is_exit_code_2_and_does_nothing(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = raftmq(*arguments)
    assert done.returncode == 2
    assert done.stdout == b""
    assert b"Traceback" not in done.stderr
    assert b"unexpected" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("cluster", "status"),
        ("topic", "list"),
        ("topic", "create", "t"),
        ("consume", "t", "--from-beginning"),
        ("produce", "t"),
    ],
)
def test_without_a_cluster_the_exit_code_is_3(arguments: tuple[str, ...], nobody: str) -> None:
    done = raftmq(*arguments, "--bootstrap-servers", nobody, "--timeout", "0.5", stdin=b"x\n")
    assert done.returncode == 3, done.stderr
    assert done.stderr.startswith(b"raftmq: ")
    assert done.stderr.count(b"\n") == 1
    assert nobody.encode() in done.stderr


def test_the_cluster_can_be_named_by_the_environment(nobody: str) -> None:
    done = raftmq("topic", "list", "--timeout", "0.5", environment={"RAFTMQ_BOOTSTRAP_SERVERS": nobody})
    assert done.returncode == 3
    assert nobody.encode() in done.stderr


def test_config_show_names_the_source_of_each_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raftmq.toml").write_text('rack = "r1"\nlog_level = "debug"\n')
    done = raftmq(
        "config", "show", "--set", "metadata_voters=5", "--output", "json", environment={"RAFTMQ_LOG_LEVEL": "error"}
    )
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["rack"] == {"value": "r1", "source": "file raftmq.toml"}
    assert shown["log_level"] == {"value": "error", "source": "environment RAFTMQ_LOG_LEVEL"}
    assert shown["metadata_voters"]["value"] == 5
    assert shown["join"] == {"value": [], "source": "default"}


def test_topic_settings_are_pairs() -> None:
    assert topic.parse_config(["a=1", "b=x=y"]) == {"a": "1", "b": "x=y"}
    with pytest.raises(typer.BadParameter, match="KEY=VALUE"):
        topic.parse_config(["=1"])


@pytest.mark.parametrize(
    ("line", "separator", "record"),
    [
        (b"a:b:c", None, (None, b"a:b:c")),
        (b"a:b:c", b":", (b"a", b"b:c")),
        (b":b", b":", (b"", b"b")),
        (b"abc", b":", (None, b"abc")),
        (b"a=>b", b"=>", (b"a", b"b")),
    ],
)
def test_a_line_splits_into_key_and_value(
    line: bytes, separator: bytes | None, record: tuple[bytes | None, bytes]
) -> None:
    assert produce.split_record(line, separator) == record


def test_lines_end_with_lf_or_crlf_and_the_rest_waits() -> None:
    assert produce.split_lines(b"a", b"b\r\nc\n\nd") == ([b"ab", b"c", b""], b"d")


async def test_lines_come_as_they_are_written_and_the_last_needs_no_end() -> None:
    reading, writing = os.pipe()
    lines = produce.read_lines(reading)
    try:
        os.write(writing, b"one\ntw")
        assert await anext(lines) == ([b"one"], 6)
        os.write(writing, b"o\nthree")
        assert await anext(lines) == ([b"two"], 7)
    finally:
        os.close(writing)
    assert await anext(lines) == ([b"three"], 0)
    with pytest.raises(StopAsyncIteration):
        await anext(lines)
    os.close(reading)


def record(key: bytes | None, value: bytes | None) -> Record:
    return Record("t", 1, 7, 1_700_000_000_000, key, value, (("h", b"\xff"),))


def test_a_record_prints_as_a_line() -> None:
    assert consume.text_line(record(b"k", b"v"), None) == b"v\n"
    assert consume.text_line(record(b"k", b"v"), "\t") == b"k\tv\n"
    assert consume.text_line(record(None, None), ":") == b":\n"


def test_a_record_prints_as_json_whatever_its_bytes() -> None:
    assert json.loads(consume.json_line(record(b"k\xff", None))) == {
        "topic": "t",
        "partition": 1,
        "offset": 7,
        "timestamp": 1_700_000_000_000,
        "key": {"base64": "a/8="},
        "value": None,
        "headers": [["h", {"base64": "/w=="}]],
    }


def test_a_table_that_goes_to_a_program_has_plain_columns(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(["topic", "partitions"], [["a", 1], ["longer-name", 12]])
    assert capsys.readouterr().out.splitlines() == ["topic        partitions", "a            1", "longer-name  12"]
