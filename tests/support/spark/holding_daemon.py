"""Spark's daemon of Python workers (`spark.python.daemon.module`), but workers stop in the middle of writing a task, until they are killed.

HOLD_FOLDER is where they say so: the first HOLDS workers that sent REQUESTS requests each leave their pid there, in files 0, 1, …
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
"""That many were sent, and all but the last certainly answered, if they went to one partition."""


def may_hold(folder: Path, holds: int) -> bool:
    with tempfile.NamedTemporaryFile("w", dir=folder, prefix=".") as named:
        named.write(str(os.getpid()))
        named.flush()
        for number in range(holds):
            try:
                os.link(named.name, folder / str(number))  # whole, and only if nobody else has it
            except FileExistsError:
                continue
            return True
    return False


def holding(send: Callable[..., None], folder: Path, holds: int) -> Callable[..., None]:
    sent = count(1)  # by this process

    def send_and_hold(*arguments: Any) -> None:
        send(*arguments)
        if next(sent) == REQUESTS and may_hold(folder, holds):
            while True:
                signal.pause()

    return send_and_hold


def main() -> None:
    from pyspark import daemon
    from raftmq.spark.partition_writer import PartitionWriter

    send = holding(PartitionWriter._send, Path(os.environ[FOLDER]), int(os.environ[HOLDS]))
    PartitionWriter._send = send  # type: ignore[method-assign]
    daemon.manager()


if __name__ == "__main__":
    main()
