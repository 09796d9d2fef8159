"""Every way in which a command can end has its exit code and prints at most one sentence, without a stack trace."""

import subprocess
import sys
from collections.abc import Callable

import pytest
import typer
from raftmq.cli.exit_codes import ExitCode, exit_code_of, reported, reported_question
from raftmq.errors import (
    BootstrapError,
    BrokenConnectionError,
    BufferFullError,
    CorruptBatchError,
    DeliveryExpiredError,
    DeliveryTimeoutError,
    DiskFullError,
    FailedPreconditionError,
    InternalError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidTopicNameError,
    LeadershipLostError,
    NoLeaderError,
    NotFormedError,
    OffsetOutOfRangeError,
    Outcome,
    PermissionDeniedError,
    RaftMQError,
    RecordTooLargeError,
    RequestTimedOutError,
    ThrottledError,
    TopicAlreadyExistsError,
    UnknownTopicError,
    UnreachableError,
    UnsupportedCompressionError,
    UnsupportedVersionError,
    WrongClusterError,
)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BootstrapError("x"), ExitCode.UNAVAILABLE),
        (UnreachableError("x"), ExitCode.UNAVAILABLE),
        (NoLeaderError("x"), ExitCode.UNAVAILABLE),
        (NotFormedError("x"), ExitCode.UNAVAILABLE),
        (ThrottledError("x"), ExitCode.UNAVAILABLE),
        (DiskFullError("x"), ExitCode.UNAVAILABLE),
        (BufferFullError("x"), ExitCode.UNAVAILABLE),
        (DeliveryExpiredError("x"), ExitCode.UNAVAILABLE),
        (InvalidConfigError("x"), ExitCode.USAGE),
        (InvalidTopicNameError("x"), ExitCode.USAGE),
        (InvalidPartitionsError("x"), ExitCode.REJECTED),
        (InvalidReplicationFactorError("x"), ExitCode.REJECTED),
        (FailedPreconditionError("x"), ExitCode.REJECTED),
        (TopicAlreadyExistsError("x"), ExitCode.REJECTED),
        (UnknownTopicError("x"), ExitCode.REJECTED),
        (OffsetOutOfRangeError("x"), ExitCode.REJECTED),
        (WrongClusterError("x"), ExitCode.REJECTED),
        (UnsupportedVersionError("x"), ExitCode.REJECTED),
        (UnsupportedCompressionError("x"), ExitCode.REJECTED),
        (PermissionDeniedError("x"), ExitCode.REJECTED),
        (RecordTooLargeError("x"), ExitCode.BAD_DATA),
        (CorruptBatchError("t", 0, 5, 9), ExitCode.BAD_DATA),
        (BrokenConnectionError("x"), ExitCode.UNKNOWN_OUTCOME),
        (DeliveryTimeoutError("x"), ExitCode.UNKNOWN_OUTCOME),
        (LeadershipLostError("x"), ExitCode.UNKNOWN_OUTCOME),
    ],
)
def test_an_error_has_its_exit_code(error: RaftMQError, code: ExitCode) -> None:
    assert exit_code_of(error) is code


def test_a_bootstrap_that_was_refused_is_rejected_and_not_unavailable() -> None:
    """A retry would meet the same refusal, whereas a missing answer may come later."""
    error = BootstrapError("x")
    error.__cause__ = UnsupportedVersionError("y")
    assert exit_code_of(error) is ExitCode.REJECTED
    error.__cause__ = UnreachableError("y")
    assert exit_code_of(error) is ExitCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RequestTimedOutError("x"), ExitCode.UNAVAILABLE),
        (BrokenConnectionError("x"), ExitCode.UNAVAILABLE),
        (InternalError("x"), ExitCode.DEFECT),
        (UnknownTopicError("x"), ExitCode.REJECTED),
    ],
)
def test_an_unanswered_query_has_no_unknown_outcome(error: RaftMQError, code: ExitCode) -> None:
    assert exit_code_of(error, is_question=True) is code


def every_error(root: type[RaftMQError]) -> list[type[RaftMQError]]:
    return [root, *(error for child in root.__subclasses__() for error in every_error(child))]


def test_exactly_the_errors_with_an_unknown_outcome_have_its_exit_code() -> None:
    """If an unknown outcome ended as a definite failure, a script would repeat the change."""
    for kind in every_error(RaftMQError):
        error = kind.__new__(kind)
        assert (exit_code_of(error) is ExitCode.UNKNOWN_OUTCOME) == (kind.outcome is Outcome.UNKNOWN), kind


def ends_with(error: BaseException, decorator: Callable[[Callable[[], None]], Callable[[], None]] = reported) -> int:
    @decorator
    def command() -> None:
        raise error

    with pytest.raises(SystemExit) as ended:
        command()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_an_error_is_one_sentence_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert ends_with(InvalidTopicNameError("topic 'a/b'\n  has a slash")) == 2
    assert capsys.readouterr() == ("", "raftmq: topic 'a/b' has a slash\n")


def test_the_error_of_a_query_has_no_advice_about_changes(capsys: pytest.CaptureFixture[str]) -> None:
    assert ends_with(RequestTimedOutError("no answer in time"), reported_question) == 3
    assert capsys.readouterr().err == "raftmq: no answer in time\n"


def test_an_error_of_the_operating_system_is_printed_without_its_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert ends_with(PermissionError(13, "Permission denied", "d/node.mdb")) == 1
    assert capsys.readouterr().err == "raftmq: d/node.mdb: permission denied\n"


def test_ctrl_c_exits_with_130_silently(capsys: pytest.CaptureFixture[str]) -> None:
    assert ends_with(KeyboardInterrupt()) == 130
    assert capsys.readouterr() == ("", "")


def test_a_defect_is_one_sentence_without_a_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAFTMQ_DEBUG", raising=False)
    assert ends_with(ZeroDivisionError("division by zero")) == 1
    assert capsys.readouterr().err.startswith("raftmq: unexpected ZeroDivisionError: division by zero")


@pytest.mark.parametrize("defect", [ZeroDivisionError, OSError])
def test_a_defect_shows_its_traceback_with_raftmq_debug(
    defect: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAFTMQ_DEBUG", "1")

    @reported
    def command() -> None:
        raise defect

    with pytest.raises(defect):
        command()


def test_an_error_of_the_system_without_a_number_is_its_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAFTMQ_DEBUG", raising=False)
    assert ends_with(OSError("the tape is torn")) == 1
    assert capsys.readouterr().err == "raftmq: the tape is torn\n"


def test_a_usage_error_is_left_to_typer() -> None:
    @reported
    def command() -> None:
        raise typer.BadParameter("no")

    with pytest.raises(typer.BadParameter):
        command()


def test_a_reader_that_stops_reading_ends_the_command_quietly() -> None:
    program = (
        "from raftmq.cli.exit_codes import reported\n"
        "@reported\n"
        "def command():\n"
        "    while True: print('x' * 1000)\n"
        "command()\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with writer:
        assert writer.stdout is not None
        assert writer.stderr is not None
        writer.stdout.readline()
        writer.stdout.close()
        assert writer.wait(20) == ExitCode.BROKEN_PIPE
        assert writer.stderr.read() == b""


@pytest.mark.parametrize("module", ["typer", "raftmq.cli.topic", "pydantic", "raftmq.client.admin.admin"])
def test_ctrl_c_while_a_command_starts_ends_it_quietly(module: str) -> None:
    """A traceback of the imports was printed, and the exit code was that of a signal. They take half a second on a busy machine."""
    program = (
        "import signal, sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name == {module!r}: signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "sys.argv[1:] = ['topic', 'list', '-b', '127.0.0.1:1']\n"
        "from raftmq.__main__ import main\n"
        "main()\n"
        "print('it went on')\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert (ended.stdout, ended.stderr) == ("", "")
    assert ended.returncode == ExitCode.INTERRUPTED
