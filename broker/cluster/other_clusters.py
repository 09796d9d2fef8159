"""Remember addresses of this cluster at which another cluster answers: it was formed twice, or an address was reused.

Clients that start at such an address would see the other cluster. So it is logged, counted, and shown as a warning of `/readyz`.
This module must not decide anything: connections between clusters are refused elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog
from raftmq.broker.base.log_throttle import LogThrottle

log = structlog.get_logger(__name__)

ADDRESSES_MAX: Final = 16
"""Addresses that are remembered. Other processes choose them, so they must not fill the memory."""
FORGOTTEN_SECONDS: Final = 60.0
"""Time after which an address is forgotten. Connections are retried about once a second."""
_TEXT_CHARACTERS_MAX: Final = 200


class OtherClusters:
    """The addresses at which another cluster was met in the last minute."""

    def __init__(self, now: Callable[[], float]) -> None:
        """Take `now`, which returns loop time."""
        self._now = now
        self._met: dict[str, tuple[float, str]] = {}
        """By address: the last time, and the answer."""
        self._throttle = LogThrottle()

    def record(self, address: str, said: str) -> None:
        """Record that another cluster was met at this address, or claims to be there."""
        address, said = address[:_TEXT_CHARACTERS_MAX], said[:_TEXT_CHARACTERS_MAX]
        if address not in self._met and len(self.addresses()) >= ADDRESSES_MAX:
            return
        self._met[address] = (self._now(), said)
        if self._throttle.is_due(address):
            log.error("other_cluster_met", address=address, reason=said)

    def addresses(self) -> dict[str, str]:
        """Return every address at which another cluster was met in the last minute, with its answer."""
        since = self._now() - FORGOTTEN_SECONDS
        self._met = {address: met for address, met in self._met.items() if met[0] >= since}
        return {address: said for address, (_, said) in self._met.items()}
