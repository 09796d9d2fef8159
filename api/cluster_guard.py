"""A process that survives a crashed test. It kills the brokers of a `LocalCluster` and removes its files when their owner has ended.

It runs as ``python cluster_guard.py DIRECTORY`` with a pipe as standard input. The owner writes ``+PID`` and ``-PID`` lines as brokers start
and end. When it writes ``end``, or the pipe closes, for whatever reason, every broker still listed is killed and DIRECTORY is removed.

Rejected: PR_SET_PDEATHSIG exists on Linux only, fires when the *thread* that forked ends, and needs code between fork and exec, which is
not safe in a process with gRPC threads. atexit does not run after SIGKILL.

Imports nothing of RaftMQ, so that it starts in milliseconds.
"""

import os
import shutil
import signal
import sys


def guard(directory: str) -> None:
    """Follow the list of brokers until the owner ends the list or closes the pipe, then clean up."""
    brokers: set[int] = set()
    for line in sys.stdin:
        if line == "end\n":
            break
        pid = int(line[1:])
        if line.startswith("+"):
            brokers.add(pid)
        else:
            brokers.discard(pid)
    for pid in brokers:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    if directory:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    guard(sys.argv[1])
