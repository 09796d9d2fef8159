"""Keeps replica files from reaching the end of their maps.

A map is address space, so a large one costs nothing, but a full one refuses every write of its replica. It is grown, not
shrunk, and not remembered: a file that is found nearly full when it is opened is grown again before its first write.
"""

from __future__ import annotations

from collections.abc import Iterable

import structlog
from raftmq.storage.errors import ReplicaStorageError
from raftmq.storage.lmdb_log_store import LmdbLogStore
from raftmq.storage.log_store import ReplicaKey

log = structlog.get_logger(__name__)

NEARLY_FULL_FRACTION = 0.7
"""Of a map; above it the map is grown."""
GROWTH_FACTOR = 2
"""How many times as large it becomes: rarely enough, since growing waits for readers and cuts row streams."""


def map_fractions(store: LmdbLogStore, keys: Iterable[ReplicaKey]) -> dict[ReplicaKey, float]:
    """How much of each open file's map is used. Waits while a file is being replaced: not for the loop."""
    fractions: dict[ReplicaKey, float] = {}
    for key in keys:
        try:
            fractions[key] = store.map_fraction(key)
        except ReplicaStorageError:  # it went meanwhile, or cannot be read: that keeps no other from growing
            continue
    return fractions


def grow_map_if_nearly_full(store: LmdbLogStore, key: ReplicaKey) -> bool:
    """Grow the map of an open file that needs it; True when done. Runs on the replica's writer thread."""
    fraction = store.map_fraction(key)
    if fraction <= NEARLY_FULL_FRACTION:
        return False
    map_bytes = store.map_bytes(key) * GROWTH_FACTOR
    log.warning(
        "map_nearly_full",
        group_id=key.group_id,
        replica_id=key.replica_id,
        used_fraction=round(fraction, 3),
        new_map_bytes=map_bytes,
    )
    store.grow_map(key, map_bytes)
    return True
