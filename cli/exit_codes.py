"""Exit codes of the ``raftmq`` command: part of its interface, listed in docs/reference/cli.md.

This module must not import the SDK, so that ``raftmq --version`` stays quick.
"""

from __future__ import annotations

import contextlib
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
    InvalidTopicNameError,
    OffsetOutOfRangeError,
    Outcome,
    PoisonRecordError,
    RaftMQError,
    RecordTooLargeError,
)

DEBUG_VARIABLE = "RAFTMQ_DEBUG"
"""If this variable is set, unexpected errors show their traceback."""

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class ExitCode(IntEnum):
    """Tell a script how the command ended."""

    OK = 0
    """The command succeeded."""
    DEFECT = 1
    """This machine has a problem (no permission, a full disk, a port in use), or RaftMQ has a defect."""
    USAGE = 2
    """The command line is wrong: the command tried nothing, or the cluster refused an argument or a setting as invalid."""
    UNAVAILABLE = 3
    """The cluster is temporarily unavailable: no broker answered, there is no leader, or there is no room. Nothing was
    applied, or the command changes nothing. Try again."""
    REJECTED = 4
    """The cluster refused the command because of its state (there is no such topic, there are too few brokers, a broker
    is being drained), or another process uses the directory. Nothing was applied."""
    UNKNOWN_OUTCOME = 5
    """The command may have been applied, or was applied in part: check before trying again."""
    BAD_DATA = 6
    """A problem was found: by `doctor` or `cluster status`, a stored batch that cannot be read, an input line that is
    not a record, a record that a worker's handler gave up, or moves of partitions that are stuck."""
    INTERRUPTED = 130
    """The command was ended by Ctrl-C, by a "no" to a confirmation, or by SIGTERM if it ends in order on that signal
    (`consume`)."""
    BROKEN_PIPE = 141
    """The reader of the output stopped reading, as ``head`` does."""


class CommandError(Exception):
    """Raised when a command cannot continue. It has one sentence for a person, and the exit code for a script."""

    def __init__(self, sentence: str, code: ExitCode) -> None:
        super().__init__(sentence)
        self.code = code


ARGUMENT_ERRORS = (
    InvalidArgumentError,
    InvalidConfigError,
    InvalidTopicNameError,
)
"""The arguments themselves are wrong. Every other refusal depends on the state of the cluster, such as the number of its brokers."""
DATA_ERRORS = (CorruptBatchError, PoisonRecordError, RecordTooLargeError)
PROGRAM_ADVICE_ERRORS = (BufferFullError, OffsetOutOfRangeError)
"""The advice of these errors names parameters of the SDK."""


OPTIONS_OF_PARAMETERS = {
    "auto_balance": "--auto",
    "auto_offset_reset": "--auto-offset-reset",
    "bootstrap_servers": "--bootstrap-servers",
    "broker_ids": "--to",
    "bytes_per_second": "--rate",
    "create_dead_letter_topic": "--create-dead-letter-topic",
    "dead_letter_topic": "--dead-letter-topic",
    "delay_ms": "--delay",
    "delivery_timeout_ms": "--timeout",
    "died_before": "--died-before",
    "drain_timeout_ms": "--drain-timeout",
    "duration_ms": "--for",
    "enqueued_before": "--enqueued-before",
    "executor": "--executor",
    "expires_ms": "--expires",
    "group_id": "--group",
    "group_instance_id": "--instance",
    "handler_timeout_ms": "--handler-timeout",
    "lease_ms": "--lease",
    "max_messages": "--max-messages",
    "moves_max": "--moves",
    "not_before": "--not-before",
    "replication_factor": "--replication-factor",
    "request_timeout_ms": "--timeout",
    "retry_backoff_max_ms": "--retry-backoff-max",
    "retry_backoff_ms": "--retry-backoff",
}
_PARAMETER = re.compile(rf"(?<![\w-])({'|'.join(OPTIONS_OF_PARAMETERS)})(?!\w)(?:='(\w+)')?")


def exit_code_of(error: RaftMQError, *, is_question: bool = False) -> ExitCode:
    """Return the exit code for an error of RaftMQ. An unknown outcome takes precedence over the kind of the error.

    Args:
        error: The error that ended the command.
        is_question: Whether the command changes nothing, so that an unanswered call had no effect.
    """
    if error.outcome is Outcome.UNKNOWN:
        if not is_question:
            return ExitCode.UNKNOWN_OUTCOME
        return ExitCode.UNAVAILABLE if error.retriable else ExitCode.DEFECT
    reason = error.__cause__ if isinstance(error, BootstrapError) else None
    if isinstance(reason, RaftMQError) and not reason.retriable and reason.outcome is Outcome.NOT_APPLIED:
        return exit_code_of(
            reason
        )  # a broker answered and would give the same answer again: another version, no permission
    if error.retriable:
        return ExitCode.UNAVAILABLE
    if isinstance(error, ARGUMENT_ERRORS):
        return ExitCode.USAGE
    return ExitCode.BAD_DATA if isinstance(error, DATA_ERRORS) else ExitCode.REJECTED


def sentence_of(error: RaftMQError, *, is_question: bool = False) -> str:
    """Return the error's message, without advice for programs, and without advice about changes if the command changes
    nothing.
    """
    is_beside_the_point = is_question and error.outcome is Outcome.UNKNOWN
    is_short = is_beside_the_point or isinstance(error, PROGRAM_ADVICE_ERRORS)
    return in_options(str(error.args[0]) if is_short else str(error))


def in_options(sentence: str) -> str:
    """Replace parameters of the SDK in a sentence by the options that set them."""
    sentence = sentence.replace("set auto_balance to false", "give --no-auto")
    return _PARAMETER.sub(
        lambda found: OPTIONS_OF_PARAMETERS[found[1]] + (f" {found[2]}" if found[2] else ""), sentence
    )


def print_error(sentence: str) -> None:
    """Print one sentence on standard error. If that is full or closed, the exit code still tells."""
    with contextlib.suppress(OSError):
        print(f"raftmq: {' '.join(sentence.split())}", file=sys.stderr)


def reported(command: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Report an exception of a command as one sentence and an exit code. A traceback is shown only on request."""
    return _reported(command, is_question=False)


def reported_question(command: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Report like `reported`, for a command that changes nothing."""
    return _reported(command, is_question=True)


def _reported(command: Callable[Parameters, Result], *, is_question: bool) -> Callable[Parameters, Result]:
    @functools.wraps(command)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            result = command(*args, **kwargs)
            sys.stdout.flush()  # here, where a broken pipe can still be told from success
            return result
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise  # typer handles these
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
        except UnicodeEncodeError as error:  # of an argument: output never fails so (`main`)
            print_error(f"{error.object!r} is not valid UTF-8: use another name")
            raise SystemExit(ExitCode.USAGE) from None
        except Exception as error:
            if os.environ.get(DEBUG_VARIABLE):
                raise
            print_error(f"unexpected {type(error).__name__}: {error} (set {DEBUG_VARIABLE}=1 for the traceback)")
            raise SystemExit(ExitCode.DEFECT) from None

    return run


def forget_output() -> None:
    """Discard standard output, because Python flushes it again at exit and would print an error if that failed again."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def words_of(error: OSError) -> str:
    """Describe an error of the operating system without its number: the file, and the problem with it."""
    if error.strerror is None:
        return str(error)
    reason = error.strerror[:1].lower() + error.strerror[1:]
    return f"{error.filename}: {reason}" if error.filename is not None else reason
