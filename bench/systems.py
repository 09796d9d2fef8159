"""Define a system, which is a running cluster with one client library.

Must not measure. A missing peer raises an error that says how to provide it. It downloads nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass

from bench.workloads import Client


class UnavailableError(Exception):
    """Raised when a peer cannot run here. The text says how to provide it."""


@dataclass(frozen=True, slots=True)
class System:
    """Describe a running cluster and the connection to it with one client library."""

    name: str
    version: str
    """Versions of the brokers and of the client."""
    connect: Callable[[], Client]
    """Creates a client for a round, used with `async with`."""
    workloads: frozenset[str]
    """Names of the workloads that measure this client library."""
    share: float = 1.0
    """Share of the bulk workloads' records in a round, below 1 where the full count would take minutes."""
