"""Exit codes of the ``raftmq`` command: part of its interface, listed in docs/reference/cli.md.

Must not import the SDK: ``raftmq --version`` stays quick.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from enum import IntEnum
from typing import ParamSpec, TypeVar

import typer
from raftmq.errors import (
    BootstrapError,
    InvalidArgumentError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidTopicNameError,
    NoLeaderError,
    NotFormedError,
    NotLeaderError,
    NotReadyError,
    Outcome,
    RaftMQError,
    ShuttingDownError,
    UnreachableError,
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
    """A defect of RaftMQ, or of this machine (a full disk, no permission)."""
    USAGE = 2
    """The command line is wrong: nothing was tried, or the cluster refused an argument as it is."""
    UNAVAILABLE = 3
    """No broker could be reached, or nobody leads now: nothing was applied, try again."""
    REJECTED = 4
    """The cluster said no: nothing was applied."""
    UNKNOWN_OUTCOME = 5
    """It may have happened: look before trying again."""
    INTERRUPTED = 130
    """Ctrl-C."""
    BROKEN_PIPE = 141
    """Whoever read the output stopped reading, as ``head`` does."""


ARGUMENT_ERRORS = (
    InvalidArgumentError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidTopicNameError,
)
AVAILABILITY_ERRORS = (
    BootstrapError,
    NoLeaderError,
    NotFormedError,
    NotLeaderError,
    NotReadyError,
    ShuttingDownError,
    UnreachableError,
)


def exit_code_of(error: RaftMQError) -> ExitCode:
    """The exit code for an error of RaftMQ. Whether the effect may have happened weighs more than what went wrong."""
    if error.outcome is Outcome.UNKNOWN:
        return ExitCode.UNKNOWN_OUTCOME
    if isinstance(error, AVAILABILITY_ERRORS):
        return ExitCode.UNAVAILABLE
    if isinstance(error, ARGUMENT_ERRORS):
        return ExitCode.USAGE
    return ExitCode.REJECTED


def complain(sentence: str) -> None:
    """One sentence on standard error."""
    print(f"raftmq: {sentence}", file=sys.stderr)


def reported(command: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Turn whatever a command raises into one sentence and an exit code; never a stack trace, unless asked for."""

    @functools.wraps(command)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            result = command(*args, **kwargs)
            sys.stdout.flush()  # here, where a broken pipe can still be told from success
            return result
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise  # typer's own ways out
        except RaftMQError as error:
            complain(" ".join(str(error).split()))
            raise SystemExit(exit_code_of(error)) from None
        except KeyboardInterrupt:
            raise SystemExit(ExitCode.INTERRUPTED) from None
        except BrokenPipeError:
            # Python flushes standard output once more at exit and would complain then.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(ExitCode.BROKEN_PIPE) from None
        except OSError as error:
            if os.environ.get(DEBUG_VARIABLE):
                raise
            complain(" ".join(str(error).split()))
            raise SystemExit(ExitCode.DEFECT) from None
        except Exception as error:
            if os.environ.get(DEBUG_VARIABLE):
                raise
            complain(f"unexpected {type(error).__name__}: {error} (set {DEBUG_VARIABLE}=1 for the traceback)")
            raise SystemExit(ExitCode.DEFECT) from None

    return run
