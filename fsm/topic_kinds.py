"""Name the kinds of topics, each with the feature level that introduced it.

A partition of each kind has a state machine of its own. `raftmq.broker.partitions.kinds` has the kinds that this version
can serve, which are the kinds that it offers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

LOG: Final = "log"
QUEUE: Final = "queue"

TOPIC_KINDS: Final[Mapping[str, int]] = {LOG: 1, QUEUE: 2}
"""Kinds and their feature levels. A topic of any other kind was created by a newer version."""
