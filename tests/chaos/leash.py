"""Hold a resource of the machine (a name space, a mount) in a child process that releases it when its owner has ended in any way.

The child waits for the end of its standard input, which `close`, Ctrl-C and SIGKILL of the owner all cause. Then it runs a shell command and
ends.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

READY_SECONDS = 10.0


class LeashError(RuntimeError):
    """Raised when the resource could not be created. The message says why."""


class Leash:
    """A resource that is held until `close` or the end of this process.

    Args:
        prefix: A command that runs the shell with the resource (``unshare --net``).
        release: Shell command that releases the resource.
    """

    def __init__(self, prefix: Sequence[str] = (), release: str = "") -> None:
        script = f"echo held; cat >/dev/null; {release or ':'}"
        self._process = subprocess.Popen(
            [*prefix, "sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C must reach only the owner: its end releases the resource
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"held\n":
            _, problem = self._process.communicate(timeout=READY_SECONDS)
            raise LeashError(problem.decode(errors="replace").strip() or f"{prefix} did nothing")

    @property
    def pid(self) -> int:
        """The id of the holding process."""
        return self._process.pid

    def close(self) -> None:
        """Release the resource and wait until that is done. Safe to call again."""
        process = self._process
        if process.stdin is not None and not process.stdin.closed:
            process.communicate(timeout=READY_SECONDS)
