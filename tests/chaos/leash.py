"""A process that holds something of the machine (a name space, a mount) and gives it back when its owner is gone, however that went.

It waits for the end of its standard input, which comes with `close`, with Ctrl-C and with SIGKILL of the owner alike, then runs a shell
command. Must not outlive that command.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

READY_SECONDS = 10.0


class LeashError(RuntimeError):
    """What should have been held could not be made; the message says why."""


class Leash:
    """Holds until closed.

    Args:
        prefix: A command that runs the shell in another place (``unshare --net``).
        release: What the shell runs when the owner is gone.
    """

    def __init__(self, prefix: Sequence[str] = (), release: str = "") -> None:
        script = f"echo held; cat >/dev/null; {release or ':'}"
        self._process = subprocess.Popen(
            [*prefix, "sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C goes to the owner, whose end is what counts
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"held\n":
            _, problem = self._process.communicate(timeout=READY_SECONDS)
            raise LeashError(problem.decode(errors="replace").strip() or f"{prefix} did nothing")

    @property
    def pid(self) -> int:
        """Of the process that holds."""
        return self._process.pid

    def close(self) -> None:
        """Release and wait until it is done. Safe to call again."""
        process = self._process
        if process.stdin is not None and not process.stdin.closed:
            process.communicate(timeout=READY_SECONDS)
