"""The command line without a cluster: accepted and refused arguments, formats of records, completion, and start-up time."""

import ctypes
import io
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
import typer
from raftmq.cli import cluster, consume, dev, exit_codes, input_lines, input_records, options, output, times
from raftmq.cli.record_filter import record_filter
from raftmq.cli.record_format import RecordFormat
from raftmq.client.admin.descriptions import BrokerRemoval
from raftmq.fsm.metadata_topics import PARTITIONS_PER_TOPIC_MAX
from raftmq.testing import LocalCluster
from raftmq.types import Record, TopicPartition

from tests.support.cli.runner import invoke, run_here


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
    """Yield an address at which no program listens or can start to listen."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{reserved.getsockname()[1]}"


def test_the_version_comes_quickly_and_without_the_sdk() -> None:
    program = "import sys; from raftmq.cli.main import app; print([m for m in ('grpc', 'lmdb', 'uvloop', 'rich.table') if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = raftmq("--version")
    assert done.stdout.startswith(b"raftmq ")
    assert done.returncode == 0
    # Processor time, because a busy machine may delay the process. It takes 0.3 s, and more if modules are compiled first.
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 2.0


@pytest.mark.parametrize(
    "arguments",
    [
        ("broker", "start"),
        ("broker", "start", "--data-dir", "d"),
        ("broker", "start", "--data-dir", "d", "--join", "localhost"),
        ("broker", "start", "--data-dir", "d", "--join", ","),
        ("broker", "start", "--data-dir", "d", "--listen", "localhost:port"),
        ("broker", "start", "--data-dir", "d", "--listen", "localhost:65536"),
        ("broker", "start", "--data-dir", "d", "--broker-id", "-1"),
        ("broker", "start", "--data-dir", "d", "--set", "no_such_key=1"),
        ("broker", "start", "--data-dir", "d", "--set", "nonsense"),
        ("broker", "start", "--data-dir", "d", "--config", "no-such-file"),
        ("config", "show", "--set", "metadata_voters=2"),
        ("topic", "create"),
        ("topic", "create", "t", "--partitions", "0"),
        ("topic", "create", "t", "--partitions", "9999999999"),
        ("topic", "list", "--timeout", "nan"),
        ("topic", "create", "t", "--config", "retention"),
        ("produce",),
        ("produce", "t", "--file", "no-such-file"),
        ("produce", "t", "--header", "novalue"),
        ("produce", "t", "--key-field", "id"),
        ("produce", "t", "--format", "json", "--key-separator", ":"),
        ("produce", "t", "--compression", "brotli"),
        ("produce", "t", "--key-separator", ""),
        ("produce", "t", "--value", "v", "--file", "/dev/null"),
        ("produce", "t", "--value", "v", "--format", "json"),
        ("produce", "t", "--value", "v", "--key-separator", ":"),
        ("produce", "t", "--key", "k", "--key-separator", ":"),
        ("produce", "t", "--key", "k", "--format", "records"),
        ("consume", "t", "--format", "%x"),
        ("consume", "t", "--format", "100%"),
        ("consume", "t", "--format", "%s", "--output", "json"),
        ("consume", "t", "--format", "%s", "--key-separator", ":"),
        ("consume", "t", "--header", "=v"),
        ("topic", "list", "--timeout", "20"),
        ("dlq", "show", "t", "--offset", "3"),
        ("dlq", "redrive", "t", "--rate", "100"),
        ("dlq", "redrive", "t", "--rate", "0/s"),
        ("cluster", "remove"),
        ("cluster", "remove", "0", "--yes"),
        ("cluster", "remove", "third", "--yes"),
        ("cluster", "raise-level", "--level", "0", "--yes"),
        ("cluster", "drain"),
        ("cluster", "drain", "0"),
        ("cluster", "balancing", "--moves", "0"),
        ("cluster", "balancing", "--rate", "50"),
        ("cluster", "balancing", "--rate", "0MiB/s"),
        ("partition", "describe", "t"),
        ("partition", "move", "t", "0"),
        ("partition", "move", "t", "0", "--to", "1,one"),
        ("partition", "move", "t", "0", "--to", "1,2,1"),
        ("partition", "transfer-leader", "t", "0", "--to", "0"),
        ("topic", "alter", "t"),
        ("topic", "alter", "t", "--replication-factor", "0"),
        ("topic", "alter", "t", "--replication-factor", "3", "--config", "retention.ms=1d"),
        ("topic", "alter", "t", "--unset", "retention.ms", "--dry-run"),
        ("topic", "delete-records", "t"),
        ("topic", "delete-records", "t", "--all", "--before", "3"),
        ("topic", "list", "--bootstrap-servers", "nonsense"),
        ("consume", "t", "--from-beginning", "--offset", "3"),
        ("consume", "t", "--offset", "3", "--from-time", "1h"),
        ("consume", "t", "--from-time", "yesterday"),
        ("consume", "t", "--from-time", "99999999999999999999"),
        ("consume", "t", "--output", "raw", "--key-separator", ":"),
        ("doctor",),
        ("doctor", "no-such-directory"),
        ("dev", "--brokers", "0"),
        ("consume", "t", "--max-records", "0"),
        ("cluster", "status", "--output", "xml"),
        ("no-such-command",),
    ],
)
def test_a_wrong_command_line_exits_with_2_and_writes_nothing(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = invoke(*arguments)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert "Usage: raftmq" in done.stderr or done.stderr.startswith("raftmq: ")
    assert "Traceback" not in done.stderr
    assert "unexpected" not in done.stderr
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
def test_commands_exit_with_3_without_a_cluster(arguments: tuple[str, ...], nobody: str) -> None:
    ended = ("--bootstrap-servers", nobody, "--timeout", "0.5s")
    done = run_here(*arguments, *ended, stdin=b"x\n", environment={"COLUMNS": "200"})
    assert done.returncode == 3, done.stderr
    assert done.stderr.startswith(b"raftmq: ")
    assert done.stderr.count(b"\n") == 1
    assert nobody.encode() in done.stderr


def test_the_cluster_can_be_named_by_the_environment(nobody: str) -> None:
    environment = {"RAFTMQ_BOOTSTRAP_SERVERS": nobody}
    done = run_here("topic", "list", "--timeout", "0.5s", stdin=b"", environment=environment)
    assert done.returncode == 3
    assert nobody.encode() in done.stderr


def without_permission_overrides() -> None:
    """Drop the capabilities by which a superuser overrides permission bits (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH)."""
    for capability in (1, 2):
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)


@pytest.mark.parametrize(
    "arguments",
    [
        ("broker", "start", "--bootstrap", "--data-dir", "closed/data"),
        ("dev", "--brokers", "1", "--data-dir", "closed/data"),
        ("doctor", "unreadable"),
    ],
)
def test_a_directory_without_permission_is_one_sentence_and_exits_with_1(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    (tmp_path / "unreadable").mkdir()
    (tmp_path / "unreadable" / "node.mdb").write_bytes(b"x")
    (tmp_path / "unreadable").chmod(0o000)
    done = subprocess.run(
        [sys.executable, "-m", "raftmq", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=60,
        preexec_fn=without_permission_overrides,
    )
    (tmp_path / "unreadable").chmod(0o700)
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("raftmq: ")
    assert "ermission denied" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_port_in_use_is_one_sentence_and_exits_with_1(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = raftmq("broker", "start", "--bootstrap", "--data-dir", str(tmp_path / "d"), "--listen", address)
    assert done.returncode == 1
    assert done.stderr.decode() == (
        f"raftmq: cannot listen on {address}: address already in use; choose another with --listen\n"
    )


def test_a_malformed_host_name_is_one_sentence_and_exits_with_1(tmp_path: Path) -> None:
    """It was a traceback."""
    arguments = ("--data-dir", str(tmp_path / "d"), "--listen", "one..two:9400", "--allow-insecure-remote")
    done = raftmq("broker", "start", "--bootstrap", *arguments)
    assert done.returncode == 1
    assert done.stderr.decode() == (
        "raftmq: cannot listen on one..two:9400: one..two is no host name; choose another with --listen\n"
    )


def run_in_shell(line: str) -> "subprocess.CompletedProcess[str]":
    command = line.replace("raftmq ", f"{sys.executable} -m raftmq ")
    return subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("command", ["config show", "--version"])
def test_a_full_disk_behind_standard_output_is_one_sentence(command: str) -> None:
    done = run_in_shell(f"raftmq {command} > /dev/full")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "raftmq: no space left on device\n")


@pytest.mark.parametrize("errors", ["2> /dev/full", "2>&-"])
def test_a_full_disk_behind_standard_error_leaves_the_exit_code_as_it_is(errors: str, nobody: str) -> None:
    assert run_in_shell(f"raftmq topic list --bootstrap-servers {nobody} --timeout 200ms {errors}").returncode == 3


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_output_is_utf_8_in_every_locale(encoding: str) -> None:
    """Printing the result once failed in a locale without the character, although the command had acted: code 2, an invalid argument."""
    show, locale = ("config", "show", "--set", "host=kü€"), {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "1"}
    done = raftmq(*show, environment=locale)
    assert done.returncode == 0, done.stderr
    assert "kü€".encode() in done.stdout
    assert json.loads(raftmq(*show, "-o", "json", environment=locale).stdout)["host"]["value"] == "kü€"


def test_bytes_that_are_no_text_are_escaped_in_the_output() -> None:
    done = raftmq("config", "show", "--set", os.fsdecode(b"host=h\xff"), "-o", "json")
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["host"]["value"] == "h\udcff"


def test_a_data_directory_whose_name_is_no_text_is_refused_by_name(tmp_path: Path) -> None:
    done = raftmq("broker", "start", "--bootstrap", "--data-dir", os.fsdecode(os.fsencode(tmp_path) + b"/d\xff"))
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(f"raftmq: '{tmp_path}/d\\udcff/".encode())
    assert done.stderr.endswith(b"is not valid UTF-8: use another name\n")


@pytest.mark.parametrize("closed", ["<&-", ">&-"])
def test_a_closed_standard_stream_is_not_reported_as_a_defect(closed: str, nobody: str) -> None:
    assert run_in_shell(f"raftmq config show {closed}").returncode == 0
    done = run_in_shell(f"raftmq produce t --bootstrap-servers {nobody} --timeout 200ms {closed}")
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1


def test_dev_refuses_the_directory_of_one_broker(tmp_path: Path) -> None:
    (tmp_path / "node.mdb").touch()
    done = raftmq("dev", "--data-dir", str(tmp_path))
    assert done.returncode == 2
    assert b"broker start" in done.stderr


def complete(shell: str, words: str, **environment: str) -> list[str]:
    """Return the completions of an unfinished line, requested as the shell's completion script does."""
    asked = {
        "_RAFTMQ_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
        "_TYPER_COMPLETE_ARGS": words,
        **environment,
    }
    done = raftmq(environment=asked)
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    return done.stdout.decode().split("\n")


def test_the_shell_completes_commands_and_options() -> None:
    assert {"topic", "produce", "consume", "cluster", "dev", "doctor"} <= set(complete("bash", "raftmq "))
    assert "--from-beginning" in complete("bash", "raftmq consume t --from")
    assert any("delete-records" in line for line in complete("zsh", "raftmq topic del"))


@pytest.mark.parametrize("words", ["consume fl", "group describe a", "schedule run jobs s"])
def test_completion_of_names_is_silent_and_quick_without_a_cluster(words: str, nobody: str) -> None:
    started = time.monotonic()
    assert complete("bash", f"raftmq {words}", RAFTMQ_BOOTSTRAP_SERVERS=nobody) == ["", ""]
    assert time.monotonic() - started < 10  # one second of timeout, and the start of a process on a busy machine


def test_the_completion_script_is_shown_for_a_shell() -> None:
    done = raftmq(environment={"_RAFTMQ_COMPLETE": "source_bash"})
    assert b"_RAFTMQ_COMPLETE=complete_bash" in done.stdout
    assert b"complete -o default" in done.stdout


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
    assert shown["metadata_voters"] == {"value": 5, "source": "--set metadata_voters"}
    assert shown["join"] == {"value": [], "source": "default"}


def test_set_also_sets_a_key_that_has_a_flag_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The absent flag once hid the key: the broker silently started on its default address."""
    monkeypatch.chdir(tmp_path)
    done = invoke("broker", "start", "--bootstrap", "--set", "listen=192.0.2.1:0")
    assert done.exit_code == 2
    assert "--set listen" in done.stderr
    assert "192.0.2.1:0" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "delete", "t"),
        ("topic", "delete-records", "t", "--all"),
        ("group", "delete", "g"),
        ("group", "reset-offsets", "g", "--to-latest"),
        ("cluster", "remove", "1"),
        ("cluster", "raise-level"),
        ("topic", "alter", "t", "--replication-factor", "1"),
        ("dlq", "redrive", "t"),
        ("dlq", "purge", "t"),
    ],
)
def test_no_confirmation_is_asked_when_the_preview_fails(arguments: tuple[str, ...], nobody: str) -> None:
    done = invoke(*arguments, "-b", nobody, "--timeout", "200ms", input="y\n")
    assert done.exit_code == 3
    assert "[y/N]" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("topic", "create", "t", "-p", "99999"), "'99999' is not a whole number from 1 to 10000"),
        (("consume", "t", "-p", "one"), "'one' is not a whole number from 0 to 2147483647"),
        (("topic", "list", "-o", "xml"), "Invalid value for '--output' / '-o': 'xml' is not one of 'text', 'json'"),
        (("topic", "list", "--timeout", "20"), "'20' is not a number with a unit: write 20s"),
        (("topic", "list", "-b", "nonsense"), "raftmq: --bootstrap-servers: 'nonsense' is not host:port"),
        (("topic", "lst"), "Did you mean 'list'?"),
        (("config", "show", "--set", "log_levl=debug"), "there is no key 'log_levl': did you mean log_level?"),
    ],
)
def test_an_error_is_phrased_in_options_and_not_in_python(arguments: tuple[str, ...], words: str) -> None:
    done = invoke(*arguments)
    assert done.exit_code == 2
    assert words in done.stderr
    assert "Input should" not in done.stderr
    assert "Value error" not in done.stderr


@pytest.mark.parametrize(
    ("sentence", "said"),
    [
        (
            "retry_backoff_ms must be between 0 and retry_backoff_max_ms",
            "--retry-backoff must be between 0 and --retry-backoff-max",
        ),
        ("not with executor='process'", "not with --executor process"),
        ("the executors", "the executors"),
        (
            "create_dead_letter_topic needs a dead_letter_topic",
            "--create-dead-letter-topic needs a --dead-letter-topic",
        ),
        ("to pause automatic balancing, set auto_balance to false", "to pause automatic balancing, give --no-auto"),
    ],
)
def test_parameter_names_of_the_sdk_become_option_names(sentence: str, said: str) -> None:
    assert exit_codes.in_options(sentence) == said


def test_the_limit_of_partitions_equals_that_of_the_broker() -> None:
    assert options.TOPIC_PARTITIONS_MAX == PARTITIONS_PER_TOPIC_MAX


def test_the_report_of_a_removal_counts_new_replicas_and_partitions_without_a_majority(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster.print_removal(BrokerRemoval(3, 0, 0, ()))
    assert capsys.readouterr().out == "broker 3 removed\n"
    lost = tuple(TopicPartition("t", n) for n in range(12))
    cluster.print_removal(BrokerRemoval(3, 20, 12, lost))
    said = capsys.readouterr().out
    assert "8 partitions get another replica" in said
    assert "12 partitions have no majority" in said
    assert "t/0, t/1, t/2, t/3, t/4, t/5, t/6, t/7, t/8, t/9 and 2 more" in said


@pytest.mark.parametrize(("before", "after"), [(signal.SIG_DFL, dev.interrupt), (signal.SIG_IGN, signal.SIG_IGN)])
def test_a_closed_terminal_ends_a_cluster_unless_it_was_started_with_nohup(
    before: signal.Handlers, after: object
) -> None:
    old = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        signal.signal(signal.SIGHUP, before)
        dev.end_like_ctrl_c()
        assert signal.getsignal(signal.SIGTERM) is dev.interrupt
        assert signal.getsignal(signal.SIGHUP) is after
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def test_topic_settings_are_pairs() -> None:
    assert options.key_values(["a=1", "b=x=y"], "--config") == {"a": "1", "b": "x=y"}
    with pytest.raises(typer.BadParameter, match="KEY=VALUE"):
        options.key_values(["=1"], "--config")


@pytest.mark.parametrize(
    ("line", "separator", "record"),
    [
        (b"a:b:c", None, (None, b"a:b:c")),
        (b"a:b:c", b":", (b"a", b"b:c")),
        (b":b", b":", (b"", b"b")),
        (b"a=>b", b"=>", (b"a", b"b")),
    ],
)
def test_a_line_splits_into_key_and_value(
    line: bytes, separator: bytes | None, record: tuple[bytes | None, bytes]
) -> None:
    assert input_records.split_record(line, separator) == record


def test_a_line_without_the_separator_is_refused() -> None:
    with pytest.raises(input_records.BadLineError, match="no ':' between key and value"):
        input_records.split_record(b"abc", b":")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"vale": "v"}', "there is no field 'vale'; did you mean 'value'?"),
        (b'{"value": "v", "zzz": 1}', "there is no field 'zzz'; there are value, key, headers, timestamp"),
        (b'{"key": "k"}', "the field 'value' is missing"),
        (b'{"value": 7}', "value must be a string or an object or null, not a number"),
        (b'{"value": "v", "timestamp": "now"}', "timestamp must be a number or null, not a string"),
        (b"[]", "the line must be an object, not an array"),
        (b"{", "does not describe a record"),
        (b'{"value": "v", "timestamp": 9223372036854775808}', "its timestamp is above 9223372036854775807"),
    ],
)
def test_errors_in_a_record_line_are_phrased_in_json_terms(line: bytes, words: str) -> None:
    with pytest.raises(input_records.BadLineError) as error:
        input_records.record_of_line(line)
    assert words in str(error.value)
    assert "`" not in str(error.value)


def test_a_document_that_is_nested_too_deeply_is_an_invalid_line() -> None:
    with pytest.raises(input_records.BadLineError, match="nested too deeply"):
        input_records.line_parser(input_lines.InputFormat.JSON)(b"[" * 100_000)


def test_a_key_on_the_command_line_is_the_key_of_every_line() -> None:
    parse = input_records.line_parser(input_lines.InputFormat.LINES, key=b"k")
    assert parse(b"a:b") == input_records.InputRecord(b"k", b"a:b")
    parse = input_records.line_parser(input_lines.InputFormat.JSON, key=b"k")
    assert parse(b"{}") == input_records.InputRecord(b"k", b"{}")


def test_lines_end_with_lf_or_crlf_and_an_unfinished_line_is_kept() -> None:
    assert input_lines.split_lines(b"a", b"b\r\nc\n\nd") == ([b"ab", b"c", b""], b"d")


async def test_lines_are_read_as_they_are_written_and_the_last_needs_no_line_end() -> None:
    reading, writing = os.pipe()
    lines = input_lines.read_lines(reading)
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


def test_a_record_with_any_bytes_prints_as_json() -> None:
    assert json.loads(consume.json_line(record(b"k\xff", None))) == {
        "topic": "t",
        "partition": 1,
        "offset": 7,
        "timestamp": 1_700_000_000_000,
        "key": {"base64": "a/8="},
        "value": None,
        "headers": [["h", {"base64": "/w=="}]],
    }


def test_a_table_on_a_terminal_does_not_interpret_markup_in_cells() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    output.print_table(("error",), [("[/red] in [0]",)], terminal)
    assert "[/red] in [0]" in terminal.getvalue()


@pytest.mark.parametrize(
    ("numbers", "words"),
    [((1,), "1 broker is ready; Ctrl-C stops it\n"), ((1, 2), "2 brokers are ready; Ctrl-C stops them\n")],
)
def test_dev_counts_its_brokers(numbers: tuple[int, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    class Cluster:
        broker_ids = numbers
        directory = bootstrap_servers = "x"

        def pid(self, number: int) -> int:
            return number

        def address(self, number: int) -> str:
            return f"127.0.0.1:{number}"

        http_address = log_path = address

    dev.print_cluster(cast("LocalCluster", Cluster()), output.Output.TEXT, is_temporary=False)
    assert capsys.readouterr().out.startswith(words)


def test_a_table_on_a_narrow_terminal_cuts_no_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "40")
    row = ("127.0.0.1:9400", "2026-11-23T07:14:30Z", "ValueError: " + "no good " * 9)
    terminal = Terminal()
    output.print_table(("address", "given up", "error"), [row], terminal)
    shown = terminal.getvalue()
    assert f"{row[0]}  {row[1]}  ValueError" in shown
    assert "".join(shown.split()).endswith("".join(row[2].split()))
    assert max(map(len, shown.splitlines()[1:])) == 14 + 2 + 20 + 2 + 24


def test_a_record_prints_by_a_template() -> None:
    show = RecordFormat(r"%t/%p@%o %T %k=%s [%h] %K %S 100%%\t\n")
    assert show(record(b"k", b"v")) == b"t/1@7 1700000000000 k=v [h=\xff] 1 1 100%\t\n"
    assert show(record(None, None)) == b"t/1@7 1700000000000 = [h=\xff] -1 -1 100%\t\n"
    assert RecordFormat("é\udcff")(record(None, None)) == "é".encode() + b"\xff"


@pytest.mark.parametrize(
    ("keys", "headers", "is_wanted"),
    [
        (["k"], [], True),
        (["x", "k"], [], True),
        (["x"], [], False),
        ([], ["h"], True),
        ([], ["h=\udcff"], True),
        ([], ["h=x"], False),
        ([], ["h", "g"], False),
        (["k"], ["h"], True),
        (["x"], ["h"], False),
    ],
)
def test_records_are_filtered_by_key_and_headers(keys: list[str], headers: list[str], is_wanted: bool) -> None:
    matches = record_filter(keys, headers)
    assert matches is not None
    assert matches(record(b"k", b"v")) is is_wanted


def test_without_a_filter_every_record_is_wanted() -> None:
    assert record_filter(None, None) is None


def test_raw_output_of_a_record_is_its_value_alone() -> None:
    assert consume.raw_bytes(record(b"k", b"\xff\n")) == b"\xff\n"
    assert consume.raw_bytes(record(b"k", None)) == b""


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("0", 0), ("1700000000000", 1_700_000_000_000), ("2026-01-31T12:00:00Z", 1_769_860_800_000)],
)
def test_a_time_is_milliseconds_or_a_date(text: str, milliseconds: int) -> None:
    assert times.parse_time_ms(text) == milliseconds


def test_a_time_may_be_given_as_a_duration_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raftmq.cli.times.time.time", lambda: 1_000_000.0)
    assert times.parse_time_ms("15m") == (1_000_000 - 900) * 1000
    assert times.parse_time_ms("2d") == (1_000_000 - 172_800) * 1000


def parse(line: bytes, format_name: str, **options: object) -> input_records.InputRecord | None:
    return input_records.line_parser(input_lines.InputFormat(format_name), **options)(line)


@pytest.mark.parametrize(
    ("line", "field", "key"),
    [
        (b'{"id": "a"}', "id", b"a"),
        (b'{"id": 7}', "id", b"7"),
        (b'{"id": null}', "id", None),
        (b'{"other": 1}', "id", None),
        (b'{"a": {"b": "deep"}}', "a.b", b"deep"),
        (b'{"a": 1}', "a.b", None),
        (b"[1, 2]", None, None),
    ],
)
def test_a_json_document_is_the_value_and_may_carry_the_key(line: bytes, field: str | None, key: bytes | None) -> None:
    assert parse(line, "json", key_field=field) == (key, line, (), None)


@pytest.mark.parametrize(
    ("line", "format_name", "options", "problem"),
    [
        (b"{", "json", {}, "not JSON"),
        (b"\xff", "json", {}, "not JSON"),
        (b"[1]", "json", {"key_field": "id"}, "not a JSON object"),
        (b"{}", "records", {}, "value"),
        (b'{"value": 1}', "records", {}, "value must be a string"),
        (b'{"value": "a", "kye": "b"}', "records", {}, "kye"),
        (b'{"value": {"base64": "?"}}', "records", {}, "describe a record"),
        (b'{"value": "a", "timestamp": -1}', "records", {}, "negative"),
    ],
)
def test_a_line_that_does_not_fit_its_format_is_refused_with_the_reason(
    line: bytes, format_name: str, options: dict[str, str], problem: str
) -> None:
    with pytest.raises(input_records.BadLineError, match=problem):
        parse(line, format_name, **options)


@pytest.mark.parametrize("format_name", ["json", "records"])
def test_blank_lines_between_documents_are_skipped(format_name: str) -> None:
    assert parse(b"  ", format_name) is None


def test_an_empty_line_is_an_empty_value() -> None:
    assert parse(b"", "lines") == (None, b"", (), None)


def test_produce_parses_the_json_lines_of_consume() -> None:
    """Key, value, headers and timestamp survive. The original topic and partition do not determine the destination."""
    for original in (record(b"k\xff", None), record(None, b"\x00v"), record(b"", "ü".encode())):
        line = consume.json_line(original).strip()
        assert parse(line, "records") == (original.key, original.value, original.headers, original.timestamp)


def test_headers_of_the_command_line_come_before_those_of_a_line() -> None:
    headers = input_records.parse_headers(["a=1", "b=x=y"])
    taken = parse(b'{"value": "v", "headers": [["c", "3"]]}', "records", headers=headers)
    assert taken is not None
    assert taken.headers == (("a", b"1"), ("b", b"x=y"), ("c", b"3"))


async def test_a_pipe_without_a_reader_is_detected_without_writing() -> None:
    reading, writing = os.pipe()
    assert not consume.is_reader_gone(writing)
    os.close(reading)
    assert consume.is_reader_gone(writing)
    os.close(writing)


def test_a_table_for_a_program_has_plain_columns(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(["topic", "partitions"], [["a", 1], ["longer-name", 12]])
    assert capsys.readouterr().out.splitlines() == ["topic        partitions", "a            1", "longer-name  12"]
