"""What is measured side by side: a system is a running cluster with one client library.

Must not measure. A peer that is not installed says what to set or install, and downloads nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass

from bench.workloads import Client


class UnavailableError(Exception):
    """A peer cannot run here; the text says what to set or install."""


@dataclass(frozen=True, slots=True)
class System:
    """A cluster that runs, and how to connect to it with one client library."""

    name: str
    version: str
    """Of the brokers and of the client."""
    connect: Callable[[], Client]
    """A fresh client for a round, used as `async with`."""
    workloads: frozenset[str]
    """What this client library is measured with."""
    share: float = 1.0
    """The part of the bulk workloads' records that a round has: less where the full count would take minutes."""
