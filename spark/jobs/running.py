"""Provide the parts that all jobs share: the session, stopping, reports of progress and exit codes.

A job reports in lines of JSON on standard output, one for each batch and one at its end. It ends cleanly on SIGTERM and SIGINT: the
query is stopped, or Spark's jobs are cancelled, and the next run finds the written data. Must not know the work of any job.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Final

from raftmq import errors
from raftmq.client.base.settings import LOG_KIND
from raftmq.errors import Outcome, RaftMQError, TopicKindMismatchError, UnknownTopicError, UsageError
from raftmq.spark import errors as spark_errors
from raftmq.spark.errors import InvalidOptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery
    from raftmq.client.admin.descriptions import TopicDescription

EXIT_OK: Final = 0
EXIT_DEFECT: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNAVAILABLE: Final = 3
EXIT_REJECTED: Final = 4
EXIT_UNKNOWN_OUTCOME: Final = 5
EXIT_VIOLATION: Final = 6
"""Bad data. This code and those above equal the ``raftmq`` command's."""
EXIT_STOPPED: Final = 130
"""The code that a shell reports for a program ended by Ctrl-C. Finished work is kept."""
POLL_SECONDS: Final = 1
SLOW_START: Final = "Python worker failed to connect back"
"""Spark's error when the Python process of a streaming source takes longer than ten seconds to start.

The limit cannot be changed, and it is too short on a busy machine.
"""
STARTS_MAX: Final = 10
MESSAGE_CHARACTERS_MAX: Final = 1000
_PYTHON_ERROR: Final = re.compile(r"^((?:raftmq|builtins)?[\w.]*(?:Error|Exception)): (.+)$", re.MULTILINE)
"""The last line of a Python traceback, which Spark puts inside its own message."""
_JAVA_ERROR: Final = re.compile(r"^: ([\w.]+: .+)$", re.MULTILINE)
"""The error in the JVM, which follows a line that names its place."""
NO_JAVA: Final = "JAVA_GATEWAY_EXITED"


class Stop:
    """Hold the request to end the job."""

    def __init__(self) -> None:
        # A plain variable: a second signal may interrupt the handler of the first while it holds the lock of an event.
        self._is_asked = False

    def ask(self) -> None:
        """Ask the job to end at the next opportunity."""
        self._is_asked = True

    @property
    def is_asked(self) -> bool:
        """Return whether the job was asked to end."""
        return self._is_asked

    def listen(self) -> None:
        """Let SIGTERM and SIGINT ask the job to end.

        Call it after the session was created, because Spark installs a handler of its own, which cancels all running jobs.
        """

        def on_signal(number: int, frame: FrameType | None) -> None:
            self.ask()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, on_signal)

    @contextmanager
    def cancels(self, spark: SparkSession) -> Iterator[None]:
        """Cancel Spark's running jobs when the job is asked to end. The action fails with an error that `is_cancelled` knows."""
        is_over = threading.Event()

        def cancel() -> None:
            # repeatedly, because between two jobs of one action there is nothing to cancel
            while not is_over.wait(POLL_SECONDS):
                if self.is_asked:
                    spark.sparkContext.cancelAllJobs()

        threading.Thread(target=cancel, daemon=True, name="cancels-jobs").start()
        try:
            yield
        finally:
            is_over.set()

    def is_cancelled(self, error: Exception) -> bool:
        """Return whether the error comes from a Spark job that was cancelled on request."""
        return self.is_asked and "cancelled" in str(error)


def say(event: str, **data: object) -> None:
    """Print one line of progress."""
    sys.stdout.write(json.dumps({"event": event, **data}, default=str) + "\n")
    sys.stdout.flush()


def explain(error: Exception) -> tuple[int, str]:
    """Return the exit code of a job that ended with the error, and a sentence for a person."""
    if isinstance(error, RaftMQError):
        if error.outcome is Outcome.UNKNOWN:
            code = EXIT_UNKNOWN_OUTCOME
        elif error.retriable:
            code = EXIT_UNAVAILABLE
        else:
            code = EXIT_USAGE if isinstance(error, UsageError) else EXIT_REJECTED
        return code, f"{type(error).__name__}: {error}"
    text = str(error)
    if found := _PYTHON_ERROR.findall(text):
        code = EXIT_USAGE if _is_usage(found[-1][0]) else EXIT_DEFECT
        return code, ": ".join(found[-1])[:MESSAGE_CHARACTERS_MAX]
    java = _JAVA_ERROR.search(text)
    sentence = java[1] if java is not None else f"{type(error).__name__}: {text.strip().partition(chr(10))[0]}"
    if NO_JAVA in text:
        sentence += " Spark needs Java 17 or 21: install one of them, or set JAVA_HOME to its folder"
    return EXIT_DEFECT, sentence[:MESSAGE_CHARACTERS_MAX]


def _is_usage(name: str) -> bool:
    """Return whether an error that Spark only names is a mistake of the user."""
    module = {"raftmq.errors": errors, "raftmq.spark.errors": spark_errors}
    path, _, class_name = name.rpartition(".")
    kind = getattr(module.get(path), class_name, None)
    return isinstance(kind, type) and issubclass(kind, UsageError)


def names_of(text: str) -> tuple[str, ...]:
    """Return the names in a comma-separated text. Raises `InvalidOptionError` when there are none."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise InvalidOptionError("--topics names no topic")
    return names


def check_topics(servers: str, topics: Sequence[str]) -> None:
    """Check that the topics exist. A job on a missing topic would silently wait for it, or do nothing.

    Raises:
        InvalidOptionError: a topic does not exist.
        TopicKindMismatchError: a topic is no log.
        BootstrapError: no broker answered.
    """
    from raftmq.sync import Admin

    with Admin(bootstrap_servers=servers) as admin:
        for topic in topics:
            try:
                require_log(admin.describe_topic(topic))
            except UnknownTopicError:
                raise InvalidOptionError(
                    f"{servers} has no topic {topic!r} (raftmq topic list shows the topics)"
                ) from None


def require_log(topic: TopicDescription) -> None:
    """Raise `TopicKindMismatchError` unless the topic is a log."""
    if topic.kind != LOG_KIND:
        raise TopicKindMismatchError(f"{topic.name!r} is a topic of kind {topic.kind!r}, and jobs are for log topics")


def open_session(name: str, master: str | None, settings: Mapping[str, str]) -> SparkSession:
    """Return the session that ``spark-submit`` prepared, or a new one, which runs on ``local[*]`` by default."""
    from pyspark.conf import SparkConf
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    if master is not None or not SparkConf().contains("spark.master"):
        builder = builder.master(master or "local[*]")
        # Otherwise Spark looks for the format in the first "python3" on the path. Not PYSPARK_DRIVER_PYTHON: it would override
        # the Python that the user set for the executors, because Spark runs the format with it there, too.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    for key, value in settings.items():
        builder = builder.config(key, value)
    # progress bars would mix with the lines of progress
    return builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()


def follow(
    start: Callable[[], StreamingQuery], stop: Stop, describe: Callable[[StreamingQueryProgress], dict[str, object]]
) -> int:
    """Start a query and report each batch until it ends or is asked to.

    Returns an exit code. Raises the error that ended a failed query. A query whose Python process was too slow to start is restarted.
    """
    reported, starts = -1, 1
    query = start()
    try:
        while True:
            try:
                has_ended = query.awaitTermination(POLL_SECONDS)
            except Exception as error:
                if SLOW_START not in str(error) or starts == STARTS_MAX or stop.is_asked:
                    raise
                starts += 1
                say("started_again", reason=SLOW_START)
                query = start()
                continue
            for progress in query.recentProgress:
                batch = int(progress["batchId"])
                if batch > reported and progress["numInputRows"]:
                    reported = batch
                    say("batch", batch=batch, records=progress["numInputRows"], **describe(progress))
            if has_ended:
                return EXIT_OK
            if stop.is_asked:
                return EXIT_STOPPED
    finally:
        query.stop()


def describe_source(progress: StreamingQueryProgress) -> dict[str, object]:
    """Return the query's speed and its end offsets in the source."""
    # `progress["sources"]` has the offsets as JSON only since PySpark 4.2, and as a dictionary's repr before
    found = json.loads(progress.json)
    return {
        "records_per_second": found["processedRowsPerSecond"],
        "offsets": [source["endOffset"] for source in found["sources"] if source["endOffset"]],
    }
