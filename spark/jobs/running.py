"""What all jobs share: a session, being stopped, and saying how far they are.

A job says what it does in lines of JSON on standard output, one for each batch and one at its end. It ends cleanly on SIGTERM and
SIGINT: the query is stopped, and what its batch had written is found again by the next run. Must not know what a job does.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

EXIT_OK: Final = 0
EXIT_VIOLATION: Final = 1
EXIT_STOPPED: Final = 130
"""As a shell says of a program that Ctrl-C ended; what was done is kept."""
POLL_SECONDS: Final = 1


class Stop:
    """Whether somebody asked the job to end."""

    def __init__(self) -> None:
        self._asked = threading.Event()

    def ask(self) -> None:
        """End at the next opportunity."""
        self._asked.set()

    @property
    def is_asked(self) -> bool:
        """Whether to end."""
        return self._asked.is_set()

    def listen(self) -> None:
        """Let SIGTERM and SIGINT ask. After the session is there: Spark installs a handler of its own, which cancels all that runs."""

        def on_signal(number: int, frame: FrameType | None) -> None:
            self.ask()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, on_signal)


def say(event: str, **data: object) -> None:
    """One line of progress."""
    sys.stdout.write(json.dumps({"event": event, **data}, default=str) + "\n")
    sys.stdout.flush()


def open_session(name: str, master: str | None, settings: Mapping[str, str]) -> SparkSession:
    """The session that ``spark-submit`` prepared, or a new one; its cluster is ``local[*]`` unless somebody says otherwise."""
    from pyspark.conf import SparkConf
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    if master is not None or not SparkConf().contains("spark.master"):
        builder = builder.master(master or "local[*]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    # progress bars would be between the lines of progress
    return builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()


def follow(query: StreamingQuery, stop: Stop, describe: Callable[[StreamingQueryProgress], dict[str, object]]) -> int:
    """Report each batch until the query ends or is asked to.

    Returns an exit code. Raises what ended the query, if it failed.
    """
    reported = -1
    try:
        while True:
            has_ended = query.awaitTermination(POLL_SECONDS)
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
    """How fast, and up to where in the source."""
    # `progress["sources"]` has the offsets as JSON only since PySpark 4.2, before that as a dictionary's repr
    found = json.loads(progress.json)
    return {
        "records_per_second": found["processedRowsPerSecond"],
        "offsets": [source["endOffset"] for source in found["sources"] if source["endOffset"]],
    }
