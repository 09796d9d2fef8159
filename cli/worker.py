"""``raftmq worker run``: run a function of a module over the records of a topic, as a member of a consumer group."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import traceback
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from raftmq.cli.durations import DAY_SECONDS, Duration, DurationRange
from raftmq.cli.examples import examples
from raftmq.cli.exit_codes import CommandError, ExitCode, reported
from raftmq.cli.numbers import WholeNumber
from raftmq.cli.options import COUNT_MAX, DEFAULT_TIMEOUT, BootstrapOption, TimeoutOption
from raftmq.cli.queue.options import LeaseOption, milliseconds
from raftmq.cluster_addresses import DEFAULT_BOOTSTRAP

MILLISECONDS_PER_SECOND = 1000

app = typer.Typer(
    no_args_is_help=True,
    epilog=examples("raftmq worker run billing.tasks:handle --topic orders --group billing"),
)


class OrderingChoice(StrEnum):
    """Choose which records are processed one at a time."""

    KEY = "key"
    PARTITION = "partition"
    NONE = "none"


class ExecutorChoice(StrEnum):
    """Choose where plain functions run."""

    THREAD = "thread"
    PROCESS = "process"


class ResetChoice(StrEnum):
    """Choose the start of a consumer group without committed offsets."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"


@app.callback()
def worker() -> None:
    """Run a handler over the records of a topic."""


@app.command(
    "run",
    short_help="Run a function over the records of topics.",
    epilog=examples(
        "raftmq worker run billing.tasks:handle --topic orders --group billing",
        "raftmq worker run billing.tasks:handle -t orders -g billing -c 50",
        "raftmq worker run billing.tasks:handle -t orders -g b --executor process",
        "raftmq worker run billing.tasks:handle --topic jobs",
        "raftmq worker run sync.tasks:apply --topic changes -c 1 --prefetch 0",
    ),
)
@reported
def run(
    handler: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:HANDLER",
            help="Function that handles one record, such as billing.tasks:handle.",
            show_default=False,
        ),
    ],
    topic: Annotated[
        list[str],
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC",
            help="Topic whose records are processed. Repeat it for several topics.",
            show_default=False,
        ),
    ],
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            metavar="GROUP",
            help="Consumer group that shares the work. Without it, the topic is a queue, which needs none.",
        ),
    ] = None,
    concurrency: Annotated[
        int,
        typer.Option(
            "--concurrency",
            "-c",
            parser=WholeNumber(1, COUNT_MAX),
            metavar="N",
            help="Maximum number of handlers that run simultaneously.",
        ),
    ] = 10,
    ordering: Annotated[
        OrderingChoice,
        typer.Option("--ordering", help="Process records one at a time per key, per partition, or in no order."),
    ] = OrderingChoice.KEY,
    executor: Annotated[
        ExecutorChoice,
        typer.Option(
            "--executor",
            help="Where a plain function runs: in a thread or in a process. An async function runs on the event loop.",
        ),
    ] = ExecutorChoice.THREAD,
    retries: Annotated[
        int,
        typer.Option(
            "--retries",
            parser=WholeNumber(-1, COUNT_MAX),
            metavar="N",
            help="Number of times a failed record is retried; -1 means without limit.",
        ),
    ] = 5,
    retry_backoff: Annotated[
        float,
        typer.Option(
            "--retry-backoff",
            parser=DurationRange(0, DAY_SECONDS),
            metavar="DURATION",
            help="Approximate wait before the first retry. It doubles with each retry.",
        ),
    ] = Duration(0.1),
    retry_backoff_max: Annotated[
        float,
        typer.Option(
            "--retry-backoff-max",
            parser=DurationRange(0, DAY_SECONDS),
            metavar="DURATION",
            help="Maximum wait between retries.",
        ),
    ] = Duration(30),
    dead_letter_topic: Annotated[
        str | None,
        typer.Option(
            "--dead-letter-topic",
            "-d",
            metavar="TOPIC",
            help="Topic for records that failed after all retries. Without it, such a record ends the command.",
        ),
    ] = None,
    create_dead_letter_topic: Annotated[
        bool, typer.Option("--create-dead-letter-topic", help="Create the dead-letter topic if it does not exist.")
    ] = False,
    handler_timeout: Annotated[
        float | None,
        typer.Option(
            "--handler-timeout",
            parser=DurationRange(0.001, DAY_SECONDS),
            metavar="DURATION",
            help="Maximum time for one call of the handler.",
        ),
    ] = None,
    lease: LeaseOption = None,
    prefetch: Annotated[
        int,
        typer.Option(
            "--prefetch",
            parser=WholeNumber(0, COUNT_MAX),
            metavar="N",
            help="On a queue topic: messages held ready beside those in handlers. 0: take one only for a free handler.",
        ),
    ] = 1,
    drain_timeout: Annotated[
        float,
        typer.Option(
            "--drain-timeout",
            parser=DurationRange(0, DAY_SECONDS),
            metavar="DURATION",
            help="Maximum time for handlers to finish after SIGTERM or Ctrl-C.",
        ),
    ] = Duration(25),
    auto_offset_reset: Annotated[
        ResetChoice,
        typer.Option("--auto-offset-reset", help="Where a consumer group without committed offsets starts."),
    ] = ResetChoice.EARLIEST,
    instance: Annotated[
        str | None,
        typer.Option(
            "--instance",
            metavar="NAME",
            help="Instance name of this worker. A restart under the same name keeps its partitions.",
        ),
    ] = None,
    app_dir: Annotated[
        Path,
        typer.Option("--app-dir", exists=True, file_okay=False, help="Directory that is searched first for modules."),
    ] = Path(),
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    log_level: Annotated[
        str,
        typer.Option(
            "--log-level",
            metavar="debug|info|warning|error",
            help="Minimum level of the log on standard error.",
            parser=lambda text: log_level_of(text),
        ),
    ] = "info",
) -> None:
    """Run a function over the records of a topic until Ctrl-C or SIGTERM, sharing them with the other workers of the
    group.

    Each record is processed at least once: the group's progress passes it only after the function has returned, or the
    record is in the dead-letter topic. After a signal no record above the highest finished one is started. The command
    ends with code 0 when the running handlers have finished, or with code 5 if they did not finish in time. A second
    signal ends it immediately.

    On a queue topic the cluster hands out the messages and counts the attempts. The topic, not the worker, has the
    settings of order and retries, so that --ordering, --retries, --retry-backoff and --auto-offset-reset are refused.
    """
    from raftmq.client.worker.worker import Worker

    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    function = load_handler(handler, app_dir)
    worker = Worker(
        topic,
        group,
        function,
        concurrency=concurrency,
        ordering=ordering.value,
        executor="process"
        if executor is ExecutorChoice.PROCESS
        else None,  # an async function always runs on the event loop
        retries=retries if retries >= 0 else None,
        retry_backoff_ms=retry_backoff * MILLISECONDS_PER_SECOND,
        retry_backoff_max_ms=retry_backoff_max * MILLISECONDS_PER_SECOND,
        dead_letter_topic=dead_letter_topic,
        create_dead_letter_topic=create_dead_letter_topic,
        handler_timeout_ms=handler_timeout * MILLISECONDS_PER_SECOND if handler_timeout is not None else None,
        drain_timeout_ms=drain_timeout * MILLISECONDS_PER_SECOND,
        lease_ms=milliseconds(lease),
        prefetch=prefetch,
        auto_offset_reset=auto_offset_reset.value,
        group_instance_id=instance,
        bootstrap_servers=bootstrap_servers,
        request_timeout_ms=timeout * MILLISECONDS_PER_SECOND,
    )
    worker.run()


def log_level_of(text: str) -> str:
    """Parse a level of the log. Raises `typer.BadParameter`."""
    if text.lower() not in ("debug", "info", "warning", "error"):
        raise typer.BadParameter(f"{text!r} is not one of debug, info, warning, error")
    return text.lower()


def load_handler(name: str, app_dir: Path) -> Callable[..., object]:
    """Import ``module:handler``. Raises `CommandError` with the problem, as a usage error."""
    module_name, separator, attributes = name.partition(":")
    if not separator or not module_name or not attributes or module_name.startswith("."):
        raise CommandError(f"{name!r} is not MODULE:HANDLER, such as billing.tasks:handle", ExitCode.USAGE)
    directory = str(app_dir.resolve())
    if directory not in sys.path:
        sys.path.insert(0, directory)
    try:
        found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise CommandError(
                f"there is no module {error.name!r} in {directory} or on sys.path", ExitCode.USAGE
            ) from None
        raise broken_module(module_name, error) from error
    except (Exception, SystemExit) as error:  # the user's module may raise anything
        raise broken_module(module_name, error) from error
    for attribute in attributes.split("."):
        if not hasattr(found, attribute):
            raise CommandError(f"module {module_name!r} has no {attributes!r}", ExitCode.USAGE)
        found = getattr(found, attribute)
    if not callable(found):
        raise CommandError(f"{name} is not a function but of type {type(found).__name__}", ExitCode.USAGE)
    return found


def broken_module(module_name: str, error: BaseException) -> CommandError:
    """Describe briefly why an existing module cannot be imported, and where it failed."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    own = [frame for frame in frames if frame.filename != __file__]
    where = f" ({os.path.relpath(own[-1].filename)}, line {own[-1].lineno})" if own else ""
    return CommandError(
        f"module {module_name!r} cannot be imported: {type(error).__name__}: {error}{where}", ExitCode.USAGE
    )
