"""Exit codes of the ``raftmq`` command: part of its interface, listed in docs/reference/cli.md.

Must not import the SDK: ``raftmq --version`` stays quick.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable
from enum import IntEnum
from typing import ParamSpec, TypeVar

import typer
from raftmq.errors import (
    BootstrapError,
    BufferFullError,
    CorruptBatchError,
    InvalidArgumentError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidTopicNameError,
    OffsetOutOfRangeError,
    Outcome,
    PoisonRecordError,
    RaftMQError,
    RecordTooLargeError,
)

DEBUG_VARIABLE = "RAFTMQ_DEBUG"
"""Set to anything, it makes unexpected errors show their traceback."""

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class ExitCode(IntEnum):
    """What a script can tell from how the command ended."""

    OK = 0
    """It worked."""
    DEFECT = 1
    """Something about this machine (no permission, a full disk, a port that is taken), or a defect of RaftMQ."""
    USAGE = 2
    """The command line is wrong: nothing was tried, or the cluster refused an argument as it is."""
    UNAVAILABLE = 3
    """Not now: no broker could be reached, nobody leads, or there is no room. Nothing was applied, or it was only a question: try again."""
    REJECTED = 4
    """A definite no, of the cluster, or because another process uses the directory: nothing was applied."""
    UNKNOWN_OUTCOME = 5
    """It may have happened: look before trying again."""
    BAD_DATA = 6
    """Something is not as it should be: `doctor` or `cluster status` found something wrong, a stored batch cannot be read, a line cannot be a record, or a worker's handler gave a record up."""
    INTERRUPTED = 130
    """Ctrl-C, a no to a question, or SIGTERM where a command ends by it in order (`consume`)."""
    BROKEN_PIPE = 141
    """Whoever read the output stopped reading, as ``head`` does."""


class CommandError(Exception):
    """A command cannot go on: one sentence for a person, and the exit code for a script."""

    def __init__(self, sentence: str, code: ExitCode) -> None:
        super().__init__(sentence)
        self.code = code


ARGUMENT_ERRORS = (
    InvalidArgumentError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidTopicNameError,
)
DATA_ERRORS = (CorruptBatchError, PoisonRecordError, RecordTooLargeError)
PROGRAM_ADVICE_ERRORS = (BufferFullError, OffsetOutOfRangeError)
"""Their advice names parameters of the SDK."""


OPTIONS_OF_PARAMETERS = {
    "auto_offset_reset": "--auto-offset-reset",
    "bootstrap_servers": "--bootstrap-servers",
    "create_dead_letter_topic": "--create-dead-letter-topic",
    "dead_letter_topic": "--dead-letter-topic",
    "delivery_timeout_ms": "--timeout",
    "drain_timeout_ms": "--drain-timeout",
    "executor": "--executor",
    "group_id": "--group",
    "group_instance_id": "--instance",
    "handler_timeout_ms": "--handler-timeout",
    "request_timeout_ms": "--timeout",
    "retry_backoff_max_ms": "--retry-backoff-max",
    "retry_backoff_ms": "--retry-backoff",
}
_PARAMETER = re.compile(rf"(?<![\w-])({'|'.join(OPTIONS_OF_PARAMETERS)})(?!\w)(?:='(\w+)')?")


def exit_code_of(error: RaftMQError, *, is_question: bool = False) -> ExitCode:
    """The exit code for an error of RaftMQ. Whether the effect may have happened weighs more than what went wrong.

    Args:
        error: what a command ended with.
        is_question: the command changes nothing, so whatever was not answered did not happen.
    """
    if error.outcome is Outcome.UNKNOWN:
        if not is_question:
            return ExitCode.UNKNOWN_OUTCOME
        return ExitCode.UNAVAILABLE if error.retriable else ExitCode.DEFECT
    reason = error.__cause__ if isinstance(error, BootstrapError) else None
    if isinstance(reason, RaftMQError) and not reason.retriable and reason.outcome is Outcome.NOT_APPLIED:
        return exit_code_of(
            reason
        )  # somebody answered, and the same answer would come again: another version, no right
    if error.retriable:
        return ExitCode.UNAVAILABLE
    if isinstance(error, ARGUMENT_ERRORS):
        return ExitCode.USAGE
    return ExitCode.BAD_DATA if isinstance(error, DATA_ERRORS) else ExitCode.REJECTED


def sentence_of(error: RaftMQError, *, is_question: bool = False) -> str:
    """The error's words, without advice that is only of use to a program, or about a change that nobody asked for."""
    is_beside_the_point = is_question and error.outcome is Outcome.UNKNOWN
    is_short = is_beside_the_point or isinstance(error, PROGRAM_ADVICE_ERRORS)
    return in_options(str(error.args[0]) if is_short else str(error))


def in_options(sentence: str) -> str:
    """A sentence about parameters of the SDK as one about the options that set them."""
    return _PARAMETER.sub(
        lambda found: OPTIONS_OF_PARAMETERS[found[1]] + (f" {found[2]}" if found[2] else ""), sentence
    )


def print_error(sentence: str) -> None:
    """One sentence on standard error."""
    print(f"raftmq: {' '.join(sentence.split())}", file=sys.stderr)


def reported(command: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Turn whatever a command raises into one sentence and an exit code; never a stack trace, unless asked for."""
    return _reported(command, is_question=False)


def reported_question(command: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """`reported` for a command that changes nothing."""
    return _reported(command, is_question=True)


def _reported(command: Callable[Parameters, Result], *, is_question: bool) -> Callable[Parameters, Result]:
    @functools.wraps(command)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            result = command(*args, **kwargs)
            sys.stdout.flush()  # here, where a broken pipe can still be told from success
            return result
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise  # typer's own ways out
        except RaftMQError as error:
            print_error(sentence_of(error, is_question=is_question))
            raise SystemExit(exit_code_of(error, is_question=is_question)) from None
        except CommandError as error:
            print_error(str(error))
            raise SystemExit(error.code) from None
        except KeyboardInterrupt:
            raise SystemExit(ExitCode.INTERRUPTED) from None
        except BrokenPipeError:
            forget_output()
            raise SystemExit(ExitCode.BROKEN_PIPE) from None
        except OSError as error:
            if os.environ.get(DEBUG_VARIABLE):
                raise
            print_error(words_of(error))
            forget_output()
            raise SystemExit(ExitCode.DEFECT) from None
        except UnicodeEncodeError:
            print_error("an argument is not valid UTF-8")
            raise SystemExit(ExitCode.USAGE) from None
        except Exception as error:
            if os.environ.get(DEBUG_VARIABLE):
                raise
            print_error(f"unexpected {type(error).__name__}: {error} (set {DEBUG_VARIABLE}=1 for the traceback)")
            raise SystemExit(ExitCode.DEFECT) from None

    return run


def forget_output() -> None:
    """Python flushes standard output once more at exit, and would print_error if that failed again."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def words_of(error: OSError) -> str:
    """An error of the operating system without its number: which file, and what is wrong with it."""
    if error.strerror is None:
        return str(error)
    reason = error.strerror[:1].lower() + error.strerror[1:]
    return f"{error.filename}: {reason}" if error.filename is not None else reason
