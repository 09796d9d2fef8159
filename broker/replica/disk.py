"""Define the state of the disk for one replica: idle, writing, or installing a snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SPACE_RETRY_SECONDS = 1.0
"""The pause before a write that found no disk space is submitted again."""


@dataclass(frozen=True, slots=True)
class Idle:
    """No write of the replica is in flight: the next one may begin."""


@dataclass(frozen=True, slots=True)
class Writing:
    """One write is in flight. Proposals and appends gather for the next one."""

    started_at: float
    """Loop time at which the write was handed to its writer thread."""


@dataclass(frozen=True, slots=True)
class Installing:
    """A snapshot is replacing the replica's file. Nothing else of the replica moves until it is durable."""

    started_at: float
    """Loop time at which the installation began, or began again after the disk was full."""


DiskState = Idle | Writing | Installing
IDLE: Final = Idle()
