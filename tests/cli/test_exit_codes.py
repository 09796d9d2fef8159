"""Every way a command can end has its exit code, says one sentence, and never shows a stack trace."""

import subprocess
import sys

import pytest
import typer
from raftmq.cli.exit_codes import ExitCode, exit_code_of, reported
from raftmq.errors import (
    BootstrapError,
    BrokenConnectionError,
    DeliveryTimeoutError,
    InvalidPartitionsError,
    LeadershipLostError,
    NoLeaderError,
    OffsetOutOfRangeError,
    Outcome,
    RaftMQError,
    TopicAlreadyExistsError,
    UnknownTopicError,
    UnreachableError,
)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BootstrapError("x"), ExitCode.UNAVAILABLE),
        (UnreachableError("x"), ExitCode.UNAVAILABLE),
        (NoLeaderError("x"), ExitCode.UNAVAILABLE),
        (InvalidPartitionsError("x"), ExitCode.USAGE),
        (TopicAlreadyExistsError("x"), ExitCode.REJECTED),
        (UnknownTopicError("x"), ExitCode.REJECTED),
        (OffsetOutOfRangeError("x"), ExitCode.REJECTED),
        (BrokenConnectionError("x"), ExitCode.UNKNOWN_OUTCOME),
        (DeliveryTimeoutError("x"), ExitCode.UNKNOWN_OUTCOME),
        (LeadershipLostError("x"), ExitCode.UNKNOWN_OUTCOME),
    ],
)
def test_an_error_has_its_exit_code(error: RaftMQError, code: ExitCode) -> None:
    assert exit_code_of(error) is code


def every_error(root: type[RaftMQError]) -> list[type[RaftMQError]]:
    return [root, *(error for child in root.__subclasses__() for error in every_error(child))]


def test_whatever_may_have_happened_says_so() -> None:
    """No error with an unknown outcome may end as a definite failure: a script would do it again."""
    for kind in every_error(RaftMQError):
        error = kind.__new__(kind)
        assert (exit_code_of(error) is ExitCode.UNKNOWN_OUTCOME) == (kind.outcome is Outcome.UNKNOWN), kind


def ends_with(error: BaseException) -> int:
    @reported
    def command() -> None:
        raise error

    with pytest.raises(SystemExit) as ended:
        command()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_an_error_is_one_sentence_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert ends_with(TopicAlreadyExistsError("topic 'a'\n  exists already")) == 4
    assert capsys.readouterr() == ("", "raftmq: topic 'a' exists already\n")


def test_ctrl_c_is_130_and_silent(capsys: pytest.CaptureFixture[str]) -> None:
    assert ends_with(KeyboardInterrupt()) == 130
    assert capsys.readouterr() == ("", "")


def test_a_defect_is_a_sentence_too(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAFTMQ_DEBUG", raising=False)
    assert ends_with(ZeroDivisionError("division by zero")) == 1
    assert capsys.readouterr().err.startswith("raftmq: unexpected ZeroDivisionError: division by zero")


def test_a_defect_shows_its_traceback_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAFTMQ_DEBUG", "1")

    @reported
    def command() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        command()


def test_a_usage_error_is_left_to_the_command_line() -> None:
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
