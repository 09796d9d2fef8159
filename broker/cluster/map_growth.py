"""Prevent replica files from filling their maps.

A map is address space, so a large one costs nothing, but a full one refuses every write of its replica. Maps only grow, and their
size is not stored: if a file is nearly full when it is opened, its map grows again before the first write.
"""

from __future__ import annotations

from collections.abc import Iterable

import structlog
from raftmq.storage.errors import ReplicaStorageError
from raftmq.storage.lmdb_log_store import LmdbLogStore
from raftmq.storage.log_store import ReplicaKey
from raftmq.storage.state_store import FilePart

log = structlog.get_logger(__name__)

NEARLY_FULL_FRACTION = 0.7
"""The used part of a map above which the map is grown."""
GROWTH_FACTOR = 2
"""A large factor keeps growth rare, because growing waits for readers and interrupts row streams."""


def map_fractions(store: LmdbLogStore, keys: Iterable[ReplicaKey]) -> dict[tuple[ReplicaKey, FilePart], float]:
    """Return the used part of each open file's map. It waits while a file is being replaced, so do not call it on the event loop."""
    fractions: dict[tuple[ReplicaKey, FilePart], float] = {}
    for key in keys:
        try:
            fractions.update({(key, part): store.map_fraction(key, part) for part in store.parts(key)})
        except ReplicaStorageError:  # the file was closed or cannot be read, which must not keep others from growing
            continue
    return fractions


def grow_map_if_nearly_full(store: LmdbLogStore, key: ReplicaKey, part: FilePart = FilePart.LOG) -> bool:
    """Grow the map of an open file if it is nearly full. Return whether it was grown. Runs on the writer of the file if that is the log's.

    Raises:
        StorageUnavailableError: There is no address space for a larger map. Writes are possible until the present one is full.
    """
    fraction = store.map_fraction(key, part)
    if fraction <= NEARLY_FULL_FRACTION:
        return False
    map_bytes = store.map_bytes(key, part) * GROWTH_FACTOR
    log.warning(
        "map_nearly_full",
        group_id=key.group_id,
        replica_id=key.replica_id,
        used_fraction=round(fraction, 3),
        new_map_bytes=map_bytes,
    )
    store.grow_map(key, map_bytes, part)
    return True
