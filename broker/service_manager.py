"""Tell systemd when the broker is ready, when it stops, and that its event loop runs.

Sources: sd_notify(3), sd_watchdog_enabled(3). A message is one datagram of `KEY=VALUE` lines. Nothing is sent by a broker that was not started
by a unit of `Type=notify`.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from typing import Final

import structlog

log = structlog.get_logger(__name__)

_PINGS_PER_TIMEOUT: Final = 3
"""One ping may be late, and another one lost, before systemd takes the loop for stuck."""


class ServiceManager:
    """The systemd that started this process, or nobody."""

    def __init__(self, environment: Mapping[str, str], process_id: int) -> None:
        """Take the environment, which names the socket and the watchdog's timeout, and the id of this process, which it must be meant for."""
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.ping_seconds = _watchdog_seconds(environment, process_id) / _PINGS_PER_TIMEOUT if address else 0.0
        """Interval of the pings. 0: nobody waits for any."""
        self._pings: asyncio.TimerHandle | None = None

    def ready(self, status: str) -> None:
        """Report that the start is complete, with a line for `systemctl status`. From now on the running loop is reported, too."""
        self._send(f"READY=1\nSTATUS={status}")
        if self.ping_seconds:
            self._ping(asyncio.get_running_loop())

    def stopping(self) -> None:
        """Report that the broker is stopping. The pings continue, because a stop may take longer than the watchdog's timeout."""
        self._send("STOPPING=1\nSTATUS=handing over leaderships and stopping")

    def close(self) -> None:
        """End the pings."""
        if self._pings is not None:
            self._pings.cancel()

    def _ping(self, loop: asyncio.AbstractEventLoop) -> None:
        self._send("WATCHDOG=1")
        self._pings = loop.call_later(self.ping_seconds, self._ping, loop)

    def _send(self, message: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto(message.encode(), self._address)
        except OSError as error:  # the broker is of more use than the report
            log.warning("service_manager_not_told", message=message, reason=str(error))


def _watchdog_seconds(environment: Mapping[str, str], process_id: int) -> float:
    """Return the watchdog's timeout. 0: there is none, or it is that of another process."""
    if environment.get("WATCHDOG_PID", str(process_id)) != str(process_id):
        return 0.0
    microseconds = environment.get("WATCHDOG_USEC", "")
    return int(microseconds) / 1e6 if microseconds.isdecimal() else 0.0
