"""Run Spark's daemon of Python workers (`spark.python.daemon.module`) with workers that stop in the middle of a task until they are killed.

The first HOLDS workers that have sent REQUESTS requests stop, and leave their pids in the files 0, 1, … of HOLD_FOLDER.
"""

import os
import signal
import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

FOLDER = "HOLD_FOLDER"
HOLDS = "HOLDS"
REQUESTS = 3
"""Requests before a worker stops. If they went to one partition, all but the last were certainly answered."""


def may_hold(folder: Path, holds: int) -> bool:
    with tempfile.NamedTemporaryFile("w", dir=folder, prefix=".") as named:
        named.write(str(os.getpid()))
        named.flush()
        for number in range(holds):
            try:
                os.link(named.name, folder / str(number))  # atomic: it fails if another worker has the number
            except FileExistsError:
                continue
            return True
    return False


def holding(send: Callable[..., None], folder: Path, holds: int) -> Callable[..., None]:
    sent = count(1)  # counts the requests of this process

    def send_and_hold(*arguments: Any) -> None:
        send(*arguments)
        if next(sent) == REQUESTS and may_hold(folder, holds):
            while True:
                signal.pause()

    return send_and_hold


def main() -> None:
    from pyspark import daemon
    from raftmq.spark.sink.rows.partition_writer import PartitionWriter

    send = holding(PartitionWriter._send, Path(os.environ[FOLDER]), int(os.environ[HOLDS]))
    PartitionWriter._send = send  # type: ignore[method-assign]
    daemon.manager()


if __name__ == "__main__":
    main()
